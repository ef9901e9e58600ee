"""Records, waits and synchronisation: what the program orders, told to the sink and honoured by the engine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from ..events import OperationKind, SyncKind
from ..semantics import CAPTURE_CALLS, EVENTS, CaptureCall, EventState
from ..sync.waits import WaitKind
from .queues import PendingOperation, Queue
from .schedules import Reason
from .stacks import program_stack

if TYPE_CHECKING:
    from .graphs import Capture, Node
    from .runtime import Runtime


@dataclass(frozen=True)
class Record:
    """One record of an event: the mark in the stream, and the sink's token for what came before it.

    One that was made in a capture has its node and capture instead. What is over once it is passed is its ``past``; see
    :class:`Known`.
    """

    mark: PendingOperation
    token: int
    node: Node | None = None
    capture: Capture | None = None
    past: Mapping[int, int] | None = None


class Known:
    """What the host knows to be over, whatever the schedule: it waited for it, for what came after it, or was told.

    Of each queue the number of an operation, up to which all is over. Only kept while somebody is told of waits: an
    event of which this is known is not waited for.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._over: dict[int, int] = {}
        self._before: dict[int, dict[int, int]] = {}

    def past(self, queue: Queue) -> Mapping[int, int] | None:
        """What is over once all is that a queue has been given so far; None if nobody cares."""
        if self._runtime.wait_guard is None:
            return None
        last = {} if queue.last is None else {queue.id: queue.last.number}
        return {**self._before.get(queue.id, {}), **last}

    def holds(self, queue: Queue, record: Record) -> None:
        """What a queue is given from now on comes after a record."""
        if record.past is not None:
            _raise(self._before.setdefault(queue.id, {}), record.past)

    def learn(self, past: Mapping[int, int] | None) -> None:
        """The host has waited for something, or been told that it is over."""
        if past is not None:
            _raise(self._over, past)

    def covers(self, record: Record) -> bool:
        """Whether the host knows that a record is passed."""
        mark = record.mark
        return self._over.get(mark.queue.id, -1) >= mark.number


def _raise(numbers: dict[int, int], to: Mapping[int, int]) -> None:
    for queue, number in to.items():
        numbers[queue] = max(number, numbers.get(queue, -1))


class Order:
    """The verbs by which a program orders work on one device.

    Attributes:
        asked: what the host last asked about.
    """

    asked: PendingOperation | None = None

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known = Known(runtime)
        self._refused: WeakSet[PendingOperation] = WeakSet()
        self._refused_at: dict[int, int] = {}  # by queue, how many operations had been submitted at the last no

    def record(self, queue: Queue, name: str = "event.record") -> Record:
        """Mark the present end of a stream."""
        runtime = self._runtime
        with runtime.lock:
            runtime.memory.settle()
            capture = queue.capture
            if capture is not None:
                mark = PendingOperation(-1, name, None, queue, ())
                return Record(mark, -1, capture.add_record(queue), capture)
            stack, host = program_stack(), runtime.host_lane()
            identity = runtime.sink.operation(
                queue.lane, OperationKind.MARKER, name, stack, issuer=host, step=runtime.step
            )
            mark = PendingOperation(identity, name, None, queue, stack, runtime.step, mark=True)
            runtime.engine.submit(mark)
            return Record(mark, runtime.sink.release(queue.lane), past=self._known.past(queue))

    def wait(self, queue: Queue, record: Record | None, name: str = "wait_event") -> None:
        """Hold a stream until a record is passed; without a record this orders nothing, and the sink is told so.

        Raises:
            RuntimeError: the record and the stream are not of one capture.
        """
        runtime = self._runtime
        with runtime.lock:
            runtime.memory.settle()
            if record is not None and record.capture is not None and not record.capture.over:
                record.capture.add_wait(queue, record)
                return
            orders = _orders(record)
            if orders:
                outside = f"{name} of an event recorded outside of the capture"
                runtime.captures.refuse(queue, outside, CAPTURE_CALLS[CaptureCall.OUTSIDE_EVENT])
            sync = self._sync(queue.lane, SyncKind.WAIT_EVENT, name)
            if orders and record is not None:
                runtime.sink.acquire(queue.lane, record.token, sync=sync)
                self._hold(queue, record)

    def follow(self, queue: Queue, record: Record | None) -> None:
        """Hold a stream until a record is passed, by the nature of the device and not because the program asked."""
        if record is not None and record.mark.queue is not queue:
            self._runtime.sink.acquire(queue.lane, record.token)
            self._hold(queue, record)

    def _hold(self, queue: Queue, record: Record) -> None:
        self._known.holds(queue, record)
        if not record.mark.done and record.mark.queue is not queue:
            mark = PendingOperation(-1, "wait_event", None, queue, (), after=(record.mark,), mark=True)
            self._runtime.engine.submit(mark)

    def synchronize_record(self, record: Record | None, name: str = "Event.synchronize") -> None:
        """Let the host wait for a record."""
        runtime = self._runtime
        with runtime.lock:
            runtime.memory.settle()
            if record is not None:
                runtime.captures.refuse_wait(name)
            orders = _orders(record)
            host = runtime.host_lane()
            sync = self._sync(host, SyncKind.EVENT_SYNCHRONIZE, name)
            if orders and record is not None:
                if not self._known.covers(record):
                    runtime.host_waits(WaitKind.EVENT, name)
                self._known.learn(record.past)
                runtime.sink.acquire(host, record.token, sync=sync)
                runtime.run_until(record.mark)
                runtime.memory.settle()

    def query_record(self, record: Record | None, name: str = "Event.query") -> bool:
        """Whether a record is passed. The device goes on meanwhile, and True orders what follows after it.

        The sink is told of every poll; only those that say yes acquire something.
        """
        runtime = self._runtime
        with runtime.lock:
            runtime.memory.settle()
            host = runtime.host_lane()
            if record is not None:
                runtime.captures.refuse_wait(name)
            if not _orders(record) or record is None:
                # A yes that brings nothing new: what the host knows already.
                sync = self._sync(host, SyncKind.EVENT_QUERY, name)
                runtime.sink.acquire(host, runtime.sink.release(host), sync=sync)
                return True
            over = self._poll(record.mark)
            sync = self._sync(host, SyncKind.EVENT_QUERY, name)
            if over:
                self._known.learn(record.past)
                runtime.sink.acquire(host, record.token, sync=sync)
            return over

    def synchronize_queue(self, queue: Queue, name: str = "Stream.synchronize") -> None:
        """Let the host wait for all that a stream has been given."""
        self._runtime.captures.refuse_wait(name)
        self._runtime.host_waits(WaitKind.STREAM, name)
        self._wait_for_queue(queue, name, SyncKind.STREAM_SYNCHRONIZE)

    def _wait_for_queue(self, queue: Queue, name: str, kind: SyncKind) -> None:
        runtime = self._runtime
        with runtime.lock:
            runtime.memory.settle()
            host = runtime.host_lane()
            sync = self._sync(host, kind, name)
            runtime.sink.acquire(host, runtime.sink.release(queue.lane), sync=sync)
            self._known.learn(self._known.past(queue))
            if queue.last is not None:
                runtime.run_until(queue.last)
            runtime.memory.settle()

    def query_queue(self, queue: Queue) -> bool:
        """Whether a stream has nothing left to do; True orders what follows after all of it."""
        runtime = self._runtime
        with runtime.lock:
            runtime.captures.refuse_wait("Stream.query")
            runtime.memory.settle()
            over = queue.last is None or self._poll(queue.last)
            host = runtime.host_lane()
            sync = self._sync(host, SyncKind.STREAM_QUERY, "Stream.query")
            if over:
                self._known.learn(self._known.past(queue))
                runtime.sink.acquire(host, runtime.sink.release(queue.lane), sync=sync)
            return over

    def _poll(self, operation: PendingOperation) -> bool:
        """Whether an operation is over, now that the host asks.

        What is asked about for the first time and is not over may stay so; from the second time on, work goes on.
        """
        engine = self._runtime.engine
        engine.find_ready()
        self.asked = operation
        self._runtime.poll(first=not (operation.done or operation in self._refused or self._is_no_news(operation)))
        if not operation.done:
            self._refused.add(operation)
            self._refused_at[operation.queue.id] = engine.submitted
        return operation.done

    def _is_no_news(self, mark: PendingOperation) -> bool:
        """Whether it was made since the host last heard no of this queue, and no work was given to the queue since.

        So a host that records and polls another event in each turn comes to its end.
        """
        since = self._refused_at.get(mark.queue.id)
        if since is None or mark.number < since:
            return False
        recent = itertools.takewhile(lambda item: item.number >= since, reversed(mark.queue.pending))
        return all(item.mark for item in recent)

    def synchronize_device(self, name: str = "torch.cuda.synchronize") -> None:
        """Let the host wait for everything."""
        runtime = self._runtime
        with runtime.lock:
            runtime.captures.refuse_wait(name, whole_device=True)
            runtime.host_waits(WaitKind.DEVICE, name)
            runtime.memory.settle()
            host = runtime.host_lane()
            sync = self._sync(host, SyncKind.DEVICE_SYNCHRONIZE, name)
            for queue in runtime.streams.queues.values():
                runtime.sink.acquire(host, runtime.sink.release(queue.lane), sync=sync)
                self._known.learn(self._known.past(queue))
            runtime.drain(Reason.HOST_SYNC)
            runtime.memory.settle()

    def wait_for_operation(self, operation: PendingOperation, kind: WaitKind | None, size: int | None = None) -> None:
        """An operation by its nature made the host wait for the stream it is on.

        Args:
            operation: which.
            kind: why; None if a real device would not have made it wait.
            size: of a copy, in bytes.
        """
        self._runtime.captures.refuse_wait(operation.name)
        if kind is not None:
            self._runtime.host_waits(kind, operation.name, size)
        self._wait_for_queue(operation.queue, operation.name, SyncKind.IMPLICIT)

    def _sync(self, lane: int, kind: SyncKind, name: str) -> int:
        runtime = self._runtime
        return runtime.sink.sync(lane, kind, name, program_stack(), step=runtime.step)


def _orders(record: Record | None) -> bool:
    """Whether waiting for an event with this latest record orders anything.

    Raises:
        RuntimeError: it was last recorded in a capture.
    """
    if record is None:
        state = EventState.UNRECORDED
    else:
        state = EventState.RECORDED if record.capture is None else EventState.CAPTURED
    rule = EVENTS[state]
    if rule.raises is not None:
        raise RuntimeError(rule.raises)
    return rule.orders
