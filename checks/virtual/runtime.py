"""The virtual device itself: what the program asked for goes to the sink at once and to the engine for later."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..events import ByteRange, EventSink, LaneKind, OperationKind, Stack
from ..findings import Finding, Soundness, Verdict
from ..sync.waits import Cause, Certainty, WaitKind
from .collector import YOUNG, collect_after
from .copies import Copies
from .functions import names_device_tensor
from .generators import Generators
from .graphs import Captures
from .memory import Block, Memory, Poison
from .operators import Operators
from .order import Order
from .queues import Engine, PendingOperation, Queue, Work
from .schedules import Reason, Scheduler
from .stacks import program_stack, sites
from .storages import Storages
from .streams import Streams, queue_of
from .threads import ABOVE_KERNELS, NoDispatch, NoFunctions, ThreadState, below_modes, heres

if TYPE_CHECKING:
    from .tensor import Face


class _Threads(threading.local):
    """Gives each host thread a state of its own, on first use."""

    def __init__(self) -> None:
        self.state = ThreadState()


class Runtime:
    """One virtual device.

    Attributes:
        sink: judges or records.
        scheduler: says when what runs.
        lock: held during every call; a sink needs none of its own.
        step: the runner's step, carried by every event.
        active: False once the device is gone.
        running: the operation that is being run, for those whose accesses are learnt then.
        threads: what each host thread has of its own.
        order: records, waits and synchronisation.
        captures: the graph capture in progress.
        generators: random numbers of the device.
        without_meta: operators that had to run at once because torch cannot tell their output's shape, counted.
        wrap_array: what ``Tensor.numpy()`` of tracked memory returns instead of the plain array.
        wait_guard: told of each call that makes the host wait on a real device, in the thread that waits.
        upload_guard: asked at each upload that reads its source later; the check it returns runs before the copy.
    """

    def __init__(self, sink: EventSink, scheduler: Scheduler, *, poison: Poison) -> None:
        self.sink = sink
        self.scheduler = scheduler
        self.lock = threading.RLock()
        self.step: int | None = None
        self.active = True
        self.running: PendingOperation | None = None
        self.without_meta: Counter[str] = Counter()
        self.wrap_array: Callable[[Any], Any] | None = None
        self.upload_guard: Callable[[Any, str], Callable[[], None]] | None = None
        self.wait_guard: Callable[[Cause], None] | None = None
        self.threads = _Threads()
        self._launches = 0
        self.order = Order(self)
        self.captures = Captures(self)
        self.generators = Generators(self)
        self.engine = Engine(self._execute, self._queue_full)
        self.memory = Memory(self, poison)
        self.streams = Streams(self)
        self.copies = Copies(self)
        self.storages = Storages(self)
        self.operators = Operators(self)

    # Who acts where

    def host_lane(self) -> int:
        """The lane of the calling thread, made on first use."""
        state = self.threads.state
        lane = state.lane
        if lane is None:
            lane = state.lane = self.sink.lane(LaneKind.HOST, threading.current_thread().name)
        return lane

    def known_host_lane(self) -> int | None:
        """The lane of the calling thread if it has one; safe inside the garbage collector."""
        return self.threads.state.lane

    def current_queue(self) -> Queue:
        """The stream that is current in the calling thread; a new thread starts on the default stream."""
        return self.threads.state.queue or self.streams.default

    def set_current_queue(self, queue: Queue) -> None:
        """Make a stream current in the calling thread."""
        self.threads.state.queue = queue

    def current_stream(self) -> Any:
        """The current stream, as ``torch.cuda.current_stream()`` gives it."""
        return self.streams.handle(self.current_queue())

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An ATen operator was called."""
        return self.operators.dispatch(func, args, kwargs)

    def inside_device_call(self, *, from_cpp: bool) -> bool:
        """Whether the torch function being called in this thread works on device tensors."""
        call = heres.here.call
        return call is not None and names_device_tensor(*call, from_cpp=from_cpp)

    # Memory

    def find_block(self, address: int) -> Block | None:
        """The block of device or pinned memory that holds an address."""
        return self.memory.blocks.find(address)

    def blocks(self) -> tuple[Any, Any]:
        """First and one-past-last addresses of all blocks, as sorted int64 arrays."""
        return self.memory.blocks.intervals()

    def packed_blocks(self) -> bytes:
        """First and one-past-last address of each block, sorted, as native 64-bit words."""
        return self.memory.blocks.packed()

    def record_stream(self, face: Face, stream: Any) -> None:
        """A device block is used on another stream; a view of pinned memory is none of the allocator's."""
        block = getattr(face.owner, "block", None)
        if block is not None:
            block.record(queue_of(stream))

    # Work

    def enqueue(
        self,
        name: str,
        kind: OperationKind,
        run: Callable[[], object] | None,
        reads: Sequence[ByteRange] = (),
        writes: Sequence[ByteRange] = (),
        *,
        possible_reads: Sequence[ByteRange] = (),
        possible_writes: Sequence[ByteRange] = (),
        certain: bool = True,
        protected: bool = False,
        open: bool = False,  # noqa: A002 - the contract's name
        stream: Any = None,
        prepare: Callable[[], Callable[[], object]] | None = None,
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
            prepare: makes ``run`` anew for each launch, for work that draws random numbers or whose source is watched.
            blocks: memory whose address it was given, though which bytes it touches is learnt later.
        """
        with self.lock:
            self.memory.settle()
            queue = self.current_queue() if stream is None else queue_of(stream)
            return self.launch(
                queue, name, kind, run, reads, writes, possible_reads, possible_writes, certain=certain,
                protected=protected, open=open, prepare=prepare, blocks=blocks,
            )  # fmt: skip

    def launch(
        self,
        queue: Queue,
        name: str,
        kind: OperationKind,
        run: Callable[[], object] | None,
        reads: Sequence[ByteRange],
        writes: Sequence[ByteRange],
        possible_reads: Sequence[ByteRange] = (),
        possible_writes: Sequence[ByteRange] = (),
        *,
        certain: bool = True,
        protected: bool = False,
        open: bool = False,  # noqa: A002 - the contract's name
        prepare: Callable[[], Callable[[], object]] | None = None,
        blocks: Sequence[Block] = (),
    ) -> PendingOperation:
        """The same as ``enqueue``, on a queue, for those who have let the memory settle."""
        with self.lock:
            if queue.capture is not None:
                work = Work(name, kind, run, reads, writes, possible_reads, possible_writes, certain, protected, open)
                work.prepare, work.blocks = prepare, blocks
                return queue.capture.add(queue, work)
            if prepare is not None:
                run = prepare()
            stack, step, sink = program_stack(), self.step, self.sink
            number = sink.operation(queue.lane, kind, name, stack, issuer=self.host_lane(), step=step, open=open)
            if reads:
                sink.access(number, reads, write=False, certain=certain, protected=protected)
            if writes:
                sink.access(number, writes, write=True, certain=certain, protected=protected)
            if possible_reads:
                sink.access(number, possible_reads, write=False, certain=False)
            if possible_writes:
                sink.access(number, possible_writes, write=True, certain=False)
            operation = PendingOperation(number, name, run, queue, stack, step, open=open)
            self.engine.submit(operation)
            self._launches += 1
            if self._launches % YOUNG == 0:
                collect_after(self._launches)
            self.progress(Reason.ENQUEUE)
            return operation

    def relaunch(self, work: Work, queue: Queue, stack: Stack, *, entries: int) -> None:
        """Enqueue captured work once more, without letting the device make progress in between."""
        sink, step = self.sink, self.step
        name = f"graph: {work.name}"
        run = work.run
        if work.prepare is not None:
            with below_modes():  # a replay is no torch function, so nothing has switched the modes off
                run = work.prepare()
        host = self.host_lane()
        number = sink.operation(queue.lane, work.kind, name, stack, issuer=host, step=step, open=work.open)
        for ranges, write in ((work.reads, False), (work.writes, True)):
            sink.access(number, ranges, write=write, certain=work.certain, protected=work.protected)
        for ranges, write in ((work.possible_reads, False), (work.possible_writes, True)):
            sink.access(number, ranges, write=write, certain=False)
        self.engine.submit(PendingOperation(number, name, run, queue, stack, step, entries=entries, open=work.open))

    def access(self, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True) -> None:
        """The running operation, which is open, touches these bytes."""
        assert self.running is not None
        self.sink.access(self.running.id, ranges, write=write, certain=certain)

    def host_access(self, ranges: Sequence[ByteRange], *, write: bool, name: str, certain: bool = True) -> None:
        """The calling thread touches memory, or perhaps only some of it, now; bytes outside all blocks are dropped."""
        find = self.memory.blocks.find
        tracked = [piece for piece in ranges if find(piece[0]) is not None]
        if not tracked:
            return
        with self.lock:
            self.memory.settle()
            self.progress(Reason.HOST_ACCESS)
            stack = program_stack()
            identity = self.sink.operation(self.host_lane(), OperationKind.HOST_ACCESS, name, stack, step=self.step)
            self.sink.access(identity, tracked, write=write, certain=certain)

    def host_waits(
        self, kind: WaitKind, name: str, size: int | None = None, certainty: Certainty = Certainty.WAITED
    ) -> None:
        """The calling thread is about to wait, for a reason that a real device has as well."""
        if self.wait_guard is not None:
            self.wait_guard(Cause(kind, name, size, certainty))

    def _queue_full(self, operation: PendingOperation) -> None:
        self.host_waits(WaitKind.QUEUE, operation.name, certainty=Certainty.DEPENDS)

    # Progress

    def progress(self, reason: Reason) -> None:
        """The device may make progress, as the scheduler says."""
        engine, choose = self.engine, self.scheduler.choose
        while True:
            ready = engine.ready()
            choice = choose(ready, reason)
            if choice is None:
                return
            self._run(engine.run_head, engine.queue(ready[choice]))

    def poll(self, *, first: bool) -> None:
        """The host asks how far the device is, perhaps for the first time; if not, one operation may run meanwhile."""
        if first:
            self.progress(Reason.FIRST_POLL)
            self.engine.find_ready()
            return
        engine = self.engine
        ready = engine.ready()
        choice = self.scheduler.choose(ready, Reason.POLL)
        if choice is not None:
            self._run(engine.run_head, engine.queue(ready[choice]))
        engine.find_ready()

    def run_until(self, operation: PendingOperation) -> None:
        """The host waits: an operation runs, with what it needs, and others as the scheduler says."""
        engine = self.engine
        while True:
            ready = engine.find_ready()
            if operation.done:
                return
            choice = self.scheduler.choose(ready, Reason.HOST_SYNC)
            if choice is None:
                self._run(engine.force, operation)
            else:
                self._run(engine.run_head, engine.queue(ready[choice]))

    def drain(self, reason: Reason) -> None:
        """Everything runs."""
        engine = self.engine
        while ready := engine.find_ready():
            choice = self.scheduler.choose(ready, reason)
            if choice is None:
                self._run(engine.drain)
            else:
                self._run(engine.run_head, engine.queue(ready[choice]))

    def run_oldest(self, operation: PendingOperation) -> None:
        """Run an operation and what it needs; the host waits, but the program may not rely on it."""
        self._run(self.engine.force, operation)

    def _run(self, run: Callable[..., None], *args: Any) -> None:
        """Let the engine run something, below all modes."""
        here = heres.here
        if here.below:
            run(*args)
            return
        here.below = True  # as ``below_modes`` does, which as a generator would cost more than a small kernel
        try:
            with NoFunctions(), NoDispatch(ABOVE_KERNELS):
                run(*args)
        finally:
            here.below = False

    def _execute(self, operation: PendingOperation) -> None:
        """Do the work of one operation, below all modes, whichever call of the program made it run now.

        A fault is kept, as a device-side assertion is, and the device goes on; an interrupt of the program is not.
        """
        if not heres.here.below:
            with below_modes():
                return self._execute(operation)
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
                self.threads.state = ThreadState()

    def close(self) -> None:
        """Run what is left, and end the device; its tensors, streams and events become harmless."""
        with self.lock:
            try:
                self.memory.settle()
                self.drain(Reason.END)
                self.memory.close()
            finally:
                self.active = False
                self.generators.close()


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
