"""Memory of the virtual device: which block an address lies in, who owns it, and when it may be used again.

A block lives twice. For the *program* it lives until the last tensor, view or numpy alias of it is dropped; that is
when the allocator may give it away, and when a race with work still pending is found. Its *bytes* live until all work
that was pending then has run, because on the host they are real memory: a kernel that reads a dropped block must read
wrong values, not crash the process.

What a dropped block holds is poison from the moment at which another owner could have written to it; what fresh
memory holds is for whoever opens the device to say, for each allocation.
"""

from __future__ import annotations

import bisect
import ctypes
import math
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..events import Space, Stack
from ..sync.waits import WaitKind
from .layouts import Layout
from .queues import PendingOperation, Queue
from .schedules import Reason
from .stacks import program_stack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .graphs import Capture
    from .runtime import Runtime

#: Memory of the device, in bytes.
TOTAL_MEMORY = 80 << 30
#: A pattern that is a large negative integer, an unlikely float and an invalid index.
POISON = 0xFB
#: The byte that fresh memory holds: one for all, or one for each allocation by its number, counted from 0.
Poison: TypeAlias = int | Callable[[int], int]
#: A drop happens for every intermediate result, and its innermost frames tell which.
DROP_FRAMES = 3
#: So much dropped memory is kept for pending work that might touch it; then the oldest of that work runs.
WITHHELD_BLOCKS = 4096
WITHHELD_BYTES = 512 << 20


class Block:
    """One allocation.

    Attributes:
        base: first address.
        size: in bytes.
        space: device or pinned host memory.
        id: the sink's number.
        layout: that it was allocated with.
        stack: where it was allocated.
        queue: the stream that owns a device block.
        dropped: whether the program has dropped it.
        freed: whether it was told to be free; a block of a graph is only free once the graph is gone as well.
        recorded: streams that ``record_stream`` named; of a pinned block, those with copies that the host allocator
            knows of.
        storage: of the program's tensors over a pinned block; tells the allocator's own from an alias.
        graph: the graph whose private pool it belongs to.
    """

    id = -1
    storage = 0
    queue: Queue | None = None
    graph: Capture | None = None
    dropped = False
    freed = False
    recorded: Mapping[int, Queue] = MappingProxyType({})

    def __init__(
        self, memory: Memory, owner: Tensor, base: int, size: int, space: Space, layout: Layout, stack: Stack
    ) -> None:
        self.memory: Memory | None = memory
        self.owner: Tensor | None = owner
        self.base = base
        self.size = size
        self.space = space
        self.layout = layout
        self.stack = stack

    @property
    def end(self) -> int:
        """One past the last address."""
        return self.base + self.size

    @property
    def label(self) -> str:
        """Type and shape it was allocated with, for people."""
        return repr(self.layout)

    def record(self, queue: Queue) -> None:
        """The memory is used on another stream than the one that owns it; no stream owns pinned memory."""
        if queue is not self.queue and queue.id not in self.recorded:
            self.recorded = {**self.recorded, queue.id: queue}


class Ownership:
    """What all views of a device block share; the block is dropped with the last of them."""

    __slots__ = ("block",)

    def __init__(self, block: Block) -> None:
        self.block = block

    def __del__(self) -> None:
        _dropped(self.block)


def _dropped(block: Block) -> None:
    """Remember that the program dropped a block. Runs inside the garbage collector, so it does nothing else."""
    memory = block.memory
    if memory is not None:
        memory.drops.append((block, memory.runtime.known_host_lane(), program_stack(DROP_FRAMES)))


class Placed(Protocol):
    """Something that lies in memory."""

    base: int
    size: int

    @property
    def end(self) -> int:
        """One past the last address."""
        ...


_Placed = TypeVar("_Placed", bound=Placed)


class BlockMap(Generic[_Placed]):
    """The blocks by address."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._bounds = array("Q")  # base and end of each block, in the order of the bases
        self._blocks: dict[int, _Placed] = {}

    def __iter__(self) -> Iterator[_Placed]:
        return iter([*self._blocks.values()])

    def place(self, block: _Placed) -> None:
        """Add a block; those it overlaps are stale and go, so that no address has two owners."""
        bases, blocks, base = self._bases, self._blocks, block.base
        index = bisect.bisect_left(bases, base)
        if index and base < blocks[bases[index - 1]].end:
            index -= 1
            del blocks[self._pop(index)]
        end = base + block.size
        while index < len(bases) and bases[index] < end:
            del blocks[self._pop(index)]
        bases.insert(index, base)
        self._bounds[2 * index : 2 * index] = array("Q", (base, end))
        blocks[base] = block

    def _pop(self, index: int) -> int:
        del self._bounds[2 * index : 2 * index + 2]
        return self._bases.pop(index)

    def find(self, address: int) -> _Placed | None:
        """The block that holds an address."""
        index = bisect.bisect_right(self._bases, address) - 1
        if index >= 0:
            block = self._blocks[self._bases[index]]
            if address < block.base + block.size:
                return block
        return None

    def remove(self, block: _Placed) -> None:
        """Forget a block, unless it has gone already."""
        if self._blocks.get(block.base) is block:
            del self._blocks[block.base]
            self._pop(bisect.bisect_left(self._bases, block.base))

    def intervals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and one-past-last addresses of all blocks, sorted."""
        bounds = np.array(self._bounds, np.int64)
        return bounds[::2], bounds[1::2]

    def packed(self) -> bytes:
        """First and one-past-last address of each block, sorted, as native 64-bit words."""
        return self._bounds.tobytes()


class Memory:
    """Both allocators of one device.

    Attributes:
        allocated, pinned: bytes that the program holds, of the device and of pinned memory.
        peak: the most that ``allocated`` has been since the program asked for a new measurement.
        capacity: bytes that the device has, or that the program says it may use.
        limit, when_over: told of the bytes of each allocation after which more than the limit is held.
        reserved, pinned_reserved: bytes taken from the driver; what is not held is cached.
    """

    def __init__(self, runtime: Runtime, poison: Poison) -> None:
        self.runtime = runtime
        self.blocks: BlockMap[Block] = BlockMap()
        self.allocations = 0
        self.pinned_blocks = 0
        self.allocated = 0
        self.peak = 0
        self.reserved = 0
        self.capacity = TOTAL_MEMORY
        self.limit: float = math.inf
        self.when_over: Callable[[int], None] | None = None
        self.pinned = 0
        self.pinned_reserved = 0
        self.drops: deque[tuple[Block, int | None, Stack]] = deque()
        self._poison = poison
        self._actions: deque[Callable[[], None]] = deque()
        self._withheld: deque[tuple[int, Block]] = deque()
        self._withheld_bytes = 0

    def allocate_device(self, layout: Layout, queue: Queue) -> tuple[Tensor, Ownership | None]:
        """Fresh device memory, poisoned, owned by a stream; an empty tensor owns none."""
        size = layout.span
        raw = self._empty(layout, size)
        if size == 0:
            return raw, None
        base = raw.data_ptr()
        self._poison_fresh(base, size)
        stack = program_stack()
        block = Block(self, raw, base, size, Space.DEVICE, layout, stack)
        block.queue = queue
        if queue.capture is not None:
            self._adopt_into_graph(block, queue.capture)
        block.id = self.runtime.sink.allocate(queue.lane, base, size, Space.DEVICE, stack)
        self.blocks.place(block)
        self.allocated += size
        if self.allocated > self.peak:
            self.peak = self.allocated
        if self.allocated > self.reserved:
            self.reserved = self.allocated
        if self.allocated > self.limit and self.when_over is not None:
            self.when_over(size)
        return raw, Ownership(block)

    def _empty(self, layout: Layout, size: int) -> Tensor:
        """Bytes of the host that stand for the device's.

        Raises:
            torch.OutOfMemoryError: the device has less, or the host.
        """
        if self.allocated + size <= self.capacity:
            try:
                return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
            except (RuntimeError, MemoryError):
                where = "the host of the virtual device has less"
        else:
            where = f"{self.allocated} of {self.capacity} are allocated"
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes; {where}.")

    def allocate_pinned(self, layout: Layout) -> Tensor:
        """Fresh pinned memory, poisoned.

        The tensor's storage is the program's own, over bytes that this allocator holds: so its end is the program's
        last use, whatever pending work still refers to.
        """
        size = layout.span
        owner = torch.empty(max(size, 1), dtype=torch.uint8)
        base = owner.data_ptr()
        storage = torch.from_numpy(owner.numpy()).untyped_storage()
        tensor = torch.empty(0, dtype=layout.dtype).set_(storage, 0, layout.shape, layout.stride)
        if size == 0:
            return tensor
        self._poison_fresh(base, size)
        runtime = self.runtime
        block = Block(self, owner, base, size, Space.PINNED, layout, program_stack())
        block.storage = storage._cdata
        capture = runtime.current_queue().capture
        if capture is not None:
            self._adopt_into_graph(block, capture)
        block.id = runtime.sink.allocate(runtime.host_lane(), base, size, Space.PINNED, block.stack)
        self.blocks.place(block)
        self.pinned_blocks += 1
        self.pinned += size
        self.pinned_reserved = max(self.pinned, self.pinned_reserved)
        weakref.finalize(storage, _dropped, block).atexit = False
        return tensor

    def _poison_fresh(self, address: int, size: int) -> None:
        poison = self._poison
        ctypes.memset(address, poison if isinstance(poison, int) else poison(self.allocations), size)
        self.allocations += 1

    def _adopt_into_graph(self, block: Block, capture: Capture) -> None:
        """What is allocated in a capture belongs to the graph, and is handed out to nobody while it lives."""
        block.graph = capture
        capture.pool.append(block)

    def later(self, action: Callable[[], None]) -> None:
        """Do something at the next call into the runtime; safe inside the garbage collector."""
        self._actions.append(action)

    def settle(self) -> None:
        """Give effect to the drops, and release the bytes that no pending work can touch any more."""
        while self.drops:
            block, lane, stack = self.drops.popleft()
            block.dropped = True
            if block.graph is None and not block.freed:
                self.free(block, self.runtime.host_lane() if lane is None else lane, stack)
        while self._actions:
            self._actions.popleft()()
        if self._withheld:
            self._release_untouchable()
            while len(self._withheld) > WITHHELD_BLOCKS or self._withheld_bytes > WITHHELD_BYTES:
                self.runtime.engine.advance()
                self._release_untouchable()

    def _release_untouchable(self) -> None:
        withheld, oldest = self._withheld, self.runtime.engine.oldest()
        while withheld and withheld[0][0] <= oldest:
            block = withheld.popleft()[1]
            self._withheld_bytes -= block.size
            self._release(block)

    def free(self, block: Block, lane: int, stack: Stack) -> None:
        """The program has dropped a block: tell the sink, and poison it when the allocator may hand it out."""
        block.freed = True
        recorded = block.recorded
        after = [queue.lane for queue in recorded.values()] if recorded else ()
        engine = self.runtime.engine
        self.runtime.sink.free(block.id, lane, stack, after=after)
        if block.space is Space.DEVICE:
            self.allocated -= block.size
            self._poison_in_stream(block)
        else:
            self.pinned_blocks -= 1
            self.pinned -= block.size
            self._poison_behind_streams(block)
        if engine.oldest() == engine.submitted:
            self._release(block)
        else:
            self._withheld.append((engine.submitted, block))
            self._withheld_bytes += block.size

    def _poison_in_stream(self, block: Block) -> None:
        """The next owner writes in the order of the owning stream, and after the streams that were recorded."""
        queue = block.queue
        assert queue is not None
        after: tuple[PendingOperation, ...] = ()
        if block.recorded:
            newest = (other.last for other in block.recorded.values())
            after = tuple(operation for operation in newest if operation is not None and not operation.done)
        if queue.pending or after:
            mark = PendingOperation(-1, "reuse", self._poisoner(block), queue, (), after=after, mark=True)
            self.runtime.engine.submit(mark)
        else:
            ctypes.memset(block.base, POISON, block.size)

    def _poison_behind_streams(self, block: Block) -> None:
        """The host allocator waits for all that the streams it knows of have been given by now, and for no more."""
        poison = self._poisoner(block)
        newest = (queue.last for queue in block.recorded.values())
        waiting = [operation for operation in newest if operation is not None and not operation.done]
        left = len(waiting)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                poison()

        for operation in waiting:
            operation.when_done(one_less)
        if not waiting:
            poison()

    def _poisoner(self, block: Block) -> Callable[[], None]:
        def poison() -> None:
            if block.owner is not None:
                ctypes.memset(block.base, POISON, block.size)

        return poison

    def _release(self, block: Block) -> None:
        self.blocks.remove(block)
        block.owner = None

    def empty_cache(self, name: str) -> None:
        """Give what is cached of the device back to the driver, which waits for the whole device; orders nothing."""
        self.settle()
        cached = self.reserved - self.allocated
        if cached and self.runtime.captures.current is None:
            self._give_back(WaitKind.FREE_DEVICE, name, cached)
            self.reserved = self.allocated

    def empty_host_cache(self, name: str) -> None:
        """The same for pinned memory."""
        self.settle()
        cached = self.pinned_reserved - self.pinned
        if cached and self.runtime.captures.current is None:
            self._give_back(WaitKind.FREE_HOST, name, cached)
            self.pinned_reserved = self.pinned

    def _give_back(self, kind: WaitKind, name: str, size: int) -> None:
        runtime = self.runtime
        with runtime.lock:
            runtime.host_waits(kind, name, size)
            runtime.drain(Reason.HOST_SYNC)

    def reset_peak(self) -> None:
        """Start measuring the peak anew."""
        self.peak = self.allocated

    def close(self) -> None:
        """The device is gone: later drops of its blocks concern nobody, and only the program's tensors hold memory."""
        self.settle()
        for block in self.blocks:
            block.memory = block.owner = None
        self._withheld.clear()
