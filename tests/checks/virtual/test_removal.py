"""A program without one of its fences: each verb at one place orders nothing, and everywhere else it does."""

import pytest
import torch

from mrv2.checks.events import OperationKind
from mrv2.checks.happens_before import Recorder
from mrv2.checks.happens_before.records import OperationBegins, Synchronises
from mrv2.checks.virtual.removal import without
from mrv2.checks.virtual.runs import run_program

FENCES = {
    "event.synchronize": lambda event, side: event.synchronize(),
    "event.query": lambda event, side: [None for _ in iter(event.query, True)],
    "stream.synchronize": lambda event, side: side.synchronize(),
    "stream.query": lambda event, side: [None for _ in iter(side.query, True)],
    "device": lambda event, side: torch.cuda.synchronize(),
}


def uploading(fence):
    """A pinned source is written again behind one fence."""

    def program():
        side = torch.cuda.Stream()
        pinned = torch.zeros(4, pin_memory=True)
        with torch.cuda.stream(side):
            data = torch.empty(4, device="cuda")
            data.copy_(pinned, non_blocking=True)
        event = torch.cuda.Event()
        event.record(side)
        fence(event, side)
        pinned.add_(1)
        torch.cuda.synchronize()

    return program


def two_streams(wait):
    def program():
        side = torch.cuda.Stream()
        data = torch.zeros(4, device="cuda")
        event = torch.cuda.Event()
        event.record()
        wait(side, event)
        with torch.cuda.stream(side):
            data.add_(1)
        torch.cuda.synchronize()

    return program


WAITS = {
    "wait_event": lambda side, event: side.wait_event(event),
    "event.wait": lambda side, event: event.wait(side),
    "wait_stream": lambda side, event: side.wait_stream(torch.cuda.current_stream()),
}


def places(program):
    """The stacks of all records and synchronisations of a run, in order."""
    records = []
    run = run_program(program, judge=Recorder(records.append))
    assert run.error is None
    stacks = [
        record.stack
        for record in records
        if isinstance(record, Synchronises)
        or (isinstance(record, OperationBegins) and record.kind is OperationKind.MARKER)
    ]
    return list(dict.fromkeys(stacks))


def codes(program, stack=None):
    run = run_program(program, hooks=() if stack is None else (without(stack),))
    assert run.error is None
    return [finding.code for finding in run.findings]


@pytest.mark.parametrize("name", FENCES)
def test_without_the_fence_the_race_is_there(name):
    program = uploading(FENCES[name])
    stacks = places(program)
    assert codes(program) == []
    results = [codes(program, stack) for stack in stacks]
    # The record of the event matters only to those who ask the event; the last synchronisation to nobody.
    assert results[-1] == []
    assert results[-2] == ["MRV201"]
    assert results[0] == (["MRV201"] if name.startswith("event") else [])


@pytest.mark.parametrize("name", WAITS)
def test_without_the_wait_the_streams_race(name):
    program = two_streams(WAITS[name])
    assert codes(program) == []
    results = [codes(program, stack) for stack in places(program)]
    assert ["MRV204"] in results
    # The last one keeps the tensor from being freed while the side stream uses it.
    assert results[-1] == ["MRV205"]


def test_another_place_with_the_same_verb_stays():
    def program():
        side = torch.cuda.Stream()
        one, two = (torch.zeros(4, pin_memory=True) for _ in range(2))
        data = torch.empty(4, device="cuda")
        for pinned in (one, two):
            data.copy_(pinned, non_blocking=True)
            torch.cuda.synchronize()
            pinned.add_(1)
        side.synchronize()

    first, last = places(program)
    assert codes(program, first) == ["MRV201"]
    assert codes(program, last) == []


def test_the_device_is_whole_again_afterwards():
    program = uploading(FENCES["device"])
    stack = places(program)[1]
    assert codes(program, stack) == ["MRV201"]
    assert codes(program) == []


def told():
    side = torch.cuda.Stream()
    data = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        data.add_(1)
    data.record_stream(side)
    del data
    torch.cuda.synchronize()


def test_without_a_word_to_the_allocator_memory_is_freed_too_early():
    line = told.__code__.co_firstlineno + 6
    assert codes(told) == []
    assert codes(told, ((__file__, line, "told"),)) == ["MRV205"]
    assert codes(told, ((__file__, line + 1, "told"),)) == []
