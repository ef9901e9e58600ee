"""Which lines of a kernel touched which bytes, for as long as a race with them is likely to be found.

The log of a launch says that, but takes memory: some kilobytes, or many megabytes. So only those of the latest launches
are kept; of a race with an earlier one the lines are not told, and all else is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from ..events import ByteRange, KernelRanges
from ..findings import Site

#: Bytes that the logs of the latest launches of a device may take together.
_LIMIT = 32 << 20


class Log(Protocol):
    """What one launch did to memory."""

    def ranges(self, *, write: bool) -> list[ByteRange]:
        """Sorted, disjoint byte ranges that the launch writes (atomics included), or reads."""
        ...

    def lines(self, low: int, high: int, *, write: bool) -> list[Site]:
        """The lines that do so within [low, high)."""
        ...

    def size(self) -> int:
        """Bytes that it takes, roughly."""
        ...


class _Kept:
    """The log of one launch, until it is forgotten."""

    __slots__ = ("log", "size")

    def __init__(self, log: Log) -> None:
        self.log: Log | None = log
        self.size = log.size()

    def reading(self, low: int, high: int) -> Sequence[Site]:
        return () if self.log is None else self.log.lines(low, high, write=False)

    def writing(self, low: int, high: int) -> Sequence[Site]:
        return () if self.log is None else self.log.lines(low, high, write=True)


class RecentLogs:
    """The logs of the latest launches of one device, in its lock.

    Args:
        limit: bytes that they may take together.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._kept: deque[_Kept] = deque()
        self._size = 0

    def add(self, log: Log) -> tuple[KernelRanges, KernelRanges]:
        """Keep a log, and forget the oldest ones that it leaves no room for.

        Returns:
            What the launch reads, and what it writes.
        """
        kept = _Kept(log)
        self._kept.append(kept)
        self._size += kept.size
        while self._size > self._limit:
            oldest = self._kept.popleft()
            self._size -= oldest.size
            oldest.log = None
        reads, writes = log.ranges(write=False), log.ranges(write=True)
        return KernelRanges(reads, kept.reading), KernelRanges(writes, kept.writing)
