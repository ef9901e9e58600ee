"""The standing test: each fence, record and kept reference of the runner is taken away in turn, wherever it may be.

They are found in a recorded run, so that code written later is covered too. What ``mrv2 fences`` calls needed must be
missed: a finding in every schedule. What it calls removable or vacuous must not be.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mrv2.checks.events import OperationKind, Stack, SyncKind
from mrv2.checks.happens_before import Fence, Need, Record, Recorder
from mrv2.checks.happens_before.records import OperationBegins
from mrv2.checks.virtual.removal import fences_of, noting_record_stream, stack_of, without
from mrv2.checks.virtual.runs import Run, run_program
from mrv2.fuzz.programs import RunnerProgram, random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget

pytestmark = pytest.mark.slow

WORKLOAD = random_workload(256, 1, 6)
SCHEDULES = ("late", "early")


@pytest.fixture(scope="module")
def program() -> RunnerProgram:
    return RunnerProgram(ReferenceTarget(), WORKLOAD)


@pytest.fixture(scope="module")
def recorded(program: RunnerProgram) -> tuple[Run, list[Fence]]:
    run, fences = fences_of(program)
    assert run.error is None and not run.findings
    return run, [fence for fence in fences if fence.kind is not SyncKind.IMPLICIT]


@pytest.fixture(scope="module")
def marks(program: RunnerProgram) -> list[Stack]:
    """Where the runner records an event."""
    records: list[Record] = []
    run_program(program, judge=Recorder(records.append))
    begun = (record for record in records if isinstance(record, OperationBegins))
    return list(dict.fromkeys(record.stack for record in begun if record.kind is OperationKind.MARKER))


def test_the_runner_has_the_fences_that_this_test_is_about(recorded, marks):
    _, fences = recorded
    needed = {fence.name for fence in fences if fence.need is Need.NEEDED}
    assert {"wait_stream", "Event.synchronize", "Event.query"} <= needed
    assert not [fence for fence in fences if fence.need is Need.VACUOUS]
    assert len(marks) >= 3
    assert all("refrunner/" in stack[0][0] for stack in (*marks, *map(stack_of, fences)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_needed_fence_is_missed_and_another_one_is_not(program, recorded, schedule):
    run, fences = recorded
    for fence in fences:
        changed = run_program(program, schedule, hooks=(without(stack_of(fence)),))
        if fence.need is Need.NEEDED:
            assert changed.findings, fence
            assert fence.witness is not None
        elif fence.can_go:
            assert not changed.findings, fence
            assert changed.same_outcome(run), fence


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_record_of_an_event_is_missed(program, marks, schedule):
    for stack in marks:
        assert run_program(program, schedule, hooks=(without(stack),)).findings, stack


class Changed:
    """The reference target, whose runner is changed behind every step."""

    features = ReferenceTarget.features

    def __init__(self, change: Callable[[Any, Any], None]) -> None:
        self._target = ReferenceTarget()
        self._change = change

    def build(self, config: Any) -> Any:
        runner = self._target.build(config)

        def execute(step: Any) -> Any:
            handle = runner.execute(step)
            self._change(runner._runner, handle)
            return handle

        return SimpleNamespace(execute=execute, invariants=runner.invariants, close=runner.close)


def holds_tensors(value: Any) -> bool:
    values = value if isinstance(value, tuple | list) else (value,)
    return bool(values) and all(isinstance(item, torch.Tensor) for item in values)


def references_of_handles() -> set[str]:
    """Names of the attributes by which the runner's handles keep tensors alive, found in a run."""
    names: set[str] = set()

    def note(_: Any, handle: Any) -> None:
        names.update(name for name, value in vars(handle).items() if holds_tensors(value))

    run_program(RunnerProgram(Changed(note), WORKLOAD))  # type: ignore[arg-type]
    return names


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_reference_that_a_handle_keeps_is_missed(schedule):
    for name in sorted(references_of_handles()):

        def drop(_: Any, handle: Any, name: str = name) -> None:
            if hasattr(handle, name):
                setattr(handle, name, None)

        program = RunnerProgram(Changed(drop), WORKLOAD)  # type: ignore[arg-type]
        found = run_program(program, schedule).findings
        # Either it only kept the memory alive, or the result is read from it and there is none.
        assert found or (program.trace is not None and program.trace.crash is not None), name


def places_of_record_stream(program: RunnerProgram) -> list[Stack]:
    """Where the runner tells the allocator of another stream."""
    stacks: list[Stack] = []
    run_program(program, hooks=(noting_record_stream(stacks.append),))
    return list(dict.fromkeys(stacks))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_word_to_the_allocator_is_missed(program, schedule):
    for stack in places_of_record_stream(program):
        found = run_program(program, schedule, hooks=(without(stack),)).findings
        assert {finding.code for finding in found} == {"MRV205"}, stack


def test_what_keeps_the_drawn_tokens_alive_is_among_what_is_taken_away(program):
    assert places_of_record_stream(program) or "_sources" in references_of_handles()


def slots_of(runner: Any) -> Iterator[Any]:
    yield from runner._ring._slots


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_slot_of_the_ring_may_be_dropped_since_the_host_allocator_waits_for_its_copy(recorded, schedule):
    def drop(runner: Any, _: Any) -> None:
        for slot in slots_of(runner):
            slot.memory = torch.empty_like(slot.memory, pin_memory=True)

    run = run_program(RunnerProgram(Changed(drop), WORKLOAD), schedule)  # type: ignore[arg-type]
    assert not run.findings
    assert run.same_outcome(recorded[0])
