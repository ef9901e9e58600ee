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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mrv2.checks.events import OperationKind, Space
from mrv2.checks.happens_before.records import (
    Accesses,
    Acquires,
    Allocates,
    Frees,
    OperationBegins,
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

    Not of blocks that were dropped before it: ordinary memory of the host may lie at their addresses by then.
    """
    touches: dict[int, list[_What]] = {}
    dropped: set[int] = set()
    for record in records:
        if isinstance(record, Frees):
            dropped.add(record.block)
        elif isinstance(record, Accesses):
            pieces = tuple(piece for piece in record.ranges if piece[0] not in dropped)
            if pieces:
                how = (pieces, record.write, record.certain, record.protected)
                touches.setdefault(record.operation, []).append(how)
    return touches


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
            self._add(("allocate", record.size, record.space), self._of(record.lane))
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


def _told(what: _What) -> str:
    kind = what[0]
    if isinstance(kind, OperationKind):
        return f"{kind.value} {what[1]}"
    return f"{kind} of {what[1]} bytes"
