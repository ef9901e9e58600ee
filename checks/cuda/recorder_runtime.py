"""The race recorder on a real device: what the program asks for is told to a sink, and the device does the work.

It is the front end of :mod:`mrv2.checks.happens_before` that has no scheduler: the order in which the device really
runs things plays no part in the verdict, so the races of the virtual device are found here too, without their luck.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..events import ByteRange, EventSink, LaneKind, OperationKind, Stack, made_at
from ..libraries import portable_path
from ..virtual.queues import Queue, Work
from ..virtual.stacks import program_stack
from .backend import Backend
from .journal import Journal
from .recorder_graphs import Captures
from .recorder_memory import Block, Memory
from .recorder_order import Order
from .stretch import Pace

Ranges = Sequence[ByteRange]


class _Here(threading.local):
    """Of one thread: its lane, and the operation that it is inside of."""

    lane: int | None = None
    inside: str | None = None


class CudaRuntime:
    """One real device, as hooks and the parts of the recorder see it.

    Args:
        sink: judges or records.
        backend: the device.
        pace: which operations come late, so that what they race with comes first.

    Attributes:
        sink: the journal in front of the one that was given.
        backend, pace: as given.
        lock: held during every call; a sink needs none of its own.
        step: the runner's step, carried by every event.
        active: False once the recorder has ended.
        wrap_array: what ``Tensor.numpy()`` of tracked memory returns instead of the plain array.
        unseen: kernels that reach memory through addresses which no argument names, counted by name: such accesses
            are not told unless the kernel's effects are declared.
        here: what the calling thread is doing.
        opener: the lane of the thread that opened the recorder.
        thread_mode: what a thread of the program does everything within.
    """

    def __init__(self, sink: EventSink, backend: Backend, pace: Pace | None = None) -> None:
        self.sink = Journal(sink)
        self.backend = backend
        self.pace = pace
        self.lock = threading.RLock()
        self.step: int | None = None
        self.active = True
        self.wrap_array: Callable[[Any], Any] | None = None
        self.unseen: Counter[str] = Counter()
        self.here = _Here()
        self.thread_mode: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        self.queues: dict[int, Queue] = {}
        self._streams = 0
        self.opener = self.host_lane()
        self.memory = Memory(self)
        self.captures = Captures(self)
        self.order = Order(self)

    # Lanes

    def host_lane(self) -> int:
        """The lane of the calling thread, made on first use.

        A thread that Python did not start (of torch's autograd engine) works for whoever waits for it: it shares the
        lane of the thread that opened the recorder.
        """
        lane = self.here.lane
        if lane is None:
            thread = threading.current_thread()
            foreign = isinstance(thread, threading._DummyThread)
            lane = self.here.lane = self.opener if foreign else self.sink.lane(LaneKind.HOST, thread.name)
        return lane

    def known_host_lane(self) -> int | None:
        """The lane of the calling thread if it has one; safe inside the garbage collector."""
        return self.here.lane

    def queue_of(self, stream: int, made: str = "") -> Queue:
        """The queue of a stream, by its address; named at its first use.

        Args:
            stream: its address; 0 is the default stream.
            made: where the program made it, e.g. ``"engine.py:12"``.
        """
        queue = self.queues.get(stream)
        return self._new_queue(stream, made) if queue is None else queue

    def _new_queue(self, stream: int, made: str) -> Queue:
        with self.lock:
            if stream not in self.queues:  # another thread may have been faster
                if stream:
                    self._streams += 1
                name = made_at(f"stream {self._streams}", made) if stream else "default stream"
                self.queues[stream] = Queue(stream, self.sink.lane(LaneKind.STREAM, name), name)
            return self.queues[stream]

    def current_queue(self) -> Queue:
        """The stream that is current in the calling thread."""
        return self.queue_of(self.backend.current_stream())

    def stream_made(self, stream: int) -> None:
        """The program has made a stream, here and now."""
        with self.lock:
            if stream not in self.queues:
                place = "".join(f"{portable_path(file)}:{line}" for file, line, _ in program_stack()[:1])
                self.queue_of(stream, place)

    # Memory

    def find_block(self, address: int) -> Block | None:
        """The block of device or pinned memory that holds an address."""
        return self.memory.blocks.find(address)

    def host_access(self, ranges: Ranges, *, write: bool, name: str, certain: bool = True) -> None:
        """The calling thread touches memory, or perhaps only some of it, now; bytes outside all blocks are dropped."""
        find = self.memory.blocks.find
        tracked = [piece for piece in ranges if find(piece[0]) is not None]
        if tracked and self.active:
            stack = program_stack()
            self.sink.add((self._host_access, self.host_lane(), name, stack, self.step, tracked, write, certain))

    def _host_access(
        self, lane: int, name: str, stack: Stack, step: int | None, ranges: Ranges, write: bool, certain: bool
    ) -> None:
        inner = self.sink.inner
        number = inner.operation(lane, OperationKind.HOST_ACCESS, name, stack, step=step)
        inner.access(number, ranges, write=write, certain=certain)

    # Operations

    def tell(self, queue: Queue, work: Work, stack: Stack) -> None:
        """An operation is about to be enqueued on a stream, which is not being captured."""
        self.sink.add((self.judge, queue.lane, work, stack, self.host_lane(), self.step))

    def judge(self, lane: int, work: Work, stack: Stack, issuer: int, step: int | None) -> None:
        """Hand an operation on to the sink."""
        inner = self.sink.inner
        number = inner.operation(lane, work.kind, work.name, stack, issuer=issuer, step=step)
        for ranges, write in ((work.reads, False), (work.writes, True)):
            if ranges:
                inner.access(number, ranges, write=write, protected=work.protected)
        for ranges, write in ((work.possible_reads, False), (work.possible_writes, True)):
            if ranges:
                inner.access(number, ranges, write=write, certain=False)

    def pace_before(self, stack: Stack) -> None:
        """An operation is about to be enqueued on the current stream."""
        if self.pace is not None:
            self.pace.before(stack, self.backend)

    def pace_after(self) -> None:
        """It was."""
        if self.pace is not None:
            self.pace.after(self.backend)

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """The calling thread is in an operation; a wait that happens meanwhile is the operation's own."""
        outer, self.here.inside = self.here.inside, name
        try:
            yield
        finally:
            self.here.inside = outer

    # Threads, end

    @contextlib.contextmanager
    def enter_thread(self) -> Iterator[None]:
        """Give the calling thread a lane and the mode, for as long as the context lasts."""
        with self.thread_mode():
            self.host_lane()
            try:
                yield
            finally:
                self.sink.end_lane(self.host_lane())
                self.here.lane = None

    def close(self) -> None:
        """Nothing is told from now on."""
        with self.lock:
            self.active = False
            self.sink.flush()
