"""Each write of the host to pinned memory makes a new version of a slot, and what the device reads is a version.

What an operation is meant to read is the version that stood there when it was enqueued; what it does read is the one
that stands there when it runs. Where they differ, the host was faster: "reads slot 1 at version 8, expected 7". The
happens-before check says that this could happen in some schedule; versions say that it did in this one, and how. The
idea of giving every write a version and reading it back is that of Kingsbury and Alvaro (2020, "Elle").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mrv2.checks.events import ByteRange, OperationKind, Space, Stack
from mrv2.checks.hooks.patching import Patches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mrv2.checks.virtual.runtime import Runtime


@dataclass(frozen=True)
class StaleRead:
    """An operation that does not read what the host had written when it was enqueued.

    Attributes:
        name: of the operation.
        slot: number of the allocation, from 0 in the order of first writes.
        label: what it was allocated as.
        version: that it reads; the first write of the host makes version 1.
        expected: that stood there when it was enqueued.
        torn: it reads both.
    """

    name: str
    slot: int
    label: str
    version: int
    expected: int
    torn: bool

    def __str__(self) -> str:
        both = f", and bytes of version {self.expected}" if self.torn else ""
        return f"'{self.name}' reads slot {self.slot} at version {self.version}{both}, expected {self.expected}"


@dataclass
class _Read:
    """An operation that was told when it was enqueued what it will read."""

    operation: int
    name: str
    low: int
    high: int


@dataclass
class _Slot:
    """One allocation of pinned memory: the version of each byte, and at which moment each version was made."""

    number: int
    base: int
    label: str
    versions: NDArray[np.int32]
    made: list[int] = field(default_factory=list)
    reads: list[_Read] = field(default_factory=list)

    def of(self, low: int, high: int) -> NDArray[np.int32]:
        return self.versions[max(low - self.base, 0) : high - self.base]


class HostVersions:
    """An event sink that stands before the device's own, counts versions, and passes everything on.

    Attributes:
        stale: reads of another version than the one that was there in time.
        compared: reads that were looked at.
    """

    def __init__(self) -> None:
        self.stale: list[StaleRead] = []
        self.compared = 0
        self._inner: Any = None
        self._runtime: Any = None
        self._slots: dict[int, _Slot] = {}
        self._moment = 0
        self._host_operation = -1
        self._enqueued = -1
        self._name = ""
        #: Operations whose accesses are told while they run: their name, and the moment at which they were enqueued.
        self._open: dict[int, tuple[str, int]] = {}

    def install(self, runtime: Runtime) -> Callable[[], None]:
        """Stand before a device's sink; returns the undo."""
        self._inner, self._runtime = runtime.sink, runtime
        patches = Patches()
        patches.set(runtime, "sink", self)
        return patches.undo

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

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
        number: int = self._inner.operation(lane, kind, name, stack, issuer=issuer, step=step, open=open)
        if issuer is None:
            self._host_operation = number
        elif open:
            self._open[number] = name, self._moment
        else:
            self._enqueued, self._name = number, name
        return number

    def close(self, operation: int) -> None:
        """See :meth:`EventSink.close`."""
        self._open.pop(operation, None)
        self._inner.close(operation)

    def access(
        self, operation: int, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True, protected: bool = False
    ) -> None:
        """See :meth:`EventSink.access`."""
        self._inner.access(operation, ranges, write=write, certain=certain, protected=protected)
        if not certain or write != (operation == self._host_operation):
            return
        for low, high in ranges:
            block = self._runtime.find_block(low)
            if block is None or block.space is not Space.PINNED:
                continue
            if write:
                slot = self._slots.get(block.id)
                if slot is None:
                    versions = np.zeros(block.size, np.int32)
                    slot = self._slots[block.id] = _Slot(len(self._slots), block.base, block.label, versions)
                self._written(slot, low, high)
            elif block.id in self._slots:
                self._read(self._slots[block.id], operation, low, high)

    def free(self, block: int, lane: int, stack: Stack, *, after: Sequence[int] = ()) -> None:
        """See :meth:`EventSink.free`; the number of the slot is not given again."""
        slot = self._slots.get(block)
        if slot is not None:
            slot.versions, slot.reads = slot.versions[:0], []
        self._inner.free(block, lane, stack, after=after)

    def _written(self, slot: _Slot, low: int, high: int) -> None:
        """The host writes: whoever was to read what was here and has not run reads the new version."""
        waiting = self._waiting() if slot.reads else frozenset()
        slot.reads = [read for read in slot.reads if read.operation in waiting]
        version = len(slot.made) + 1
        for read in slot.reads:
            if read.low < high and low < read.high:
                expected = int(slot.of(max(read.low, low), min(read.high, high)).max(initial=0))
                torn = read.low < low or high < read.high
                self._note(StaleRead(read.name, slot.number, slot.label, version, expected, torn))
        slot.made.append(self._moment)
        self._moment += 1
        slot.of(low, high)[:] = version

    def _waiting(self) -> frozenset[int]:
        """Operations that have not run."""
        queues = self._runtime.streams.queues.values()
        return frozenset(operation.id for queue in queues for operation in queue.pending)

    def _read(self, slot: _Slot, operation: int, low: int, high: int) -> None:
        """The device reads now, or will when its turn comes."""
        self.compared += 1
        if operation in self._open:
            self._read_now(slot, *self._open[operation], low, high)
        elif operation == self._enqueued:
            slot.reads.append(_Read(operation, self._name, low, high))

    def _read_now(self, slot: _Slot, name: str, moment: int, low: int, high: int) -> None:
        versions = slot.of(low, high)
        newest = int(versions.max(initial=0))
        if newest and slot.made[newest - 1] >= moment:
            expected = bisect_left(slot.made, moment)
            self._note(StaleRead(name, slot.number, slot.label, newest, expected, int(versions.min()) < newest))

    def _note(self, stale: StaleRead) -> None:
        if stale not in self.stale:
            self.stale.append(stale)
