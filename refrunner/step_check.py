"""Whether a step may run: every rule is checked before the first change, so a refused step loses nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import chain
from operator import add
from types import MappingProxyType
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from .api import NewRequest, Step
from .block_check import BlockCheck
from .config import NULL_BLOCK, RunnerConfig
from .errors import StepError
from .kv_groups import FULL_ATTENTION, blocks_below_window
from .step_types import plain_request, plain_step


class StepChecker:
    """Checks steps against the live requests of one runner."""

    def __init__(self, config: RunnerConfig, vocab_size: int, windows: Sequence[int] = (FULL_ATTENTION,)) -> None:
        self._config = config
        self._vocab_size = vocab_size
        self._windows = tuple(windows)
        self._columns = config.max_blocks_per_request

    def check(
        self,
        step: Step,
        computed: Mapping[str, int],
        total: Mapping[str, int],
        num_blocks: Mapping[str, Sequence[int]],
        holders: Mapping[int, Collection[str]],
        unverified: Mapping[str, int] = MappingProxyType({}),
    ) -> Step:
        """Raise if the step breaks a rule.

        Args:
            step: the scheduler's decision.
            computed: tokens computed so far of every live request, as the host counts them.
            total: tokens known of every live request, those drawn but not downloaded included.
            num_blocks: length of every live request's block table, for each KV group.
            holders: the live requests that hold each KV block in use.
            unverified: drafts among the computed tokens of every live request whose outcome is not known here.

        Returns:
            the step in plain Python values.

        Raises:
            StepError: names the request and the rule.
        """
        step = plain_step(step)
        leaving = (*step.finished, *step.preempted)
        self._require_live(leaving, computed.keys())
        entering = {request.request_id for request in step.new}
        staying = computed.keys() - entering.union(leaving)
        self._check_new(step.new)
        self._check_verified(step.verified, staying, unverified)
        if step.verified:
            computed, total = (_without_rejected(counts, step.verified) for counts in (computed, total))
        live = staying | entering
        self._require_live(step.scheduled, live)
        self._require_live(step.new_blocks, live)
        self._check_capacity(step, live)
        if step.new:
            computed = {**computed, **{request.request_id: request.num_computed_tokens for request in step.new}}
            total = {**total, **{request.request_id: len(request.token_ids) for request in step.new}}
        held = {**num_blocks, **dict.fromkeys(entering, (0,) * len(self._windows))}
        blocks = BlockCheck(holders, staying, computed, self._config.block_size)
        fresh = self._are_fresh(step, holders)
        for name, groups in step.new_blocks.items():
            if not fresh or not self._have_room(groups, held[name]):
                self._check_blocks(name, groups, held[name], computed[name])
                blocks.give(name, groups, held[name])
            held[name] = [*map(add, held[name], map(len, groups))]
        blocks.check_copies(step, self._config.num_kv_blocks - 1)
        self._check_drafts(step, computed, total)
        self._check_spans(step, computed, total, held)
        return step

    def check_request(self, request: NewRequest) -> NewRequest:
        """Raise if no step could bring this request, whatever else is live.

        Returns:
            the request in plain Python values.

        Raises:
            StepError: names the rule.
        """
        request = plain_request(request)
        self._check_tokens(request)
        return request

    def _require_live(self, names: Iterable[str], live: Set[str]) -> None:
        if isinstance(names, Mapping) and names.keys() <= live:
            return
        seen: set[str] = set()
        for name in names:
            if name not in live or name in seen:
                what = "is not live" if name not in live else "is listed twice"
                raise StepError(
                    f"request {name!r}",
                    f"it {what}",
                    "a row belongs to exactly one live request; acting on another one's row corrupts it",
                    "each live request once; a preempted request must come back in Step.new first",
                )
            seen.add(name)

    def _check_new(self, new: Iterable[NewRequest]) -> None:
        seen: set[str] = set()
        for request in new:
            if request.request_id in seen:
                raise StepError(
                    f"new request {request.request_id!r}",
                    "it comes twice in one step",
                    "two rows with one name cannot be told apart in later steps",
                    "another id for one of them",
                )
            seen.add(request.request_id)
            self._check_tokens(request)

    def _check_tokens(self, request: NewRequest) -> None:
        count = len(request.token_ids)
        if not 1 <= request.prompt_len <= count <= self._config.max_model_len:
            raise StepError(
                f"new request {request.request_id!r} with {count} tokens, prompt_len={request.prompt_len}",
                f"a request has 1 to {self._config.max_model_len} tokens, at least one of them prompt",
                "the token table has that many columns, and a model needs a token to start from",
                "a shorter prompt, or a runner with a larger max_model_len",
            )
        if not 0 <= request.num_computed_tokens < count:
            raise StepError(
                f"new request {request.request_id!r} with num_computed_tokens={request.num_computed_tokens}",
                f"it lies between 0 and {count - 1}, one less than the request's tokens",
                "positions count from it, and the last token must be computed to draw the next one",
                "num_computed_tokens=0 for a request whose keys and values are not in the cache",
            )
        outside = next((token for token in request.token_ids if not 0 <= token < self._vocab_size), None)
        if outside is not None:
            raise StepError(
                f"token id {outside} of request {request.request_id!r}",
                f"token ids lie in 0..{self._vocab_size - 1}",
                "the embedding has no such row; on a GPU the read would leave the table",
                "ids from this model's own tokenizer",
            )
        self._check_sampling(request)

    def _check_sampling(self, request: NewRequest) -> None:
        outside = request.sampling.outside(self._vocab_size)
        if outside is not None:
            raise StepError(
                f"token id {outside[1]} in SamplingParams.{outside[0]} of request {request.request_id!r}",
                f"token ids lie in 0..{self._vocab_size - 1}",
                "the sampler's kernels read and write the logits at these places, and there are none",
                "ids from this model's own tokenizer",
            )
        begun = len(request.token_ids) == request.prompt_len and request.num_computed_tokens > 0
        if request.sampling.prompt_logprobs is not None and begun:
            raise StepError(
                f"new request {request.request_id!r} with prompt_logprobs and "
                f"num_computed_tokens={request.num_computed_tokens}",
                "a prompt whose log-probabilities are asked for is computed from its start",
                "they come from the hidden states of every token, and a cache of keys and values holds none",
                "num_computed_tokens=0, or prompt_logprobs=None",
            )
        if request.sampling.temperature > 0 and request.sampling.seed is None:
            raise StepError(
                f"new request {request.request_id!r} at temperature {request.sampling.temperature}",
                "it has no seed",
                "noise is a function of the seed, and a runner invents none: a step must be repeatable",
                "SamplingParams(seed=...); the engine draws one for requests without",
            )

    def _check_capacity(self, step: Step, live: set[str]) -> None:
        total = sum(step.scheduled.values())
        config = self._config
        if len(live) > config.max_num_reqs or total > config.max_num_batched_tokens:
            raise StepError(
                f"step with {len(live)} live requests, {total} tokens",
                f"at most {config.max_num_reqs} requests and {config.max_num_batched_tokens} tokens fit",
                "tables and buffers have a fixed size",
                "a smaller step, or larger max_num_reqs and max_num_batched_tokens",
            )

    def _check_drafts(self, step: Step, computed: Mapping[str, int], total: Mapping[str, int]) -> None:
        for name, drafts in step.drafts.items():
            decodes = name in step.scheduled and total[name] - computed[name] == 1
            if not decodes or not 0 <= drafts <= self._config.drafts or step.scheduled[name] != 1 + drafts:
                raise StepError(
                    f"{drafts} drafts of request {name!r}, {step.scheduled.get(name, 0)} scheduled tokens",
                    f"at most {self._config.drafts} drafts (RunnerConfig.speculation), behind the one token of the "
                    "request that is known and not computed",
                    "drafts continue the newest token, and there are as many as a proposer makes",
                    "1 + drafts scheduled tokens, for a request that has computed all others; or no drafts",
                )

    def _check_verified(
        self, verified: Mapping[str, tuple[int, int]], staying: Set[str], unverified: Mapping[str, int]
    ) -> None:
        for name, (drafts, rejected) in verified.items():
            if name not in staying or not 0 <= rejected <= drafts <= unverified.get(name, 0):
                raise StepError(
                    f"{drafts} verified drafts of request {name!r}, {rejected} of them rejected",
                    f"a live request that stays, and of its {unverified.get(name, 0)} drafts without an outcome",
                    "positions are counted back by the rejected ones; a wrong number moves every later token",
                    "the numbers of drafts and of rejected ones that outputs have shown, each once",
                )

    def _are_fresh(self, step: Step, holders: Mapping[int, Collection[str]]) -> bool:
        """Whether all new blocks, as nearly always, are of the pool, held by nobody, and each comes once.

        Then no block can be written by two. If blocks are copied, it matters who writes to which.
        """
        blocks = [*chain.from_iterable(chain.from_iterable(step.new_blocks.values()))]
        if step.block_copies or len(set(blocks)) < len(blocks) or not holders.keys().isdisjoint(blocks):
            return False
        return not blocks or (min(blocks) > NULL_BLOCK and max(blocks) < self._config.num_kv_blocks)

    def _have_room(self, groups: tuple[tuple[int, ...], ...], held: Sequence[int]) -> bool:
        """Whether a request's block tables, one for each KV group, can take so many more."""
        return len(groups) == len(held) and max(map(add, held, map(len, groups))) <= self._columns

    def _check_blocks(self, name: str, groups: tuple[tuple[int, ...], ...], held: Sequence[int], computed: int) -> None:
        count, last, columns = len(self._windows), self._config.num_kv_blocks - 1, self._columns
        if not self._have_room(groups, held) or not all(
            (block == NULL_BLOCK and index < blocks_below_window(window, computed, self._config.block_size))
            or NULL_BLOCK < block <= last
            for window, have, blocks in zip(self._windows, held, groups, strict=True)
            for index, block in enumerate(blocks, have)
        ):
            raise StepError(
                f"new blocks {groups} of request {name!r}, which holds {tuple(held)}",
                f"one tuple for each KV group, here {count}, with block ids in 1..{last}, and at most {columns} blocks "
                "for a request; block 0 only where all tokens have left a sliding window",
                "block 0 is the null block, ids beyond the pool point outside the cache, and a longer table would "
                "spill into the next request's row",
                "block ids from the pool, as many as the request's tokens need",
            )

    def _check_spans(
        self, step: Step, computed: Mapping[str, int], total: Mapping[str, int], held: Mapping[str, Sequence[int]]
    ) -> None:
        names, drafts = step.scheduled, step.drafts
        counts = _array(names.values(), len(names))
        ends = counts + _array(map(computed.__getitem__, names), len(names))
        known = _array(map(total.__getitem__, names), len(names))
        if drafts:
            known += _array((drafts.get(name, 0) for name in names), len(names))
        slots = self._config.block_size * _array(map(min, map(held.__getitem__, names)), len(names))
        room = np.minimum(np.minimum(known, slots), self._config.max_model_len)
        for index in np.flatnonzero((counts < 1) | (ends > room)).tolist():
            name = [*names][index]
            self._refuse_span(name, names[name], computed[name], int(known[index]), min(held[name]))

    def _refuse_span(self, name: str, count: int, computed: int, total: int, blocks: int) -> NoReturn:
        room = min(total, blocks * self._config.block_size, self._config.max_model_len)
        raise StepError(
            f"{count} tokens of request {name!r} at position {computed}",
            f"at least one token, and positions below {room}",
            f"it has {total} tokens, and its {blocks} blocks hold {blocks * self._config.block_size}; a token that "
            "nobody has drawn has no value, and one without a slot would overwrite another request's keys",
            _instead_of(count, min(total, self._config.max_model_len) - computed),
        )


def _array(numbers: Iterable[int], count: int) -> NDArray[np.int64]:
    return np.fromiter(numbers, np.int64, count)


def _instead_of(count: int, left: int) -> str:
    """What to schedule instead of so many tokens of a request that has so many left to compute."""
    if count < 1:
        return "1 token or more, or the request left out of Step.scheduled"
    if left < 1:
        return "the request in Step.finished: it is as long as RunnerConfig.max_model_len allows"
    if count > left:
        return f"not more than {left} in this step; one that reaches the end draws a token, for the next step"
    return "enough blocks in Step.new_blocks, or fewer tokens"


def _without_rejected(counts: Mapping[str, int], verified: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Counters of tokens without the drafts that were rejected."""
    return {**counts, **{name: counts[name] - rejected for name, (_, rejected) in verified.items()}}
