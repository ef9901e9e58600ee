"""Writes that no hook saw, found by what they left behind.

The source of an upload from pinned memory must stay as it is until the host has waited for the copy. Its bytes are
remembered when the copy is enqueued, and compared when a host thread acquires an order after the copy. Bytes of which a
write was told in between are left out: these are the happens-before checker's. So the verdict is the same in every
schedule, and whether the copy has run by then does not matter.

What is missed: a byte that is written and set back, copies of more than a mebibyte, and what is written thousands of
steps after a copy that the host never waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..events import ByteRange, LaneKind, OperationKind, Space, Stack
from ..findings import Finding, Site, Soundness, Verdict
from .open_snapshots import OpenSnapshots, Snapshot
from .patching import Patches
from .runtime import Runtime

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Larger sources are not remembered.
MAX_BYTES = 1 << 20
#: All that is remembered at one time.
MAX_TOTAL = 16 << 20
#: So many uploads at one time, and so many moments after them that somebody may still wait for. Beyond any of the
#: three, the oldest source is compared early: nobody waits for that upload.
MAX_OPEN = 4096
MAX_TOKENS = 4096


def install(runtime: Runtime) -> Callable[[], None]:
    """Watch the sources of uploads, unless they are watched already; returns the undo, which compares what is left."""
    if isinstance(runtime.sink, SnapshotSink):
        return _nothing
    sink = SnapshotSink(runtime)
    patches = Patches()
    patches.set(runtime, "sink", sink)
    patches.set(runtime, "upload_guard", sink.guard)

    def undo() -> None:
        sink.conclude_all()
        patches.undo()

    return undo


class SnapshotSink:
    """An event sink that stands before the device's own, and passes everything on.

    Which streams are ordered after a copy is followed in :class:`OpenSnapshots`; that needs nothing of the sink behind.

    Attributes:
        began: told of each snapshot when its copy has been enqueued.
    """

    def __init__(self, runtime: Runtime) -> None:
        inner = runtime.sink
        self.close = inner.close
        self.sync = inner.sync
        self.allocate = inner.allocate
        self.report = inner.report
        self.began: Callable[[Snapshot], None] | None = None
        self._inner = inner
        self._runtime = runtime
        self._hosts = {runtime.host_lane()}
        self._count = 0
        self._next: Snapshot | None = None
        self._open = OpenSnapshots()
        self._host_operation = -1
        #: Writes of pending operations to each pinned block: the operation's number in the engine, and the bytes.
        self._pending: dict[int, deque[tuple[int, int, int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def guard(self, source: Any, name: str) -> Callable[[], None]:
        """Remember the source of the upload that is enqueued next; what it returns has nothing to do."""
        number = self._count
        self._count += 1
        size = source.numel() * source.element_size()
        block = self._runtime.find_block(source.data_ptr())
        if 0 < size <= MAX_BYTES and block is not None:
            self._next = Snapshot(number, name, block.id, _memory_of(source, size))
            self._leave_out_pending(self._next)
        return _nothing

    def conclude_all(self) -> None:
        """The run is over: compare what is left."""
        for snapshot in self._open:
            self._conclude(snapshot)

    # What is told

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :meth:`EventSink.lane`."""
        number = self._inner.lane(kind, name)
        if kind is LaneKind.HOST:
            self._hosts.add(number)
        return number

    def end_lane(self, lane: int) -> None:
        """See :meth:`EventSink.end_lane`."""
        self._hosts.discard(lane)
        self._inner.end_lane(lane)

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
        number = self._inner.operation(lane, kind, name, stack, issuer=issuer, step=step, open=open)
        if issuer is None:
            self._host_operation = number
        if self._next is not None:
            self._begin(self._next, lane, stack, step)
        return number

    def access(
        self, operation: int, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True, protected: bool = False
    ) -> None:
        """See :meth:`EventSink.access`."""
        self._inner.access(operation, ranges, write=write, certain=certain, protected=protected)
        if not write:
            return
        by_host = operation == self._host_operation
        for low, high in ranges:
            block = self._runtime.find_block(low)
            if block is None or block.space is not Space.PINNED:
                continue
            for snapshot in self._open.overlapping(block.id, low, high):
                snapshot.leave_out(low, high)
            if not by_host:
                self._note_pending(operation, block.id, low, high)

    def release(self, lane: int) -> int:
        """See :meth:`EventSink.release`."""
        token = self._inner.release(lane)
        self._open.release(lane, token)
        while self._open.tokens > MAX_TOKENS:
            self._conclude(self._open.oldest())
        return token

    def acquire(self, lane: int, token: int, *, sync: int | None = None) -> None:
        """See :meth:`EventSink.acquire`."""
        if lane in self._hosts:
            for snapshot in self._open.behind(token):
                self._conclude(snapshot)
        else:
            self._open.learn(lane, token)
        self._inner.acquire(lane, token, sync=sync)

    def free(self, block: int, lane: int, stack: Stack, *, after: Sequence[int] = ()) -> None:
        """See :meth:`EventSink.free`."""
        for snapshot in self._open.of_block(block):
            self._conclude(snapshot)
        self._pending.pop(block, None)
        self._inner.free(block, lane, stack, after=after)

    # Snapshots

    def _begin(self, snapshot: Snapshot, lane: int, stack: Stack, step: int | None) -> None:
        self._next = None
        snapshot.stack, snapshot.step = stack, step
        self._open.add(snapshot, lane)
        while self._open.nbytes > MAX_TOTAL or len(self._open) > MAX_OPEN:
            self._conclude(self._open.oldest())
        if self.began is not None:
            self.began(snapshot)

    def _note_pending(self, operation: int, block: int, low: int, high: int) -> None:
        """Remember what an operation will write when it runs; one that tells as it runs has written by then."""
        running = self._runtime.running
        if running is None or running.id != operation:
            self._forget_finished(block)
            self._pending.setdefault(block, deque()).append((self._runtime.engine.submitted, low, high))

    def _forget_finished(self, block: int) -> None:
        writes = self._pending.get(block)
        if writes is not None:
            oldest = self._runtime.engine.oldest()
            while writes and writes[0][0] < oldest:
                writes.popleft()
            if not writes:
                del self._pending[block]

    def _leave_out_pending(self, snapshot: Snapshot) -> None:
        self._forget_finished(snapshot.block)
        for _, low, high in self._pending.get(snapshot.block, ()):
            snapshot.leave_out(low, high)

    def _conclude(self, snapshot: Snapshot) -> None:
        """The order after the copy is there, so the source is free from now on."""
        if not self._open.remove(snapshot):
            return
        changed = snapshot.changed()
        if len(changed):
            self._inner.report(self._finding(snapshot, changed))

    def _finding(self, snapshot: Snapshot, changed: NDArray[np.intp]) -> Finding:
        block = self._runtime.find_block(snapshot.low)
        base = snapshot.low if block is None else block.base
        span = [int(changed[0]) + snapshot.low - base, int(changed[-1]) + 1 + snapshot.low - base]
        memory = {} if block is None else {"space": block.space.value, "size": block.size, "label": block.label}
        return Finding(
            code="MRV207",
            verdict=Verdict.VIOLATION,
            soundness=Soundness.BEST_EFFORT,
            title=f"the pinned source of '{snapshot.name}' was changed before the host waited for the copy",
            where=tuple(Site(*frame) for frame in snapshot.stack),
            allocation=() if block is None else tuple(Site(*frame) for frame in block.stack),
            evidence={"upload": snapshot.number, "block": memory, "bytes": span, "changed": len(changed)},
            remedy="wait for the copy's event before writing, or write into another slot; the write went past numpy "
            "and torch, so look for a memoryview, struct, ctypes or C code, or let locate_writer name the line",
            step=snapshot.step,
        )


def _nothing() -> None:
    """There is nothing to do."""


def _memory_of(source: Any, size: int) -> NDArray[np.uint8]:
    """The bytes of a dense tensor as they lie in memory."""
    import torch

    storage = source.untyped_storage()
    offset = source.storage_offset() * source.element_size()
    octets = torch.empty(0, dtype=torch.uint8).set_(storage, offset, (size,), (1,))
    memory: NDArray[np.uint8] = octets.numpy()
    return memory
