"""Which KV block holds the keys and values of which tokens.

Keys and values of a token depend on all tokens before it, so a block's content is named by a hash over its tokens
and the hash of the block before it. The hash is cryptographic: two contents with one name would be a wrong answer,
not a slow one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: Parent of every first block. It names the scheme, and no request: equal tokens have equal names in all requests.
ROOT = hashlib.sha256(b"kv block of int32 tokens, sha256 over parent and tokens").digest()


@dataclass(frozen=True)
class BlockContent:
    """A full block's place among all sequences.

    Attributes:
        name: hash over ``parent`` and ``tokens``.
        parent: name of the block before it, or ``ROOT``.
        tokens: as many as a block holds.
    """

    name: bytes
    parent: bytes
    tokens: tuple[int, ...]

    @classmethod
    def after(cls, parent: bytes, tokens: Sequence[int]) -> BlockContent:
        """The content of a block of ``tokens`` behind the block named ``parent``."""
        name = hashlib.sha256(parent + np.asarray(tokens, dtype="<i4").tobytes()).digest()
        return cls(name, parent, tuple(tokens))


class PrefixIndex:
    """Contents of blocks, found by name. One block a KV group for each content, whoever computed it first."""

    def __init__(self, num_groups: int = 1) -> None:
        self.num_groups = num_groups
        self._block_of: dict[tuple[int, bytes], int] = {}
        self._of_block: dict[int, tuple[int, BlockContent]] = {}
        # By parent, then by name; contents that any group holds.
        self._continuations: dict[bytes, dict[bytes, BlockContent]] = {}

    def __contains__(self, block: int) -> bool:
        """Whether the block's content is known."""
        return block in self._of_block

    def add(self, block: int, group: int, content: BlockContent) -> None:
        """Note that a block holds a content for the layers of a group, unless another one does already."""
        if (group, content.name) not in self._block_of:
            self._block_of[group, content.name] = block
            self._of_block[block] = group, content
            self._continuations.setdefault(content.parent, {})[content.name] = content

    def find(self, group: int, name: bytes) -> int | None:
        """The block that holds a content, if there is one."""
        return self._block_of.get((group, name))

    def continuations(self, parent: bytes) -> Mapping[bytes, BlockContent]:
        """Known contents of the next block, by name, in the order in which they became known."""
        return self._continuations.get(parent, {})

    def forget(self, block: int) -> None:
        """The block is about to hold something else."""
        group, content = self._of_block.pop(block)
        del self._block_of[group, content.name]
        if all(self.find(other, content.name) is None for other in range(self.num_groups)):
            siblings = self._continuations[content.parent]
            del siblings[content.name]
            if not siblings:
                del self._continuations[content.parent]
