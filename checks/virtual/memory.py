"""Memory of the virtual device: which block an address lies in, who owns it, and when it may be used again.

A block lives twice. For the *program* it lives until the last tensor, view or numpy alias of it is dropped; that is
when the allocator may give it away, and when a race with work still pending is found. Its *bytes* live until all work
that was pending then has run, because on the host they are real memory: a kernel that reads a dropped block must read
wrong values, not crash the process.

What a dropped block holds is poison from the moment at which another owner could have written to it.
"""

from __future__ import annotations

import bisect
import ctypes
import weakref
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..events import Space, Stack
from ..happens_before.addresses import AddressMap
from .layouts import Layout
from .queues import PendingOperation, Queue
from .stacks import program_stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .graphs import Capture
    from .runtime import Runtime

#: A pattern that is a large negative integer, an unlikely float and an invalid index.
POISON = 0xFB


class Block:
    """One allocation.

    Attributes:
        base, size, end: addresses [base, end), in bytes.
        space: device or pinned host memory.
        id: the sink's number.
        label: type and shape it was allocated with, for people.
        stack: where it was allocated.
        queue: the stream that owns a device block.
        dropped: whether the program has dropped it.
        freed: whether it was told to be free; a block of a graph is only free once the graph is gone as well.
        recorded: streams that ``record_stream`` named.
        protected: the last copy on each stream that keeps a dropped pinned block from being handed out.
        storage: of the program's tensors over a pinned block; tells the allocator's own from an alias.
        graph: the graph whose private pool it belongs to.
    """

    __slots__ = (
        "base", "dropped", "end", "freed", "graph", "id", "label", "memory", "owner", "protected", "queue", "recorded",
        "size", "space", "stack", "storage",
    )  # fmt: skip

    def __init__(self, memory: Memory, owner: Tensor, base: int, size: int, space: Space, label: str) -> None:
        self.memory: Memory | None = memory
        self.owner: Tensor | None = owner
        self.base = base
        self.size = size
        self.end = base + size
        self.space = space
        self.label = label
        self.id = -1
        self.stack: Stack = ()
        self.queue: Queue | None = None
        self.freed = False
        self.recorded: dict[int, Queue] = {}
        self.protected: dict[int, PendingOperation] = {}
        self.storage = 0
        self.dropped = False
        self.graph: Capture | None = None


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
        memory.dropped(block)


class BlockMap(AddressMap[Block]):
    """The blocks by address; one that overlaps a new one is stale and goes, so no address has two owners."""

    def find(self, address: int) -> Block | None:
        """The block that holds an address."""
        index = bisect.bisect_right(self._bases, address) - 1
        if index >= 0 and address < self._items[index].end:
            return self._items[index]
        return None

    def remove(self, block: Block) -> None:
        """Forget a block, unless it has gone already."""
        index = bisect.bisect_left(self._bases, block.base)
        if index < len(self._items) and self._items[index] is block:
            del self._items[index], self._bases[index]

    def intervals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and one-past-last addresses of all blocks, sorted."""
        return np.array(self._bases, np.int64), np.array([block.end for block in self._items], np.int64)


class Memory:
    """Both allocators of one device."""

    def __init__(self, runtime: Runtime, poison: int) -> None:
        self.blocks = BlockMap()
        self.pinned_blocks = 0
        self.allocated = 0
        self.peak = 0
        self._runtime = runtime
        self._poison = poison
        self._drops: deque[tuple[Block, int | None, Stack]] = deque()
        self._actions: deque[Callable[[], None]] = deque()
        self._withheld: deque[tuple[int, Block]] = deque()

    def allocate_device(self, layout: Layout, queue: Queue) -> tuple[Tensor, Ownership | None]:
        """Fresh device memory, poisoned, owned by a stream; an empty tensor owns none."""
        raw = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
        size = raw.untyped_storage().nbytes()
        if size == 0:
            return raw, None
        base = raw.data_ptr()
        block = Block(self, raw, base, size, Space.DEVICE, repr(layout))
        ctypes.memset(base, self._poison, size)
        block.queue = queue
        self._adopt_into_graph(block, queue)
        block.stack = program_stack()
        block.id = self._runtime.sink.allocate(queue.lane, base, size, Space.DEVICE, block.stack)
        self.blocks.place(block)
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return raw, Ownership(block)

    def allocate_pinned(self, layout: Layout) -> Tensor:
        """Fresh pinned memory, poisoned.

        The tensor's storage is the program's own, over bytes that this allocator holds: so its end is the program's
        last use, whatever pending work still refers to.
        """
        span = max((high for _, high in layout.runs), default=0)
        owner = torch.empty(max(span, 1), dtype=torch.uint8)
        base = owner.data_ptr()
        ctypes.memset(base, self._poison, len(owner))
        face = torch.from_numpy(owner.numpy())
        storage = face.untyped_storage()
        tensor = torch.empty(0, dtype=layout.dtype).set_(storage, 0, layout.shape, layout.stride)
        if span == 0:
            return tensor
        block = Block(self, owner, base, span, Space.PINNED, repr(layout))
        block.storage = storage._cdata
        self._adopt_into_graph(block, self._runtime.current_queue())
        block.stack = program_stack()
        block.id = self._runtime.sink.allocate(self._runtime.host_lane(), base, span, Space.PINNED, block.stack)
        self.blocks.place(block)
        self.pinned_blocks += 1
        weakref.finalize(storage, _dropped, block).atexit = False
        return tensor

    def _adopt_into_graph(self, block: Block, queue: Queue) -> None:
        """What is allocated in a capture belongs to the graph, and is handed out to nobody while it lives."""
        block.graph = queue.capture
        if queue.capture is not None:
            queue.capture.pool.append(block)

    def later(self, action: Callable[[], None]) -> None:
        """Do something at the next call into the runtime; safe inside the garbage collector."""
        self._actions.append(action)

    def dropped(self, block: Block) -> None:
        """Note a drop; it takes effect at the next call into the runtime, before anything else happens there."""
        self._drops.append((block, self._runtime.known_host_lane(), program_stack()))

    def settle(self) -> None:
        """Give effect to the drops, and release the bytes that no pending work can touch any more."""
        while self._drops:
            block, lane, stack = self._drops.popleft()
            block.dropped = True
            if block.graph is None and not block.freed:
                self.free(block, self._runtime.host_lane() if lane is None else lane, stack)
        while self._actions:
            self._actions.popleft()()
        withheld = self._withheld
        if withheld:
            oldest = self._runtime.engine.oldest()
            while withheld and withheld[0][0] <= oldest:
                self._release(withheld.popleft()[1])

    def free(self, block: Block, lane: int, stack: Stack) -> None:
        """The program has dropped a block: tell the sink, and poison it when the allocator may hand it out."""
        block.freed = True
        after = [queue.lane for queue in block.recorded.values()]
        self._runtime.sink.free(block.id, lane, stack, after=after)
        if block.space is Space.DEVICE:
            self.allocated -= block.size
            self._poison_in_stream(block)
        else:
            self.pinned_blocks -= 1
            self._poison_after_copies(block)
        self._withheld.append((self._runtime.engine.submitted, block))

    def _poison_in_stream(self, block: Block) -> None:
        """The next owner writes in the order of the owning stream, and after the streams that were recorded."""
        queue = block.queue
        assert queue is not None
        after = tuple(other.last for other in block.recorded.values() if other.last is not None and not other.last.done)
        if queue.pending or after:
            mark = PendingOperation(-1, "reuse", self._poisoner(block), queue, (), after=after, mark=True)
            self._runtime.engine.submit(mark)
        else:
            ctypes.memset(block.base, self._poison, block.size)

    def _poison_after_copies(self, block: Block) -> None:
        """The host allocator waits for copies that it knows of, and for nothing else."""
        poison = self._poisoner(block)
        waiting = [copy for copy in block.protected.values() if not copy.done]
        left = len(waiting)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                poison()

        for copy in waiting:
            copy.when_done(one_less)
        if not waiting:
            poison()

    def _poisoner(self, block: Block) -> Callable[[], None]:
        def poison() -> None:
            if block.owner is not None:
                ctypes.memset(block.base, self._poison, block.size)

        return poison

    def _release(self, block: Block) -> None:
        self.blocks.remove(block)
        block.owner = None

    def reset_peak(self) -> None:
        """Start measuring the peak anew."""
        self.peak = self.allocated

    def close(self) -> None:
        """The device is gone: later drops of its blocks concern nobody."""
        self.settle()
        for block in self.blocks:
            block.memory = None
