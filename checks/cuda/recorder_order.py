"""Records, waits and synchronisation on a real device, as torch's own callbacks tell of them.

``torch.cuda._gpu_trace`` calls back from C++ for every event that is recorded, waited for or deleted, and every
synchronisation of an event, a stream or the device: also for those that happen inside of operators (``item``, blocking
copies), and in all threads. Polls are not among them: those are patched, see :mod:`.recorder_patches`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.cuda import _gpu_trace as trace

from ..events import OperationKind, Stack, SyncKind
from ..virtual.graphs import Capture, Node
from ..virtual.queues import Queue
from ..virtual.stacks import program_stack
from .callbacks import call_back

if TYPE_CHECKING:
    from .recorder_runtime import CudaRuntime


@dataclass(slots=True, eq=False)
class Record:
    """One record of an event.

    Attributes:
        queue: the stream.
        token: the sink's, for what came before it, once the sink has been told.
        node: its place in a capture, if it was made in one.
        capture: that capture.
    """

    queue: Queue
    token: int = -1
    node: Node | None = None
    capture: Capture | None = None


class Order:
    """The verbs by which a program orders work on one device.

    Args:
        runtime: the recorder.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._records: dict[int, Record] = {}
        #: What a callback raised first: torch only logs it.
        self.failure: Exception | None = None

    # What the callbacks tell; events and streams are addresses

    def recorded(self, event: int, stream: int) -> None:
        """An event marks the present end of a stream."""
        runtime = self._runtime
        if runtime.active:
            self._records[event] = self.mark(runtime.queue_of(stream), "event.record")

    def mark(self, queue: Queue, name: str) -> Record:
        """The present end of a stream."""
        runtime, capture = self._runtime, queue.capture
        if capture is not None:
            return Record(queue, -1, capture.add_record(queue), capture)
        record = Record(queue)
        runtime.sink.add((self._judge_mark, record, name, program_stack(), runtime.host_lane(), runtime.step))
        return record

    def _judge_mark(self, record: Record, name: str, stack: Stack, issuer: int, step: int | None) -> None:
        inner, lane = self._runtime.sink.inner, record.queue.lane
        inner.operation(lane, OperationKind.MARKER, name, stack, issuer=issuer, step=step)
        record.token = inner.release(lane)

    def waited(self, event: int, stream: int) -> None:
        """A stream is held until an event's latest record is passed."""
        runtime = self._runtime
        if runtime.active:
            self.hold(runtime.queue_of(stream), self._records.get(event))

    def hold(self, queue: Queue, record: Record | None) -> None:
        """A stream is held until a record is passed; one of before the recorder holds nothing that is known."""
        if record is None:
            return
        if record.capture is not None:
            if not record.capture.over:
                record.capture.add_wait(queue, record)
            return
        self._wait(queue.lane, SyncKind.WAIT_EVENT, "wait_event", record)

    def follow(self, queue: Queue, record: Record | None) -> None:
        """A stream comes after a record by the nature of the device, and not because the program asked."""
        if record is not None and record.queue is not queue:
            self._runtime.sink.add((self._judge_follow, queue.lane, record))

    def _judge_follow(self, lane: int, record: Record) -> None:
        self._runtime.sink.inner.acquire(lane, record.token)

    def deleted(self, event: int) -> None:
        """Another event may get the address."""
        self._records.pop(event, None)

    def event_synchronized(self, event: int) -> None:
        """The host waits for an event's latest record."""
        self._host_acquires(SyncKind.EVENT_SYNCHRONIZE, "Event.synchronize", self._records.get(event))

    def stream_synchronized(self, stream: int) -> None:
        """The host waits for all that a stream has been given."""
        self._host_waits(SyncKind.STREAM_SYNCHRONIZE, "Stream.synchronize", [stream])

    def device_synchronized(self) -> None:
        """The host waits for everything."""
        self._host_waits(SyncKind.DEVICE_SYNCHRONIZE, "torch.cuda.synchronize", [*self._runtime.queues])

    # Polls, and waits that no callback tells of

    def event_queried(self, event: int, over: bool) -> None:
        """The host polled an event; yes orders what follows after its latest record."""
        record = self._records.get(event) if over else None
        self._host_acquires(SyncKind.EVENT_QUERY, "Event.query", record)

    def stream_queried(self, stream: int, over: bool) -> None:
        """The host polled a stream; yes orders what follows after all that it has been given."""
        self._host_waits(SyncKind.STREAM_QUERY, "Stream.query", [stream] if over else [])

    def waited_inside(self, queue: Queue, name: str) -> None:
        """An operation made the host wait for its stream, by the table of copies."""
        with self._runtime.inside(name):
            self._host_waits(SyncKind.IMPLICIT, name, [queue.id])

    def _host_acquires(self, kind: SyncKind, name: str, record: Record | None) -> None:
        runtime = self._runtime
        if not runtime.active or runtime.captures.report_sync(name):
            return
        if record is not None and record.capture is None:
            self._wait(runtime.host_lane(), kind, name, record)

    def _host_waits(self, kind: SyncKind, name: str, streams: list[int]) -> None:
        """The host acquires streams; in an operation this is the operation's doing."""
        runtime = self._runtime
        inside = runtime.here.inside
        if inside is not None:
            kind, name = SyncKind.IMPLICIT, inside
        if not runtime.active or runtime.captures.report_sync(name):
            return
        queues = [runtime.queue_of(stream) for stream in streams]
        if queues:
            self._wait(runtime.host_lane(), kind, name, *queues)

    def _wait(self, lane: int, kind: SyncKind, name: str, *awaited: Record | Queue) -> None:
        """A lane waits for records, or for all that streams have been given so far."""
        runtime = self._runtime
        runtime.sink.add((self._judge_wait, lane, kind, name, program_stack(), runtime.step, awaited))

    def _judge_wait(
        self, lane: int, kind: SyncKind, name: str, stack: Stack, step: int | None, awaited: tuple[Record | Queue, ...]
    ) -> None:
        inner = self._runtime.sink.inner
        sync = inner.sync(lane, kind, name, stack, step=step)
        for item in awaited:
            token = item.token if isinstance(item, Record) else inner.release(item.lane)
            inner.acquire(lane, token, sync=sync)


def install(runtime: CudaRuntime) -> Callable[[], None]:
    """Let torch tell a recorder of events, streams and synchronisation; returns the undo."""
    order = runtime.order
    told: tuple[tuple[Any, Callable[..., None]], ...] = (
        (trace.EventRecordCallbacks, order.recorded),
        (trace.EventWaitCallbacks, order.waited),
        (trace.EventDeletionCallbacks, order.deleted),
        (trace.EventSynchronizationCallbacks, order.event_synchronized),
        (trace.StreamSynchronizationCallbacks, order.stream_synchronized),
        (trace.DeviceSynchronizationCallbacks, order.device_synchronized),
    )
    return call_back([(registry, _kept(order, callback)) for registry, callback in told])


def _kept(order: Order, callback: Callable[..., None]) -> Callable[..., None]:
    """A callback whose first failure is kept."""

    def call(*args: int) -> None:
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - raised at the end of the recorder
            order.failure = order.failure or error

    return call
