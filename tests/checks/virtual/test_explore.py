"""Exploration: one run for each order that can matter, and no other."""

import math

import pytest
import torch

from mrv2.checks.virtual.explore import explore
from mrv2.checks.virtual.runs import run_program


def raced(side_operations, main_operations):
    """Operations of two streams on one tensor, each of which tells where in the order it came."""

    def program():
        side = torch.cuda.Stream()
        data = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            for _ in range(side_operations):
                data.mul_(2).add_(1)
        for _ in range(main_operations):
            data.mul_(2)
        torch.cuda.synchronize()
        return data

    return program


def overwritten():
    pinned = torch.zeros(1, pin_memory=True)
    data = torch.empty(1, device="cuda")
    data.copy_(pinned, non_blocking=True)
    pinned.add_(1)
    return data


def synchronised():
    pinned = torch.zeros(1, pin_memory=True)
    data = torch.empty(1, device="cuda")
    data.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    pinned.add_(1)
    return data


def disjoint():
    """Two streams, but no byte in common: one order is as good as the other."""
    side = torch.cuda.Stream()
    data = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        data[:4].add_(1)
    data[4:].add_(2)
    torch.cuda.synchronize()
    return data


def read_on_both():
    """Two streams that only read."""
    side = torch.cuda.Stream()
    data = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        one = data + 1
    two = data + 2
    torch.cuda.synchronize()
    return one, two


def branching():
    """What the program does next depends on raced data, so one branch shows another race."""
    side = torch.cuda.Stream()
    data = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        data.add_(1)
    seen = float(data)  # waits for the default stream, which knows nothing of the other one
    torch.cuda.synchronize()
    if seen == 0:
        with torch.cuda.stream(side):
            data.mul_(5)
        data.add_(1)
        torch.cuda.synchronize()
    return seen, data


@pytest.mark.parametrize(("side", "main"), [(1, 1), (1, 2), (1, 3)])
def test_there_is_one_run_for_each_order_of_conflicting_operations(side, main):
    # Each round of the side stream is two operations: orders are the interleavings of 2 * side with main operations.
    found = explore(raced(side, main))
    assert found.exhausted
    assert len(found.runs) == math.comb(2 * side + main, main)
    assert len({run.schedule for run in found.runs}) == len(found.runs)


def test_all_outcomes_are_found():
    found = explore(raced(1, 1))
    # mul and add of the side stream, with the other doubling before, between and after them.
    assert sorted(run.data[0] for run in found.runs) == [1.0, 1.0, 2.0]
    assert found.outcomes == 2


@pytest.mark.parametrize("program", [synchronised, disjoint, read_on_both])
def test_a_program_without_races_is_done_in_one_run(program):
    found = explore(program)
    assert (len(found.runs), found.exhausted, found.outcomes) == (1, True, 1)
    assert not found.runs[0].findings


def test_a_host_access_comes_before_or_after_the_copy():
    found = explore(overwritten)
    assert [run.data for run in found.runs] == [[1.0], [0.0]]
    assert found.exhausted


def test_the_program_may_go_another_way():
    found = explore(branching)
    assert found.exhausted
    # Seen after the addition: done. Seen before it: two more operations, in two orders.
    assert sorted(tuple(map(str, run.data)) for run in found.runs) == [
        ("0.0", "[10.0]"), ("0.0", "[6.0]"), ("1.0", "[1.0]"),
    ]  # fmt: skip


def test_the_limit_is_kept_and_told():
    found = explore(raced(2, 4), runs=5)
    assert (len(found.runs), found.exhausted) == (5, False)


def test_each_run_is_repeated_by_its_schedule():
    for program in (raced(1, 2), overwritten, branching):
        for run in explore(program).runs:
            assert run_program(program, run.schedule).same_outcome(run)


def test_every_run_finds_the_same_races():
    found = explore(raced(1, 2))
    assert len({tuple(finding.fingerprint() for finding in run.findings) for run in found.runs}) == 1
