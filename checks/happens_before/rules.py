"""What a pair of conflicting accesses without an order is called, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..events import LaneKind, OperationKind, Space, Stack, plain_name
from ..findings import JSON, Finding, Site, Soundness, Verdict
from .shadow import Access, Block, Operation

#: Of both sides of a race, in their roles: lines of the kernel, e.g. ``"gather.py:12"``; none for what is no kernel.
Lines: TypeAlias = tuple[Sequence[str], Sequence[str]]
#: Lines of a side that are shown.
_LINES = 4
#: The side that a finding is about comes first: the free, else the host's access.
_ROLE = {OperationKind.FREE: 0, OperationKind.HOST_ACCESS: 1}


@dataclass(frozen=True)
class Race:
    """Two accesses to a block that conflict, in their roles.

    Attributes:
        code: which rule is broken.
        block: the memory.
        first: the offending side: the free, or the host's access, or (of two alike) the first by place.
        second: the other side.
    """

    code: str
    block: Block
    first: Access
    second: Access

    @property
    def sides(self) -> tuple[Access, Access]:
        """Both sides, in their roles."""
        return self.first, self.second

    @property
    def certain(self) -> bool:
        """Whether both sides touch the bytes for sure."""
        return self.first.certain and self.second.certain

    @property
    def overlap(self) -> tuple[int, int]:
        """The bytes in conflict, as offsets in the block."""
        low, high = max(self.first.low, self.second.low), min(self.first.high, self.second.high)
        return low - self.block.base, high - self.block.base

    @property
    def in_order(self) -> tuple[Access, Access]:
        """The two sides, the one that the program asked for earlier first."""
        if self.first.operation.number < self.second.operation.number:
            return self.first, self.second
        return self.second, self.first


def race_between(block: Block, one: Access, two: Access) -> Race | None:
    """The race of two unordered accesses, whichever came first; ``None`` if something outside the trace orders them."""
    first, second = sorted((one, two), key=_role)
    code = _code(block.space, first, second)
    return Race(code, block, first, second) if code else None


def _role(access: Access) -> tuple[int, Stack, str, str, int]:
    operation = access.operation
    return _ROLE.get(operation.kind, 2), operation.stack, operation.name, operation.kind.value, operation.number


def _code(space: Space, first: Access, second: Access) -> str | None:
    """The code of a race, by the kinds of its sides in their roles."""
    kinds = first.operation.kind, second.operation.kind
    if kinds[0] is OperationKind.FREE:
        return _code_of_free(space, second)
    if kinds[0] is not OperationKind.HOST_ACCESS:
        return "MRV204"
    if kinds[1] is OperationKind.HOST_ACCESS:
        return "MRV208"
    if kinds[1] is OperationKind.COPY_TO_DEVICE and not second.write:
        return "MRV201"
    if kinds[1] is OperationKind.COPY_TO_HOST and second.write:
        return "MRV203"
    return "MRV202"


def _code_of_free(space: Space, other: Access) -> str | None:
    """The interpreter orders host accesses with the drop of the last reference, the host allocator its own copies."""
    if other.operation.kind in (OperationKind.HOST_ACCESS, OperationKind.FREE):
        return None
    if space is Space.DEVICE:
        return "MRV205"
    return None if other.protected else "MRV206"


def lines_of(race: Race) -> Lines:
    """The lines of the kernels that touch the bytes in conflict."""
    low, high = (race.block.base + offset for offset in race.overlap)
    return _lines(race.first, low, high), _lines(race.second, low, high)


def _lines(access: Access, low: int, high: int) -> Sequence[str]:
    touching = () if access.ranges is None else access.ranges.lines(low, high)
    shown = [f"{Path(site.file).name}:{site.line}" for site in touching[:_LINES]]
    return shown + (["..."] if len(touching) > _LINES else [])


def finding_of(race: Race, occurrences: int, lines: Lines = ((), ())) -> Finding:
    """The finding for a race that happened so many times at these places, on these lines of kernels."""
    first, second = race.first.operation, race.second.operation
    low, high = race.overlap
    evidence: dict[str, JSON] = {
        "space": race.block.space.value,
        "block_size": race.block.end - race.block.base,
        "offset": [low, high],
        "operations": [_side(race.first, lines[0]), _side(race.second, lines[1])],
        "missing_edge": _places_once(_missing_edge(race), race),
        "occurrences": occurrences,
    }
    return Finding(
        code=race.code,
        verdict=Verdict.VIOLATION if race.certain else Verdict.SUSPECT,
        soundness=Soundness.SOUND if race.certain else Soundness.MAY,
        title=_title(race),
        where=sites(first.stack),
        other=sites(second.stack),
        allocation=sites(race.block.stack),
        evidence=evidence,
        remedy=_REMEDY[race.code],
        step=second.step if first.step is None else first.step,
    )


def sites(stack: Stack) -> tuple[Site, ...]:
    """A stack as the sites of a finding."""
    return tuple(Site(*frame) for frame in stack)


def lane_text(kind: LaneKind, name: str) -> str:
    """A lane as sentences call it, e.g. ``"host thread MainThread"``, ``"default stream"``."""
    return name if kind.value in name else f"{kind.value} {name}"


def _side(access: Access, lines: Sequence[str]) -> dict[str, JSON]:
    operation = access.operation
    facts: dict[str, JSON] = {
        "name": operation.name,
        "kind": operation.kind.value,
        "lane": operation.lane_name,
        "access": ("" if access.certain else "possible ") + ("write" if access.write else "read"),
        "step": operation.step,
        "operation": operation.number,
    }
    return {**facts, "kernel_lines": list(lines)} if lines else facts


def _verb(access: Access) -> str:
    return "write" if access.write else "read"


def _title(race: Race) -> str:
    """What is wrong in one line, the same for every race at these places: no lanes, bytes, steps, or who wrote."""
    one, two = f"'{race.first.operation.name}'", f"'{race.second.operation.name}'"
    memory = race.block.space.value
    return {
        "MRV201": f"{one} overwrites {memory} that {two} may not have read yet",
        "MRV202": f"{one} touches {memory} that {two} may still use in place",
        "MRV203": f"{one} touches {memory} that {two} may not have filled yet",
        "MRV204": f"{one} and {two} use the same {memory} on two streams without an order",
        "MRV205": f"{memory} is freed while {two} on another stream may still use it",
        "MRV206": f"{memory} is dropped while {two} may still use it",
        "MRV208": f"{one} and {two} use the same {memory} in two threads without an order",
    }[race.code]


def _missing_edge(race: Race) -> str:
    """The order that is missing, and what would make it."""
    first, second = race.first.operation, race.second.operation
    other = f"'{second.name}' on {second.lane_name}"
    if race.code == "MRV204":
        return _edge_between_streams(*(access.operation for access in race.in_order))
    if race.code == "MRV205":
        return (
            f"nothing makes the allocator wait for {other}: call record_stream({second.lane_name}) before the tensor "
            f"is dropped, or let {first.lane_name} wait for {second.lane_name} first"
        )
    if race.code == "MRV206":
        return f"nothing keeps the block until {other} has run: keep it until an event recorded after it has completed"
    if race.code == "MRV208":
        return f"nothing orders {first.lane_name} and {second.lane_name}: a lock, a queue, a threading.Event or a join"
    return _edge_to_host(race, second)


def _places_once(text: str, race: Race) -> str:
    """The same, but where a lane was made is said only where it is named first."""
    for access in race.sides:
        name = access.operation.lane_name
        head, found, tail = text.partition(name)
        text = head + found + (tail.replace(name, plain_name(name)) if found else "")
    return text


def _edge_between_streams(earlier: Operation, later: Operation) -> str:
    return (
        f"nothing makes {later.lane_name} wait for '{earlier.name}' on {earlier.lane_name}: record an event on "
        f"{earlier.lane_name} after it, and let {later.lane_name} wait for that event before '{later.name}'"
    )


def _edge_to_host(race: Race, device: Operation) -> str:
    host = race.first.operation
    if device.number > host.number:
        return (
            f"nothing makes the thread that enqueued '{device.name}' on {device.lane_name} wait for {host.lane_name}: "
            f"hand over to it (a queue, a lock, a join) after this {_verb(race.first)}"
        )
    return (
        f"nothing makes {host.lane_name} wait for '{device.name}' on {device.lane_name}: record an event after it, "
        f"and synchronise that event before this {_verb(race.first)}"
    )


_REMEDY = {
    "MRV201": "record an event right after the copy and synchronise it before the source is written again, or write "
    "to another slot of a ring whose event has completed",
    "MRV202": "give each step in flight its own slot, and write a slot again only after an event recorded behind the "
    "last kernel that uses it has completed",
    "MRV203": "record an event after the copy and synchronise it, or poll it until it is true, before the result is "
    "touched",
    "MRV204": "record an event on the one stream after its operation, and make the other stream wait for it before its "
    "own",
    "MRV205": "call tensor.record_stream(stream) for each other stream that uses the tensor, or make the stream that "
    "allocated it wait for them before the last reference goes",
    "MRV206": "keep a reference to the pinned tensor until an event recorded after its last use has completed; the "
    "host allocator waits only for streams that have copied the block, through a tensor of its own",
    "MRV208": "hand the memory from thread to thread through a queue, a lock, an Event or a join",
}
