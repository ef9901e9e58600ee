"""Whether a mutant orders all that the original orders: the proof by happens-before that it is equivalent.

Both were recorded under one schedule, and clocks do not depend on when operations ran, so what follows holds for all
schedules of the same program path. The proof has two parts:

1. *The same accesses.* Both runs enqueue the same operations, that touch the same bytes of the same blocks in the same
   way; which stream they run on, and what orders them, is not compared.
2. *Every order is kept.* Whenever one operation, or the drop of a block, comes after another one in the original, it
   does in the mutant. So each two that conflict are ordered there by another path.

It says more than that no race was found: an edge that keeps apart what no workload lets collide is missed by the
second part, and such a mutant is a survivor.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mrv2.checks.events import OperationKind, Space, Stack
from mrv2.checks.happens_before.records import (
    Accesses,
    Acquires,
    Allocates,
    Frees,
    OperationBegins,
    Piece,
    Record,
    Releases,
)

_What: TypeAlias = tuple[object, ...]


@dataclass
class Relation:
    """What a run did, and what came before what.

    Attributes:
        what: each operation that touches memory, and each allocation and drop, in the order of the program.
        before: of each, those that happen before it, as a number with a bit for each.
    """

    what: list[_What] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


def relation_of(records: Sequence[Record]) -> Relation:
    """The happens-before relation of a recorded run."""
    builder = _Builder(_touches(records))
    for record in records:
        builder.tell(record)
    return builder.relation


def _touches(records: Sequence[Record]) -> dict[int, list[_What]]:
    """What each operation touches.

    Not of blocks that were dropped before it began: ordinary memory of the host may lie at their addresses by then.
    """
    touches: dict[int, list[_What]] = {}
    begun, dropped = _begun(records), _dropped(records)
    for record in records:
        if isinstance(record, Accesses):
            at = begun[record.operation]
            pieces = tuple(piece for piece in record.ranges if at < dropped.get(piece[0], len(records)))
            if pieces:
                how = (pieces, record.write, record.certain, record.protected)
                touches.setdefault(record.operation, []).append(how)
    return touches


def _begun(records: Sequence[Record]) -> dict[int, int]:
    """Where each operation was told."""
    return {record.operation: at for at, record in enumerate(records) if isinstance(record, OperationBegins)}


def _dropped(records: Sequence[Record]) -> dict[int, int]:
    """Where the drop of each block was told."""
    return {record.block: at for at, record in enumerate(records) if isinstance(record, Frees)}


class _Builder:
    """Follows what each lane knows to have happened.

    Args:
        touches: of each operation.
    """

    def __init__(self, touches: Mapping[int, list[_What]]) -> None:
        self.relation = Relation()
        self._touches = touches
        self._known: dict[int, int] = {}
        self._tokens: dict[int, int] = {}
        self._owner: dict[int, int] = {}

    def tell(self, record: Record) -> None:
        """The next record."""
        if isinstance(record, Releases):
            self._tokens[record.token] = self._of(record.lane)
        elif isinstance(record, Acquires):
            self._known[record.lane] = self._of(record.lane) | self._tokens[record.token]
        elif isinstance(record, OperationBegins):
            self._operation(record)
        elif isinstance(record, Allocates):
            if record.space is Space.DEVICE:
                self._owner[record.block] = record.lane
            # Nothing is touched, so nothing need come before it.
            self._add(("allocate", record.size, record.space), 0)
        elif isinstance(record, Frees):
            # Of device memory it is the next work on the owning stream, behind all that the allocator waits for.
            owner = self._owner.get(record.block, record.lane)
            self._add((OperationKind.FREE, record.block), self._of(owner, record.lane, *record.after))

    def _operation(self, record: OperationBegins) -> None:
        before = self._of(record.lane) if record.issuer is None else self._of(record.lane, record.issuer)
        self._known[record.lane] = before
        if record.operation in self._touches:
            what = (record.kind, record.name, tuple(self._touches[record.operation]))
            self._known[record.lane] |= self._add(what, before)

    def _of(self, *lanes: int) -> int:
        return functools.reduce(operator.or_, (self._known.get(lane, 0) for lane in lanes))

    def _add(self, what: _What, before: int) -> int:
        self.relation.what.append(what)
        self.relation.before.append(before)
        return 1 << (len(self.relation.what) - 1)


def why_not_equivalent(original: Relation, mutant: Relation) -> str | None:
    """What the proof lacks; None if it holds."""
    for number, (one, other) in enumerate(zip(original.what, mutant.what, strict=False)):
        if one != other:
            return f"it touches other memory: {_told(other)} where {_told(one)} was, as access {number + 1}"
    if len(original.what) != len(mutant.what):
        return f"it has {len(mutant.what)} operations, and the original {len(original.what)}"
    lost = [
        (number, missing)
        for number, (before, still) in enumerate(zip(original.before, mutant.before, strict=True))
        if (missing := before & ~still)
    ]
    if not lost:
        return None
    number, missing = lost[0]
    first = (missing & -missing).bit_length() - 1
    return (
        f"{len(lost)} of {len(original.what)} operations lose an order, and no workload lets what they touch collide: "
        f"first {_told(original.what[number])} after {_told(original.what[first])}"
    )


def copies_told_apart(records: Sequence[Record], file: str, lines: range) -> str | None:
    """Where a copy that is made at some place might differ from what it is a copy of; None if nowhere.

    It does not as long as neither is written before the copy is dropped. So whoever got the one could have had the
    other: the proof for mutants that hand out a buffer in the place of its copy, which touch other memory.

    Args:
        records: of the original.
        file: end of the path of the place.
        lines: of the place.
    """
    begun, dropped = _begun(records), _dropped(records)
    accesses = [record for record in records if isinstance(record, Accesses)]
    places = [one for one in records if isinstance(one, OperationBegins) and _is_at(one.stack, file, lines)]
    found = 0
    for place in places:
        own = [access for access in accesses if access.operation == place.operation]
        copies = {piece[0] for access in own if access.write for piece in access.ranges}
        sources = [piece for access in own if not access.write for piece in access.ranges]
        found += bool(copies and sources)
        begin = begun[place.operation]
        end = max((dropped.get(block, len(records)) for block in copies), default=begin)
        for access in accesses:
            if access.write and begin < begun[access.operation] < end and _meets(access, copies, sources):
                return "the buffer or its copy is written while both are in use"
    return None if found else "no copy of device memory was seen there"


def _meets(access: Accesses, blocks: Collection[int], pieces: Sequence[Piece]) -> bool:
    """Whether an access touches some blocks, or some pieces of others."""
    return any(one[0] in blocks or any(_overlap(one, piece) for piece in pieces) for one in access.ranges)


def _is_at(stack: Stack, file: str, lines: range) -> bool:
    """Whether the innermost frame is there."""
    return bool(stack) and stack[0][0].endswith(f"/{file}") and stack[0][1] in lines


def _overlap(one: Piece, other: Piece) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _told(what: _What) -> str:
    kind = what[0]
    if isinstance(kind, OperationKind):
        return f"{kind.value} {what[1]}"
    return f"{kind} of {what[1]} bytes"
