"""Memory of a real device as the race recorder knows it: blocks by address, and when the program dropped them.

A block is what torch calls a storage. It is known from its first tensor on, and is dropped with the last tensor, view
or numpy alias: that is the moment at which torch's allocators may hand it out again.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..events import Space, Stack
from ..virtual.memory import DROP_FRAMES, BlockMap
from ..virtual.queues import Queue
from ..virtual.stacks import program_stack

if TYPE_CHECKING:
    from ..virtual.graphs import Capture
    from .recorder_runtime import CudaRuntime


class Block:
    """One allocation.

    Attributes:
        base: first address.
        size: in bytes.
        space: device or pinned host memory.
        id: the sink's number.
        stack: where it was allocated, or first seen.
        queue: the stream that owns a device block.
        storage: torch's identity of the storage; tells the host allocator's own from an alias.
        graph: the graph whose private pool it belongs to.
        dropped: whether the program has dropped it.
        freed: whether the sink was told so; a block of a graph is only free once the graph is gone as well.
        recorded: streams that ``record_stream`` named.
    """

    id = -1
    dropped = False
    freed = False
    graph: Capture | None = None
    recorded: Mapping[int, Queue] = MappingProxyType({})
    anchor: weakref.ref[Any] | None = None

    def __init__(self, base: int, size: int, space: Space, tensor: Tensor, stack: Stack, queue: Queue | None) -> None:
        self.base = base
        self.size = size
        self.space = space
        self.stack = stack
        self.queue = queue
        self.storage = 0
        self._kind = (tensor.dtype, tensor.shape)

    @property
    def end(self) -> int:
        """One past the last address."""
        return self.base + self.size

    @property
    def label(self) -> str:
        """Type and shape of its first tensor, for people."""
        dtype, shape = self._kind
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}"

    def record(self, queue: Queue) -> None:
        """The memory is used on another stream than the one that owns it."""
        if queue is not self.queue:
            self.recorded = {**self.recorded, queue.id: queue}


class Memory:
    """All blocks that are known.

    Args:
        runtime: the recorder.

    Attributes:
        blocks: by address.
        drops: what the program has dropped, and the sink does not know of yet.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self.blocks: BlockMap[Block] = BlockMap()
        self.drops: deque[tuple[Block, int | None, Stack]] = deque()

    def seen(self, tensor: Tensor, stack: Stack) -> Block | None:
        """The block of a device or pinned tensor that may have been made before, or out of sight."""
        block = self.blocks.find(tensor.data_ptr())
        if block is not None or tensor.numel() == 0:
            return block
        backend = self._runtime.backend
        if backend.is_on_device(tensor):
            owner = backend.stream_of_memory(tensor.data_ptr())
            if owner is None:  # a view of host memory, or another library's: no allocator of torch frees it
                return None
            return self._add(tensor, Space.DEVICE, self._runtime.queue_of(owner), stack)
        return self._add(tensor, Space.PINNED, None, stack) if backend.is_pinned(tensor) else None

    def made(self, tensor: Tensor, queue: Queue, stack: Stack, *, pinned: bool) -> Block | None:
        """The block of a result; a new one, unless the result lies in memory that is known."""
        block = self.blocks.find(tensor.data_ptr())
        if block is not None or tensor.numel() == 0:
            return block
        return self._add(tensor, Space.PINNED if pinned else Space.DEVICE, None if pinned else queue, stack)

    def _add(self, tensor: Tensor, space: Space, queue: Queue | None, stack: Stack) -> Block | None:
        runtime = self._runtime
        owner, base, size = runtime.backend.memory_of(tensor)
        if size == 0:
            return None
        block = Block(base, size, space, tensor, stack, queue)
        lane = runtime.host_lane() if queue is None else queue.lane
        capture = runtime.current_queue().capture if queue is None else queue.capture
        if capture is not None:
            block.graph = capture
            capture.pool.append(block)
        block.storage = getattr(owner, "_cdata", 0)
        block.anchor = weakref.ref(owner, lambda _: self._drop(block))
        block.id = runtime.sink.allocate(lane, base, size, space, stack)
        self.blocks.place(block)
        return block

    def _drop(self, block: Block) -> None:
        """Remember that the program dropped a block. Runs inside the garbage collector, so it does nothing else."""
        runtime = self._runtime
        if runtime.active:
            self.drops.append((block, runtime.known_host_lane(), program_stack(DROP_FRAMES)))

    def settle(self) -> None:
        """Give effect to the drops."""
        while self.drops:
            block, lane, stack = self.drops.popleft()
            block.dropped = True
            if block.graph is None:
                self.free(block, self._runtime.host_lane() if lane is None else lane, stack)

    def free(self, block: Block, lane: int, stack: Stack) -> None:
        """The allocator may hand a block out again."""
        if block.freed:
            return
        block.freed, block.anchor = True, None
        after = [queue.lane for queue in block.recorded.values()]
        self._runtime.sink.free(block.id, lane, stack, after=after)
        self.blocks.remove(block)


def extent(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
