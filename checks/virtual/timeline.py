"""A run as a short story: what the host and the streams did to the memory that a finding is about, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..findings import Finding
from .transcript import Entry

#: More lines than this are more than anybody reads; the middle is left out.
LINES = 24
#: Lines shown before the first side of a race, and after the last.
AROUND = 4


@dataclass(frozen=True)
class Row:
    """One line of a timeline.

    Attributes:
        actor: the host thread or the stream.
        what: what it did.
        place: file and line where the program asked for it.
        racing: whether it is one of the sides of the race.
    """

    actor: str
    what: str
    place: str
    racing: bool = False


@dataclass
class _Operation:
    """What a transcript says of one operation."""

    lane: int
    kind: str
    name: str
    stack: Sequence[Sequence[Any]]
    issuer: int | None
    accesses: list[tuple[int, int, int, bool]] = field(default_factory=list)


class Story:
    """A transcript in memory, with what its entries refer to."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = list(entries)
        self.lanes: dict[int, str] = {}
        self.spaces: dict[int, str] = {}
        self.freed: set[int] = set()
        self.operations: dict[int, _Operation] = {}
        for entry in self.entries:
            self._learn(entry)

    def _learn(self, entry: Entry) -> None:
        kind, *rest = entry
        values: list[Any] = rest
        if kind == "lane":
            self.lanes[values[0]] = values[2]
        elif kind == "allocate":
            self.spaces[values[0]] = values[3].removesuffix(" memory")
        elif kind == "free":
            self.freed.add(values[0])
        elif kind == "operation":
            self.operations[values[0]] = _Operation(*values[1:6])
        elif kind == "access":
            accesses = self.operations[values[0]].accesses
            accesses.extend((block, low, high, values[2]) for block, low, high in values[1])

    def rows(self, finding: Finding) -> list[Row]:
        """The lines that matter to a race: accesses to its memory, and the waits between them.

        From a few lines before the first side of the race to a few after the last.
        """
        racing = _racing(finding)
        rows = [*self._rows(self._blocks(finding, racing), racing)]
        sides = [index for index, row in enumerate(rows) if row.racing]
        return rows[max(0, sides[0] - AROUND) : sides[-1] + 1 + AROUND] if sides else rows

    def _blocks(self, finding: Finding, racing: frozenset[int]) -> frozenset[int]:
        """The blocks that the racing operations share; one that the transcript does not name is the free itself."""
        named = [self.operations[number] for number in racing if number in self.operations]
        touched = [{block for block, *_ in operation.accesses} for operation in named]
        shared = set.intersection(*touched) if touched else set()
        if len(named) < len(racing):
            shared = {block for block in shared & self.freed if self.spaces[block] in str(finding.evidence["space"])}
        return frozenset(shared)

    def _rows(self, blocks: frozenset[int], racing: frozenset[int]) -> Iterator[Row]:
        for kind, *values in self.entries:
            number: Any = values[0]
            if kind == "sync":
                _, lane, meaning, name, stack, _ = values
                yield Row(self.lanes[_int(lane)], f"{meaning} ({name})", _place(stack))
            elif kind in ("operation", "run") and self._touches(number, blocks):
                yield self._row(str(kind), self.operations[number], blocks, number in racing)
            elif kind == "free" and number in blocks:
                freeing = any(side not in self.operations for side in racing)
                yield Row(self.lanes[_int(values[1])], f"drops block {number}", _place(values[2]), freeing)

    def _touches(self, number: int, blocks: frozenset[int]) -> bool:
        operation = self.operations.get(number)
        return operation is not None and any(block in blocks for block, *_ in operation.accesses)

    def _row(self, kind: str, operation: _Operation, blocks: frozenset[int], racing: bool) -> Row:
        actor, place = self.lanes[operation.lane], _place(operation.stack)
        if kind == "run":
            return Row(actor, f"runs {operation.name}, which {self._accesses(operation, blocks)}", place, racing)
        if operation.issuer is None:
            return Row(actor, f"{self._accesses(operation, blocks)}: {operation.name}", place, racing)
        return Row(self.lanes[operation.issuer], f"enqueues {operation.name} on {actor}", place)

    def _accesses(self, operation: _Operation, blocks: frozenset[int]) -> str:
        """The accesses to some blocks, in words; of many pieces of one block the span."""
        spans: dict[tuple[bool, int], tuple[int, int]] = {}
        for block, low, high, write in operation.accesses:
            if block in blocks:
                first, last = spans.get((write, block), (low, high))
                spans[write, block] = min(first, low), max(last, high)
        parts = [
            f"{'writes' if write else 'reads'} {self.spaces[block]} block {block} [{low}, {high})"
            for (write, block), (low, high) in sorted(spans.items())
        ]
        return " and ".join(parts)


def _racing(finding: Finding) -> frozenset[int]:
    """Numbers of the operations that a finding names."""
    found = finding.evidence.get("operations")
    sides = found if isinstance(found, Sequence) else ()
    numbers = (side.get("operation") for side in sides if isinstance(side, Mapping))
    return frozenset(number for number in numbers if isinstance(number, int))


def _place(stack: Any) -> str:
    return f"{stack[0][0]}:{stack[0][1]}" if stack else ""


def _int(value: Any) -> int:
    return int(value)


def render(rows: Sequence[Row]) -> str:
    """One line for each row, in columns; the sides of the race are marked."""
    if len(rows) > LINES:
        head, tail = rows[: LINES // 2], rows[-LINES // 2 :]
        rows = [*head, Row("", f"... {len(rows) - len(head) - len(tail)} more", ""), *tail]
    widths = [max((len(text) for text in column), default=0) for column in zip(*map(_cells, rows), strict=True)]
    lines = []
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(_cells(row), widths, strict=True))
        lines.append("  ".join((*cells, "<- races" if row.racing else "")).rstrip())
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, str, str]:
    return row.actor, row.what, row.place
