"""Masked-off lanes without ``other``: zero unless asked otherwise, and named where they reach a result."""

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.codes import CODES
from mrv2.checks.errors import CheckError
from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.memory import POISON
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.uninitialised import find_uninitialised


@triton.jit
def total(x_ptr, out_ptr, n, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    other: tl.constexpr = 0.0 if OTHER else None
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + lane, mask=lane < n, other=other), 0))


@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane, mask=lane < n), mask=lane < n)


@triton.jit
def two_loads(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    unused = tl.load(x_ptr + lane, mask=lane < n)
    used = tl.load(x_ptr + lane, mask=lane < n - 1)
    tl.store(out_ptr + lane, unused, mask=lane < n)
    tl.store(out_ptr + BLOCK, tl.max(used, 0))


@triton.jit
def one_scalar(x_ptr, out_ptr, n):
    tl.store(out_ptr, tl.load(x_ptr, mask=n > 0))


def line_of(kernel, offset):
    return kernel.fn.__code__.co_firstlineno + offset


def launch(kernel, *arguments, size=16, **constants):
    x, out = torch.ones(6, device="cuda"), torch.zeros(size + 1, device="cuda")
    kernel[(1,)](x, out, *arguments, **constants)
    return out


def summed(other=False):
    return launch(total, 6, OTHER=other, BLOCK=16)


def summed_with_other():
    return summed(other=True)


def summed_without_a_gap():
    x, out = torch.ones(16, device="cuda"), torch.zeros(1, device="cuda")
    total[(1,)](x, out, 16, OTHER=False, BLOCK=16)
    return out


def copied():
    return launch(copy, 6, BLOCK=16)


def second_load():
    copied()
    return launch(two_loads, 6, BLOCK=16)


def scalar():
    return launch(one_scalar, 0)


def replayed():
    x, out = torch.ones(6, device="cuda"), torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total[(1,)](x, out, 6, OTHER=False, BLOCK=16)
    graph.replay()
    return out


WRONG = {summed: (total, 4), second_load: (two_loads, 4), scalar: (one_scalar, 2), replayed: (total, 4)}


@pytest.mark.parametrize("schedule", ["early", "late", "random:1"])
@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_the_line_of_the_load_is_named(program, schedule):
    (finding,) = find_uninitialised(program, schedule)
    kernel, offset = WRONG[program]
    assert (finding.code, finding.soundness) == ("MRV213", CODES["MRV213"].soundness)
    assert (finding.where[0].line, finding.where[0].function) == (line_of(kernel, offset), kernel.__name__)
    assert program.__name__ in {site.function for site in finding.where}
    assert finding.allocation == () and "other=" in finding.remedy
    one, two = finding.evidence["values"]
    assert one != two and finding.evidence["poison"][0] == POISON


@pytest.mark.parametrize("program", [summed_with_other, summed_without_a_gap, copied], ids=lambda p: p.__name__)
def test_nothing_is_found(program):
    assert find_uninitialised(program) == []


def test_an_allocation_comes_first_and_the_load_after_its_repair():
    def program(make):
        x, out = make(6, device="cuda"), torch.zeros(1, device="cuda")
        total[(1,)](x, out, 6, OTHER=False, BLOCK=16)
        return out

    (memory,) = find_uninitialised(lambda: program(torch.empty))
    (lanes,) = find_uninitialised(lambda: program(torch.ones))
    assert "allocation" in memory.evidence and "load" not in memory.evidence
    assert "load" in lanes.evidence and "allocation" not in lanes.evidence


@pytest.mark.parametrize("kernels", ["compiled", "interpreted"])
def test_zero_unless_asked_otherwise(kernels):
    results = {}
    for byte in (None, 0, 0x7B):
        asked = {} if byte is None else {"masked_lanes": byte}
        with virtual_device(kernels=kernels, **asked):
            results[byte] = summed()[0].item()
    assert results[None] == results[0] == 6
    assert results[0x7B] > 1e36


@pytest.mark.parametrize("kernels", ["compiled", "interpreted"])
def test_each_load_of_each_launch_is_asked_for_by_its_line(kernels):
    asked = []

    def byte(place):
        asked.append(place.line)
        return 0

    with virtual_device(kernels=kernels, masked_lanes=byte):
        second_load(), second_load(), summed_with_other()
        torch.cuda.synchronize()
    assert asked == [line_of(copy, 3), line_of(two_loads, 3), line_of(two_loads, 4)] * 2


def test_the_same_byte_gives_the_same_run():
    assert run_program(summed, masked_lanes=0).data[0] == 6
    assert run_program(summed, masked_lanes=POISON).same_outcome(run_program(summed, masked_lanes=POISON))


@pytest.mark.parametrize("lanes", [256, -1, True, "0xFB", None])
def test_what_is_no_byte_is_refused(lanes):
    with pytest.raises(CheckError, match="masked_lanes"), virtual_device(masked_lanes=lanes):
        pass
