"""A program without one of its fences: the same run, but what it calls there orders nothing.

``analyse_fences`` judges a recorded run as if a fence had not been there. That is exact as long as the program goes the
same way without it. Here the program itself is run without it, which also tells what a poll is good for: its answer
decides where the program goes, and without it the answer is taken for granted.
"""

from __future__ import annotations

from collections.abc import Callable

from ..events import Stack, SyncKind
from .order import Order, Record
from .queues import PendingOperation, Queue
from .runtime import Runtime
from .stacks import program_stack


def without(stack: Stack) -> Callable[[Runtime], Callable[[], None]]:
    """An installer for ``virtual_device``: what the program does there, with this very stack, orders nothing.

    A record there marks no work, a wait or synchronisation there does not wait, and a poll there says yes.
    """

    def install(runtime: Runtime) -> Callable[[], None]:
        order = runtime.order
        runtime.order = _OrderWithout(runtime, stack)

        def undo() -> None:
            runtime.order = order

        return undo

    return install


class _OrderWithout(Order):
    """The verbs by which a program orders work, but for those called at one place."""

    def __init__(self, runtime: Runtime, stack: Stack) -> None:
        super().__init__(runtime)
        self._stack = stack
        # Taken before any work is there, so whoever waits for it waits for nothing.
        self._nothing = runtime.sink.release(runtime.streams.default.lane)

    def _gone(self) -> bool:
        return program_stack() == self._stack

    def record(self, queue: Queue, name: str = "event.record") -> Record:
        """See :class:`Order`."""
        if not self._gone():
            return super().record(queue, name)
        mark = PendingOperation(-1, name, None, queue, ())
        mark.done = True
        return Record(mark, self._nothing)

    def wait(self, queue: Queue, record: Record | None, name: str = "wait_event") -> None:
        """See :class:`Order`."""
        if not self._gone():
            super().wait(queue, record, name)

    def synchronize_record(self, record: Record | None, name: str = "Event.synchronize") -> None:
        """See :class:`Order`."""
        if not self._gone():
            super().synchronize_record(record, name)

    def query_record(self, record: Record | None, name: str = "Event.query") -> bool:
        """See :class:`Order`."""
        return self._gone() or super().query_record(record, name)

    def synchronize_queue(
        self, queue: Queue, name: str = "Stream.synchronize", kind: SyncKind = SyncKind.STREAM_SYNCHRONIZE
    ) -> None:
        """See :class:`Order`; what an operation waits for by its nature stays."""
        if kind is SyncKind.IMPLICIT or not self._gone():
            super().synchronize_queue(queue, name, kind)

    def query_queue(self, queue: Queue) -> bool:
        """See :class:`Order`."""
        return self._gone() or super().query_queue(queue)

    def synchronize_device(self, name: str = "torch.cuda.synchronize") -> None:
        """See :class:`Order`."""
        if not self._gone():
            super().synchronize_device(name)
