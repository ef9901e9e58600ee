"""Which block of memory an address lies in."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Extent(Protocol):
    """Something that occupies the addresses [base, end)."""

    base: int
    end: int


T = TypeVar("T", bound=Extent)


class AddressMap(Generic[T]):
    """Blocks that do not overlap, found by address in logarithmic time."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._items: list[T] = []

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def place(self, item: T) -> list[T]:
        """Add a block; those it overlaps are stale (their memory was given back unseen), go, and are returned."""
        first = bisect.bisect_left(self._bases, item.base)
        if first < len(self._items) and (there := self._items[first]).base == item.base and there.end == item.end:
            self._items[first] = item  # what an allocator does most often
            return [there]
        if first and self._items[first - 1].end > item.base:
            first -= 1
        last = bisect.bisect_left(self._bases, item.end, first)
        stale = self._items[first:last]
        self._bases[first:last] = [item.base]
        self._items[first:last] = [item]
        return stale

    def keep(self, items: list[T]) -> None:
        """Go on with these of the blocks only, which are still in order."""
        self._items = items
        self._bases = [item.base for item in items]

    def pieces(self, low: int, high: int) -> list[tuple[T, int, int]]:
        """The parts of [low, high) that lie in blocks, each with its block; the rest is nobody's."""
        index = bisect.bisect_right(self._bases, low) - 1
        if index >= 0 and low < high <= self._items[index].end:
            return [(self._items[index], low, high)]
        found = []
        for item in self._items[max(index, 0) : bisect.bisect_left(self._bases, high)]:
            start, end = max(low, item.base), min(high, item.end)
            if start < end:
                found.append((item, start, end))
        return found
