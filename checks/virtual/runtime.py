"""The virtual device itself: what the program asked for goes to the sink at once and to the engine for later."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..events import ByteRange, EventSink, LaneKind, OperationKind, Stack, SyncKind
from ..findings import Finding, Soundness, Verdict
from .copies import Copies
from .functions import names_device_tensor
from .generators import Generators
from .graphs import Capture, Captures, Node
from .memory import Block, Memory
from .operators import Operators
from .queues import Engine, PendingOperation, Queue, Work, below_modes
from .schedules import Reason, Scheduler
from .stacks import program_stack, sites
from .streams import Streams, queue_of

if TYPE_CHECKING:
    from .tensor import Face

INVALID_ARGUMENT = "CUDA error: invalid argument"


@dataclass(frozen=True)
class Record:
    """One record of an event: the mark in the stream, and the sink's token for what came before it.

    One that was made in a capture has its node and capture instead.
    """

    mark: PendingOperation
    token: int
    node: Node | None = None
    capture: Capture | None = None


class _ThreadState(threading.local):
    """What each host thread has of its own."""

    lane: int | None = None
    queue: Queue | None = None
    #: The torch function that is being called, with its arguments.
    call: tuple[Any, Any, Any] | None = None


class Runtime:
    """One virtual device.

    Attributes:
        sink: judges or records.
        scheduler: says when what runs.
        lock: held during every call; a sink needs none of its own.
        step: the runner's step, carried by every event.
        active: False once the device is gone.
        running: the operation that is being run, for those whose accesses are learnt then.
        thread_state: what each host thread has of its own.
        captures: the graph capture in progress.
        generators: random numbers of the device.
        without_meta: operators that had to run at once because torch cannot tell their output's shape, counted.
        wrap_array: what ``Tensor.numpy()`` of tracked memory returns instead of the plain array.
        upload_guard: asked at each upload that reads its source later; the check it returns runs before the copy.
    """

    def __init__(self, sink: EventSink, scheduler: Scheduler, *, poison: int) -> None:
        self.sink = sink
        self.scheduler = scheduler
        self.lock = threading.RLock()
        self.step: int | None = None
        self.active = True
        self.running: PendingOperation | None = None
        self.without_meta: Counter[str] = Counter()
        self.wrap_array: Callable[[Any], Any] | None = None
        self.upload_guard: Callable[[Any, str], Callable[[], None]] | None = None
        self.thread_state = _ThreadState()
        self.captures = Captures(self)
        self.generators = Generators(self)
        self.engine = Engine(self._execute)
        self.memory = Memory(self, poison)
        self.streams = Streams(self)
        self.copies = Copies(self)
        self.operators = Operators(self)

    # Who acts where

    def host_lane(self) -> int:
        """The lane of the calling thread, made on first use."""
        lane = self.thread_state.lane
        if lane is None:
            lane = self.thread_state.lane = self.sink.lane(LaneKind.HOST, threading.current_thread().name)
        return lane

    def known_host_lane(self) -> int | None:
        """The lane of the calling thread if it has one; safe inside the garbage collector."""
        return self.thread_state.lane

    def current_queue(self) -> Queue:
        """The stream that is current in the calling thread; a new thread starts on the default stream."""
        return self.thread_state.queue or self.streams.default

    def set_current_queue(self, queue: Queue) -> None:
        """Make a stream current in the calling thread."""
        self.thread_state.queue = queue

    def current_stream(self) -> Any:
        """The current stream, as ``torch.cuda.current_stream()`` gives it."""
        return self.streams.handle(self.current_queue())

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An ATen operator was called."""
        return self.operators.dispatch(func, args, kwargs)

    def inside_device_call(self) -> bool:
        """Whether the torch function being called in this thread works on device tensors."""
        call = self.thread_state.call
        return call is not None and names_device_tensor(*call)

    # Memory

    def find_block(self, address: int) -> Block | None:
        """The block of device or pinned memory that holds an address."""
        return self.memory.blocks.find(address)

    def blocks(self) -> tuple[Any, Any]:
        """First and one-past-last addresses of all blocks, as sorted int64 arrays."""
        return self.memory.blocks.intervals()

    def record_stream(self, face: Face, stream: Any) -> None:
        """A device block is used on another stream; a view of pinned memory is none of the allocator's."""
        block = getattr(face.owner, "block", None)
        if block is not None:
            queue = queue_of(stream)
            if queue is not block.queue:
                block.recorded[queue.id] = queue

    # Work

    def enqueue(
        self,
        name: str,
        kind: OperationKind,
        run: Callable[[], None] | None,
        reads: Sequence[ByteRange] = (),
        writes: Sequence[ByteRange] = (),
        *,
        possible_reads: Sequence[ByteRange] = (),
        possible_writes: Sequence[ByteRange] = (),
        certain: bool = True,
        protected: bool = False,
        open: bool = False,  # noqa: A002 - the contract's name
        stream: Any = None,
        prepare: Callable[[], Callable[[], None]] | None = None,
        blocks: Sequence[Block] = (),
    ) -> PendingOperation:
        """Put an operation on a stream, the current one by default; into its graph, if it is being captured.

        Args:
            name: for people.
            kind: what it is.
            run: does the work, below the modes, later.
            reads: bytes that it reads.
            writes: bytes that it writes.
            possible_reads: bytes of which it reads some.
            possible_writes: bytes of which it writes some.
            certain: False makes ``reads`` and ``writes`` possible ones.
            protected: the host allocator waits for it before it hands out a pinned block again.
            open: more accesses are told with ``access`` while it runs.
            stream: a stream, its queue, or None.
            prepare: makes ``run`` anew for each launch, for work that draws random numbers.
            blocks: memory whose address it was given, though which bytes it touches is learnt later.
        """
        with self.lock:
            self.memory.settle()
            queue = self.current_queue() if stream is None else queue_of(stream)
            work = Work(
                name,
                kind,
                run,
                reads,
                writes,
                possible_reads,
                possible_writes,
                certain,
                protected,
                open,
                prepare,
                blocks,
            )
            if queue.capture is not None:
                return queue.capture.add(queue, work)
            operation = self.submit(work, queue, program_stack())
            self._progress(Reason.ENQUEUE)
            return operation

    def submit(self, work: Work, queue: Queue, stack: Stack, *, entries: int = 1, prefix: str = "") -> PendingOperation:
        """Tell the sink of an operation and queue it, without letting the device make progress."""
        sink = self.sink
        name = prefix + work.name
        run = work.run if work.prepare is None else work.prepare()
        identity = sink.operation(
            queue.lane, work.kind, name, stack, issuer=self.host_lane(), step=self.step, open=work.open
        )
        if work.reads:
            sink.access(identity, work.reads, write=False, certain=work.certain, protected=work.protected)
        if work.writes:
            sink.access(identity, work.writes, write=True, certain=work.certain, protected=work.protected)
        if work.possible_reads:
            sink.access(identity, work.possible_reads, write=False, certain=False)
        if work.possible_writes:
            sink.access(identity, work.possible_writes, write=True, certain=False)
        operation = PendingOperation(identity, name, run, queue, stack, self.step, entries=entries, open=work.open)
        self.engine.submit(operation)
        return operation

    def progress_after_launch(self) -> None:
        """The device may make progress, now that a whole graph is enqueued."""
        self._progress(Reason.ENQUEUE)

    def access(self, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True) -> None:
        """The running operation, which is open, touches these bytes."""
        assert self.running is not None
        self.sink.access(self.running.id, ranges, write=write, certain=certain)

    def host_access(self, ranges: Sequence[ByteRange], *, write: bool, name: str) -> None:
        """The calling thread touches memory now; bytes outside tracked blocks are dropped."""
        find = self.memory.blocks.find
        tracked = [piece for piece in ranges if find(piece[0]) is not None]
        if not tracked:
            return
        with self.lock:
            self.memory.settle()
            self._progress(Reason.HOST_ACCESS)
            stack = program_stack()
            identity = self.sink.operation(self.host_lane(), OperationKind.HOST_ACCESS, name, stack, step=self.step)
            self.sink.access(identity, tracked, write=write)

    # Order

    def record(self, queue: Queue, name: str = "event.record") -> Record:
        """Mark the present end of a stream."""
        with self.lock:
            self.memory.settle()
            capture = queue.capture
            if capture is not None:
                mark = PendingOperation(-1, name, None, queue, ())
                return Record(mark, -1, capture.add_record(queue), capture)
            stack = program_stack()
            host = self.host_lane()
            identity = self.sink.operation(queue.lane, OperationKind.MARKER, name, stack, issuer=host, step=self.step)
            mark = PendingOperation(identity, name, None, queue, stack, self.step, mark=True)
            self.engine.submit(mark)
            return Record(mark, self.sink.release(queue.lane))

    def wait(self, queue: Queue, record: Record | None, name: str = "wait_event") -> None:
        """Hold a stream until a record is passed; without a record this orders nothing, and the sink is told so.

        Raises:
            RuntimeError: the record and the stream are not of one capture.
        """
        with self.lock:
            self.memory.settle()
            if record is not None and record.node is not None and record.capture is not None:
                if record.capture.over:
                    raise RuntimeError(INVALID_ARGUMENT)
                record.capture.add_wait(queue, record.node)
                return
            if record is not None and queue.capture is not None:
                self.captures.refuse_wait(f"{name} of an event recorded outside of the capture")
            sync = self._sync(queue.lane, SyncKind.WAIT_EVENT, name)
            if record is not None:
                self.sink.acquire(queue.lane, record.token, sync=sync)
                self._hold(queue, record)

    def follow(self, queue: Queue, record: Record | None) -> None:
        """Hold a stream until a record is passed, by the nature of the device and not because the program asked."""
        if record is not None and record.mark.queue is not queue:
            self.sink.acquire(queue.lane, record.token)
            self._hold(queue, record)

    def _hold(self, queue: Queue, record: Record) -> None:
        if not record.mark.done and record.mark.queue is not queue:
            mark = PendingOperation(-1, "wait_event", None, queue, (), after=(record.mark,), mark=True)
            self.engine.submit(mark)

    def synchronize_record(self, record: Record | None, name: str = "Event.synchronize") -> None:
        """Let the host wait for a record."""
        with self.lock:
            self.memory.settle()
            if record is not None:
                self._refuse_captured(record, name)
            sync = self._sync(self.host_lane(), SyncKind.EVENT_SYNCHRONIZE, name)
            if record is not None:
                self.sink.acquire(self.host_lane(), record.token, sync=sync)
                self._run_until(record.mark)
                self.memory.settle()

    def query_record(self, record: Record | None, name: str = "Event.query") -> bool:
        """Whether a record is passed. The device goes on meanwhile, and True orders what follows after it."""
        with self.lock:
            self.memory.settle()
            if record is None:
                self._sync(self.host_lane(), SyncKind.EVENT_QUERY, name)
                return True
            self._refuse_captured(record, name)
            self._poll()
            if record.mark.done:
                sync = self._sync(self.host_lane(), SyncKind.EVENT_QUERY, name)
                self.sink.acquire(self.host_lane(), record.token, sync=sync)
            return record.mark.done

    def _refuse_captured(self, record: Record, name: str) -> None:
        """A captured record stands for no moment; the event has to be recorded again first."""
        self.captures.refuse_wait(name)
        if record.node is not None:
            raise RuntimeError(INVALID_ARGUMENT)

    def synchronize_queue(
        self, queue: Queue, name: str = "Stream.synchronize", kind: SyncKind = SyncKind.STREAM_SYNCHRONIZE
    ) -> None:
        """Let the host wait for all that a stream has been given."""
        with self.lock:
            self.captures.refuse_wait(name)
            self.memory.settle()
            sync = self._sync(self.host_lane(), kind, name)
            self.sink.acquire(self.host_lane(), self.sink.release(queue.lane), sync=sync)
            if queue.last is not None:
                self._run_until(queue.last)
            self.memory.settle()

    def query_queue(self, queue: Queue) -> bool:
        """Whether a stream has nothing left to do; True orders what follows after all of it."""
        with self.lock:
            self.captures.refuse_wait("Stream.query")
            self.memory.settle()
            self._poll()
            over = queue.last is None or queue.last.done
            if over:
                sync = self._sync(self.host_lane(), SyncKind.STREAM_QUERY, "Stream.query")
                self.sink.acquire(self.host_lane(), self.sink.release(queue.lane), sync=sync)
            return over

    def synchronize_device(self, name: str = "torch.cuda.synchronize") -> None:
        """Let the host wait for everything."""
        with self.lock:
            self.captures.refuse_wait(name, whole_device=True)
            self.memory.settle()
            sync = self._sync(self.host_lane(), SyncKind.DEVICE_SYNCHRONIZE, name)
            for queue in self.streams.queues.values():
                self.sink.acquire(self.host_lane(), self.sink.release(queue.lane), sync=sync)
            self._drain(Reason.HOST_SYNC)
            self.memory.settle()

    def wait_for_operation(self, operation: PendingOperation) -> None:
        """An operation by its nature made the host wait for the stream it is on."""
        self.synchronize_queue(operation.queue, operation.name, SyncKind.IMPLICIT)

    def _sync(self, lane: int, kind: SyncKind, name: str) -> int:
        return self.sink.sync(lane, kind, name, program_stack(), step=self.step)

    # Progress

    def _progress(self, reason: Reason) -> None:
        engine, choose = self.engine, self.scheduler.choose
        while True:
            ready = engine.ready()
            choice = choose([queue.id for queue in ready], reason)
            if choice is None:
                return
            self._run_head(ready[choice])

    def _poll(self) -> None:
        ready = self.engine.ready()
        choice = self.scheduler.choose([queue.id for queue in ready], Reason.POLL)
        if choice is not None:
            self._run_head(ready[choice])
            self.engine.ready()

    def _run_until(self, operation: PendingOperation) -> None:
        while True:
            ready = self.engine.ready()
            if operation.done:
                return
            choice = self.scheduler.choose([queue.id for queue in ready], Reason.HOST_SYNC)
            if choice is None:
                with below_modes():
                    self.engine.force(operation)
            else:
                self._run_head(ready[choice])

    def _drain(self, reason: Reason) -> None:
        while ready := self.engine.ready():
            choice = self.scheduler.choose([queue.id for queue in ready], reason)
            if choice is None:
                with below_modes():
                    self.engine.drain()
            else:
                self._run_head(ready[choice])

    def run_oldest(self, operation: PendingOperation) -> None:
        """Run an operation and what it needs; the host waits, but the program may not rely on it."""
        with below_modes():
            self.engine.force(operation)

    def _run_head(self, queue: Queue) -> None:
        with below_modes():
            self.engine.run_head(queue)

    def _execute(self, operation: PendingOperation) -> None:
        """Do the work of one operation. A fault is kept, as a device-side assertion is, and the device goes on."""
        outer, self.running = self.running, operation
        try:
            assert operation.run is not None
            operation.run()
        except Exception as error:  # noqa: BLE001 - whatever the kernel raised on corrupted data is the finding
            self.sink.report(_fault(operation, error))
        finally:
            self.running = outer
        if operation.open:
            self.sink.close(operation.id)

    # Threads, end

    @contextlib.contextmanager
    def enter_thread(self) -> Iterator[None]:
        """Give the calling thread a lane and the modes, for as long as the context lasts."""
        from .install import modes

        with modes(self):
            self.host_lane()
            try:
                yield
            finally:
                with self.lock:
                    self.sink.end_lane(self.host_lane())
                self.thread_state.lane = None
                self.thread_state.queue = None

    def close(self) -> None:
        """Run what is left, and end the device; its tensors, streams and events become harmless."""
        with self.lock:
            try:
                self.memory.settle()
                self._drain(Reason.END)
                self.memory.close()
            finally:
                self.active = False


def _fault(operation: PendingOperation, error: Exception) -> Finding:
    return Finding(
        code="MRV214",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title=f"{operation.name} failed on the device: {type(error).__name__}",
        where=sites(operation.stack),
        evidence={"operation": operation.name, "stream": operation.queue.name, "error": str(error)[:300]},
        remedy="look at its inputs when it ran; if a race is reported as well, wrong data is the likely cause",
        step=operation.step,
    )
