"""Conflicts between the programs of one launch, which run in any order and at the same time.

Two accesses of different programs conflict if they touch one byte, at least one of them writes it, and not both are
atomic. Not reported are those that an atomic orders, as the last block of a split reduction is ordered after the
others by the counter they all increment; and stores of equal bytes, whose order changes nothing. Both are judged from
the one order in which the interpreter ran the programs, so a conflict can be missed, but none is made up.

First it is asked, with a few array operations, which bytes are in question at all; in a correct launch that is nearly
always none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..events import ByteRange
from .byte_ranges import Addresses, merged_intervals
from .kernel_log import AccessKind, KernelAccess, KernelLog, columns

#: Pairs of accesses that are looked at in one launch; more are of the same kinds.
_MAX_PAIRS = 4096


@dataclass(frozen=True)
class Conflict:
    """Two accesses of different programs, and the first bytes that both touch."""

    earlier: KernelAccess
    later: KernelAccess
    low: int
    high: int


def conflicts(log: KernelLog) -> list[Conflict]:
    """One conflict for each pair of lines of the kernel, in the order of execution."""
    if len({access.program for access in log.accesses}) < 2:
        return []
    regions = _regions(log)
    found: dict[frozenset[int], Conflict] = {}
    for conflict in _pairs(log, regions) if regions else ():
        key = frozenset((conflict.earlier.site, conflict.later.site))
        if key not in found and not _harmless(log, conflict):
            found[key] = conflict
    return list(found.values())


class _Intervals:
    """Byte ranges with the program that each belongs to, disjoint within a program, sorted by first address."""

    def __init__(self, accesses: Sequence[KernelAccess]) -> None:
        lows, highs, programs = columns(accesses)
        # Each program gets address space of its own, so that merging keeps them apart.
        base, span = int(lows.min()), int(highs.max()) - int(lows.min()) + 1
        lows, highs = merged_intervals(lows - base + programs * span, highs - base + programs * span)
        programs = lows // span
        order = np.argsort(lows - programs * span, kind="stable")
        self.programs = programs[order]
        self.lows = lows[order] + base - self.programs * span
        self.highs = highs[order] + base - self.programs * span

    @property
    def crossing(self) -> NDArray[np.bool_]:
        """For each but the first, whether it overlaps an earlier one, which is of another program then."""
        crossing: NDArray[np.bool_] = self.lows[1:] < np.maximum.accumulate(self.highs)[:-1]
        return crossing

    def overlapped(self, other: _Intervals) -> list[ByteRange]:
        """Those of these that overlap one of the other's which is, or may be, of another program."""
        if other.crossing.any():
            lows, highs = merged_intervals(other.lows, other.highs)
            hit = np.searchsorted(highs, self.lows, side="right") < np.searchsorted(lows, self.highs, side="left")
        else:
            first = np.searchsorted(other.highs, self.lows, side="right")
            last = np.searchsorted(other.lows, self.highs, side="left") - 1
            changes = np.cumsum(np.concatenate(([0], np.diff(other.programs) != 0)))
            hit = first <= last
            first, last = np.minimum(first, len(changes) - 1), np.maximum(last, 0)
            hit &= (changes[first] != changes[last]) | (other.programs[first] != self.programs)
        return list(zip(self.lows[hit].tolist(), self.highs[hit].tolist(), strict=True))


def _regions(log: KernelLog) -> list[ByteRange]:
    """Byte ranges within which there may be a conflict, sorted and disjoint."""
    kinds = {
        kind: _Intervals(chosen)
        for kind in AccessKind
        if (chosen := [access for access in log.accesses if access.kind is kind])
    }
    reads, writes, atomics = (kinds.get(kind) for kind in (AccessKind.READ, AccessKind.WRITE, AccessKind.ATOMIC))
    found: list[ByteRange] = []
    if writes is not None:
        crossing = writes.crossing
        found += zip(writes.lows[1:][crossing].tolist(), writes.highs[1:][crossing].tolist(), strict=True)
    for one, other in ((reads, writes), (atomics, writes), (reads, atomics)):
        if one is not None and other is not None:
            found += one.overlapped(other)
    if not found:
        return []
    lows, highs = merged_intervals(*(np.array(bounds, dtype=np.int64) for bounds in zip(*found, strict=True)))
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


def _pairs(log: KernelLog, regions: Sequence[ByteRange]) -> Iterator[Conflict]:
    """Conflicting accesses within the regions, as many as are worth looking at."""
    left = _MAX_PAIRS
    for low, high in regions:
        touching = [access for access in log.accesses if access.low < high and low < access.high]
        for index, later in enumerate(touching):
            for earlier in touching[:index]:
                if not _conflicting(earlier, later):
                    continue
                shared = _shared(earlier, later, low, high)
                if shared is not None:
                    yield Conflict(earlier, later, *shared)
                left -= 1
                if not left:
                    return


def _conflicting(one: KernelAccess, other: KernelAccess) -> bool:
    """Whether a common byte would be a conflict: one kind is a write, or one is atomic and the other is not."""
    return one.program != other.program and (one.kind is not other.kind or one.kind is AccessKind.WRITE)


def _shared(one: KernelAccess, other: KernelAccess, low: int, high: int) -> ByteRange | None:
    """The first bytes within [low, high) that both touch."""
    (lows, highs), (other_lows, other_highs) = one.runs(), other.runs()
    index = np.searchsorted(other_highs, np.maximum(lows, low), side="right")
    inside = index < len(other_lows)
    index = np.minimum(index, len(other_lows) - 1)
    start = np.maximum(np.maximum(lows, other_lows[index]), low)
    end = np.minimum(np.minimum(highs, other_highs[index]), high)
    hits = np.flatnonzero(inside & (start < end))
    return (int(start[hits[0]]), int(end[hits[0]])) if len(hits) else None


# What makes a conflict harmless


def _harmless(log: KernelLog, conflict: Conflict) -> bool:
    return _equal_stores(conflict) or (bool(log.fences) and _ordered(log, conflict))


def _equal_stores(conflict: Conflict) -> bool:
    """Whether both store the same bytes, wherever both store."""
    earlier, later = conflict.earlier, conflict.later
    if earlier.stored is None or later.stored is None:
        return False
    low, high = max(earlier.low, later.low), min(earlier.high, later.high)
    (one, one_there), (other, other_there) = (_image(access, low, high) for access in (earlier, later))
    both = one_there & other_there
    return bool((one[both] == other[both]).all())


def _image(access: KernelAccess, low: int, high: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """What a store leaves in [low, high), and which of these bytes it touches."""
    assert access.stored is not None
    values, mask = access.stored
    stored = np.ascontiguousarray(np.broadcast_to(values, mask.shape)[mask])
    lanes: Addresses = np.arange(access.low, access.high, access.size) if access.lanes is None else access.lanes
    octets = stored.view(np.uint8).reshape(len(lanes), access.size)
    place = lanes[:, None] + np.arange(access.size) - low
    inside = (place >= 0) & (place < high - low)
    image, there = np.zeros(high - low, np.uint8), np.zeros(high - low, bool)
    image[place[inside]] = octets[inside]
    there[place[inside]] = True
    return image, there


def _ordered(log: KernelLog, conflict: Conflict) -> bool:
    """Whether atomics order the two, directly or through other programs."""
    start, end = conflict.earlier.position, conflict.later.position
    informed, released = {conflict.earlier.program}, set[int]()
    for fence in log.fences:
        if not start <= fence.position <= end:
            continue
        if fence.acquires and not released.isdisjoint(fence.addresses):
            informed.add(fence.program)
        if fence.releases and fence.program in informed:
            released |= fence.addresses
    return conflict.later.program in informed
