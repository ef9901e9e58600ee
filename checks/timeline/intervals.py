"""Arithmetic of half-open intervals of time, in integer nanoseconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

Interval: TypeAlias = tuple[int, int]
Label = TypeVar("Label", bound=Hashable)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments as disjoint intervals, sorted; those that touch are joined."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def gaps(covered: Sequence[Interval], window: Interval) -> list[Interval]:
    """What a window has between disjoint, sorted intervals."""
    found, at = [], window[0]
    for start, end in clipped(covered, window):
        if start > at:
            found.append((at, start))
        at = max(at, end)
    return [*found, (at, window[1])] if at < window[1] else found


def clipped(covered: Sequence[Interval], window: Interval) -> list[Interval]:
    """The parts of disjoint, sorted intervals in a window."""
    first = max(bisect_right(covered, (window[0], window[0])) - 1, 0)
    found = []
    # Not a slice: whoever asks for each of many steps would copy what is behind it each time.
    for index in range(first, len(covered)):
        start, end = covered[index]
        if start >= window[1]:
            break
        if end > window[0]:
            found.append((max(start, window[0]), min(end, window[1])))
    return found


def length(intervals: Iterable[Interval]) -> int:
    """Time in disjoint intervals."""
    return sum(end - start for start, end in intervals)


class Innermost(Generic[Label]):
    """Which of nested ranges of one thread is the innermost, at every moment.

    Args:
        ranges: start, end, label. Of two that overlap without nesting, the later one counts.
    """

    def __init__(self, ranges: Iterable[tuple[int, int, Label]]) -> None:
        self._times: list[int] = []
        self._labels: list[Label | None] = []
        open_ranges: list[tuple[int, Label]] = []
        for start, end, label in sorted(ranges, key=lambda one: (one[0], -one[1])):
            self._close(open_ranges, start)
            if end > start:
                open_ranges.append((end, label))
                self._mark(start, label)
        self._close(open_ranges, None)

    def _close(self, open_ranges: list[tuple[int, Label]], until: int | None) -> None:
        while open_ranges and (until is None or open_ranges[-1][0] <= until):
            end, _ = open_ranges.pop()
            while open_ranges and open_ranges[-1][0] <= end:
                open_ranges.pop()
            self._mark(end, open_ranges[-1][1] if open_ranges else None)

    def _mark(self, time: int, label: Label | None) -> None:
        if self._times and self._times[-1] == time:
            self._labels[-1] = label
        else:
            self._times.append(time)
            self._labels.append(label)

    def at(self, time: int) -> Label | None:
        """The label at a moment; None outside of all ranges."""
        index = bisect_right(self._times, time) - 1
        return self._labels[index] if index >= 0 else None

    def pieces(self, window: Interval) -> Iterator[tuple[int, int, Label | None]]:
        """A window cut where the innermost range changes: begin, end, label."""
        index, at = bisect_right(self._times, window[0]) - 1, window[0]
        while at < window[1]:
            label = self._labels[index] if index >= 0 else None
            following = self._times[index + 1] if index + 1 < len(self._times) else window[1]
            until = min(following, window[1])
            yield at, until, label
            index, at = index + 1, until

    def shares(self, window: Interval) -> dict[Label | None, int]:
        """How much of a window each label has."""
        found: dict[Label | None, int] = {}
        for start, end, label in self.pieces(window):
            found[label] = found.get(label, 0) + end - start
        return found
