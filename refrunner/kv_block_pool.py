"""The pool of KV blocks: who may have one next, and whose content is worth keeping."""

from __future__ import annotations

from collections.abc import Iterable

from .config import NULL_BLOCK
from .prefix_index import PrefixIndex


class KVBlockPool:
    """Hands out block ids 1 .. num_blocks - 1; block 0, the null block, stays out.

    A block may have several holders. One that nobody holds is free; if the index knows its content it may be held
    again as it is, until it is handed out for something else. Blocks of no known content go first, the one freed last
    before the others, so that a stale read of it meets fresh data of another request soonest; then known ones, the
    least recently used first.

    Attributes:
        index: what is known of the blocks' contents.
        capacity: number of blocks.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.index = PrefixIndex(num_groups)
        self._unknown = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._known: dict[int, None] = {}  # free blocks that the index knows, least recently used first
        self._holders = [0] * num_blocks
        self.capacity = len(self._unknown)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._unknown) + len(self._known)

    def is_free(self, block: int) -> bool:
        """Whether nobody holds the block."""
        return not self._holders[block]

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take ``count`` blocks, none if it is below 1, of no particular content; the caller has asked ``num_free``."""
        if count == 1:  # as nearly always
            return (self._take(),)
        return tuple([self._take() for _ in range(count)])

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks whose content the index knows, free or held by others."""
        for block in blocks:
            if self.is_free(block):
                del self._known[block]
            self._holders[block] += 1

    def free(self, blocks: list[int]) -> None:
        """Let go of blocks, last one first: the end of a sequence is the least likely to be wanted again."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self.is_free(block) and block in self.index:
                self._known[block] = None
            elif self.is_free(block):
                self._unknown.append(block)

    def _take(self) -> int:
        if self._unknown:
            block = self._unknown.pop()
        else:
            block = next(iter(self._known))
            del self._known[block]
            self.index.forget(block)
        self._holders[block] = 1
        return block
