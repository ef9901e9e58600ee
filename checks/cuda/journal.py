"""Events now, their judgement later: what the recorded program pays for is a list that grows.

To judge an event costs more than a real device's host can spare between two launches. So events are written down in
their order, and handed on to the sink when somebody asks what was found, or when many have come together.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..events import ByteRange, EventSink, LaneKind, OperationKind, Space, Stack, SyncKind
from ..findings import Finding

#: Entries that are kept before they are judged.
MAX_ENTRIES = 1 << 15


class Later(int):
    """A number that the sink will give; it stands for it until then."""

    given: int


class Entry(list[Any]):
    """A function and its arguments, to be called when its turn comes; one that is not complete yet holds all others.

    The first argument is ``None`` until it is complete.
    """

    __slots__ = ()


class Journal(EventSink):
    """Takes events of all threads, in the order in which they come, and hands them on later.

    Lanes are made at once, for they are few, and what is made early knows nothing wrong.

    Args:
        inner: the sink that judges or records.

    Attributes:
        add: append a tuple of a function and its arguments, or an :class:`Entry`; atomic, and safe inside the garbage
            collector.
    """

    def __init__(self, inner: EventSink) -> None:
        self.inner = inner
        self._entries: deque[Any] = deque()
        self._lock = threading.RLock()
        self.add = self._entries.append

    def flush_if_long(self) -> None:
        """Hand on, if many have come together."""
        if len(self._entries) > MAX_ENTRIES:
            self.flush()

    def flush(self) -> None:
        """Hand on all that is complete."""
        entries = self._entries
        with self._lock:
            while entries:
                entry = entries[0]
                if type(entry) is Entry and entry[1] is None:
                    return
                entries.popleft()
                entry[0](*entry[1:])

    # The sink

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :meth:`EventSink.lane`."""
        with self._lock:
            return self.inner.lane(kind, name)

    def end_lane(self, lane: int) -> None:
        """See :meth:`EventSink.end_lane`."""
        self.add((self.inner.end_lane, lane))

    def operation(
        self,
        lane: int,
        kind: OperationKind,
        name: str,
        stack: Stack,
        *,
        issuer: int | None = None,
        step: int | None = None,
        open: bool = False,  # noqa: A002 - the contract's name
    ) -> int:
        """See :meth:`EventSink.operation`."""
        number = Later()
        self.add((self._operation, number, lane, kind, name, stack, issuer, step, open))
        return number

    def _operation(
        self, number: Later, lane: int, kind: OperationKind, name: str, stack: Stack, issuer: int | None,
        step: int | None, open: bool,  # noqa: A002
    ) -> None:  # fmt: skip
        number.given = self.inner.operation(lane, kind, name, stack, issuer=issuer, step=step, open=open)

    def close(self, operation: int) -> None:
        """See :meth:`EventSink.close`."""
        self.add((lambda: self.inner.close(_real(operation)),))

    def access(
        self, operation: int, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True, protected: bool = False
    ) -> None:
        """See :meth:`EventSink.access`."""
        self.add((self._access, operation, ranges, write, certain, protected))

    def _access(self, operation: int, ranges: Sequence[ByteRange], write: bool, certain: bool, protected: bool) -> None:
        self.inner.access(_real(operation), ranges, write=write, certain=certain, protected=protected)

    def release(self, lane: int) -> int:
        """See :meth:`EventSink.release`."""
        token = Later()
        self.add((self._release, token, lane))
        return token

    def _release(self, token: Later, lane: int) -> None:
        token.given = self.inner.release(lane)

    def acquire(self, lane: int, token: int, *, sync: int | None = None) -> None:
        """See :meth:`EventSink.acquire`."""
        self.add((self._acquire, lane, token, sync))

    def _acquire(self, lane: int, token: int, sync: int | None) -> None:
        self.inner.acquire(lane, _real(token), sync=None if sync is None else _real(sync))

    def sync(self, lane: int, kind: SyncKind, name: str, stack: Stack, *, step: int | None = None) -> int:
        """See :meth:`EventSink.sync`."""
        number = Later()
        self.add((self._sync, number, lane, kind, name, stack, step))
        return number

    def _sync(self, number: Later, lane: int, kind: SyncKind, name: str, stack: Stack, step: int | None) -> None:
        number.given = self.inner.sync(lane, kind, name, stack, step=step)

    def allocate(self, lane: int, base: int, size: int, space: Space, stack: Stack) -> int:
        """See :meth:`EventSink.allocate`."""
        block = Later()
        self.add((self._allocate, block, lane, base, size, space, stack))
        return block

    def _allocate(self, block: Later, lane: int, base: int, size: int, space: Space, stack: Stack) -> None:
        block.given = self.inner.allocate(lane, base, size, space, stack)

    def free(self, block: int, lane: int, stack: Stack, *, after: Sequence[int] = ()) -> None:
        """See :meth:`EventSink.free`."""
        self.add((self._free, block, lane, stack, after))

    def _free(self, block: int, lane: int, stack: Stack, after: Sequence[int]) -> None:
        self.inner.free(_real(block), lane, stack, after=after)

    def report(self, finding: Finding) -> None:
        """See :meth:`EventSink.report`."""
        self.add((self.inner.report, finding))


def _real(number: int) -> int:
    return number.given if type(number) is Later else number
