"""Blocks of every request, over all KV groups: given out, shared, copied, and taken back below a sliding window.

A prefix that an earlier request computed is found block by block and shared, never written again; where it ends in
the middle of a block, that block is copied. What is found may still be on its way through the device: a block enters
the index once the step that fills it has been handed to the runner, and whatever reads it comes in a later step on
the same stream, behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .config import NULL_BLOCK, RunnerConfig
from .kv_block_pool import KVBlockPool
from .kv_groups import FULL_ATTENTION, blocks_below_window
from .prefix_index import ROOT, BlockContent

Groups = tuple[tuple[int, ...], ...]


@dataclass
class RequestBlocks:
    """What one request holds.

    Attributes:
        tables: block table of each KV group; the null block where all tokens have left the window.
        num_below: of each group, leading blocks that have left the window.
        contents: of the leading full blocks whose tokens are known.
        num_indexed: leading blocks that were offered to the index.
        num_slots: positions from the first on that the tables have blocks for.
    """

    tables: tuple[list[int], ...]
    num_below: list[int]
    contents: list[BlockContent] = field(default_factory=list)
    num_indexed: int = 0
    num_slots: int = 0

    @property
    def held(self) -> list[int]:
        """All blocks, over all groups."""
        return [block for table in self.tables for block in table if block != NULL_BLOCK]


@dataclass(frozen=True)
class PrefixMatch:
    """A prefix whose keys and values are in the cache.

    Attributes:
        num_tokens: its length.
        tables: of each group the blocks that hold it, to be shared; the null block below the window.
        sources: of each group the block with the tokens behind those, to be copied; empty if there are none.
    """

    num_tokens: int
    tables: Groups
    sources: tuple[int, ...] = ()

    def without_copy(self, block_size: int) -> PrefixMatch:
        """The part that needs no copy."""
        return PrefixMatch(self.num_tokens // block_size * block_size, self.tables)


@dataclass
class PrefixCacheStats:
    """How often the prefix cache helped.

    Attributes:
        queried: tokens of requests that entered, resumed ones included.
        found: those that did not have to be computed.
        copied_blocks: blocks copied for prefixes that end inside one.
    """

    queried: int = 0
    found: int = 0
    copied_blocks: int = 0


class KVCacheManager:
    """Gives blocks to requests; a scheduler decides who gets how many.

    Use in each step: ``advance`` for every running request before it is given more, ``start`` and ``extend``, then
    ``take_copies``.

    Attributes:
        pool: the blocks.
        stats: of the prefix cache.
        follows_progress: whether ``advance`` does anything.
    """

    def __init__(self, config: RunnerConfig, windows: Sequence[int] = (FULL_ATTENTION,)) -> None:
        self.pool = KVBlockPool(config.num_kv_blocks, len(windows))
        self.stats = PrefixCacheStats()
        self._block_size = config.block_size
        self._caching = config.prefix_caching
        self._windows = tuple(windows)
        self._nothing: Groups = tuple(() for _ in windows)
        self._forgets = any(window != FULL_ATTENTION for window in windows)
        self.follows_progress = self._caching or self._forgets
        self._copies: list[tuple[int, int]] = []

    @property
    def num_groups(self) -> int:
        """Number of KV groups."""
        return len(self._windows)

    def most_blocks(self, tokens: int, chunk: int) -> int:
        """Blocks that a request of ``tokens`` tokens ever holds at once, computed in steps of ``chunk`` or fewer."""
        return sum(self._most_blocks_of_group(window, tokens, chunk) for window in self._windows)

    def nothing_held(self) -> RequestBlocks:
        """The record of a request that has not started."""
        return RequestBlocks(tuple([] for _ in self._windows), [0] * self.num_groups)

    def match(self, blocks: RequestBlocks, tokens: Sequence[int]) -> PrefixMatch:
        """The longest prefix of ``tokens`` in the cache; at least one token remains to be computed."""
        nothing = PrefixMatch(0, self._nothing)
        if not self._caching or not tokens:
            return nothing
        self._name_blocks(blocks, tokens)
        full = self._known_blocks(blocks.contents[: (len(tokens) - 1) // self._block_size])
        tables = (self._tables_of_prefix(blocks.contents[:count]) for count in range(full, 0, -1))
        found = next(filter(None, tables), nothing.tables)
        return self._with_partial_block(found, blocks.contents, tokens)

    def start(self, blocks: RequestBlocks, match: PrefixMatch, end: int, reserve: int = 0) -> PrefixMatch | None:
        """Give a request the blocks of a prefix, and new ones for the positions up to ``end``, exclusive.

        Args:
            reserve: blocks that must be left over.

        Returns:
            the match that was used, without its copy if there is no room for that; None if there is no room at all.
        """
        for used in dict.fromkeys((match, match.without_copy(self._block_size))):
            shared = [block for table in used.tables for block in table if block != NULL_BLOCK]
            kept = sum(map(self.pool.is_free, {*shared, *used.sources}))
            fresh = self._blocks_for(end) * self.num_groups - sum(map(len, used.tables))
            if fresh + kept + reserve <= self.pool.num_free:
                self._give(blocks, used, shared, end)
                return used
        return None

    def missing(self, blocks: RequestBlocks, end: int) -> int:
        """Blocks that a running request needs, beyond its own, for positions up to ``end``, exclusive."""
        return max(0, self._blocks_for(end) - blocks.num_slots // self._block_size) * len(self._windows)

    def extend(self, blocks: RequestBlocks, end: int) -> Groups:
        """Give a running request what is ``missing``, which the caller has compared with what is free."""
        if end <= blocks.num_slots:
            return self._nothing
        covered = self._blocks_for(end)
        blocks.num_slots = covered * self._block_size
        added = tuple([self.pool.allocate(covered - len(table)) for table in blocks.tables])
        for table, fresh in zip(blocks.tables, added, strict=True):
            table += fresh
        return added

    def advance(self, blocks: RequestBlocks, tokens: Sequence[int], computed: int) -> None:
        """Offer full blocks to the index, then take back those below the window.

        Args:
            tokens: known tokens of the request.
            computed: tokens that steps handed to the runner have computed.
        """
        self._index_blocks(blocks, tokens, computed)
        if not self._forgets:
            return
        for group, (window, table) in enumerate(zip(self._windows, blocks.tables, strict=True)):
            below = min(blocks_below_window(window, computed, self._block_size), len(table))
            for place in range(blocks.num_below[group], below):
                self.pool.free([table[place]])
                table[place] = NULL_BLOCK
            blocks.num_below[group] = max(below, blocks.num_below[group])

    def release(self, blocks: RequestBlocks, tokens: Sequence[int], computed: int) -> RequestBlocks:
        """Take back everything, the index informed; returns the record of a request without blocks."""
        self._index_blocks(blocks, tokens, computed)
        self.pool.free(blocks.held)
        left = self.nothing_held()
        left.contents = blocks.contents
        return left

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """Block copies, source and target, of the step that is being decided; their sources are let go."""
        copies, self._copies = tuple(self._copies), []
        self.pool.free([source for source, _ in copies])
        return copies

    def _give(self, blocks: RequestBlocks, match: PrefixMatch, shared: list[int], end: int) -> None:
        self.pool.share(shared)
        # Nobody may get a source for something else in the same step: it would be written before it is copied.
        self.pool.share(match.sources)
        for group, table in enumerate(match.tables):
            blocks.tables[group][:] = table
            blocks.num_below[group] = table.count(NULL_BLOCK)
        blocks.num_indexed = match.num_tokens // self._block_size
        blocks.num_slots = len(match.tables[0]) * self._block_size
        fresh = self.extend(blocks, end)
        self._copies += [(source, new[0]) for source, new in zip(match.sources, fresh, strict=False)]
        self.stats.copied_blocks += len(match.sources)

    def _known_blocks(self, contents: Sequence[BlockContent]) -> int:
        """How many leading contents may be a prefix: with full attention none of them may be missing."""
        if FULL_ATTENTION not in self._windows:
            return len(contents)
        group = self._windows.index(FULL_ATTENTION)
        missing = (place for place, content in enumerate(contents) if self.pool.index.find(group, content.name) is None)
        return next(missing, len(contents))

    def _tables_of_prefix(self, contents: Sequence[BlockContent]) -> Groups | None:
        """Blocks of every group that hold these contents; None if one that is still in sight is missing."""
        tables = []
        for group, window in enumerate(self._windows):
            below = blocks_below_window(window, len(contents) * self._block_size, self._block_size)
            found = [self.pool.index.find(group, content.name) for content in contents[below:]]
            if None in found:
                return None
            tables.append((NULL_BLOCK,) * below + tuple(block for block in found if block is not None))
        return tuple(tables)

    def _with_partial_block(
        self, tables: Groups, contents: Sequence[BlockContent], tokens: Sequence[int]
    ) -> PrefixMatch:
        """Add the known block behind a prefix that goes on like ``tokens`` for longest."""
        count = len(tables[0])
        parent = contents[count - 1].name if count else ROOT
        rest = tokens[count * self._block_size : len(tokens) - 1]
        best = PrefixMatch(count * self._block_size, tables)
        for content in self.pool.index.continuations(parent).values():
            sources = [self.pool.index.find(group, content.name) for group in range(self.num_groups)]
            length = count * self._block_size + _common_prefix(content.tokens, rest)
            if length > best.num_tokens and None not in sources:
                best = PrefixMatch(length, tables, tuple(block for block in sources if block is not None))
        return best

    def _index_blocks(self, blocks: RequestBlocks, tokens: Sequence[int], computed: int) -> None:
        if not self._caching:
            return
        full = min(computed, len(tokens)) // self._block_size
        self._name_blocks(blocks, tokens)
        for place in range(blocks.num_indexed, full):
            for group, table in enumerate(blocks.tables):
                if table[place] != NULL_BLOCK:
                    self.pool.index.add(table[place], group, blocks.contents[place])
        blocks.num_indexed = max(full, blocks.num_indexed)

    def _name_blocks(self, blocks: RequestBlocks, tokens: Sequence[int]) -> None:
        for place in range(len(blocks.contents), len(tokens) // self._block_size):
            parent = blocks.contents[-1].name if blocks.contents else ROOT
            here = tokens[place * self._block_size : (place + 1) * self._block_size]
            blocks.contents.append(BlockContent.after(parent, here))

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _most_blocks_of_group(self, window: int, tokens: int, chunk: int) -> int:
        if window == FULL_ATTENTION:
            return self._blocks_for(tokens)
        # The lowest token in sight and the last one computed may each stand anywhere in their blocks.
        return min(self._blocks_for(tokens), (window - 1 + chunk + 2 * (self._block_size - 1)) // self._block_size)


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length
