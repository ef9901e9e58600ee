"""What each step of a run gives the device to do, counted: launches, copies, bytes, events, waits.

On the virtual device these numbers depend on the program alone, so a test may assert them exactly, and one launch more
is found without a GPU. An ATen operator counts as one launch; a few of torch's launch more than one kernel on a GPU.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from ..codes import explain
from ..events import ByteRange, EventSink, LaneKind, OperationKind, Space, Stack, SyncKind
from ..findings import JSON, Finding, Site, Verdict
from ..happens_before.addresses import AddressMap
from ..libraries import portable_path

#: Functions that tell a place, from the innermost out: a kernel is often launched through a helper.
PLACE_FRAMES = 2
_REPLAY, _IN_GRAPH = "graph.replay", "graph: "
_IN = " in "
Value = TypeVar("Value")
CODE = "MRV123"


class WorkKind(StrEnum):
    """What the host asks of the device, or waits for."""

    LAUNCH = "launch"
    GRAPH_LAUNCH = "graph launch"
    #: A kernel or copy in a graph: costs the device time, and the host none.
    GRAPH_NODE = "graph node"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    DEVICE_COPY = "device copy"
    EVENT = "event record"
    STREAM_WAIT = "stream wait"
    HOST_WAIT = "host wait"
    POLL = "poll"


_OPERATIONS: Mapping[OperationKind, WorkKind] = {
    OperationKind.KERNEL: WorkKind.LAUNCH,
    OperationKind.COPY_TO_DEVICE: WorkKind.UPLOAD,
    OperationKind.COPY_TO_HOST: WorkKind.DOWNLOAD,
    OperationKind.COPY_ON_DEVICE: WorkKind.DEVICE_COPY,
    OperationKind.MARKER: WorkKind.EVENT,
}
_SYNCS: Mapping[SyncKind, WorkKind] = {
    SyncKind.WAIT_EVENT: WorkKind.STREAM_WAIT,
    SyncKind.EVENT_SYNCHRONIZE: WorkKind.HOST_WAIT,
    SyncKind.STREAM_SYNCHRONIZE: WorkKind.HOST_WAIT,
    SyncKind.DEVICE_SYNCHRONIZE: WorkKind.HOST_WAIT,
    SyncKind.IMPLICIT: WorkKind.HOST_WAIT,
    SyncKind.EVENT_QUERY: WorkKind.POLL,
    SyncKind.STREAM_QUERY: WorkKind.POLL,
}
#: Kinds whose bytes are counted: what is copied, and what kernels read of pinned memory in place.
_COPIES = (WorkKind.UPLOAD, WorkKind.DOWNLOAD, WorkKind.DEVICE_COPY)


@dataclass(frozen=True, order=True)
class Work:
    """One thing that a step asks for, known again after lines have moved.

    Attributes:
        kind: what it is.
        name: of the operator, kernel or call.
        place: the functions that ask for it, innermost first.
    """

    kind: WorkKind
    name: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}{_IN}{self.place}"


@dataclass
class StepCounts:
    """What one step asked for.

    Attributes:
        work: how often each thing.
        stacks: where, innermost frame first, of each time.
        num_bytes: of uploads, downloads and device copies.
        read_in_place: bytes of pinned memory that kernels read over the bus.
    """

    work: Counter[Work] = field(default_factory=Counter)
    stacks: dict[Work, list[Stack]] = field(default_factory=lambda: defaultdict(list))
    num_bytes: Counter[WorkKind] = field(default_factory=Counter)
    read_in_place: int = 0

    def total(self, kind: WorkKind) -> int:
        """How many of a kind."""
        return sum(count for work, count in self.work.items() if work.kind is kind)

    def as_json(self) -> dict[str, JSON]:
        """Totals by kind, bytes, and each piece of work with its count: a record to compare later runs with."""
        return {
            "totals": {kind.value: self.total(kind) for kind in WorkKind},
            "bytes": {**{kind.value: self.num_bytes[kind] for kind in _COPIES}, "read in place": self.read_in_place},
            "work": {str(work): self.work[work] for work in sorted(self.work)},
        }


@dataclass
class _Memory:
    base: int
    end: int
    pinned: bool


class StepCounter(EventSink):
    """Counts what every step asks for; judges nothing.

    ``virtual_device(sink=counter)`` counts alone, ``sink=Tee(HappensBefore(), counter)`` beside a judge.

    Attributes:
        steps: by number, None for what is outside of all steps.
    """

    def __init__(self) -> None:
        self.steps: dict[int | None, StepCounts] = {}
        self._numbers = 0
        # Accesses of an operation that is not open follow it at once, so only open ones have to be remembered.
        self._latest: tuple[int, WorkKind, StepCounts] | None = None
        self._open: dict[int, tuple[WorkKind, StepCounts]] = {}
        self._memory: AddressMap[_Memory] = AddressMap()

    def _new(self) -> int:
        self._numbers += 1
        return self._numbers

    def _count(self, kind: WorkKind, name: str, stack: Stack, step: int | None) -> StepCounts:
        counts = self.steps.setdefault(step, StepCounts())
        work = Work(
            kind, name, " < ".join(function for _, _, function in stack[:PLACE_FRAMES]) or "code without a file"
        )
        counts.work[work] += 1
        counts.stacks[work].append(stack)
        return counts

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :class:`EventSink`."""
        return self._new()

    def end_lane(self, lane: int) -> None:
        """See :class:`EventSink`."""

    def operation(
        self,
        lane: int,
        kind: OperationKind,
        name: str,
        stack: Stack,
        *,
        issuer: int | None = None,
        step: int | None = None,
        open: bool = False,  # noqa: A002 - the contract's name
    ) -> int:
        """Count it, unless the host does it by itself."""
        number, what = self._new(), _OPERATIONS.get(kind)
        if what is None:
            return number
        if name == _REPLAY:
            what = WorkKind.GRAPH_LAUNCH
        elif name.startswith(_IN_GRAPH):
            what, name = WorkKind.GRAPH_NODE, name.removeprefix(_IN_GRAPH)
        counts = self._count(what, name, stack, step)
        self._latest = number, what, counts
        if open:
            self._open[number] = what, counts
        return number

    def close(self, operation: int) -> None:
        """See :class:`EventSink`."""
        self._open.pop(operation, None)

    def access(
        self, operation: int, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True, protected: bool = False
    ) -> None:
        """Count the bytes that a copy writes, and the pinned ones that a kernel reads."""
        found = self._open.get(operation)
        if found is None and self._latest is not None and self._latest[0] == operation:
            found = self._latest[1:]
        if found is None:
            return
        kind, counts = found
        if kind in _COPIES and write:
            counts.num_bytes[kind] += sum(high - low for low, high in ranges)
        elif kind not in _COPIES and not write:
            pieces = (piece for low, high in ranges for piece in self._memory.pieces(low, high))
            counts.read_in_place += sum(end - start for memory, start, end in pieces if memory.pinned)

    def release(self, lane: int) -> int:
        """See :class:`EventSink`."""
        return self._new()

    def acquire(self, lane: int, token: int, *, sync: int | None = None) -> None:
        """See :class:`EventSink`."""

    def sync(self, lane: int, kind: SyncKind, name: str, stack: Stack, *, step: int | None = None) -> int:
        """Count it, unless it is between threads."""
        if kind in _SYNCS:
            self._count(_SYNCS[kind], name, stack, step)
        return self._new()

    def allocate(self, lane: int, base: int, size: int, space: Space, stack: Stack) -> int:
        """Remember which memory is pinned."""
        if size:
            self._memory.place(_Memory(base, base + size, space is Space.PINNED))
        return self._new()

    def free(self, block: int, lane: int, stack: Stack, *, after: Sequence[int] = ()) -> None:
        """Nothing: what was enqueued before may still read the block, and who gets its address next takes it over."""

    def report(self, finding: Finding) -> None:
        """See :class:`EventSink`."""


def deviations(name: str, recorded: Mapping[str, JSON], counts: StepCounts) -> list[Finding]:
    """What a step asks for beyond, or short of, a record of it; one finding for each operator, kernel or call.

    Work that has only moved from one function to another is no difference; the recorded places tell which is new.

    Args:
        name: of the step, for people.
        recorded: as ``StepCounts.as_json`` made it; its totals follow from its work and are not read.
        counts: of the step now.
    """
    before, now = _by_name(_numbers(recorded, "work")), _by_name({str(work): work for work in counts.work})
    found = []
    for text in sorted({*before, *now}):
        had, has = before.get(text, {}), now.get(text, {})
        grown = {place: counts.work[work] - had.get(place, 0) for place, work in has.items()}
        difference = sum(counts.work[work] for work in has.values()) - sum(had.values())
        if difference:
            new = [counts.stacks[has[place]] for place in sorted(grown, key=lambda place: -grown[place])]
            found.append(_deviation(name, text, sum(had.values()), difference, new[0] if new else []))
    measured, had_bytes = counts.as_json()["bytes"], _numbers(recorded, "bytes")
    assert isinstance(measured, Mapping)
    found += [
        _deviation(name, f"bytes of {kind}", had_bytes.get(kind, 0), size - had_bytes.get(kind, 0), [])
        for kind, size in measured.items()
        if isinstance(size, int) and size != had_bytes.get(kind, 0)
    ]
    return found


def _numbers(recorded: Mapping[str, JSON], part: str) -> dict[str, int]:
    values = recorded.get(part, {})
    assert isinstance(values, Mapping)
    return {name: value for name, value in values.items() if isinstance(value, int)}


def _by_name(values: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """What is known of each piece of work, by its kind and name, then by its place."""
    found: dict[str, dict[str, Value]] = {}
    for text, value in values.items():
        name, _, place = text.partition(_IN)
        found.setdefault(name, {})[place] = value
    return found


def _deviation(name: str, text: str, had: int, difference: int, stacks: Sequence[Stack]) -> Finding:
    """The stacks are those of the place that has grown most, of which nobody can say which one is new."""
    lines = sorted({f"{portable_path(file)}:{line}" for stack in stacks for file, line, _ in stack[:1]})
    evidence: dict[str, JSON] = {"step": name, "recorded": had, "counted": had + difference}
    if len(lines) > 1:
        evidence["lines"] = lines
    newest = stacks[-1] if stacks else ()
    return Finding(
        code=CODE,
        verdict=Verdict.VIOLATION,
        soundness=explain(CODE).soundness,
        title=f"{name}: {abs(difference)} {'more' if difference > 0 else 'fewer'} than recorded: {text}",
        where=tuple(Site(portable_path(file), line, function) for file, line, function in newest),
        evidence=evidence,
        remedy=explain(CODE).remedy,
    )
