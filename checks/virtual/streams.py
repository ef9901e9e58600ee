"""Streams and events as the program holds them.

A handle may outlive the block that made it: programs keep streams in caches of their own. A stream of an earlier block
is adopted, as a new stream of the present one; an event of an earlier block is over, for that device was drained when
it ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ..events import LaneKind, made_at
from ..libraries import portable_path
from ..semantics import STREAMS_PER_POOL
from .errors import VirtualDeviceError
from .queues import Queue
from .refused import refuse
from .stacks import program_stack
from .tensor import DEVICE

if TYPE_CHECKING:
    from .order import Record
    from .runtime import Runtime

_active: list[Runtime] = []


def activate(runtime: Runtime) -> Callable[[], None]:
    """Make a device the one that streams and events belong to; returns the undo."""
    _active.append(runtime)
    return _active.clear


def active_runtime(subject: str = "the virtual device") -> Runtime:
    """The device of the virtual_device block that is open.

    Raises:
        VirtualDeviceError: none is.
    """
    if not _active:
        raise VirtualDeviceError(
            subject,
            "it may only be used inside a virtual_device block",
            "outside of one there is no device to do the work",
            "with virtual_device(schedule='late'): ...",
        )
    return _active[0]


def is_active() -> bool:
    """Whether a virtual_device block is open in this process."""
    return bool(_active)


class Streams:
    """The streams of one device: the default one, and a pool for each priority."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._made = 0
        self._pools: dict[int, list[Queue]] = {}
        self._taken: dict[int, int] = {}
        self._capture_queue: Queue | None = None
        self.queues: dict[int, Queue] = {}
        #: By id of a stream: where the program made it, e.g. ``"engine.py:12"``; of the first of those that share it.
        self.places: dict[int, str] = {}
        self.default = self.new_queue("default stream")

    @property
    def made(self) -> int:
        """How many there have been so far, branches of graphs included; they are numbered from 0."""
        return self._made

    def new_queue(self, name: str, kind: LaneKind = LaneKind.STREAM) -> Queue:
        """A queue of its own, for a stream or for one branch of a graph."""
        queue = Queue(self._made, self._runtime.sink.lane(kind, name), name)
        self._made += 1
        self.queues[queue.id] = queue
        return queue

    def numbered(self, number: int, device_index: int | None = None, device_type: int | None = None) -> Queue:
        """The stream of a number; there are no others than those of the device, as there is no other library.

        Raises:
            VirtualDeviceError: there is none.
        """
        queue = self.queues.get(number)
        if queue is None or device_index not in (None, -1, 0) or device_type not in (None, 1):
            raise VirtualDeviceError(
                f"stream {number}, device index {device_index}, device type {device_type}",
                "it must be one of the virtual device's streams",
                "work on any other stream would be invisible to the checks",
                "the stream_id or cuda_stream of a torch.cuda.Stream that was made inside the same block",
            )
        return queue

    def end_queue(self, queue: Queue) -> None:
        """Nothing will be enqueued there any more."""
        del self.queues[queue.id]
        self._runtime.sink.end_lane(queue.lane)

    def next_of_pool(self, priority: int, made: str | None = None) -> Queue:
        """The stream that a new handle of this priority gets, round robin.

        Args:
            priority: of the stream.
            made: where the program made it; here and now, if it is not said.
        """
        pool = self._pools.setdefault(priority, [])
        taken = self._taken.get(priority, 0)
        self._taken[priority] = taken + 1
        place = taken % STREAMS_PER_POOL
        if place == len(pool):
            kind = "stream" if priority == 0 else f"priority {priority} stream"
            made = _here() if made is None else made
            pool.append(self.new_queue(made_at(f"{kind} {place + 1}", made)))
            pool[place].priority = priority
            self.places[pool[place].id] = made
        return pool[place]

    def capture_queue(self) -> Queue:
        """The side stream that ``torch.cuda.graph`` captures from if it is given none."""
        if self._capture_queue is None:
            self._capture_queue = self.next_of_pool(0)
        return self._capture_queue

    def handle(self, queue: Queue) -> Any:
        """A ``torch.cuda.Stream`` for a queue."""
        return Stream._of(self._runtime, queue)


def _here() -> str:
    """The line of the program that asks for a stream, or nothing."""
    return "".join(f"{portable_path(file)}:{line}" for file, line, _ in program_stack()[:1])


class GenericStream:
    """``torch.Stream``."""

    device = DEVICE
    device_index = 0
    device_type = 1

    def __init__(
        self,
        device: Any = None,
        device_index: int | None = None,
        device_type: int | None = None,
        *,
        priority: int = 0,
        stream_id: int | None = None,
        stream_ptr: int | None = None,
    ) -> None:
        """A stream of the pool; or another handle of one that there is, by its number or what stands for its pointer.

        Three numbers without names are ``stream_id``, ``device_index`` and ``device_type``.

        Raises:
            VirtualDeviceError: there is no such stream.
        """
        self._runtime = active_runtime("a stream")
        if device_type is not None and stream_id is None:
            stream_id = device
        number = stream_ptr if stream_id is None else stream_id
        streams = self._runtime.streams
        with self._runtime.lock:
            if number is None:
                self._queue = streams.next_of_pool(min(0, max(-5, priority)))
            else:
                self._queue = streams.numbered(number, device_index, device_type)
        self._priority = self._queue.priority

    @classmethod
    def _of(cls, runtime: Runtime, queue: Queue) -> Any:
        stream = cls.__new__(cls)
        stream._runtime, stream._queue, stream._priority = runtime, queue, queue.priority
        return stream

    @property
    def queue(self) -> Queue:
        """Its queue; a handle of an earlier device is given the next stream of the pool, which is its own."""
        runtime = active_runtime("a stream")
        if runtime is not self._runtime:
            with runtime.lock:
                # Where it was made, and not where it happens to be used first on this device.
                made = self._runtime.streams.places.get(self._queue.id)
                self._queue = runtime.streams.next_of_pool(self._priority, made)
            self._runtime = runtime
        return self._queue

    @property
    def priority(self) -> int:
        """0, or negative for a stream of higher priority; it has no effect on the order here."""
        return self._priority

    @property
    def stream_id(self) -> int:
        """Its number on the device."""
        return self.queue.id

    @property
    def cuda_stream(self) -> int:
        """What stands for the pointer of the stream: 0 for the default one."""
        return self.queue.id

    native_handle = cuda_stream

    def synchronize(self) -> None:
        """Wait for all its work."""
        active_runtime().order.synchronize_queue(self.queue)

    def query(self) -> bool:
        """Whether all its work is over."""
        return active_runtime().order.query_queue(self.queue)

    def is_capturing(self) -> bool:
        """Whether a graph is being captured from it."""
        return self.queue.capture is not None

    def wait_event(self, event: GenericEvent) -> None:
        """Hold back what follows until the event's latest record is passed."""
        event.wait(self)

    def wait_stream(self, stream: GenericStream) -> None:
        """Hold back what follows until all present work of another stream is over."""
        runtime = active_runtime()
        with runtime.lock:
            runtime.order.wait(self.queue, runtime.order.record(stream.queue, "wait_stream"), "wait_stream")

    def record_event(self, event: Any = None) -> Any:
        """Record an event, a new one by default."""
        event = type(self)._event() if event is None else event
        event.record(self)
        return event

    @staticmethod
    def _event() -> Any:
        return GenericEvent()

    def __enter__(self) -> Any:
        runtime = active_runtime()
        runtime.threads.state.entered.append((self, runtime.current_queue()))
        runtime.set_current_queue(self.queue)
        return self

    def __exit__(self, *_: object) -> None:
        runtime = active_runtime()
        outer = runtime.threads.state.leave(self)
        if outer is not None:
            runtime.set_current_queue(outer)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.queue is other.queue

    def __hash__(self) -> int:
        return hash(type(self))  # the queue of a handle can change, and there are few streams

    def __repr__(self) -> str:
        return f"<torch.{'cuda.' if type(self) is Stream else ''}Stream device=cuda:0 {self._queue.name}>"


class Stream(GenericStream):
    """``torch.cuda.Stream``; unequal to the generic class's streams, as in torch."""

    def __init__(self, device: Any = None, priority: int = 0, **named: Any) -> None:
        super().__init__(device, priority=priority, **named)

    @staticmethod
    def _event() -> Any:
        return Event()

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Lowest and highest priority."""
        return 0, -5


class GenericEvent:
    """``torch.Event``."""

    device = DEVICE

    def __init__(
        self,
        device: Any = None,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self._timing = enable_timing
        self.external = external
        self._runtime: Runtime | None = None
        self._record: Record | None = None

    def _latest(self) -> Record | None | bool:
        """The latest record, None if there is none, or True if it was made on a device that has ended."""
        return True if self._record is not None and self._runtime is not active_runtime() else self._record

    def record(self, stream: GenericStream | None = None) -> None:
        """Mark the present end of a stream, the current one by default."""
        runtime = active_runtime("an event")
        queue = runtime.current_queue() if stream is None else stream.queue
        if self.external and queue.capture is not None:
            queue.capture.add_external(queue, "record", self)
            return
        self._record = runtime.order.record(queue)
        self._runtime = runtime

    def wait(self, stream: GenericStream | None = None) -> None:
        """Hold back a stream until the latest record is passed; later records do not matter to this wait."""
        runtime = active_runtime("an event")
        queue = runtime.current_queue() if stream is None else stream.queue
        if self.external and queue.capture is not None:
            queue.capture.add_external(queue, "wait", self)
            return
        record = self._latest()
        if not isinstance(record, bool):
            runtime.order.wait(queue, record)

    def replay(self, verb: str, queue: Queue) -> None:
        """A graph that captured a record of this external event, or a wait for it, is launched."""
        runtime = active_runtime("an event")
        if verb == "record":
            self._record = runtime.order.record(queue)
            self._runtime = runtime
            return
        record = self._latest()
        if not isinstance(record, bool):
            runtime.order.wait(queue, record)

    def synchronize(self) -> None:
        """Wait for the latest record."""
        record = self._latest()
        if not isinstance(record, bool):
            active_runtime("an event").order.synchronize_record(record)

    def query(self) -> bool:
        """Whether the latest record is passed; True if there is none."""
        record = self._latest()
        return record if isinstance(record, bool) else active_runtime("an event").order.query_record(record)

    def elapsed_time(self, end_event: GenericEvent) -> float:
        """Milliseconds from this event to another: one microsecond for each operation in between.

        Raises:
            RuntimeError: an event has no timing, was not recorded or is not over; it never waits.
        """
        active_runtime("an event")
        marks = []
        for event in (self, end_event):
            record = event._record
            if not event._timing or record is None:
                raise RuntimeError("Both events must be created with argument 'enable_timing=True' and recorded.")
            if not record.mark.done:
                raise RuntimeError("CUDA error: device not ready")
            marks.append(record.mark.number)
        return (marks[1] - marks[0]) * 1e-3

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'unrecorded' if self._record is None else 'recorded'}>"

    def ipc_handle(self) -> NoReturn:
        """There is no other process that shares the device.

        Raises:
            UnsupportedOperationError: always.
        """
        refuse("Event.ipc_handle", "an event for each process")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: Any) -> NoReturn:
        """See ``ipc_handle``."""
        refuse("Event.from_ipc_handle", "an event for each process")


class Event(GenericEvent):
    """``torch.cuda.Event``."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(None, enable_timing, blocking, interprocess, external)


def queue_of(stream: Any) -> Queue:
    """The queue of a stream.

    Raises:
        VirtualDeviceError: it is not a stream of the virtual device.
    """
    if isinstance(stream, Queue):
        return stream
    if isinstance(stream, GenericStream):
        return stream.queue
    raise VirtualDeviceError(
        f"stream {stream!r}",
        "it must be a stream of the virtual device",
        "work on any other stream would be invisible to the checks",
        "torch.cuda.Stream(), looked up while the virtual_device block is open",
    )
