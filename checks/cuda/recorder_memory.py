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


_NOT_RECORDED: Mapping[int, Queue] = MappingProxyType({})


class _Anchor(weakref.ref[Any]):
    """Tells of the end of a storage, and whose it was."""

    __slots__ = ("block",)
    block: Block


class Block:
    """One allocation.

    Attributes:
        base: first address.
        size: in bytes.
        space: device or pinned host memory.
        id: the sink's number.
        lane: its owner's: a stream, or a host thread.
        stack: where it was allocated, or first seen.
        queue: the stream that owns a device block.
        storage: torch's identity of the storage; tells the host allocator's own from an alias.
        graph: the graph whose private pool it belongs to.
        dropped: whether the program has dropped it.
        freed: whether the sink was told so; a block of a graph is only free once the graph is gone as well.
        recorded: streams that ``record_stream`` named; of a pinned block, those with copies that the host allocator
            knows of.
    """

    # Of most blocks nothing else is ever true, so that it need not be written down for each.
    id = lane = -1
    storage = 0
    dropped = freed = False
    graph: Capture | None = None
    recorded = _NOT_RECORDED
    anchor: _Anchor | None = None

    def __init__(self, base: int, size: int, space: Space, tensor: Tensor, stack: Stack, queue: Queue | None) -> None:
        self.base = base
        self.size = size
        self.space = space
        self.stack = stack
        self.queue = queue
        self._dtype = tensor.dtype
        self._shape = tensor.shape

    @property
    def end(self) -> int:
        """One past the last address."""
        return self.base + self.size

    @property
    def label(self) -> str:
        """Type and shape of its first tensor, for people."""
        return f"{str(self._dtype).removeprefix('torch.')}{list(self._shape)}"

    def record(self, queue: Queue) -> None:
        """The memory is used on another stream than the one that owns it; no stream owns pinned memory."""
        if queue is not self.queue and queue.id not in self.recorded:
            self.recorded = {**self.recorded, queue.id: queue}


#: Blocks that came and went before the map by address is brought up to date.
_MAX_CHANGES = 4096


class Memory:
    """All blocks that are known.

    Most operators touch whole storages that were met before: those are found in a dictionary. The map by address, for
    everything else, is brought up to date when somebody asks.

    Args:
        runtime: the recorder.

    Attributes:
        storages: the block of each living storage, by the address of its first byte.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._blocks: BlockMap[Block] = BlockMap()
        self._changes: deque[Block] = deque()
        # A bound method is an object of its own each time that it is asked for.
        self._dropped, self._judge_free, self._judge_made = self._drop, self._free, self.tell
        self.storages: dict[int, Block] = {}

    @property
    def blocks(self) -> BlockMap[Block]:
        """The blocks by address."""
        changes, blocks = self._changes, self._blocks
        if changes:
            with self._runtime.lock:
                while changes:
                    block = changes.popleft()
                    if block.freed:
                        blocks.remove(block)
                    else:
                        blocks.place(block)
        return blocks

    def seen(self, tensor: Tensor, stack: Stack) -> Block | None:
        """The block of a device or pinned tensor that may have been made before, or out of sight."""
        block = self.storages.get(self._runtime.backend.base_of(tensor)) or self.blocks.find(tensor.data_ptr())
        if block is not None or tensor.numel() == 0:
            return block
        backend = self._runtime.backend
        if backend.is_on_device(tensor):
            owner = backend.stream_of_memory(tensor.data_ptr())
            self._forget_moved(tensor)
            if owner is None:  # a view of host memory, or another library's: no allocator of torch frees it
                return None
            return self.add(tensor, Space.DEVICE, self._runtime.queue_of(owner), stack)
        return self.add(tensor, Space.PINNED, None, stack) if backend.is_pinned(tensor) else None

    def _forget_moved(self, tensor: Tensor) -> None:
        """A storage that was resized lies elsewhere now: where it was, the allocator puts others."""
        owner, base, _ = self._runtime.backend.memory_of(tensor)
        for block in [*self.storages.values()]:
            if block.base != base and block.anchor is not None and block.anchor() is owner:
                self.free(block, program_stack())

    def made(
        self, tensor: Tensor, queue: Queue, stack: Stack, *, pinned: bool, made: list[Block] | None = None
    ) -> Block | None:
        """The block of a result; a new one, unless the result lies in memory that is known."""
        block = self.blocks.find(tensor.data_ptr())
        if block is not None or tensor.numel() == 0:
            return block
        space = Space.PINNED if pinned else Space.DEVICE
        return self.add(tensor, space, None if pinned else queue, stack, made)

    def add(
        self, tensor: Tensor, space: Space, queue: Queue | None, stack: Stack, made: list[Block] | None = None
    ) -> Block | None:
        """A storage becomes known; one without bytes does not.

        Args:
            tensor: over it.
            space: where it is.
            queue: the stream that owns it; None for host memory.
            stack: where it was made.
            made: takes the block, if an operation that is written down already makes it.
        """
        block = self.create(tensor, space, queue, stack)
        if block is not None:
            if made is None:
                self._runtime.sink.add((self._judge_made, block))
            else:
                made.append(block)
        return block

    def create(self, tensor: Tensor, space: Space, queue: Queue | None, stack: Stack) -> Block | None:
        """The same, but the sink is not told yet."""
        owner, base, size = self._runtime.backend.memory_of(tensor)
        return self._place(owner, base, size, tensor, space, queue, stack) if size else None

    def fresh(self, tensor: Tensor, queue: Queue, stack: Stack) -> Block | None:
        """The same of a result on the device; None if it lies in memory that is known."""
        owner, base, size = self._runtime.backend.memory_of(tensor)
        if not size or base in self.storages:
            return None
        return self._place(owner, base, size, tensor, Space.DEVICE, queue, stack)

    def _place(
        self, owner: Any, base: int, size: int, tensor: Tensor, space: Space, queue: Queue | None, stack: Stack
    ) -> Block:
        runtime = self._runtime
        block = Block(base, size, space, tensor, stack, queue)
        if queue is None:
            block.storage, block.lane = owner._cdata, runtime.host_lane()
        else:
            block.lane = queue.lane
        if runtime.captures.current is not None:
            runtime.captures.adopt(block)
        block.anchor = anchor = _Anchor(owner, self._dropped)
        anchor.block = block
        self.storages[base] = block
        self._changes.append(block)
        if len(self._changes) > _MAX_CHANGES:
            _ = self.blocks
        return block

    def tell(self, block: Block) -> None:
        """Hand an allocation on to the sink."""
        block.id = self._runtime.sink.inner.allocate(block.lane, block.base, block.size, block.space, block.stack)

    def _drop(self, anchor: weakref.ref[Any]) -> None:
        """The program dropped a block. Runs inside the garbage collector, so it does next to nothing."""
        if not self._runtime.active:
            return
        block: Block = anchor.block  # type: ignore[attr-defined]
        block.dropped = True
        if block.graph is None:
            self.free(block, program_stack(DROP_FRAMES))

    def free(self, block: Block, stack: Stack) -> None:
        """The allocator may hand a block out again; safe inside the garbage collector."""
        if block.freed:
            return
        block.freed, block.anchor = True, None
        runtime = self._runtime
        lane = runtime.here.lane
        after = [queue.lane for queue in block.recorded.values()] if block.recorded else ()
        runtime.sink.add((self._judge_free, block, runtime.opener if lane is None else lane, stack, after))
        if self.storages.get(block.base) is block:
            del self.storages[block.base]
        self._changes.append(block)

    def _free(self, block: Block, lane: int, stack: Stack, after: list[int]) -> None:
        self._runtime.sink.inner.free(block.id, lane, stack, after=after)


def extent(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
