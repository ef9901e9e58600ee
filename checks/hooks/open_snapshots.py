"""The snapshots of uploads that the host has not waited for yet, found by memory and by order.

Which streams are ordered after a copy is followed by taint: each lane keeps the snapshots that it knows, numbered in
the order in which it came to know them, and a token stands for all up to a number. So a release costs the same however
many snapshots are open; an acquisition, and an access, cost what they concern.
"""

from __future__ import annotations

import bisect
import operator
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..events import Stack

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Snapshot:
    """What the source of one upload held when the copy was enqueued.

    Attributes:
        number: of the upload in the run, from 0.
        name: of the operation.
        block: number of the block that it lies in.
        low: first address.
        stack: where the copy was asked for.
        step: of the runner, if known.
        known: the number under which each lane that is ordered after the copy knows it.
    """

    def __init__(self, number: int, name: str, block: int, memory: NDArray[np.uint8]) -> None:
        self.number = number
        self.name = name
        self.block = block
        self.low = memory.ctypes.data
        self.high = self.low + len(memory)
        self.stack: Stack = ()
        self.step: int | None = None
        self.known: dict[int, int] = {}
        self._memory = memory
        self._before = memory.copy()
        self._told = np.zeros(0, dtype=bool)

    def __len__(self) -> int:
        return len(self._before)

    def leave_out(self, low: int, high: int) -> None:
        """A write to these addresses was told."""
        if low < self.high and self.low < high:
            if not len(self._told):
                self._told = np.zeros(len(self._before), dtype=bool)
            self._told[max(low - self.low, 0) : high - self.low] = True

    def changed(self) -> NDArray[np.intp]:
        """Offsets of the bytes that have changed though no write was told."""
        differs = self._memory != self._before
        if len(self._told):
            differs &= ~self._told
        return np.flatnonzero(differs)


class OpenSnapshots:
    """All open snapshots, oldest first; iteration and ``len`` are over them.

    Attributes:
        nbytes: how much they remember.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._all: dict[Snapshot, None] = {}
        self._blocks: dict[int, _InBlock] = {}
        self._lanes: dict[int, _Known] = {}
        self._tokens: dict[int, tuple[_Known, int]] = {}
        self._numbers = 0  # beyond all that lanes have given

    def __iter__(self) -> Iterator[Snapshot]:
        return iter([*self._all])

    def __len__(self) -> int:
        return len(self._all)

    @property
    def tokens(self) -> int:
        """How many tokens stand for a snapshot."""
        return len(self._tokens)

    def oldest(self) -> Snapshot:
        """The one that has been open for longest."""
        return next(iter(self._all))

    def add(self, snapshot: Snapshot, lane: int) -> None:
        """The copy was put on this lane."""
        self._all[snapshot] = None
        self.nbytes += len(snapshot)
        self._blocks.setdefault(snapshot.block, _InBlock()).add(snapshot)
        self._lane(lane).learn(snapshot)

    def remove(self, snapshot: Snapshot) -> bool:
        """Forget one; whether it was open."""
        if snapshot not in self._all:
            return False
        del self._all[snapshot]
        self.nbytes -= len(snapshot)
        block = self._blocks[snapshot.block]
        block.remove(snapshot)
        if not block:
            del self._blocks[snapshot.block]
        for lane, number in snapshot.known.items():
            known = self._lanes[lane]
            for token in known.forget(number):
                del self._tokens[token]
            if not known:
                self._numbers = max(self._numbers, known.following)
                del self._lanes[lane]
        return True

    def of_block(self, block: int) -> list[Snapshot]:
        """All in one block."""
        found = self._blocks.get(block)
        return [] if found is None else [*found]

    def overlapping(self, block: int, low: int, high: int) -> list[Snapshot]:
        """Those in a block that a range of addresses may overlap."""
        found = self._blocks.get(block)
        return [] if found is None else found.near(low, high)

    def release(self, lane: int, token: int) -> None:
        """A token of a lane stands for what the lane knows now."""
        known = self._lanes.get(lane)
        if known is not None and known.note(token):
            self._tokens[token] = known, known.following

    def behind(self, token: int) -> list[Snapshot]:
        """The open ones that a token stands for."""
        known, end = self._tokens.get(token, (None, 0))
        return [] if known is None else known.before(end)

    def learn(self, lane: int, token: int) -> None:
        """A stream has acquired a token."""
        entry = self._tokens.get(token)
        if entry is None or entry[0].lane == lane:
            return
        mine = self._lane(lane)
        for snapshot in mine.news_of(*entry):
            mine.learn(snapshot)
        if not mine:
            del self._lanes[lane]

    def _lane(self, lane: int) -> _Known:
        known = self._lanes.get(lane)
        if known is None:  # its numbers are new to whoever has seen some of this lane before
            known = self._lanes[lane] = _Known(lane, self._numbers)
        return known


class _Known:
    """What one lane knows: open snapshots by number.

    Attributes:
        lane: whose.
        following: number of the next.
    """

    def __init__(self, lane: int, start: int) -> None:
        self.lane = lane
        self.following = start
        self._first = start  # none before it is open
        self._snapshots: dict[int, Snapshot] = {}
        self._tokens: deque[tuple[int, int]] = deque()
        self._seen: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._snapshots)

    def learn(self, snapshot: Snapshot) -> None:
        """One more, unless it is known."""
        if self.lane not in snapshot.known:
            snapshot.known[self.lane] = self.following
            self._snapshots[self.following] = snapshot
            self.following += 1

    def forget(self, number: int) -> list[int]:
        """One is open no longer; returns the tokens that stand for nothing any more."""
        del self._snapshots[number]
        while self._first < self.following and self._first not in self._snapshots:
            self._first += 1
        over = []
        while self._tokens and self._tokens[0][0] <= self._first:
            over.append(self._tokens.popleft()[1])
        return over

    def note(self, token: int) -> bool:
        """A token was released here; whether it stands for anything."""
        if not self._snapshots:
            return False
        self._tokens.append((self.following, token))
        return True

    def before(self, end: int, start: int = 0) -> list[Snapshot]:
        """Those with numbers from ``start`` to ``end``, which is left out."""
        numbers = range(max(start, self._first), end)
        return [self._snapshots[number] for number in numbers if number in self._snapshots]

    def news_of(self, other: _Known, end: int) -> list[Snapshot]:
        """What another lane knew up to a number, and has not handed over before."""
        start = self._seen.get(other.lane, 0)
        self._seen[other.lane] = max(start, end)
        return other.before(end, start)


_LOW = operator.attrgetter("low")


class _InBlock:
    """The snapshots in one block, by address."""

    def __init__(self) -> None:
        self._by_address: list[Snapshot] = []
        self._longest = 0

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self._by_address)

    def __len__(self) -> int:
        return len(self._by_address)

    def add(self, snapshot: Snapshot) -> None:
        bisect.insort(self._by_address, snapshot, key=_LOW)
        self._longest = max(self._longest, len(snapshot))

    def remove(self, snapshot: Snapshot) -> None:
        index = bisect.bisect_left(self._by_address, snapshot.low, key=_LOW)
        while self._by_address[index] is not snapshot:
            index += 1
        del self._by_address[index]

    def near(self, low: int, high: int) -> list[Snapshot]:
        """All that overlap these addresses, and perhaps some beside them."""
        first = bisect.bisect_right(self._by_address, low - self._longest, key=_LOW)
        last = bisect.bisect_left(self._by_address, high, first, key=_LOW)
        return self._by_address[first:last]
