"""Conflicts between the programs of one launch, which run in any order and at the same time.

Two accesses of different programs conflict if they touch one byte, at least one of them writes it, and not both are
atomic and of one width. Not reported are those that an atomic orders, as the last block of a split reduction is
ordered after the others by the counter they all increment; and stores of equal bytes, whose order changes nothing. Both
are judged from the one order in which the interpreter ran the programs, so a conflict can be missed, but none is made
up.

First it is asked, with a few array operations, which bytes are in question at all; in a correct launch that is nearly
always none. ``conflict_judge`` judges the accesses to them. If these are too many, one more conflict says that, with
``judged`` false: nothing is left out in silence.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..events import ByteRange
from .byte_ranges import merged_intervals
from .conflict_judge import Pieces, judge
from .kernel_log import AccessKind, KernelAccess, KernelLog, columns, conflict_kind


@dataclass(frozen=True)
class Conflict:
    """Two accesses of different programs, and bytes that both touch.

    Attributes:
        earlier, later: in the order of execution.
        low, high: addresses [low, high) of bytes that are in conflict, the first that were found.
        judged: false if the launch has too many accesses to disputed bytes: then these two stand for those that were
            not looked at, and may be harmless.
    """

    earlier: KernelAccess
    later: KernelAccess
    low: int
    high: int
    judged: bool = True


def conflicts(log: KernelLog) -> list[Conflict]:
    """One conflict for each pair of lines of the kernel, in the order of execution."""
    if len({access.program for access in log.accesses}) < 2:
        return []
    regions = _regions(log)
    if not regions:
        return []
    pieces, numbers = _pieces(log, regions)
    return [
        Conflict(log.accesses[numbers[earlier]], log.accesses[numbers[later]], low, high, judged)
        for earlier, later, low, high, judged in judge(pieces, log.fences, regions)
    ]


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
    chosen: dict[int, list[KernelAccess]] = {}
    for access in log.accesses:
        chosen.setdefault(conflict_kind(access.kind, access.size), []).append(access)
    kinds = {
        kind: _Intervals(chosen[kind]) for kind in sorted(chosen, key=lambda kind: (kind == AccessKind.WRITE, kind))
    }
    found: list[ByteRange] = []
    if AccessKind.WRITE in kinds:
        writes = kinds[AccessKind.WRITE]
        crossing = writes.crossing
        found += zip(writes.lows[1:][crossing].tolist(), writes.highs[1:][crossing].tolist(), strict=True)
    for one, other in itertools.combinations(kinds.values(), 2):
        found += one.overlapped(other)
    if not found:
        return []
    lows, highs = merged_intervals(*(np.array(bounds, dtype=np.int64) for bounds in zip(*found, strict=True)))
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


def _pieces(log: KernelLog, regions: Sequence[ByteRange]) -> tuple[Pieces, list[int]]:
    """The runs of all accesses that touch a region, and the number of each run's access."""
    numbers: list[int] = []
    rows: list[NDArray[np.int64]] = []
    octets: list[NDArray[np.uint8]] = []
    length = 0
    bounds = np.array(regions, np.int64)
    for number, access in enumerate(log.accesses):
        next_region = np.searchsorted(bounds[:, 1], access.low, side="right")
        if next_region == len(bounds) or bounds[next_region, 0] >= access.high:
            continue
        lows, highs = access.runs()
        stored = np.full(len(lows), -1)
        if access.stored is not None:
            image = _image(access, lows, highs)
            stored = length + np.cumsum(highs - lows) - (highs - lows)
            length += len(image)
            octets.append(image)
        constants = (access.position, access.program, conflict_kind(access.kind, access.size), access.site)
        rows.append(np.stack([*(np.full(len(lows), constant) for constant in constants), lows, highs, stored]))
        numbers += [number] * len(lows)
    image = np.concatenate(octets) if octets else np.empty(0, np.uint8)
    position, program, kind, site, low, high, first = np.concatenate(rows, axis=1)
    return Pieces(position, program, kind, site, low, high, first, image), numbers


def _image(access: KernelAccess, lows: NDArray[np.int64], highs: NDArray[np.int64]) -> NDArray[np.uint8]:
    """What a store leaves in its runs, one after another."""
    assert access.stored is not None
    values, mask = access.stored
    stored = np.ascontiguousarray(np.broadcast_to(values, mask.shape)[mask])
    lanes = np.arange(access.low, access.high, access.size) if access.lanes is None else access.lanes
    octets = stored.view(np.uint8).reshape(len(lanes), access.size)
    run = np.searchsorted(lows, lanes, side="right") - 1
    first = (np.cumsum(highs - lows) - (highs - lows))[run] + lanes - lows[run]
    image = np.zeros(int((highs - lows).sum()), np.uint8)
    image[first[:, None] + np.arange(access.size)] = octets
    return image
