"""Streams and events as the program holds them.

A handle may outlive the block that made it: programs keep streams in caches of their own. A stream of an earlier block
is adopted, as the stream with the same place in the pool; an event of an earlier block is over, for that device was
drained when it ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..events import LaneKind
from ..semantics import STREAMS_PER_POOL
from .errors import VirtualDeviceError
from .queues import Queue
from .tensor import DEVICE

if TYPE_CHECKING:
    from .runtime import Record, Runtime

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
        self._queues: list[Queue] = []
        self._pools: dict[int, list[Queue]] = {}
        self._taken: dict[int, int] = {}
        self.default = self.new_queue("default stream")

    def new_queue(self, name: str, kind: LaneKind = LaneKind.STREAM) -> Queue:
        """A queue of its own, for a stream or for one branch of a graph."""
        queue = Queue(len(self._queues), self._runtime.sink.lane(kind, name), name)
        self._queues.append(queue)
        return queue

    def queues(self) -> list[Queue]:
        """All queues, by id."""
        return self._queues

    def place(self, priority: int, index: int) -> Queue:
        """The stream at a place of a pool, made on first use."""
        pool = self._pools.setdefault(priority, [])
        while len(pool) <= index:
            kind = "stream" if priority == 0 else f"priority {priority} stream"
            pool.append(self.new_queue(f"{kind} {len(pool) + 1}"))
            pool[-1].place = (priority, len(pool) - 1)
        return pool[index]

    def next_place(self, priority: int) -> int:
        """The place that the next new stream gets, round robin."""
        taken = self._taken.get(priority, 0)
        self._taken[priority] = taken + 1
        return taken % STREAMS_PER_POOL

    def handle(self, queue: Queue) -> Any:
        """A ``torch.cuda.Stream`` for a queue."""
        return Stream._at(*(queue.place or (0, None)))


class GenericStream:
    """``torch.Stream``."""

    device = DEVICE
    device_index = 0
    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        with active_runtime().lock:
            priority = min(0, max(-5, priority))
            self._priority = priority
            self._place: int | None = active_runtime().streams.next_place(priority)

    @classmethod
    def _at(cls, priority: int, place: int | None) -> Any:
        stream = cls.__new__(cls)
        stream._priority, stream._place = priority, place
        return stream

    @property
    def queue(self) -> Queue:
        """The stream of the present device with this place in the pool."""
        streams = active_runtime("a stream").streams
        return streams.default if self._place is None else streams.place(self._priority, self._place)

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
        active_runtime().synchronize_queue(self.queue)

    def query(self) -> bool:
        """Whether all its work is over."""
        return active_runtime().query_queue(self.queue)

    def wait_event(self, event: GenericEvent) -> None:
        """Hold back what follows until the event's latest record is passed."""
        event.wait(self)

    def wait_stream(self, stream: GenericStream) -> None:
        """Hold back what follows until all present work of another stream is over."""
        runtime = active_runtime()
        with runtime.lock:
            runtime.wait(self.queue, runtime.record(stream.queue, "wait_stream"), "wait_stream")

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
        self._outer = runtime.current_queue()
        runtime.set_current_queue(self.queue)
        return self

    def __exit__(self, *_: object) -> None:
        active_runtime().set_current_queue(self._outer)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (self._priority, self._place) == (other._priority, other._place)

    def __hash__(self) -> int:
        return hash((type(self), self._priority, self._place))

    def __repr__(self) -> str:
        place = "default" if self._place is None else f"priority={self._priority} place={self._place}"
        return f"<{type(self).__name__} device=cuda:0 {place}>"


class Stream(GenericStream):
    """``torch.cuda.Stream``; unequal to the generic class's streams, as in torch."""

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
        self._record = runtime.record(runtime.current_queue() if stream is None else stream.queue)
        self._runtime = runtime

    def wait(self, stream: GenericStream | None = None) -> None:
        """Hold back a stream until the latest record is passed; later records do not matter to this wait."""
        runtime = active_runtime("an event")
        record = self._latest()
        if not isinstance(record, bool):
            runtime.wait(runtime.current_queue() if stream is None else stream.queue, record)

    def synchronize(self) -> None:
        """Wait for the latest record."""
        record = self._latest()
        if not isinstance(record, bool):
            active_runtime("an event").synchronize_record(record)

    def query(self) -> bool:
        """Whether the latest record is passed; True if there is none."""
        record = self._latest()
        return record if isinstance(record, bool) else active_runtime("an event").query_record(record)

    def elapsed_time(self, end_event: GenericEvent) -> float:
        """Milliseconds from this event to another: one microsecond for each operation in between.

        Raises:
            RuntimeError: an event has no timing, was not recorded or is not over; it never waits.
        """
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
