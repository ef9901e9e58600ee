"""The shadow of memory: which operations touched which bytes, as far as it can still matter.

Records are kept per block and lane, in the order of the lane's time. To find what conflicts with an access, a lane
whose newest record happens before it is passed over in one comparison, and in the others only the records without an
order are looked at. A record goes when no operation to come can race with it, or when a later one of the same lane
would always be found in its place; both are looked for only when a block has multiplied its records, so that an
access costs the same however many came before.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..events import KernelRanges, OperationKind, Space, Stack
from .addresses import AddressMap
from .clocks import Frontier, Moment

#: What two operations at one place of the program share: kind, name, innermost frame.
Place: TypeAlias = tuple[OperationKind, str, Stack]

#: Records are thinned out when a block has more than so many, or all blocks together have.
_FEW, _MANY = 32, 4096
#: And again when they have grown by this factor.
_GROWTH = 4


class Operation(Moment):
    """An operation: when it happens (its clock, fixed when it was asked for) and what it is, for people."""

    __slots__ = ("blamed", "kind", "lane_name", "name", "number", "opened", "stack", "step")

    def __init__(
        self,
        moment: Moment,
        number: int,
        kind: OperationKind,
        name: str,
        lane_name: str,
        stack: Stack,
        step: int | None = None,
        *,
        opened: bool = False,
    ) -> None:
        # Not through super().__init__: one call less for each operation.
        self.lane = moment.lane
        self.time = moment.time
        self.known = moment.known
        self.issuer = moment.issuer
        self.issued = moment.issued
        self.number = number
        self.kind = kind
        self.name = name
        self.lane_name = lane_name
        self.stack = stack
        self.step = step
        #: Whether accesses of it are still to be told.
        self.opened = opened
        #: Findings in which this operation has been counted already; see ``races``.
        self.blamed: frozenset[object] = frozenset()

    @property
    def place(self) -> Place:
        """Where in the program it is; operations at one place are told apart by none of our findings."""
        return self.kind, self.name, self.stack[:1]


class Access:
    """An operation reads or writes the bytes [low, high) of a block; of a kernel, the ranges know by which lines."""

    __slots__ = ("certain", "high", "low", "operation", "protected", "ranges", "write")

    def __init__(
        self,
        operation: Operation,
        low: int,
        high: int,
        write: bool,
        certain: bool = True,
        protected: bool = False,
        ranges: KernelRanges | None = None,
    ) -> None:
        self.operation = operation
        self.low = low
        self.high = high
        self.write = write
        self.certain = certain
        self.protected = protected
        self.ranges = ranges


@dataclass(frozen=True)
class Horizon:
    """What may still come, at the moment when records are thinned out.

    Attributes:
        frontier: covered by all operations still to come, and by all open ones.
        oldest_open: number of the oldest open operation; whoever is older has told all its accesses.
    """

    frontier: Frontier
    oldest_open: int = sys.maxsize


class Block:
    """An allocation, the bytes [base, end), with the accesses that may still matter."""

    __slots__ = ("_groups", "_limit", "base", "end", "freed", "kept", "number", "owner", "space", "stack")

    def __init__(self, number: int, base: int, size: int, space: Space, owner: int, stack: Stack) -> None:
        self.number = number
        self.base = base
        self.end = base + size
        self.space = space
        self.owner = owner
        self.stack = stack
        #: Number of the operation that freed it; what later ones do at its addresses is not its business.
        self.freed = sys.maxsize
        self.kept = 0
        self._groups: dict[int, list[Access]] = {}
        self._limit = _FEW

    def has_others(self, lane: int) -> bool:
        """Whether there are records of other lanes than this one: mostly there are none, and nothing is in conflict."""
        groups = self._groups
        return len(groups) > 1 or (len(groups) == 1 and lane not in groups)

    def conflicts(self, access: Access) -> list[Access]:
        """Records that overlap the access, of which one side writes, and which are not ordered with it."""
        operation = access.operation
        found: list[Access] = []
        for lane, group in self._groups.items():
            if lane != operation.lane:
                reach = operation.reach(lane)
                if group[-1].operation.time > reach:
                    found += _unordered(group, reach, access)
        return found

    def add(self, access: Access) -> bool:
        """Keep a record; returns whether so many have come that they should be thinned out."""
        operation = access.operation
        group = self._groups.get(operation.lane)
        if group is None:
            self._groups[operation.lane] = [access]
        elif group[-1].operation.time <= operation.time:
            group.append(access)
        else:
            # An operation that was open until now; others of its lane, enqueued later, spoke at once.
            bisect.insort(group, access, key=_time)
        self.kept += 1
        return self.kept > self._limit

    def thin_out(self, horizon: Horizon) -> None:
        """Drop the records that no operation to come can race with; if many are left, also those that are stood for."""
        groups = {}
        for lane, group in self._groups.items():
            left = group[bisect.bisect_right(group, horizon.frontier.reach(lane), key=_time) :]
            if left:
                groups[lane] = left
        if 2 * sum(map(len, groups.values())) > self._limit:
            groups = {lane: _without_superseded(group, horizon.oldest_open) for lane, group in groups.items()}
        self._groups = groups
        self.kept = sum(map(len, groups.values()))
        self._limit = max(_FEW, _GROWTH * self.kept)


def _time(access: Access) -> int:
    return access.operation.time


def _unordered(group: list[Access], reach: int, access: Access) -> list[Access]:
    """Those in conflict, newest first; ``reach`` is what the access's operation knows of the group's lane.

    The lane knows more and more, so the records that the operation happens before are the last ones.
    """
    operation, low, high, write = access.operation, access.low, access.high, access.write
    index = len(group) - 1
    if group[index].operation.covers(operation):
        index = bisect.bisect_left(group, True, key=lambda other: other.operation.covers(operation)) - 1
    found = []
    while index >= 0:
        other = group[index]
        if other.operation.time <= reach:
            break
        if other.low < high and low < other.high and (write or other.write):
            found.append(other)
        index -= 1
    return found


def _without_superseded(group: list[Access], oldest_open: int) -> list[Access]:
    """Drop each record that a later one, at the same place and covering its bytes, stands for.

    Whatever is still to be told and races with the earlier one races with the later one too: to be ordered before the
    later one it would have to be older, but all operations older than ``oldest_open`` have told their accesses. The
    finding is the same, since the place is.
    """
    kept: list[Access] = []
    newer: dict[tuple[Place, bool, bool, bool], _Ranges] = {}
    for access in reversed(group):
        kind = (access.operation.place, access.write, access.certain, access.protected)
        ranges = newer.setdefault(kind, _Ranges())
        if ranges.cover(access.low, access.high):
            continue
        kept.append(access)
        if access.operation.number < oldest_open:
            ranges.add(access.low, access.high)
    kept.reverse()
    return kept


class _Ranges:
    """Byte ranges, of which all are matched exactly and the widest also by what lies within it."""

    def __init__(self) -> None:
        self._exact: set[tuple[int, int]] = set()
        self._widest = (0, 0)

    def cover(self, low: int, high: int) -> bool:
        return (self._widest[0] <= low and high <= self._widest[1]) or (low, high) in self._exact

    def add(self, low: int, high: int) -> None:
        self._exact.add((low, high))
        if high - low > self._widest[1] - self._widest[0]:
            self._widest = (low, high)


class Shadow:
    """All blocks, by address.

    Args:
        survey: what may still come, asked for when records are thinned out.
    """

    def __init__(self, survey: Callable[[], Horizon]) -> None:
        self._blocks: AddressMap[Block] = AddressMap()
        self._survey = survey
        #: ``pieces(low, high)``: the parts of a range that lie in blocks, each with its block.
        self.pieces = self._blocks.pieces
        #: Records in all blocks.
        self.kept = 0
        self._limit = _MANY

    def place(self, block: Block) -> None:
        """A block comes to life; what is known of its addresses is no longer true."""
        for stale in self._blocks.place(block):
            self.kept -= stale.kept

    def add(self, block: Block, access: Access) -> None:
        """Keep a record, and make room if there are many."""
        self.kept += 1
        if block.add(access):
            self.kept -= block.kept
            block.thin_out(self._survey())
            self.kept += block.kept
        if self.kept > self._limit:
            self.sweep(self._survey())
            self._limit = max(_MANY, _GROWTH * self.kept)

    def sweep(self, horizon: Horizon) -> None:
        """Thin out everywhere, and drop the freed blocks that no open operation can still touch."""
        self._blocks.keep([block for block in self._blocks if block.freed >= horizon.oldest_open])
        for block in self._blocks:
            block.thin_out(horizon)
        self.kept = sum(block.kept for block in self._blocks)
