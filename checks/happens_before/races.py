"""The races found so far, one finding for each pair of places.

Which pairs are met depends on when accesses are told and which records have been thinned out; what is made of them
must not. So a finding counts the operations that the program asked for after one that they race with, each once, and
shows the first of them with the last that it races with: neither can be lost by thinning out, which only drops a record
in favour of a later one at the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..events import OperationKind, Space, Stack
from ..findings import Finding
from .rules import Lines, Race, finding_of, lines_of, race_between
from .shadow import Access, Block, Operation, Place

#: Code, both places, the allocation's place, and whether both accesses are certain.
Key: TypeAlias = tuple[str, Place, Place, Space, Stack, bool]
_Rank: TypeAlias = tuple[int, ...]


@dataclass
class _Case:
    """The races of one key: how many, and the one to show."""

    rank: _Rank
    race: Race
    #: Of each side that is a kernel; asked for when the race is found, for they are not known for ever.
    lines: Lines
    occurrences: int = 0


class RaceLog:
    """Takes pairs of accesses in any order."""

    def __init__(self) -> None:
        self._cases: dict[Key, _Case] = {}

    def __len__(self) -> int:
        return len(self._cases)

    def add(self, block: Block, one: Access, two: Access) -> None:
        """Two accesses that conflict and have no order."""
        race = race_between(block, one, two)
        if race is None:
            return
        key, rank = _key(race), _rank(race)
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = _Case(rank, race, lines_of(race))
        elif rank < case.rank:
            case.rank, case.race, case.lines = rank, race, lines_of(race)
        later = race.in_order[1].operation
        if key not in later.blamed:
            later.blamed |= {key}
            case.occurrences += 1

    def findings(self) -> list[Finding]:
        """One finding per pair of places; a possible access is not told where a certain one is."""
        return [
            finding_of(case.race, case.occurrences, case.lines)
            for key, case in self._cases.items()
            if key[-1] or (*key[:-1], True) not in self._cases
        ]


def _key(race: Race) -> Key:
    block = race.block
    places = _place(race.first.operation), _place(race.second.operation)
    return race.code, *places, block.space, block.stack[:1], race.certain


def _place(operation: Operation) -> Place:
    """A line of the program is one place, though the host may touch memory in several ways there, one after another."""
    kind, name, stack = operation.place
    return kind, "" if kind is OperationKind.HOST_ACCESS and stack else name, stack


def _rank(race: Race) -> _Rank:
    """Least for the race to show; of the accesses of one operation, the wider one may have been kept alone."""
    earlier, later = (access.operation.number for access in race.in_order)
    low, high = race.overlap
    return later, -earlier, low, -high, *(not flag for side in race.sides for flag in (side.write, side.certain))
