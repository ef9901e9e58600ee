"""Sinks that pass events on: a recorder, its inverse, and one that tells several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..events import ByteRange, EventSink, LaneKind, OperationKind, Space, Stack, SyncKind
from ..findings import Finding
from .addresses import AddressMap
from .records import (
    Accesses,
    Acquires,
    Allocates,
    Frees,
    LaneBegins,
    LaneEnds,
    OperationBegins,
    OperationCloses,
    Record,
    Releases,
    Reports,
    Synchronises,
)

#: Between the blocks of a replayed run, so that none is beside another.
_GAP = 64


@dataclass
class _Placed:
    base: int
    end: int
    block: int


class Recorder(EventSink):
    """Makes a record of each event.

    Args:
        emit: takes each record, e.g. the ``append`` of a list.
    """

    def __init__(self, emit: Callable[[Record], None]) -> None:
        self._emit = emit
        self._counts = {"lane": 0, "operation": 0, "token": 0, "sync": 0, "block": 0}
        self._blocks: AddressMap[_Placed] = AddressMap()

    def _new(self, kind: str) -> int:
        number = self._counts[kind]
        self._counts[kind] = number + 1
        return number

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :meth:`EventSink.lane`."""
        number = self._new("lane")
        self._emit(LaneBegins(number, kind, name))
        return number

    def end_lane(self, lane: int) -> None:
        """See :meth:`EventSink.end_lane`."""
        self._emit(LaneEnds(lane))

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
        """See :meth:`EventSink.operation`."""
        number = self._new("operation")
        self._emit(OperationBegins(number, lane, kind, name, stack, issuer, step, open))
        return number

    def close(self, operation: int) -> None:
        """See :meth:`EventSink.close`."""
        self._emit(OperationCloses(operation))

    def access(
        self, operation: int, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True, protected: bool = False
    ) -> None:
        """See :meth:`EventSink.access`."""
        pieces = [
            (placed.block, start - placed.base, end - placed.base)
            for low, high in ranges
            for placed, start, end in self._blocks.pieces(low, high)
        ]
        if pieces:
            # Ranges often come sorted by address, and which block has the lower one is the allocator's whim.
            self._emit(Accesses(operation, tuple(sorted(pieces)), write, certain, protected))

    def release(self, lane: int) -> int:
        """See :meth:`EventSink.release`."""
        number = self._new("token")
        self._emit(Releases(number, lane))
        return number

    def acquire(self, lane: int, token: int, *, sync: int | None = None) -> None:
        """See :meth:`EventSink.acquire`."""
        self._emit(Acquires(lane, token, sync))

    def sync(self, lane: int, kind: SyncKind, name: str, stack: Stack, *, step: int | None = None) -> int:
        """See :meth:`EventSink.sync`."""
        number = self._new("sync")
        self._emit(Synchronises(number, lane, kind, name, stack, step))
        return number

    def allocate(self, lane: int, base: int, size: int, space: Space, stack: Stack) -> int:
        """See :meth:`EventSink.allocate`."""
        number = self._new("block")
        if size > 0:
            self._blocks.place(_Placed(base, base + size, number))
        self._emit(Allocates(number, lane, size, space, stack))
        return number

    def free(self, block: int, lane: int, stack: Stack, *, after: Sequence[int] = ()) -> None:
        """See :meth:`EventSink.free`."""
        self._emit(Frees(block, lane, stack, tuple(after)))

    def report(self, finding: Finding) -> None:
        """See :meth:`EventSink.report`."""
        self._emit(Reports(finding))


class Replayer:
    """Tells a sink what was recorded; the sink's numbers take the place of the recorder's.

    Blocks get addresses of their own, one behind the other, so that none ever takes the place of another.
    """

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._lanes: list[int] = []
        self._operations: list[int] = []
        self._tokens: list[int] = []
        self._syncs: list[int] = []
        self._blocks: list[int] = []
        self._bases: list[int] = []
        self._next_base = _GAP
        self._tell: dict[type[Record], Callable[[Any], None]] = {
            LaneBegins: self._lane,
            LaneEnds: lambda record: sink.end_lane(self._lanes[record.lane]),
            OperationBegins: self._operation,
            OperationCloses: lambda record: sink.close(self._operations[record.operation]),
            Accesses: self._access,
            Releases: lambda record: self._tokens.append(sink.release(self._lanes[record.lane])),
            Acquires: self._acquire,
            Synchronises: self._sync,
            Allocates: self._allocate,
            Frees: self._free,
            Reports: lambda record: sink.report(record.finding),
        }

    def tell(self, record: Record) -> None:
        """The next event of the run."""
        self._tell[type(record)](record)

    def tell_all(self, records: Iterable[Record]) -> None:
        """All events of a run."""
        for record in records:
            self.tell(record)

    def _lane(self, record: LaneBegins) -> None:
        self._lanes.append(self._sink.lane(record.kind, record.name))

    def _operation(self, record: OperationBegins) -> None:
        self._operations.append(
            self._sink.operation(
                self._lanes[record.lane],
                record.kind,
                record.name,
                record.stack,
                issuer=None if record.issuer is None else self._lanes[record.issuer],
                step=record.step,
                open=record.open,
            )
        )

    def _access(self, record: Accesses) -> None:
        ranges = [(self._bases[block] + low, self._bases[block] + high) for block, low, high in record.ranges]
        self._sink.access(
            self._operations[record.operation],
            ranges,
            write=record.write,
            certain=record.certain,
            protected=record.protected,
        )

    def _acquire(self, record: Acquires) -> None:
        sync = None if record.sync is None else self._syncs[record.sync]
        self._sink.acquire(self._lanes[record.lane], self._tokens[record.token], sync=sync)

    def _sync(self, record: Synchronises) -> None:
        lane = self._lanes[record.lane]
        self._syncs.append(self._sink.sync(lane, record.kind, record.name, record.stack, step=record.step))

    def _allocate(self, record: Allocates) -> None:
        base, self._next_base = self._next_base, self._next_base + record.size + _GAP
        self._bases.append(base)
        lane = self._lanes[record.lane]
        self._blocks.append(self._sink.allocate(lane, base, record.size, record.space, record.stack))

    def _free(self, record: Frees) -> None:
        after = [self._lanes[lane] for lane in record.after]
        self._sink.free(self._blocks[record.block], self._lanes[record.lane], record.stack, after=after)


class _Together(int):
    """A number of ``Tee``'s own that carries those of its sinks, so that no table of them grows with the run."""

    parts: tuple[int, ...]


def _parts(number: int) -> tuple[int, ...]:
    assert isinstance(number, _Together), "numbers must be handed back as they were given"
    return number.parts


class Tee(EventSink):
    """Tells several sinks the same.

    Args:
        sinks: told in this order.
    """

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks
        self._count = 0

    def _join(self, parts: Iterable[int]) -> int:
        number = _Together(self._count)
        number.parts = tuple(parts)
        self._count += 1
        return number

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :meth:`EventSink.lane`."""
        return self._join(sink.lane(kind, name) for sink in self._sinks)

    def end_lane(self, lane: int) -> None:
        """See :meth:`EventSink.end_lane`."""
        for sink, own in zip(self._sinks, _parts(lane), strict=True):
            sink.end_lane(own)

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
        """See :meth:`EventSink.operation`."""
        issuers = [None] * len(self._sinks) if issuer is None else _parts(issuer)
        return self._join(
            sink.operation(own, kind, name, stack, issuer=by, step=step, open=open)
            for sink, own, by in zip(self._sinks, _parts(lane), issuers, strict=True)
        )

    def close(self, operation: int) -> None:
        """See :meth:`EventSink.close`."""
        for sink, own in zip(self._sinks, _parts(operation), strict=True):
            sink.close(own)

    def access(
        self, operation: int, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True, protected: bool = False
    ) -> None:
        """See :meth:`EventSink.access`."""
        for sink, own in zip(self._sinks, _parts(operation), strict=True):
            sink.access(own, ranges, write=write, certain=certain, protected=protected)

    def release(self, lane: int) -> int:
        """See :meth:`EventSink.release`."""
        return self._join(sink.release(own) for sink, own in zip(self._sinks, _parts(lane), strict=True))

    def acquire(self, lane: int, token: int, *, sync: int | None = None) -> None:
        """See :meth:`EventSink.acquire`."""
        syncs = [None] * len(self._sinks) if sync is None else _parts(sync)
        for sink, own, passed, by in zip(self._sinks, _parts(lane), _parts(token), syncs, strict=True):
            sink.acquire(own, passed, sync=by)

    def sync(self, lane: int, kind: SyncKind, name: str, stack: Stack, *, step: int | None = None) -> int:
        """See :meth:`EventSink.sync`."""
        return self._join(
            sink.sync(own, kind, name, stack, step=step) for sink, own in zip(self._sinks, _parts(lane), strict=True)
        )

    def allocate(self, lane: int, base: int, size: int, space: Space, stack: Stack) -> int:
        """See :meth:`EventSink.allocate`."""
        return self._join(
            sink.allocate(own, base, size, space, stack) for sink, own in zip(self._sinks, _parts(lane), strict=True)
        )

    def free(self, block: int, lane: int, stack: Stack, *, after: Sequence[int] = ()) -> None:
        """See :meth:`EventSink.free`."""
        for index, sink in enumerate(self._sinks):
            others = [_parts(other)[index] for other in after]
            sink.free(_parts(block)[index], _parts(lane)[index], stack, after=others)

    def report(self, finding: Finding) -> None:
        """See :meth:`EventSink.report`."""
        for sink in self._sinks:
            sink.report(finding)
