"""Launches of Triton kernels on a device that runs them later."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction, TensorHandle, interpreter_builder
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from mrv2.checks.findings import Verdict
from mrv2.checks.hooks import triton_launch, triton_tap
from mrv2.checks.triton_cpu.errors import Unsupported
from mrv2.checks.triton_cpu.fallback import InterpretedKernel
from mrv2.refrunner.kernels.draw import combine_blocks, sample_blocks

TWO = tl.constexpr(2)


@triton.jit
def double(value):
    return value * TWO


@triton.jit
def double_all(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, double(tl.load(x_ptr + lane, mask=lane < n)), mask=lane < n)


@triton.jit
def integer_mask(x_ptr, out_ptr, mask_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane, mask=tl.load(mask_ptr + lane), other=0.0))


@triton.jit
def column(x_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane * stride))


@triton.jit
def library(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane, mask=lane < n, other=float("-inf"))
    tl.store(out_ptr, tl.max(x, 0))
    tl.store(out_ptr + 1, tl.sum(tl.softmax(x), 0))
    tl.store(out_ptr + 2, tl.cdiv(n, 2) + tl.sum(tl.zeros([4], tl.float32), 0))
    tl.store(out_ptr + 3, tl.sum(tl.cumsum(tl.where(lane < n, x, 0.0), 0), 0))


@triton.jit
def loops(x_ptr, out_ptr, n):
    total = 0.0
    for index in range(n):
        total += tl.load(x_ptr + index)
    index = 0
    while index < n:
        total += tl.load(x_ptr + index)
        index += 1
    tl.store(out_ptr, total)


@triton.jit
def add_tuple(pair, out_ptr, scale: tl.constexpr = 3):
    tl.store(out_ptr, (tl.load(pair[0]) + tl.load(pair[1])) * scale)


@triton.jit
def follow(table_ptr, out_ptr):
    x_ptr = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr))


@triton.jit
def through_descriptor(source, out_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.reshape(source.load([0, 0]), [BLOCK]))


@triton.jit
def fails(x_ptr):
    tl.store(x_ptr, 7.0)
    tl.store(x_ptr + tl.arange(0, 3), 8.0)  # three is no power of two


@triton.jit
def spins(flag_ptr):
    while tl.load(flag_ptr, volatile=True) == 0:
        pass


@triton.jit
def turns(out_ptr):
    value = 1
    while value > 0:
        value = value ^ tl.load(out_ptr)
    tl.store(out_ptr, value)


@triton.jit
def largest(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr, tl.argmax(tl.load(x_ptr + tl.arange(0, BLOCK)), 0))


@triton.jit
def stray(x_ptr, out_ptr, shift, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane + shift))


@triton.jit
def stray_store(out_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, lane.to(tl.float32))
    tl.atomic_add(out_ptr + lane, 1.0)
    no, five = tl.zeros([BLOCK], tl.int32), tl.full([BLOCK], 5, tl.int32)
    tl.atomic_cas(out_ptr.to(tl.pointer_type(tl.int32)) + lane, no, five)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 4}, num_warps=2, pre_hook=lambda values: HOOKED.append(values["n"])),
        triton.Config({"BLOCK": 8}),
    ],
    key=["n"],
)
@triton.heuristics({"EVEN": lambda values: values["n"] % 2 == 0})
@triton.jit
def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane, mask=lane < n) + EVEN, mask=lane < n)


HOOKED = []


@pytest.fixture(params=["compiled", "interpreted"])
def gpu(device, request):
    """A device that Triton launches on, in both ways; where the interpreter is set there is only one."""
    undo = triton_launch.install(device, compiled=request.param == "compiled")
    yield device
    undo()


@pytest.fixture
def interpreting(device):
    """A device that interprets all kernels."""
    undo = triton_launch.install(device, compiled=False)
    yield device
    undo()


@pytest.fixture
def compiling(device):
    """A device that compiles all kernels."""
    undo = triton_launch.install(device)
    yield device
    undo()


def values(tensor):
    return torch.Tensor._make_subclass(torch.Tensor, tensor).tolist()


class TestLaunch:
    def test_runs_later(self, gpu):
        x, out = gpu.device([1.0, 2.0, 3.0]), gpu.device([0.0] * 3)
        double_all[lambda given: (triton.cdiv(given["n"], given["BLOCK"]),)](x, out, 3, BLOCK=2, num_warps=8)
        assert values(out) == [0.0, 0.0, 0.0]
        gpu.run()
        assert values(out) == [2.0, 4.0, 6.0]
        assert gpu.titles == []

    def test_tells_exact_bytes_of_unmasked_lanes(self, gpu):
        x, out = gpu.device([1.0] * 8), gpu.device([0.0] * 8)
        double_all[(2,)](x, out, 7, BLOCK=4)
        assert gpu.ranges(x, write=False) == []
        gpu.run()
        assert gpu.ranges(x, write=False) == [(0, 7)]
        assert gpu.ranges(out, write=True) == [(0, 7)]
        assert gpu.ranges(out, write=False) == gpu.ranges(x, write=True) == []

    def test_gaps_are_not_accessed(self, gpu):
        x, out = gpu.device([1.0] * 9), gpu.device([0.0] * 4)
        column[(1,)](x, out, 2, BLOCK=4)
        gpu.run()
        assert gpu.ranges(x, write=False) == [(0, 1), (2, 3), (4, 5), (6, 7)]

    def test_integer_mask(self, interpreting):
        gpu = interpreting
        x, out = gpu.device([1.0] * 4), gpu.device([0.0] * 4)
        mask = gpu.device([0, 1, 0, 2], torch.int32)
        integer_mask[(1,)](x, out, mask, BLOCK=4)
        gpu.run()
        assert gpu.titles == []
        assert values(out) == [0.0, 1.0, 0.0, 1.0]
        assert gpu.ranges(x, write=False) == [(1, 2), (3, 4)]

    def test_library_functions(self, gpu):
        x, out = gpu.device([1.0, 2.0, 3.0]), gpu.device([0.0] * 4)
        library[(1,)](x, out, 3, BLOCK=4)
        gpu.run()
        assert gpu.titles == []
        assert values(out) == pytest.approx([3.0, 1.0, 2.0, 16.0])

    def test_loops_over_loaded_bounds(self, gpu):
        x, out = gpu.device([1.0, 2.0, 3.0]), gpu.device([0.0])
        loops[(1,)](x, out, 3)
        gpu.run()
        assert values(out) == [12.0]

    def test_tuples_and_defaults(self, gpu):
        x, y, out = gpu.device([1.0]), gpu.device([2.0]), gpu.device([0.0])
        add_tuple[(1,)]((x, y), out)
        add_tuple[(1,)]((x, y), out, scale=4)
        gpu.run()
        assert values(out) == [12.0]
        assert gpu.ranges(y, write=False) == [(0, 1), (0, 1)]

    def test_pointer_table(self, gpu):
        x, y, out = gpu.device([1.0]), gpu.device([2.0]), gpu.device([0.0, 0.0])
        table = gpu.device([x.data_ptr(), y.data_ptr()], torch.int64)
        follow[(2,)](table, out)
        gpu.run()
        assert values(out) == [1.0, 2.0]
        assert gpu.ranges(y, write=False) == [(0, 1)]

    def test_tensor_descriptor(self, gpu):
        x, out = gpu.device([[1.0] * 4, [2.0] * 4]), gpu.device([0.0] * 4)
        through_descriptor[(1,)](TensorDescriptor(x, [1, 4], [4, 1], [1, 4]), out, BLOCK=4)
        gpu.run()
        assert gpu.titles == []
        assert gpu.ranges(x, write=False) == [(0, 4)]

    def test_closure_and_globals_stay_the_kernels_own(self, gpu):
        bias = tl.constexpr(5)

        @triton.jit
        def with_closure(out_ptr):
            value = tl.load(out_ptr)
            tl.store(out_ptr, value + bias)

        out = gpu.device([1.0])
        with_closure[(1,)](out)
        gpu.run()
        assert values(out) == [6.0]
        assert "interpreter_semantic" not in globals()

    def test_kernels_of_the_reference_runner(self, gpu):
        logits = gpu.device([[0.0, 3.0, 1.0, 2.0]])
        rows, positions = gpu.device([0], torch.int32), gpu.device([1], torch.int32)
        temperature, seed = gpu.device([0.0]), gpu.device([7], torch.int64)
        floats, ints = gpu.device([[[0.0]]] * 4), gpu.device([[[0]]] * 3, torch.int32)
        none, token, value = gpu.device([0], torch.int32), gpu.device([[0]] * 4, torch.int32), gpu.device([0.0])
        bounds, statistics = gpu.device([[[0.0]]]), gpu.device([[0.0]] * 2)
        common = (
            logits, 4, logits, none, rows, positions, none, 1, temperature, 1, seed, floats, ints, bounds, ints,
        )  # fmt: skip
        constants = {"PROCESSED": False, "STATISTICS": True, "GROUPS": 1, "LANES": 1, "BLOCK": 4, "GROUP": 0}
        sample_blocks[(1, 1)](*common, ints, 4, 0, 1, 1, 1, RIVALS=1, SEARCH=1, FEW=1, CHUNK=1, **constants)
        combine_blocks[(1,)](*common, token, value, statistics, 4, 0, 1, 1, 1, LOGARITHM=True, PARTS=1, **constants)
        gpu.run()
        assert values(token) == [[1], [0], [2147483647], [0]]
        assert values(value) == pytest.approx([-0.4402], abs=1e-4)
        assert gpu.titles == []

    def test_empty_grid_launches_nothing(self, gpu):
        x, out = gpu.device([1.0]), gpu.device([0.0])
        double_all[(0,)](x, out, 1, BLOCK=1)
        assert not gpu.engine.pending

    def test_warm_up_launches_nothing(self, gpu):
        double_all.warmup(torch.float32, torch.float32, 3, BLOCK=4, grid=(1,))
        assert not gpu.engine.pending

    def test_wrong_arguments_are_refused_at_the_launch(self, gpu):
        with pytest.raises(TypeError, match="out_ptr"):
            double_all[(1,)](gpu.device([1.0]), BLOCK=4, n=1)

    def test_autotuned_runs_its_first_configuration(self, gpu):
        HOOKED.clear()
        x, out = gpu.device([1.0] * 6), gpu.device([0.0] * 6)
        tuned[lambda given: (triton.cdiv(6, given["BLOCK"]),)](x, out, 6)
        gpu.run()
        assert values(out) == [2.0] * 6
        assert HOOKED == [6]

    def test_pre_run_hooks(self, gpu):
        seen = []
        hooked = type(double_all)(double_all.fn)
        hooked.add_pre_run_hook(lambda *args, **kwargs: seen.append(kwargs))
        hooked[(1,)](gpu.device([1.0]), gpu.device([0.0]), 1, BLOCK=1)
        assert seen == [{"BLOCK": 1}]


class TestArguments:
    def test_pinned_memory_is_read_in_place_and_unprotected(self, gpu):
        x, out = gpu.pinned([1.0, 2.0]), gpu.device([0.0] * 2)
        double_all[(1,)](out, out, 0, BLOCK=2)
        double_all[(1,)](x, out, 2, BLOCK=2)
        gpu.host_access([(x.data_ptr(), x.data_ptr() + 4)], write=True, name="write")
        x[0] = 5.0
        gpu.run()
        assert values(out) == [10.0, 4.0]
        assert gpu.codes == ["MRV202"]

    def test_pinned_slice(self, gpu):
        x, out = gpu.pinned([1.0, 2.0, 3.0]), gpu.device([0.0])
        double_all[(1,)](x[2:], out, 1, BLOCK=1)
        gpu.run()
        assert values(out) == [6.0]
        assert gpu.ranges(x, write=False) == [(2, 3)]

    def test_pageable_memory_is_refused(self, gpu):
        with pytest.raises(
            ValueError, match=r"Pointer argument \(at 1\) cannot be accessed from Triton \(cpu tensor\?\)"
        ):
            double_all[(1,)](gpu.device([1.0]), torch.zeros(1), 1, BLOCK=1)

    def test_empty_and_absent_pointers_are_legal(self, gpu):
        out = gpu.device([1.0])
        double_all[(1,)](torch.empty(0), out, 0, BLOCK=1)
        gpu.run()
        assert gpu.titles == []

    def test_keeps_no_tensor(self, gpu):
        x, out = gpu.device([1.0]), gpu.device([0.0])
        references = sys.getrefcount(x)
        double_all[(1,)](x, out, 1, BLOCK=1)
        assert sys.getrefcount(x) == references


class TestFaults:
    def test_a_kernel_that_does_not_compile_is_an_error_at_the_launch(self, compiling):
        with pytest.raises(triton.CompilationError, match="power of 2"):
            fails[(1,)](compiling.device([1.0]))
        assert not compiling.engine.pending

    def test_a_kernel_that_cannot_be_compiled_for_the_cpu_is_interpreted(self, compiling, monkeypatch):
        def refuse(*_args, **_options):
            raise Unsupported("tt.unheard_of")

        monkeypatch.setattr("mrv2.checks.triton_cpu.prepared.compiled", refuse)
        other = type(double_all)(double_all.fn)
        x, out = compiling.device([1.0, 2.0]), compiling.device([0.0] * 2)
        with pytest.warns(InterpretedKernel, match="tt.unheard_of"):
            other[(1,)](x, out, 2, BLOCK=2)
        other[(1,)](x, out, 2, BLOCK=2)  # said once
        compiling.run()
        assert values(out) == [2.0, 4.0]

    def test_nan_in_an_argmax_is_told(self, compiling):
        x, out = compiling.device([1.0, float("nan"), 3.0, 2.0]), compiling.device([0], torch.int32)
        for _ in range(2):
            largest[(1,)](x, out, BLOCK=4)
        compiling.run()
        assert compiling.codes == ["MRV310"]
        finding = compiling.judge.findings[0]
        assert finding.verdict is Verdict.SUSPECT
        assert finding.where[0].function == "largest"
        assert finding.evidence["NaNs"] == 1

    def test_no_nan_in_an_argmax(self, compiling):
        x, out = compiling.device([1.0, float("-inf"), 3.0, float("inf")]), compiling.device([0], torch.int32)
        largest[(1,)](x, out, BLOCK=4)
        compiling.run()
        assert compiling.codes == []
        assert values(out) == [3]

    def test_exception_is_a_fault_and_what_came_before_is_told(self, interpreting):
        gpu = interpreting
        x = gpu.device([1.0])
        fails[(1,)](x)
        gpu.run()
        assert gpu.codes == ["MRV214"]
        assert "ValueError in program (0, 0, 0)" in gpu.titles[0]
        assert f"{Path(__file__).name}:{fails.fn.__code__.co_firstlineno + 3}" in gpu.titles[0]
        assert gpu.ranges(x, write=True) == [(0, 1)]

    @pytest.mark.parametrize("kernel", [spins, turns])
    def test_endless_program_is_stopped(self, gpu, monkeypatch, kernel):
        monkeypatch.setattr(triton_tap, "FUEL", 2000)
        kernel[(1,)](gpu.device([0], torch.int32))
        gpu.run()
        assert gpu.codes == ["MRV214"]
        assert "its end" in gpu.judge.findings[0].title

    @pytest.mark.parametrize(("shift", "lanes"), [(3, 3), (-2, 2)])
    def test_stray_lanes_are_reported_and_not_executed(self, gpu, shift, lanes):
        x, out = gpu.device([1.0] * 4), gpu.device([9.0] * 4)
        stray[(1,)](x, out, shift, BLOCK=4)
        gpu.run()
        assert gpu.codes == ["MRV212"]
        finding = gpu.judge.findings[0]
        assert finding.evidence["lanes"] == lanes
        assert finding.evidence["program"] == [0, 0, 0]
        assert finding.evidence["bytes"] == ([16, 28] if shift > 0 else [-8, 0])
        assert finding.where[0].file == __file__
        assert finding.where[0].function == "stray"
        assert values(out).count(0.0) == lanes
        assert len(gpu.ranges(x, write=False)) == 1

    def test_stray_store_and_atomics(self, gpu):
        out = gpu.device([0.0] * 3)
        stray_store[(1,)](out, BLOCK=8)
        gpu.run()
        assert gpu.codes == ["MRV212"] * 3
        assert values(out) == [1.0, 2.0, 3.0]
        assert [finding.evidence["lanes"] for finding in gpu.judge.findings] == [5, 5, 5]

    def test_freed_memory_is_stray(self, gpu):
        x, out = gpu.device([1.0]), gpu.device([0.0])
        double_all[(1,)](x, out, 1, BLOCK=1)
        gpu._blocks = [block for block in gpu._blocks if block.base != x.data_ptr()]
        gpu.run()
        assert gpu.codes == ["MRV212"]


class TestRestoring:
    OWNERS = (tl, tl.core, tl.math, tl.tensor, tl.dtype, JITFunction, InterpretedFunction, Autotuner, TensorHandle)

    def _snapshot(self):
        own = [
            {name: value for name, value in vars(owner).items() if name != "__annotations__"} for owner in self.OWNERS
        ]
        return own, set(vars(interpreter_builder)) - {"grid_dim", "grid_idx"}, set(globals())

    @pytest.mark.parametrize("compiled", [True, False])
    def test_nothing_is_left_behind(self, device, compiled):
        before = self._snapshot()
        undo = triton_launch.install(device, compiled=compiled)
        installed = self._snapshot()
        x, out = device.device([1.0]), device.device([0.0] * 4)
        for _ in range(2):
            library[(1,)](x, out, 1, BLOCK=1)
            with contextlib.suppress(triton.CompilationError):
                fails[(1,)](x)
            device.run()
            assert self._snapshot() == installed
        undo()
        assert self._snapshot() == before

    def test_plain_launches_of_the_reference_runner_go_on(self, gpu):
        token, best = torch.zeros(4, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
        floats, zero, seed = torch.tensor([1.0, 0.0]), torch.zeros(1, dtype=torch.int32), torch.zeros(1).long()
        constants = {"PROCESSED": False, "STATISTICS": False, "LOGARITHM": False, "GROUPS": 1, "LANES": 1, "BLOCK": 4}
        common = (floats, 2, floats, zero, zero, zero, zero, 1, floats, 1, seed, floats, best, floats, best)
        combine_blocks[(1,)](*common, token, floats, floats, 2, 0, 1, 1, 1, PARTS=1, GROUP=0, **constants)
        assert token.tolist() == [1, 1, 1, 0]
        assert not gpu.engine.pending


def test_with_triton_interpret_set():
    """The same launches where ``triton.jit`` makes interpreted functions, and plain launches that stay Triton's."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "TestLaunch or TestRestoring",
    ]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_with_triton_interpret_set")
class TestRestoringInterpreted:
    def test_plain_launch_stays_tritons(self, gpu):
        x, out = torch.ones(3), torch.zeros(3)
        double_all[(1,)](x, out, 3, BLOCK=4)
        assert out.tolist() == [2.0] * 3
        assert not gpu.engine.pending
