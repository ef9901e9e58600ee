"""The events of a run as values: one class for each method of :class:`~mrv2.checks.events.EventSink`.

Numbers are those that the recorder gave out, each kind counted from 0; memory is named by block and offset, since
addresses differ from run to run. The annotation of a field says how it is read back from a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeAlias, get_args, get_origin, get_type_hints

from ..events import LaneKind, OperationKind, Space, Stack, SyncKind
from ..findings import Finding
from .finding_json import finding_from_json

#: Block, first byte, one past the last byte.
Piece: TypeAlias = tuple[int, int, int]


class Numbers:
    """What has been numbered so far in a trace that is being read."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.stacks: list[Stack] = []
        self.sizes: list[int] = []

    def new(self, kind: str, value: object) -> int:
        """The number of something new, which must be the next one."""
        expected = self._counts.get(kind, 0)
        if not _is_number(value) or value != expected:
            raise ValueError(f"the next {kind} is {expected}, not {value!r}")
        self._counts[kind] = expected + 1
        return expected

    def old(self, kind: str, value: object) -> int:
        """The number of something that must exist."""
        if not isinstance(value, int) or not _is_number(value) or not 0 <= value < self._counts.get(kind, 0):
            raise ValueError(f"there is no {kind} {value!r}")
        return value

    def piece(self, value: object) -> Piece:
        """Bytes of a block."""
        if not isinstance(value, list) or len(value) != 3 or not all(map(_is_number, value)):
            raise ValueError(f"{value!r} is not [block, low, high]")
        block, low, high = self.old("block", value[0]), value[1], value[2]
        if not 0 <= low <= high <= self.sizes[block]:
            raise ValueError(f"[{low}, {high}) is not within the {self.sizes[block]} bytes of block {block}")
        return block, low, high


def _is_number(value: object) -> bool:
    return type(value) is int


Read: TypeAlias = Callable[[Numbers, Any], Any]


def _new(kind: str) -> Read:
    return lambda numbers, value: numbers.new(kind, value)


def _old(kind: str) -> Read:
    return lambda numbers, value: numbers.old(kind, value)


def _each(read: Read) -> Read:
    return lambda numbers, values: tuple(read(numbers, value) for value in _typed(values, list))


def _typed(value: object, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of the kind {kind.__name__}")
    return value


def _read_stack(numbers: Numbers, value: object) -> Stack:
    return numbers.stacks[numbers.old("stack", value)]


def _read_size(numbers: Numbers, value: object) -> int:
    size: int = _typed(value, int)
    if size < 0:
        raise ValueError(f"a block cannot have {size} bytes")
    numbers.sizes.append(size)
    return size


def _read_finding(_: Numbers, value: object) -> Finding:
    return finding_from_json(value)


Lane: TypeAlias = Annotated[int, _old("lane")]
Operation: TypeAlias = Annotated[int, _old("operation")]
Frames: TypeAlias = Annotated[Stack, _read_stack]
Step: TypeAlias = Annotated[int | None, lambda _, value: _typed(value, int)]


@dataclass(frozen=True, slots=True)
class LaneBegins:
    """``lane``."""

    event: ClassVar[str] = "lane"
    lane: Annotated[int, _new("lane")]
    kind: LaneKind
    name: str


@dataclass(frozen=True, slots=True)
class LaneEnds:
    """``end_lane``."""

    event: ClassVar[str] = "end_lane"
    lane: Lane


@dataclass(frozen=True, slots=True)
class OperationBegins:
    """``operation``."""

    event: ClassVar[str] = "operation"
    operation: Annotated[int, _new("operation")]
    lane: Lane
    kind: OperationKind
    name: str
    stack: Frames
    issuer: Annotated[int | None, _old("lane")] = None
    step: Step = None
    open: bool = False


@dataclass(frozen=True, slots=True)
class OperationCloses:
    """``close``."""

    event: ClassVar[str] = "close"
    operation: Operation


@dataclass(frozen=True, slots=True)
class Accesses:
    """``access``; bytes outside all blocks are left out, as every judge does."""

    event: ClassVar[str] = "access"
    operation: Operation
    ranges: Annotated[tuple[Piece, ...], _each(Numbers.piece)]
    write: bool
    certain: bool = True
    protected: bool = False


@dataclass(frozen=True, slots=True)
class Releases:
    """``release``."""

    event: ClassVar[str] = "release"
    token: Annotated[int, _new("token")]
    lane: Lane


@dataclass(frozen=True, slots=True)
class Acquires:
    """``acquire``."""

    event: ClassVar[str] = "acquire"
    lane: Lane
    token: Annotated[int, _old("token")]
    sync: Annotated[int | None, _old("sync")] = None


@dataclass(frozen=True, slots=True)
class Synchronises:
    """``sync``."""

    event: ClassVar[str] = "sync"
    sync: Annotated[int, _new("sync")]
    lane: Lane
    kind: SyncKind
    name: str
    stack: Frames
    step: Step = None


@dataclass(frozen=True, slots=True)
class Allocates:
    """``allocate``."""

    event: ClassVar[str] = "allocate"
    block: Annotated[int, _new("block")]
    lane: Lane
    size: Annotated[int, _read_size]
    space: Space
    stack: Frames


@dataclass(frozen=True, slots=True)
class Frees:
    """``free``."""

    event: ClassVar[str] = "free"
    block: Annotated[int, _old("block")]
    lane: Lane
    stack: Frames
    after: Annotated[tuple[int, ...], _each(_old("lane"))] = ()


@dataclass(frozen=True, slots=True)
class Reports:
    """``report``."""

    event: ClassVar[str] = "report"
    finding: Annotated[Finding, _read_finding]


Record: TypeAlias = (
    LaneBegins
    | LaneEnds
    | OperationBegins
    | OperationCloses
    | Accesses
    | Releases
    | Acquires
    | Synchronises
    | Allocates
    | Frees
    | Reports
)

RECORDS: Mapping[str, type[Record]] = {
    kind.event: kind
    for kind in (
        LaneBegins,
        LaneEnds,
        OperationBegins,
        OperationCloses,
        Accesses,
        Releases,
        Acquires,
        Synchronises,
        Allocates,
        Frees,
        Reports,
    )
}


def readers_of(kind: type[Record]) -> dict[str, Read]:
    """How each field of a record is read from JSON, in the order in which they may refer to each other."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _reader_of(hint) for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def _reader_of(hint: Any) -> Read:
    if get_origin(hint) is Annotated:
        read: Read = get_args(hint)[1]
        return read
    if issubclass(hint, Enum):
        return lambda _, value: hint(value)
    return lambda _, value: _typed(value, hint)
