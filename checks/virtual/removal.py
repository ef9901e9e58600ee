"""A program without one of its fences: the same run, but what it calls there orders nothing.

``analyse_fences`` judges a recorded run as if a fence had not been there. That is exact as long as the program goes the
same way without it. Here the program itself is run without it, which also tells what a poll is good for: its answer
decides where the program goes, and without it the answer is taken for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..events import Stack
from ..findings import Finding
from ..happens_before import Fence, HappensBefore, Need, Record, Recorder, Tee, analyse_fences
from ..libraries import portable
from . import order
from .queues import PendingOperation, Queue
from .runs import Program, Run, run_program
from .runtime import Runtime
from .stacks import program_stack

if TYPE_CHECKING:
    from .tensor import Face


def fences_of(program: Program) -> tuple[Run, list[Fence]]:
    """Run a program, and judge each of its fences: by the recorded run, and a poll by a run without it too.

    Returns:
        the run as it is, under ``late``, and its fences.
    """
    records: list[Record] = []
    judge = HappensBefore()
    run = run_program(program, judge=Tee(judge, Recorder(records.append)))
    run = replace(run, findings=tuple(map(portable, judge.findings)))
    return run, [_polled(program, fence, run.findings) for fence in analyse_fences(records)]


def _polled(program: Program, fence: Fence, known: Sequence[Finding]) -> Fence:
    if not fence.polls or fence.need is Need.NEEDED:
        return fence
    before = {finding.fingerprint() for finding in known}
    found = run_program(program, hooks=(without(stack_of(fence)),)).findings
    witness = next((finding for finding in found if finding.fingerprint() not in before), None)
    return fence if witness is None else replace(fence, need=Need.NEEDED, witness=witness, can_go=False)


def stack_of(fence: Fence) -> Stack:
    """Where the program has a fence."""
    return tuple((site.file, site.line, site.function) for site in fence.where)


def noting_record_stream(note: Callable[[Stack], None]) -> Callable[[Runtime], Callable[[], None]]:
    """An installer that tells where the program calls ``record_stream``, of which a recorded run has no event."""

    def install(runtime: Runtime) -> Callable[[], None]:
        def record_stream(face: Face, stream: Any) -> None:
            note(program_stack())
            Runtime.record_stream(runtime, face, stream)

        return _replace_record_stream(runtime, record_stream)

    return install


def _replace_record_stream(runtime: Runtime, function: Callable[[Face, Any], None]) -> Callable[[], None]:
    runtime.record_stream = function  # type: ignore[assignment, method-assign]

    def undo() -> None:
        del runtime.record_stream

    return undo


def without(stack: Stack) -> Callable[[Runtime], Callable[[], None]]:
    """An installer for ``virtual_device``: what the program does there, with this very stack, orders nothing.

    A record there marks no work, a wait or synchronisation there does not wait, a poll there says yes, and the
    allocator does not hear of ``record_stream`` there.
    """

    def install(runtime: Runtime) -> Callable[[], None]:
        def record_stream(face: Face, stream: Any) -> None:
            if program_stack() != stack:
                Runtime.record_stream(runtime, face, stream)

        whole, runtime.order = runtime.order, _OrderWithout(runtime, stack)
        restore = _replace_record_stream(runtime, record_stream)

        def undo() -> None:
            restore()
            runtime.order = whole

        return undo

    return install


class _OrderWithout(order.Order):
    """The verbs by which a program orders work, but for those called at one place."""

    def __init__(self, runtime: Runtime, stack: Stack) -> None:
        super().__init__(runtime)
        self._stack = stack
        # Taken before any work is there, so whoever waits for it waits for nothing.
        self._nothing = runtime.sink.release(runtime.streams.default.lane)

    def _gone(self) -> bool:
        return program_stack() == self._stack

    def record(self, queue: Queue, name: str = "event.record") -> order.Record:
        """See :class:`~mrv2.checks.virtual.order.Order`."""
        if not self._gone():
            return super().record(queue, name)
        mark = PendingOperation(-1, name, None, queue, ())
        mark.done = True
        return order.Record(mark, self._nothing)

    def wait(self, queue: Queue, record: order.Record | None, name: str = "wait_event") -> None:
        """See :class:`~mrv2.checks.virtual.order.Order`."""
        if not self._gone():
            super().wait(queue, record, name)

    def synchronize_record(self, record: order.Record | None, name: str = "Event.synchronize") -> None:
        """See :class:`~mrv2.checks.virtual.order.Order`."""
        if not self._gone():
            super().synchronize_record(record, name)

    def query_record(self, record: order.Record | None, name: str = "Event.query") -> bool:
        """See :class:`~mrv2.checks.virtual.order.Order`."""
        return self._gone() or super().query_record(record, name)

    def synchronize_queue(self, queue: Queue, name: str = "Stream.synchronize") -> None:
        """See :class:`~mrv2.checks.virtual.order.Order`; what an operation waits for by its nature stays."""
        if not self._gone():
            super().synchronize_queue(queue, name)

    def query_queue(self, queue: Queue) -> bool:
        """See :class:`~mrv2.checks.virtual.order.Order`."""
        return self._gone() or super().query_queue(queue)

    def synchronize_device(self, name: str = "torch.cuda.synchronize") -> None:
        """See :class:`~mrv2.checks.virtual.order.Order`."""
        if not self._gone():
            super().synchronize_device(name)
