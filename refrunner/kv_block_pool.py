"""The pool of KV blocks."""

from __future__ import annotations

from .config import NULL_BLOCK


class KVBlockPool:
    """Hands out block ids 1 .. num_blocks - 1; block 0, the null block, stays out.

    The block freed last is reused first, so that a stale read of it meets fresh data of another request soonest.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self.capacity = len(self._free)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take ``count`` blocks; the caller has compared with ``num_free``."""
        return tuple(self._free.pop() for _ in range(count))

    def free(self, blocks: list[int]) -> None:
        """Give blocks back, last one first."""
        self._free.extend(reversed(blocks))
