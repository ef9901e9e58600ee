"""Continuous batching: which requests advance by how many tokens in the next step.

The scheduler runs ahead of the device. It decides step N+1 while the tokens of step N are unknown, and may do so
because only their *number* matters: a request whose prefill is complete gets one token per step. What it cannot
know yet, a stop token, costs at most one wasted step per step in flight.

Rules: running requests first, in order of priority and arrival; then waiting ones, in the same order, while rows,
blocks and budget last; a prompt longer than the budget that is left is computed in chunks. When the pool runs dry,
the last of the running requests is preempted: it loses row and blocks and returns later as a new request with all
its tokens that have arrived. Those in flight are dropped, and drawn again: their noise is that of the same seed and
positions. It returns only when each running request could still take another block, or two requests that do not fit
together would preempt each other in turn.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .api import NewRequest, SamplingParams, Step, StepOutput
from .config import RunnerConfig
from .errors import RequestError, shown
from .kv_cache_manager import KVCacheManager, PrefixCacheStats
from .kv_groups import FULL_ATTENTION
from .tracked_request import TrackedRequest


@dataclass(frozen=True)
class _Draws:
    """Draws of one step, in flight.

    Attributes:
        requests: who draws.
        lives: how often each of them had lost its row by then.
        drafts: by id, how many drafts some of them draw behind.
    """

    requests: list[TrackedRequest]
    lives: list[int]
    drafts: Mapping[str, int]


@dataclass
class SpeculationStats:
    """How drafts fared.

    Attributes:
        steps: draws behind at least one draft.
        drafts: drafts that were verified, but for those in outputs that were dropped.
        accepted: those that the target accepted.
    """

    steps: int = 0
    drafts: int = 0
    accepted: int = 0


@dataclass
class _Decision:
    """A step as it takes shape: ``budget`` tokens may still be scheduled; ``drawing`` will know all of their tokens."""

    budget: int
    drawing: list[TrackedRequest] = field(default_factory=list)
    scheduled: dict[str, int] = field(default_factory=dict)
    new_blocks: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    new: list[NewRequest] = field(default_factory=list)
    arrived: dict[str, tuple[int, ...]] = field(default_factory=dict)
    drafts: dict[str, int] = field(default_factory=dict)
    draft_tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, request: TrackedRequest, count: int) -> None:
        """Schedule ``count`` tokens of a request; reaching its last known one, it draws."""
        self.scheduled[request.request_id] = count
        self.budget -= count
        request.num_computed += count
        if request.num_computed == len(request.token_ids) + request.in_flight:
            request.in_flight += 1
            self.drawing.append(request)
        if request.sampling.grammar is not None:
            self._tell_grammar(request)

    def add_drafts(self, request: TrackedRequest, drafts: int) -> None:
        """Schedule drafts behind all known tokens of a request that has been added; a grammar is told them."""
        name = request.request_id
        self.scheduled[name] += drafts
        self.budget -= drafts
        self.drafts[name] = drafts
        request.num_computed += drafts
        request.unverified += drafts
        request.in_flight += drafts
        if request.sampling.grammar is not None:
            self.draft_tokens[name] = request.proposed[:drafts]

    def _tell_grammar(self, request: TrackedRequest) -> None:
        """Bring the tokens that have arrived."""
        if request.num_told < len(request.token_ids):
            self.arrived[request.request_id] = tuple(request.token_ids[request.num_told :])
        request.num_told = len(request.token_ids)


class Scheduler:
    """Decides steps for one runner.

    Use: ``add`` requests; repeat ``schedule``, ``Runner.execute``, and, one or more steps later and in order,
    ``update`` with the output of each step.

    Attributes:
        requests: all requests by id. Those that have ended stay until the caller, having read them, deletes them.
        num_preemptions: how often a request lost its row before its end.
        speculation: how drafts fared so far.
    """

    def __init__(self, config: RunnerConfig, windows: Sequence[int] = (FULL_ATTENTION,)) -> None:
        """Start with nothing to do.

        Args:
            config: of the runner.
            windows: of the model's KV groups, see :class:`~.kv_groups.KVGroups`.
        """
        self._config = config
        self._most_drafts, self._lookahead = config.drafts, config.lookahead
        self._max_model_len = config.max_model_len
        self._blocks = KVCacheManager(config, windows)
        self._waiting: list[TrackedRequest] = []
        self._running: list[TrackedRequest] = []
        self._finished_since_last_step: list[str] = []
        self._preempted_since_last_step: list[str] = []
        self._pending_draws: deque[_Draws] = deque()
        self._verified_since_last_step: dict[str, tuple[int, int]] = {}
        self._num_arrivals = 0
        self.requests: dict[str, TrackedRequest] = {}
        self.num_preemptions = 0
        self.speculation = SpeculationStats()

    @property
    def prefix_cache(self) -> PrefixCacheStats:
        """How much the prefix cache saved so far."""
        return self._blocks.stats

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished, or an ended one still has to be told to the runner."""
        return bool(self._waiting or self._running or self._finished_since_last_step)

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        priority: int = 0,
        turn_of: str | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request_id: its name.
            prompt: token ids.
            sampling: its parameters.
            priority: the smaller, the sooner it is served and the later preempted; counts only with
                ``RunnerConfig.scheduling`` ``"priority"``.
            turn_of: another request, whose turn this one takes, since it goes on where that one has ended.

        Raises:
            RequestError: empty, too long for the context or the pool, of the wrong types, or its id is taken; nothing
                was queued.
        """
        self.check(request_id, prompt, sampling, priority)
        turn = (priority if self._config.scheduling == "priority" else 0, self._num_arrivals)
        if turn_of is not None:
            turn = self.requests[turn_of].turn
        longest = min(len(prompt) + sampling.max_tokens, self._max_model_len)
        blocks = self._blocks.nothing_held()
        request = TrackedRequest(request_id, len(prompt), longest, sampling, list(prompt), turn, blocks)
        self._num_arrivals += 1
        self.requests[request_id] = request
        insort(self._waiting, request, key=_turn)

    def check(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams, priority: int = 0) -> None:
        """Raise what ``add`` would; nothing is queued.

        Raises:
            RequestError: see ``add``.
        """
        _check_types(request_id, prompt, sampling, priority)
        self._check_prompt(request_id, len(prompt), sampling)

    def abort(self, request_id: str) -> None:
        """End a request now; its tokens in flight are dropped. Unknown and finished ones are left alone."""
        request = self.requests.get(request_id)
        if request is not None and request.finish_reason is None:
            self._finish(request, "abort")

    def preempt(self, request_id: str) -> bool:
        """Take row and blocks from a running request; it waits for its turn until it can be resumed.

        Its outputs in flight are dropped, drafts and counts among them: what they bring is of a row that it has lost,
        and it need not wait for them to be resumed.

        Returns:
            False if the request is not running.
        """
        request = self.requests.get(request_id)
        if request is None or not request.is_running:
            return False
        self._stop_running(request)
        request.num_computed = request.unverified = request.in_flight = 0
        request.proposed, request.lives = (), request.lives + 1
        request.was_preempted = True
        insort(self._waiting, request, key=_turn)
        self._preempted_since_last_step.append(request_id)
        self.num_preemptions += 1
        return True

    def schedule(self) -> Step:
        """Decide the next step. It may schedule nothing, when all work waits for outputs in flight."""
        decision = _Decision(self._config.max_num_batched_tokens)
        for request in list(self._running):
            if request.is_running:  # not preempted meanwhile for another's sake
                self._schedule_running(request, decision)
        self._admit(decision)
        step = Step(
            finished=tuple(self._finished_since_last_step),
            preempted=tuple(self._preempted_since_last_step),
            new=tuple(decision.new),
            scheduled=decision.scheduled,
            new_blocks=decision.new_blocks,
            drafts=decision.drafts,
            block_copies=self._blocks.take_copies(),
            arrived=decision.arrived,
            draft_tokens=decision.draft_tokens,
            verified=dict(self._verified_since_last_step),
        )
        self._verified_since_last_step.clear()
        self._finished_since_last_step.clear()
        self._preempted_since_last_step.clear()
        lives = [request.lives for request in decision.drawing]
        self._pending_draws.append(_Draws(decision.drawing, lives, decision.drafts))
        if self._blocks.follows_progress:
            for request in self._running:
                request.num_certain_told = request.num_certain
        return step

    def update(self, output: StepOutput) -> None:
        """Take the output of the oldest step that has not been updated yet."""
        draws = self._pending_draws.popleft()
        only_tokens = not (output.top_logprobs or output.prompt_logprobs or output.faults or output.drafts)
        for request, life in zip(draws.requests, draws.lives, strict=True):
            if life != request.lives:
                continue  # its row was lost while the draw was in flight
            name = request.request_id
            drafts = draws.drafts.get(name, 0) if draws.drafts else 0
            request.in_flight -= 1 + drafts
            if request.finish_reason is not None:
                continue  # it has ended meanwhile: aborted, or stopped by an earlier token
            if drafts:
                self._correct(request, drafts, drafts + 1 - len(output.token_ids[name]))
            # As nearly always, tokens are all that came, and nothing but its length can end the request.
            if only_tokens and not request.sampling.stop_token_ids:
                request.token_ids.extend(output.token_ids[name])
                request.logprobs.extend(output.logprobs[name])
                if not request.in_flight and len(request.token_ids) >= request.longest:
                    self._finish(request, "length")
            else:
                self._take(request, output)

    def _take(self, request: TrackedRequest, output: StepOutput) -> None:
        if not request.take(output):
            self._finish(request, "error")
            return
        request.proposed = output.drafts.get(request.request_id, ())
        self._finish_if_complete(request)

    def _correct(self, request: TrackedRequest, drafts: int, rejected: int) -> None:
        """Count back by the drafts that the target has rejected, and remember to tell the runner."""
        self.speculation.steps += 1
        self.speculation.drafts += drafts
        self.speculation.accepted += drafts - rejected
        request.num_computed -= rejected
        request.unverified -= drafts
        told, earlier = self._verified_since_last_step.get(request.request_id, (0, 0))
        self._verified_since_last_step[request.request_id] = told + drafts, earlier + rejected

    def _schedule_running(self, request: TrackedRequest, decision: _Decision) -> None:
        """Schedule one running request if it can advance, with drafts if it decodes."""
        if self._blocks.follows_progress:
            self._blocks.advance(request.blocks, request.token_ids, request.num_certain_told)
        known = len(request.token_ids) + request.in_flight
        count = known - request.num_computed
        if count <= 0 or known >= request.longest or decision.budget <= 0:
            return
        if request.in_flight and request.sampling.grammar is not None:
            return  # the next draw needs the values of the tokens in flight, and not only their number
        if count > decision.budget:
            count = decision.budget
        if self._most_drafts:
            self._schedule_with_drafts(request, count, decision)
        elif request.num_computed + count <= request.blocks.num_slots or self._grow(request, count, decision):
            decision.add(request, count)

    def _grow(self, request: TrackedRequest, count: int, decision: _Decision) -> bool:
        """Give a request the blocks for so many further tokens; False if it had to give way itself."""
        slots = self._slots_for(request.num_computed + count)
        missing = self._blocks.missing(request.blocks, slots)
        if missing > self._blocks.pool.num_free and not self._make_room(request, missing, decision):
            return False
        decision.new_blocks[request.request_id] = self._blocks.extend(request.blocks, slots)
        return True

    def _schedule_with_drafts(self, request: TrackedRequest, count: int, decision: _Decision) -> None:
        """The same with drafts behind the tokens, as many as fit."""
        end = request.num_computed + count
        missing = self._blocks.missing(request.blocks, self._slots_for(end))
        if missing and not self._make_room(request, missing, decision):
            return
        drafts = self._drafts_that_fit(request, end, decision.budget - count)
        blocks = self._blocks.extend(request.blocks, self._slots_for(end + drafts))
        if any(blocks):
            decision.new_blocks[request.request_id] = blocks
        decision.add(request, count)
        if drafts:
            decision.add_drafts(request, drafts)
        request.proposed = ()

    def _drafts_that_fit(self, request: TrackedRequest, end: int, budget: int) -> int:
        """Drafts behind position ``end``: none that could overshoot the request's end, and none at another's cost.

        With a grammar only those that the host has seen, since each has a mask of its own.
        """
        if request.num_computed < request.prefill_len:
            return 0
        most = self._most_drafts if request.sampling.grammar is None else len(request.proposed)
        drafts, free = max(0, min(most, budget, request.longest - 1 - end)), self._blocks.pool.num_free
        while drafts and self._blocks.missing(request.blocks, self._slots_for(end + drafts)) > free:
            drafts -= 1
        return drafts

    def _slots_for(self, end: int) -> int:
        """Positions that need slots in a step that computes up to ``end``: a draft model goes on from there."""
        return min(end + self._lookahead, self._max_model_len)

    def _admit(self, decision: _Decision) -> None:
        """Start or resume waiting requests, in order, while everything they need is there."""
        while decision.budget > 0 and self._waiting and len(self._running) < self._config.max_num_reqs:
            request = self._waiting[0]
            # A row freed in this very step may be taken in it, but not by its own former owner: the step would name
            # one request twice.
            blocked = request.request_id in self._preempted_since_last_step
            if blocked or not self._start(request, decision):
                break
            self._waiting.pop(0)
            insort(self._running, request, key=_turn)
            request.is_running = True

    def _start(self, request: TrackedRequest, decision: _Decision) -> bool:
        """Give a waiting request its first blocks, those of a known prefix among them, if there is room."""
        tokens = request.token_ids
        match = self._blocks.match(request.blocks, () if _wants_every_prompt_token(request) else tokens)
        reserve = self._blocks.num_groups * len(self._running) if request.was_preempted else 0
        end = min(match.num_tokens + decision.budget, len(tokens))
        used = self._blocks.start(request.blocks, match, self._slots_for(end), reserve)
        if used is None:
            return False
        request.num_computed, request.num_told = used.num_tokens, len(tokens)
        request.prefill_len = len(tokens)
        decision.new_blocks[request.request_id] = tuple(map(tuple, request.blocks.tables))
        decision.add(request, min(decision.budget, end - used.num_tokens))
        decision.new.append(
            NewRequest(request.request_id, tuple(tokens), request.prompt_len, request.sampling, used.num_tokens)
        )
        self.prefix_cache.queried += len(tokens)
        self.prefix_cache.found += used.num_tokens
        return True

    def _make_room(self, request: TrackedRequest, needed: int, decision: _Decision) -> bool:
        """Preempt until so many blocks are free; False if the request itself had to give way."""
        while needed > self._blocks.pool.num_free:
            victim = self._running[-1]
            # Requests are visited in the order of service, so a later victim is not in this step yet.
            assert victim.request_id not in decision.scheduled
            self.preempt(victim.request_id)
            if victim is request:
                return False
        return True

    def _finish_if_complete(self, request: TrackedRequest) -> None:
        stops = request.sampling.stop_token_ids
        if stops and request.token_ids[-1] in stops:
            self._finish(request, "stop")
        elif request.in_flight == 0 and len(request.token_ids) >= request.longest:
            self._finish(request, "length")

    def _finish(self, request: TrackedRequest, reason: str) -> None:
        request.finish_reason = reason
        if request.is_running:
            self._stop_running(request)
            self._finished_since_last_step.append(request.request_id)
        else:
            self._waiting.remove(request)

    def _stop_running(self, request: TrackedRequest) -> None:
        """Take row and blocks from a request."""
        self._running.remove(request)
        request.is_running = False
        self._verified_since_last_step.pop(request.request_id, None)
        request.blocks = self._blocks.release(request.blocks, request.token_ids, request.num_certain)

    def _check_prompt(self, request_id: str, prompt_len: int, sampling: SamplingParams) -> None:
        if request_id in self.requests:
            raise RequestError(
                f"request {request_id!r}",
                "its id was used before",
                "outputs are delivered by id",
                "another id",
            )
        if prompt_len == 0:
            raise RequestError(
                f"request {request_id!r} with an empty prompt",
                "a prompt has at least one token",
                "the model predicts the next token from earlier ones, and there are none",
                "a prompt with some text, or the model's begin-of-text token",
            )
        if prompt_len >= self._config.max_model_len:
            raise RequestError(
                f"request {request_id!r} with {prompt_len} prompt tokens",
                f"prompt and at least one generated token must fit into {self._config.max_model_len} positions",
                "the context of the model or the runner ends there, and dropping tokens would change the question",
                f"at most {self._config.max_model_len - 1} prompt tokens, or a larger max_model_len",
            )
        longest = min(prompt_len + sampling.max_tokens, self._config.max_model_len)
        needed = self._blocks.most_blocks(self._slots_for(longest), self._config.max_num_batched_tokens)
        if needed > self._blocks.pool.capacity:
            raise RequestError(
                f"request {request_id!r} with up to {longest} tokens",
                f"it needs {needed} KV blocks and the pool has {self._blocks.pool.capacity}",
                "alone in the pool it would preempt itself for ever",
                f"num_kv_blocks={needed + 1} or more, or a smaller max_tokens",
            )


def _check_types(request_id: object, prompt: object, sampling: object, priority: object) -> None:
    kinds = {"prompt": (prompt, Sequence), "sampling": (sampling, SamplingParams), "priority": (priority, int)}
    for name, (value, kind) in {"request_id": (request_id, str), **kinds}.items():
        mistaken = (bool, str, bytes) if name == "prompt" else bool
        if not isinstance(value, kind) or isinstance(value, mistaken):
            raise RequestError(
                f"request {shown(request_id)} with {name}={shown(value)}",
                f"it must be of type {kind.__name__}, and a prompt holds token ids",
                "it is looked at again in every step, and an error there would end everybody's requests",
                "Engine.add('a', [1, 2], SamplingParams()); LLM.generate takes texts",
            )


def _turn(request: TrackedRequest) -> tuple[int, int]:
    return request.turn


def _wants_every_prompt_token(request: TrackedRequest) -> bool:
    """Whether log-probabilities of the prompt are still to be reported, which needs its hidden states, not its keys."""
    return request.sampling.prompt_logprobs is not None and len(request.token_ids) == request.prompt_len
