"""Any program's kernels on the CPU: who is served, what is found, what is left behind."""

from __future__ import annotations

import runpy
import threading

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from mrv2.checks.codes import CODES
from mrv2.checks.errors import CheckError
from mrv2.checks.findings import Verdict
from mrv2.checks.triton_cpu import DeviceAssertion, OutOfFuel, enabled


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    x = tl.load(x_ptr + lanes, mask=mask)
    y = tl.load(y_ptr + lanes, mask=mask)
    tl.store(out_ptr + lanes, x + y, mask=mask)


@triton.jit
def add_without_mask(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes) + tl.load(y_ptr + lanes))


@triton.jit
def grid_index(out_ptr, Y: tl.constexpr, Z: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out_ptr + (x * Y + y) * Z + z, 100 * x + 10 * y + z + 1000 * tl.num_programs(1))


@triton.jit
def last_program_wins(out_ptr):
    tl.store(out_ptr, tl.program_id(0))


@triton.jit
def halves(x_ptr, out_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=lanes < BLOCK // 2))


@triton.jit
def checked(x_ptr, limit):
    value = tl.load(x_ptr + tl.program_id(0))
    tl.device_assert(value < limit, "value too large")


@triton.jit
def prints(x_ptr, byte_ptr, scalar):
    tl.device_print("lanes", tl.load(x_ptr + tl.arange(0, 2)))
    tl.device_print("bits", tl.load(x_ptr + tl.arange(0, 2)), hex=True)
    tl.device_print("byte", tl.load(byte_ptr), scalar)
    tl.device_print("nothing")


@triton.jit
def waits(flag_ptr):
    while tl.atomic_add(flag_ptr, 0) == 0:
        pass


@triton.jit
def through_table(table_ptr, out_ptr):
    source = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.int32))
    tl.store(out_ptr + tl.program_id(0), tl.load(source))


@triton.jit
def fills(out_ptr, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), VALUE)


@triton.jit
def best_of(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr, tl.argmax(tl.load(x_ptr + tl.arange(0, BLOCK)), axis=0))


def numbers(count: int = 100) -> tuple[torch.Tensor, ...]:
    return torch.arange(count, dtype=torch.float32), torch.ones(count), torch.zeros(count)


def fresh(kernel):
    """A kernel that this process has not seen."""
    return triton.jit(type(kernel.fn)(kernel.fn.__code__, kernel.fn.__globals__, kernel.fn.__name__))


def annotated(kernel):
    copy = fresh(kernel)
    copy.fn.__annotations__ = kernel.fn.__annotations__
    return triton.jit(copy.fn)


# Launches


def test_a_kernel_runs_unchanged():
    x, y, out = numbers()
    with enabled() as session:
        add[(2,)](x, y, out, 100, BLOCK=64)
    assert torch.equal(out, x + y)
    assert session.findings == []


def test_views_touch_their_part_alone():
    storage = torch.zeros(12)
    x, y, _ = numbers(4)
    with enabled() as session:
        add[(1,)](x, y, storage[4:8], 4, BLOCK=4)
    assert torch.equal(storage[4:8], x + y)
    assert storage[:4].sum() == storage[8:].sum() == 0
    assert not session.findings


@pytest.mark.parametrize("grid", [(2, 3, 4), lambda values: (2, values["Y"], values["Z"])])
def test_grids(grid):
    out = torch.zeros(24, dtype=torch.int32)
    with enabled():
        grid_index[grid](out, Y=3, Z=4)
    assert out.tolist() == [3000 + 100 * x + 10 * y + z for x in range(2) for y in range(3) for z in range(4)]


@pytest.mark.parametrize("grid", [(0,), (2, 0), (3, 1, 0)])
def test_an_empty_grid_runs_nothing(grid):
    out = torch.zeros(24, dtype=torch.int32)
    with enabled():
        grid_index[grid](out, Y=1, Z=1)
    assert out.sum() == 0


def test_hooks_before_a_launch_are_called():
    seen = []
    fills.add_pre_run_hook(lambda *args, **kwargs: seen.append(kwargs["VALUE"]))
    try:
        with enabled():
            fills[(1,)](torch.zeros(4), VALUE=7, BLOCK=4)
    finally:
        fills.pre_run_hooks.clear()
    assert seen == [7]


def test_warming_up_builds_and_runs_nothing():
    out = torch.zeros(4)
    with enabled():
        fills.warmup(out, VALUE=3, BLOCK=4, grid=(1,))
    assert out.sum() == 0


def test_a_parameter_that_needs_gradients_is_a_tensor():
    x = torch.nn.Parameter(torch.ones(4))
    out = torch.zeros(4)
    with enabled():
        add[(1,)](x, x, out, 4, BLOCK=4)
    assert out.tolist() == [2.0] * 4


def test_heuristics_are_evaluated():
    kernel = triton.heuristics({"BLOCK": lambda values: triton.next_power_of_2(values["n"])})(add)
    x, y, out = numbers()
    with enabled():
        kernel[(1,)](x, y, out, 100)
    assert torch.equal(out, x + y)


def test_autotuning_takes_the_first_configuration_that_pruning_leaves():
    configs = [triton.Config({"VALUE": value}, num_warps=warps) for value, warps in ((1, 2), (2, 4), (3, 8))]
    hooked = []
    configs[1].pre_hook = lambda values: hooked.append(values["VALUE"])
    pruning = {"early_config_prune": lambda found, values, **kwargs: found[1:]}
    kernel = triton.autotune(configs, key=["BLOCK"], prune_configs_by=pruning)(fills)
    out = torch.zeros(4)
    with enabled():
        kernel[(1,)](out, BLOCK=4)
    assert out.tolist() == [2.0] * 4
    assert hooked == [2]
    assert kernel.best_config is configs[1]


# What is found


def test_lanes_outside_are_found_and_left_out():
    guarded = torch.full((132,), 5.0)
    x, y, _ = numbers(128)
    out = guarded.clone()
    storage = out.untyped_storage()
    with enabled() as session:
        add_without_mask[(2,)](x, y, out[:100].clone(), BLOCK=64)
    assert storage.nbytes() == 132 * 4
    (finding,) = session.findings
    assert (finding.code, finding.verdict) == ("MRV212", Verdict.VIOLATION)
    assert finding.title == "add_without_mask writes outside of all memory"
    assert finding.evidence["argument"] == "out_ptr"
    assert finding.evidence["bytes"] == [400, 512]
    assert (finding.evidence["program"], finding.evidence["lanes"]) == ([1, 0, 0], 28)
    assert finding.where[0].function == "add_without_mask"
    assert finding.where[1].function == "test_lanes_outside_are_found_and_left_out"


def test_bytes_behind_a_tensor_stay_as_they_are():
    """The bytes belong to the process; only the block that the kernel was given may change."""
    memory = torch.full((16,), 7.0)
    given = torch.from_numpy(memory.numpy()[:8])
    assert given.untyped_storage().nbytes() == 32
    with enabled() as session:
        fills[(1,)](given, VALUE=1, BLOCK=16)
    assert memory.tolist() == [1.0] * 8 + [7.0] * 8
    assert [finding.code for finding in session.findings] == ["MRV212"]


def test_programs_that_conflict_are_found():
    out = torch.zeros(1, dtype=torch.int32)
    with enabled() as session:
        last_program_wins[(3,)](out)
    (finding,) = session.findings
    assert finding.code == "MRV211"
    assert finding.title == "last_program_wins: one program writes what another writes"
    assert finding.evidence["first"]["program"] == [0, 0, 0]
    assert finding.evidence["argument"] == "out_ptr"
    assert finding.other[0].function == "last_program_wins"
    assert out.item() == 2


def test_one_program_does_not_conflict_with_itself():
    with enabled() as session:
        last_program_wins[(1,)](torch.zeros(1, dtype=torch.int32))
    assert not session.findings


def test_a_fault_is_found_once_however_often_it_happens():
    with enabled() as session:
        for _ in range(3):
            last_program_wins[(3,)](torch.zeros(1, dtype=torch.int32))
    assert len(session.findings) == 1


def test_findings_are_of_codes_that_exist():
    with enabled() as session:
        last_program_wins[(3,)](torch.zeros(1, dtype=torch.int32))
        add_without_mask[(1,)](*numbers(3), BLOCK=4)
    for finding in session.findings:
        assert CODES[finding.code].soundness is finding.soundness


def test_a_nan_in_an_argmax_is_found():
    x, out = torch.tensor([1.0, 3.0, 2.0, 0.0]), torch.zeros(1, dtype=torch.int32)
    with enabled() as session:
        best_of[(1,)](x, out, BLOCK=4)
        assert (out.item(), session.findings) == (1, [])
        x[2] = float("nan")
        best_of[(2,)](x, out, BLOCK=4)
    (finding,) = session.findings
    assert (finding.code, finding.verdict) == ("MRV310", Verdict.SUSPECT)
    assert finding.where[0].function == "best_of"
    assert finding.evidence["NaNs"] == 2


def test_without_checks_nothing_is_found():
    with enabled(check=False) as session:
        last_program_wins[(3,)](torch.zeros(1, dtype=torch.int32))
    assert not session.findings


@pytest.mark.parametrize(("order", "last"), [("forward", 7), ("reverse", 0)])
def test_the_order_of_programs(order, last):
    out = torch.zeros(1, dtype=torch.int32)
    with enabled(order=order):
        last_program_wins[(8,)](out)
    assert out.item() == last


def test_a_seed_shuffles_and_repeats():
    def last(seed: int) -> int:
        out = torch.zeros(1, dtype=torch.int32)
        with enabled(order=seed):
            last_program_wins[(50,)](out)
        return int(out.item())

    assert last(1) == last(1)
    assert len({last(seed) for seed in range(6)}) > 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"order": "sideways"}, "order='sideways'"),
        ({"order": -1}, "order=-1"),
        ({"order": True}, "order=True"),
        ({"check": "no"}, "check='no'"),
        ({"check": 1}, "check=1"),
        ({"masked_lanes": 256}, "masked_lanes=256"),
        ({"masked_lanes": -1}, "masked_lanes=-1"),
        ({"masked_lanes": True}, "masked_lanes=True"),
        ({"masked_lanes": "0xFB"}, "masked_lanes='0xFB'"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(arguments, named):
    with pytest.raises(CheckError) as caught, enabled(**arguments):
        pass
    assert caught.value.subject == named


def test_another_byte_in_masked_lanes():
    x, out = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    with enabled():
        halves[(1,)](x, out, BLOCK=8)
    assert out.tolist() == [0, 1, 2, 3, 0, 0, 0, 0]
    with enabled(masked_lanes=0x7F):
        halves[(1,)](x, out, BLOCK=8)
    assert out.tolist() == [0, 1, 2, 3] + [0x7F7F7F7F] * 4


def test_a_table_of_pointers_may_lead_anywhere():
    targets = [torch.tensor([value], dtype=torch.int32) for value in (5, 6)]
    table = torch.tensor([target.data_ptr() for target in targets])
    out = torch.zeros(2, dtype=torch.int32)
    with enabled() as session:
        through_table[(2,)](table, out)
    assert out.tolist() == [5, 6]
    assert not session.findings


def test_a_failed_assertion():
    values = torch.tensor([1, 9], dtype=torch.int32)
    with enabled(), pytest.raises(DeviceAssertion, match=r"program \(1, 0, 0\).*value too large"):
        checked[(2,)](values, 5, debug=True)
    with enabled():
        checked[(2,)](values, 10, debug=True)
        checked[(2,)](values, 5)  # without debug Triton leaves assertions out


def test_prints(capsys):
    numbers, byte = torch.tensor([-1, 2], dtype=torch.int32), torch.tensor([250], dtype=torch.uint8)
    with enabled():
        prints[(2,)](numbers, byte, 1.5)
    said = capsys.readouterr().out.splitlines()
    first = ["lanes:  [-1  2]", "bits:  [0xffffffff 0x00000002]", "byte:  [250]", "byte:  [1.5]", "nothing"]
    assert [line.removeprefix("(0, 0, 0)").strip() for line in said[:5]] == first
    assert said[5].startswith("(1, 0, 0)")
    assert len(said) == 10


def test_a_program_that_waits_for_another_is_stopped():
    with enabled(), pytest.raises(OutOfFuel, match=r"kernel waits, program \(0, 0, 0\) at .*test_enable.py"):
        waits[(1,)](torch.zeros(1, dtype=torch.int32))


# Who is served, and what is left behind


def test_nothing_is_left_behind():
    before = JITFunction.run, Autotuner.run
    with enabled():
        assert JITFunction.run.runs_on_cpu
        with enabled(check=False):
            assert JITFunction.run is not before[0]
        assert JITFunction.run is not before[0]
    assert (JITFunction.run, Autotuner.run) == before


def test_it_is_undone_after_an_error():
    before = JITFunction.run
    with pytest.raises(ZeroDivisionError), enabled():
        raise ZeroDivisionError
    assert JITFunction.run is before


def test_the_innermost_scope_counts():
    with enabled() as outer:
        with enabled() as inner:
            last_program_wins[(3,)](torch.zeros(1, dtype=torch.int32))
        assert (len(outer.findings), len(inner.findings)) == (0, 1)
        last_program_wins[(3,)](torch.zeros(1, dtype=torch.int32))
        assert len(outer.findings) == 1


def test_threads_are_served_and_a_threads_own_scope_comes_first():
    outs = [torch.zeros(1, dtype=torch.int32) for _ in range(2)]
    sessions = []

    def plain():
        last_program_wins[(3,)](outs[0])

    def own():
        with enabled(order="reverse") as session:
            sessions.append(session)
            last_program_wins[(3,)](outs[1])

    with enabled() as session:
        for work in (plain, own):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert [out.item() for out in outs] == [2, 0]
    assert len(session.findings) == len(sessions[0].findings) == 1


def test_many_threads_at_once():
    wrong = []

    def work(count: int) -> None:
        for _ in range(20):
            x, y, out = numbers(count)
            add[(triton.cdiv(count, 16),)](x, y, out, count, BLOCK=16)
            if not torch.equal(out, x + y):
                wrong.append(count)

    with enabled() as session:
        threads = [threading.Thread(target=work, args=(count,)) for count in (5, 50, 500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert not session.findings


def test_tensors_elsewhere_go_to_triton(monkeypatch):
    seen = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **kwargs: seen.append(args))
    with enabled():
        add[(1,)](torch.zeros(4, device="meta"), torch.zeros(4), torch.zeros(4), 4, BLOCK=4)
    assert len(seen) == 1


def test_tritons_own_switch_is_refused(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    with pytest.raises(CheckError, match="TRITON_INTERPRET"), enabled():
        pass


def test_a_global_that_changes_is_refused_as_by_triton(tmp_path):
    file = tmp_path / "kernels.py"
    head = "import triton, triton.language as tl\nN = tl.constexpr(3)\n"
    file.write_text(f"{head}@triton.jit\ndef kernel(out):\n    tl.store(out, N)\n")
    kernel = runpy.run_path(str(file))["kernel"]
    out = torch.zeros(1)
    with enabled():
        kernel[(1,)](out)
        assert out.item() == 3
        kernel.fn.__globals__["N"] = tl.constexpr(4)
        with pytest.raises(RuntimeError, match="Global variable N has changed"):
            kernel[(1,)](out)
