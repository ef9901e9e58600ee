"""What an operation costs does not depend on how many are pending, nor on how long the run has been."""

import sys
from collections.abc import Callable

import pytest
import torch

from mrv2.checks.virtual import virtual_device

from .conftest import codes


def calls_made(work: Callable[[], object]) -> int:
    """Python and C functions called: the same on every machine."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


OPERATIONS = {
    "in place": lambda x, y: x.add_(1),
    "new result": lambda x, y: x + y,
    "view": lambda x, y: x[3:40],
    "upload": lambda x, y: x.copy_(PINNED[0], non_blocking=True),
    "record": lambda x, y: torch.cuda.Event().record(),
}
PINNED: list[torch.Tensor] = []


@pytest.mark.parametrize("row", OPERATIONS)
def test_nothing_grows_with_the_pending_operations(row, sink):
    work = OPERATIONS[row]
    with virtual_device("late", sink=sink) as device:
        device.runtime.upload_guard = None  # the hook's cost is the hook's own
        PINNED[:] = [torch.zeros(64, pin_memory=True)]
        x, y = torch.ones(64, device="cuda"), torch.ones(64, device="cuda")
        for _ in range(5):
            work(x, y)
        torch.cuda.synchronize()
        few = calls_made(lambda: [work(x, y) for _ in range(20)])
        for _ in range(900):
            x.add_(1)
        many = calls_made(lambda: [work(x, y) for _ in range(20)])
        PINNED.clear()
    assert many <= few * 1.1


def test_memory_is_bounded_over_many_steps(late):
    x, p, side = torch.zeros(64, device="cuda"), torch.zeros(64, pin_memory=True), torch.cuda.Stream()
    event, sizes = torch.cuda.Event(), []
    for step in range(1500):
        late.step(step)
        event.synchronize()
        p.add_(1)
        y = x + torch.ones(64, device="cuda")
        y.copy_(p, non_blocking=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy = y.to("cpu", non_blocking=True)
        y.record_stream(side)
        event.record(side)
        memory, engine = late.runtime.memory, late.runtime.engine
        sizes.append(len(list(memory.blocks)) + len(memory._withheld) + engine.submitted - engine.oldest())
        del copy
    assert codes(late) == [] and max(sizes[750:]) <= max(sizes[:750]) < 100


def test_counters_do_not_grow_tables(late):
    from mrv2.checks.virtual import operators

    x = torch.zeros(4, device="cuda")
    x.mul_(3).add_(1.5)
    before = len(operators._recipes)
    for number in range(200):
        x.mul_(number).add_(number * 0.5)
        (x + number).clamp_(max=number)
    assert len(operators._recipes) - before < 10
