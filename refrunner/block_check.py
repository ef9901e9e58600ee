"""Whether the KV blocks of a step may be given out and copied: no block is written by two, or while another reads it.

A block of a common prefix may have many holders. It is safe if each of them has computed past its end by the steps
before this one: those are enqueued already, on the same stream, so their writes come before whatever this step reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from .api import Step
from .block_upkeep import places_of
from .config import NULL_BLOCK
from .errors import StepError


class BlockCheck:
    """Follows the blocks that one step gives out.

    Args:
        holders: the live requests that hold each KV block in use.
        staying: live requests that do not leave in this step.
        computed: tokens computed of every request that is live in this step, before it.
    """

    def __init__(
        self, holders: Mapping[int, Collection[str]], staying: Set[str], computed: Mapping[str, int], block_size: int
    ) -> None:
        self._holders = holders
        self._staying = staying
        self._computed = computed
        self._block_size = block_size
        self._written: dict[int, str] = {}
        self._shared: dict[int, str] = {}

    def give(self, name: str, groups: Sequence[Sequence[int]], held: Sequence[int]) -> None:
        """Take note of a request's new blocks.

        Raises:
            StepError: another request, or this one in another place, writes to one of them.
        """
        for block, place in places_of(groups, held):
            end = (place + 1) * self._block_size
            writes = end > self._computed[name]
            others = self._others(block, 0 if writes else end)
            earlier = self._written.get(block)
            if earlier is None and (writes or self._shared.get(block) == name):
                earlier = self._shared.get(block)
            if others or earlier is not None:
                self._refuse(block, name, min(others) if earlier is None else earlier)
            (self._written if writes else self._shared)[block] = name

    def check_copies(self, step: Step, last_block: int) -> None:
        """Check the step's block copies, once all its blocks are given.

        Raises:
            StepError: a source is not a block, or is written in this step; or a target is not one that a request got
                to write in.
        """
        targets: set[int] = set()
        for source, target in step.block_copies:
            known = NULL_BLOCK < source <= last_block and source not in self._written
            if not known or target not in self._written or target in targets:
                raise StepError(
                    f"copy of block {source} to block {target}",
                    "it goes from a block in the pool that no request gets in this step to one that a request does, "
                    "and each target has one source",
                    "copies of one step run in no particular order, before anything is computed",
                    "a block with known content, and one of Step.new_blocks behind the request's computed tokens",
                )
            targets.add(target)

    def _others(self, block: int, end: int) -> set[str]:
        """Staying holders of a block that have not computed ``end`` tokens; all of them for 0."""
        staying = (name for name in self._holders.get(block, ()) if name in self._staying)
        return {name for name in staying if not end or self._computed[name] < end}

    def _refuse(self, block: int, name: str, owner: str) -> None:
        raise StepError(
            f"new block {block} of request {name!r}",
            f"it belongs to request {owner!r}, and a block has one owner until all its tokens are computed",
            "its slots would be written twice, and attention would read the wrong keys",
            "a free block; those of requests that leave in this step are free, and a full one may be shared as part "
            "of a request's num_computed_tokens",
        )
