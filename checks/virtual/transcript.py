"""What happened in a run, in an order and in words that are the same wherever the same run happens again.

An event sink in front of another one. It notes every event, and also when the device ran what, which no judge asks for.
Addresses become (block, offset), and files are named from their outermost package on, so neither the allocator nor the
folder of an installation shows.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..events import ByteRange, EventSink, LaneKind, OperationKind, Space, Stack, SyncKind
from ..findings import Finding
from ..happens_before.addresses import AddressMap
from ..libraries import portable_path

if TYPE_CHECKING:
    from .queues import PendingOperation
    from .runtime import Runtime

#: Kind, then what each kind has of its own: plain values, and tuples of them.
Entry: TypeAlias = tuple[object, ...]
Note: TypeAlias = Callable[[Entry], None]

_MARKS = 4096


@dataclass
class _Extent:
    base: int
    end: int
    block: int


class Transcript(EventSink):
    """Passes every event on, and notes it.

    Args:
        sink: judges.
        note: called with each entry.
    """

    def __init__(self, sink: EventSink, note: Note) -> None:
        self._sink = sink
        self._note = note
        self._blocks: AddressMap[_Extent] = AddressMap()
        self._freed: set[int] = set()
        self._hosts = 0

    @property
    def findings(self) -> list[Finding]:
        """What the judge has found."""
        found: list[Finding] = getattr(self._sink, "findings", [])
        return found

    def observe(self, runtime: Runtime) -> Callable[[], None]:
        """Note also when the device runs what, from now on; an installer for ``virtual_device``."""
        return observe_execution(runtime, self._executed)

    def _executed(self, operation: PendingOperation) -> None:
        if operation.id >= 0:
            self._note(("run", int(operation.id)))

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :class:`EventSink`; the names of threads count up from run to run, so they are left out."""
        number = self._sink.lane(kind, name)
        if kind is LaneKind.HOST:
            self._hosts += 1
            name = "host" if self._hosts == 1 else f"host thread {self._hosts}"
        self._note(("lane", int(number), kind.value, name))
        return number

    def end_lane(self, lane: int) -> None:
        """See :class:`EventSink`."""
        self._note(("end", int(lane)))
        self._sink.end_lane(lane)

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
        """See :class:`EventSink`."""
        number = self._sink.operation(lane, kind, name, stack, issuer=issuer, step=step, open=open)
        self._note(("operation", int(number), int(lane), kind.value, name, _places(stack), issuer, step, open))
        return number

    def close(self, operation: int) -> None:
        """See :class:`EventSink`."""
        self._note(("close", int(operation)))
        self._sink.close(operation)

    def access(
        self, operation: int, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True, protected: bool = False
    ) -> None:
        """See :class:`EventSink`."""
        self._note(("access", int(operation), self._offsets(ranges), write, certain, protected))
        self._sink.access(operation, ranges, write=write, certain=certain, protected=protected)

    def release(self, lane: int) -> int:
        """See :class:`EventSink`."""
        token = self._sink.release(lane)
        self._note(("release", int(lane), int(token)))
        return token

    def acquire(self, lane: int, token: int, *, sync: int | None = None) -> None:
        """See :class:`EventSink`."""
        self._note(("acquire", int(lane), int(token), None if sync is None else int(sync)))
        self._sink.acquire(lane, token, sync=sync)

    def sync(self, lane: int, kind: SyncKind, name: str, stack: Stack, *, step: int | None = None) -> int:
        """See :class:`EventSink`."""
        number = self._sink.sync(lane, kind, name, stack, step=step)
        self._note(("sync", int(number), int(lane), kind.value, name, _places(stack), step))
        return number

    def allocate(self, lane: int, base: int, size: int, space: Space, stack: Stack) -> int:
        """See :class:`EventSink`."""
        block = self._sink.allocate(lane, base, size, space, stack)
        if size:
            self._blocks.place(_Extent(base, base + size, int(block)))
        self._note(("allocate", int(block), int(lane), size, space.value, _places(stack)))
        return block

    def free(self, block: int, lane: int, stack: Stack, *, after: Sequence[int] = ()) -> None:
        """See :class:`EventSink`."""
        self._freed.add(int(block))
        self._note(("free", int(block), int(lane), _places(stack), tuple(map(int, after))))
        self._sink.free(block, lane, stack, after=after)

    def report(self, finding: Finding) -> None:
        """See :class:`EventSink`."""
        self._note(("report", finding.code, finding.title, finding.step))
        self._sink.report(finding)

    def _offsets(self, ranges: Sequence[ByteRange]) -> tuple[tuple[int, int, int], ...]:
        """(block, first offset, one past the last) of each piece that lies in a block, sorted, since addresses are.

        Where a block was before lies memory that nobody announced, if the allocator has chosen that place for it.
        """
        pieces = (piece for low, high in ranges for piece in self._blocks.pieces(low, high))
        known = (piece for piece in pieces if piece[0].block not in self._freed)
        return tuple(sorted((extent.block, start - extent.base, end - extent.base) for extent, start, end in known))


def observe_execution(runtime: Runtime, observer: Callable[[PendingOperation], None]) -> Callable[[], None]:
    """Call ``observer`` before each operation that the device runs; returns the undo."""
    engine = runtime.engine
    execute = engine._execute

    def observed(operation: PendingOperation) -> None:
        observer(operation)
        execute(operation)

    def undo() -> None:
        engine._execute = execute

    engine._execute = observed
    return undo


def _places(stack: Stack) -> Stack:
    return tuple((portable_path(file), line, function) for file, line, function in stack)


class Digest:
    """A digest of entries, and checkpoints of it that tell where two runs part.

    Args:
        every: entries between two checkpoints; by default as many as keep their number bounded.

    Attributes:
        events: entries so far.
        every: entries between two checkpoints; 1 at first, and doubled whenever there are too many checkpoints.
        marks: running checksum at each checkpoint.
    """

    def __init__(self, every: int | None = None) -> None:
        self._hash = hashlib.sha256()
        self._sum = 0
        self._fixed = every is not None
        self.marks: list[int] = []
        self.events = 0
        self.every = every or 1

    def add(self, entry: Entry) -> None:
        """One more entry."""
        line = entry_line(entry).encode()
        self._hash.update(line)
        self._sum = zlib.crc32(line, self._sum)
        self.events += 1
        if self.events % self.every == 0:
            self.marks.append(self._sum)
            if len(self.marks) > _MARKS and not self._fixed:
                self.marks = self.marks[1::2]
                self.every *= 2

    def hexdigest(self) -> str:
        """SHA-256 of all lines."""
        return self._hash.hexdigest()


def entry_line(entry: Entry) -> str:
    """An entry as one line of JSON."""
    return json.dumps(entry, ensure_ascii=True, separators=(",", ":")) + "\n"
