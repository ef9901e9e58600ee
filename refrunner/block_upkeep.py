"""What happens to whole KV blocks in a step, beside the keys and values that the forward pass writes.

Copies come first, then fills: a block that is copied may have been let go in this very step, and be filled for its
next owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from .attention.interface import AttentionBackend
from .config import NULL_BLOCK, RunnerConfig
from .staging import PackedUpload


class BlockHolders:
    """Which requests hold each KV block; a block of a common prefix has several.

    Attributes:
        of_block: ids of the requests, for every block that anybody holds.
    """

    def __init__(self) -> None:
        self.of_block: dict[int, tuple[str, ...]] = {}

    def add(self, request_id: str, blocks: Iterable[int]) -> None:
        """A request has got blocks; the null block among them belongs to nobody."""
        for block in blocks:
            if block in self.of_block:
                self.of_block[block] += (request_id,)
            elif block != NULL_BLOCK:
                self.of_block[block] = (request_id,)

    def remove(self, request_id: str, blocks: Iterable[int]) -> list[int]:
        """A request lets go of blocks; returns those that nobody holds any more."""
        left = []
        for block in blocks:
            others = tuple(name for name in self.of_block.pop(block) if name != request_id)
            if others:
                self.of_block[block] = others
            else:
                left.append(block)
        return left


class BlockUpkeep:
    """Collects a step's copies and fills, and enqueues each kind in one launch.

    Attributes:
        fills_new: whether blocks that a request gets are filled.
    """

    def __init__(self, config: RunnerConfig, caches: Sequence[AttentionBackend]) -> None:
        """Take the owners of keys and values; a block is a block in all of them."""
        self._caches = tuple(caches)
        self.fills_new = config.zero_new_blocks or config.poison
        # With prefix caching a freed block may be wanted again as it is.
        self._fills_freed = config.poison and not config.prefix_caching
        self._value = float("nan") if config.poison else 0.0
        self._copies: tuple[tuple[int, int], ...] = ()
        self._fills: dict[int, None] = {}
        self._tickets: tuple[int, int, int] | None = None

    def freed(self, blocks: Iterable[int]) -> None:
        """Nobody holds these blocks any more."""
        if self._fills_freed:
            self._fills.update(dict.fromkeys(blocks))

    def given(self, blocks: Iterable[int]) -> None:
        """A request has got these blocks, and has computed nothing yet that is in them."""
        if self.fills_new:
            self._fills.update(dict.fromkeys(blocks))

    def copied(self, copies: tuple[tuple[int, int], ...]) -> None:
        """These blocks, source and target, are to be copied in this step."""
        self._copies = copies

    def pack(self, upload: PackedUpload) -> None:
        """Add the block ids to the step's upload, if there is anything to do."""
        if not self._copies and not self._fills:
            return
        sources, targets = ([copy[side] for copy in self._copies] for side in (0, 1))
        first, second, third = (upload.add(np.array(ids, dtype=np.int32)) for ids in (sources, targets, [*self._fills]))
        self._tickets = first, second, third

    def warm_up(self, nothing: Tensor) -> None:
        """Load the kernels of ``apply``; ``nothing`` is int32 [0] on the device, and nothing changes."""
        for cache in self._caches:
            cache.copy_blocks(nothing, nothing)
            cache.fill_blocks(nothing, self._value)

    def apply(self, upload: PackedUpload) -> None:
        """Enqueue the copies, then the fills; nothing if there are none."""
        if self._tickets is None:
            return
        sources, targets, fills = (upload.view(ticket) for ticket in self._tickets)
        for cache in self._caches:
            if self._copies:
                cache.copy_blocks(sources, targets)
            if self._fills:
                cache.fill_blocks(fills, self._value)
        self._copies, self._tickets = (), None
        self._fills.clear()


def places_of(groups: Sequence[Sequence[int]], held: Sequence[int]) -> list[tuple[int, int]]:
    """New blocks of a request with their places in its block table; not the null block, which nobody gets.

    Args:
        groups: its new blocks, for each KV group.
        held: length of its block table before, for each group.
    """
    return [
        (block, place)
        for have, blocks in zip(held, groups, strict=True)
        for place, block in enumerate(blocks, have)
        if block != NULL_BLOCK
    ]
