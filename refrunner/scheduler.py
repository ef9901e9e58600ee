"""Continuous batching: which requests advance by how many tokens in the next step.

The scheduler runs ahead of the device. It decides step N+1 while the tokens of step N are unknown, and may do so
because only their *number* matters: a request whose prefill is complete gets one token per step. What it cannot
know yet, a stop token, costs at most one wasted step per step in flight.

Rules: running requests first, in order of arrival; then waiting ones while rows, blocks and budget last; a prompt
longer than the budget that is left is computed in chunks. When the pool runs dry, the youngest running request is
preempted: it loses row and blocks and returns later as a new request with all its tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .api import NewRequest, SamplingParams, Step, StepOutput
from .config import RunnerConfig
from .errors import RequestError
from .kv_block_pool import KVBlockPool


@dataclass
class TrackedRequest:
    """A request as the scheduler sees it.

    Attributes:
        request_id: its name.
        prompt_len: tokens of the prompt.
        sampling: its parameters.
        token_ids: prompt and the tokens that have arrived.
        logprobs: one per arrived token.
        num_computed: tokens computed by all steps scheduled so far.
        in_flight: draws scheduled whose tokens have not arrived.
        blocks: KV blocks held.
        finish_reason: ``"stop"``, ``"length"`` or ``"abort"`` once it is over.
    """

    request_id: str
    prompt_len: int
    sampling: SamplingParams
    token_ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    num_computed: int = 0
    in_flight: int = 0
    blocks: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens known or in flight."""
        return len(self.token_ids) + self.in_flight

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """Generated tokens that have arrived."""
        return tuple(self.token_ids[self.prompt_len :])


class Scheduler:
    """Decides steps for one runner.

    Use: ``add`` requests; repeat ``schedule``, ``Runner.execute``, and, one or more steps later and in order,
    ``update`` with the output of each step.

    Attributes:
        requests: all requests by id. Those that have ended stay until the caller, having read them, deletes them.
        num_preemptions: how often a request lost its row before its end.
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._config = config
        self._pool = KVBlockPool(config.num_kv_blocks)
        self._waiting: deque[TrackedRequest] = deque()
        self._running: list[TrackedRequest] = []
        self._finished_since_last_step: list[str] = []
        self._preempted_since_last_step: list[str] = []
        self._pending_draws: deque[tuple[TrackedRequest, ...]] = deque()
        self.requests: dict[str, TrackedRequest] = {}
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished, or an ended one still has to be told to the runner."""
        return bool(self._waiting or self._running or self._finished_since_last_step)

    def add(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams) -> None:
        """Queue a request.

        Raises:
            RequestError: empty, too long for the context or the pool, or its id is taken; nothing was queued.
        """
        self._check_prompt(request_id, len(prompt), sampling)
        request = TrackedRequest(request_id, len(prompt), sampling, list(prompt))
        self.requests[request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """End a request now; its tokens in flight are dropped. Unknown and finished ones are left alone."""
        request = self.requests.get(request_id)
        if request is not None and request.finish_reason is None:
            self._finish(request, "abort")

    def preempt(self, request_id: str) -> bool:
        """Take row and blocks from a running request; it waits, first in line, until it can be resumed.

        Returns:
            False if the request is not running.
        """
        request = self.requests.get(request_id)
        if request is None or request not in self._running:
            return False
        self._running.remove(request)
        self._release_blocks(request)
        request.num_computed = 0
        self._waiting.appendleft(request)
        self._preempted_since_last_step.append(request_id)
        self.num_preemptions += 1
        return True

    def schedule(self) -> Step:
        """Decide the next step. It may schedule nothing, when all work waits for outputs in flight."""
        budget = self._config.max_num_batched_tokens
        scheduled: dict[str, int] = {}
        new_blocks: dict[str, tuple[tuple[int, ...], ...]] = {}
        for request in list(self._running):
            if request in self._running:
                budget -= self._schedule_running(request, budget, scheduled, new_blocks)
        new = self._admit(budget, scheduled, new_blocks)
        step = Step(
            finished=tuple(self._finished_since_last_step),
            preempted=tuple(self._preempted_since_last_step),
            new=tuple(new),
            scheduled=scheduled,
            new_blocks=new_blocks,
        )
        self._finished_since_last_step.clear()
        self._preempted_since_last_step.clear()
        self._pending_draws.append(self._advance(scheduled))
        return step

    def update(self, output: StepOutput) -> None:
        """Take the output of the oldest step that has not been updated yet."""
        for request in self._pending_draws.popleft():
            request.in_flight -= 1
            # A request may have ended while its draw was in flight: aborted, or stopped by an earlier token.
            if request.finish_reason is None:
                request.token_ids.extend(output.token_ids[request.request_id])
                request.logprobs.extend(output.logprobs[request.request_id])
                self._finish_if_complete(request)

    def _schedule_running(
        self,
        request: TrackedRequest,
        budget: int,
        scheduled: dict[str, int],
        new_blocks: dict[str, tuple[tuple[int, ...], ...]],
    ) -> int:
        """Schedule one running request if it can advance; return the tokens used."""
        count = min(budget, request.num_tokens - request.num_computed)
        if count <= 0 or self._has_all_draws(request):
            return 0
        blocks = self._allocate_with_preemption(request, request.num_computed + count, scheduled)
        if blocks is None:
            return 0
        if blocks:
            new_blocks[request.request_id] = (blocks,)
        scheduled[request.request_id] = count
        return count

    def _admit(
        self, budget: int, scheduled: dict[str, int], new_blocks: dict[str, tuple[tuple[int, ...], ...]]
    ) -> list[NewRequest]:
        """Start or resume waiting requests, in order, while everything they need is there."""
        new = []
        while budget > 0 and self._waiting and len(self._running) < self._config.max_num_reqs:
            request = self._waiting[0]
            count = min(budget, len(request.token_ids))
            needed = self._blocks_for(count)
            # Resuming needs the token values, so it waits for those in flight. A row freed in this very step may
            # be taken in it, but not by its own former owner: the step would name one request twice.
            blocked = request.in_flight or request.request_id in self._preempted_since_last_step
            if blocked or needed > self._pool.num_free:
                break
            self._waiting.popleft()
            self._running.append(request)
            request.blocks = list(self._pool.allocate(needed))
            new_blocks[request.request_id] = (tuple(request.blocks),)
            scheduled[request.request_id] = count
            budget -= count
            new.append(NewRequest(request.request_id, tuple(request.token_ids), request.prompt_len, request.sampling))
        return new

    def _advance(self, scheduled: dict[str, int]) -> tuple[TrackedRequest, ...]:
        """Count the scheduled tokens and return the requests that will draw one."""
        drawing = []
        for request_id, count in scheduled.items():
            request = self.requests[request_id]
            request.num_computed += count
            if request.num_computed == request.num_tokens:
                request.in_flight += 1
                drawing.append(request)
        return tuple(drawing)

    def _allocate_with_preemption(
        self, request: TrackedRequest, end: int, scheduled: dict[str, int]
    ) -> tuple[int, ...] | None:
        """Blocks so that positions below ``end`` have slots; None if the request itself had to give way."""
        needed = self._blocks_for(end) - len(request.blocks)
        while needed > self._pool.num_free:
            victim = self._running[-1]
            # Requests are visited oldest first, so a younger victim is not in this step yet.
            assert victim.request_id not in scheduled
            self.preempt(victim.request_id)
            if victim is request:
                return None
        blocks = self._pool.allocate(max(needed, 0))
        request.blocks.extend(blocks)
        return blocks

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._config.block_size)

    def _has_all_draws(self, request: TrackedRequest) -> bool:
        """Whether every token that the request may generate has been drawn or is in flight."""
        generated = request.num_tokens - request.prompt_len
        return generated >= request.sampling.max_tokens or request.num_tokens >= self._config.max_model_len

    def _finish_if_complete(self, request: TrackedRequest) -> None:
        if request.token_ids[-1] in request.sampling.stop_token_ids:
            self._finish(request, "stop")
        elif request.in_flight == 0 and self._has_all_draws(request):
            self._finish(request, "length")

    def _finish(self, request: TrackedRequest, reason: str) -> None:
        request.finish_reason = reason
        if request in self._running:
            self._running.remove(request)
            self._release_blocks(request)
            self._finished_since_last_step.append(request.request_id)
        else:
            self._waiting.remove(request)

    def _release_blocks(self, request: TrackedRequest) -> None:
        self._pool.free(request.blocks)
        request.blocks = []

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
        if self._blocks_for(longest) > self._pool.capacity:
            raise RequestError(
                f"request {request_id!r} with up to {longest} tokens",
                f"it needs {self._blocks_for(longest)} KV blocks and the pool has {self._pool.capacity}",
                "alone in the pool it would preempt itself for ever",
                f"num_kv_blocks={self._blocks_for(longest) + 1} or more, or a smaller max_tokens",
            )
