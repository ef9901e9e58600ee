"""The public vocabulary of the runner: requests and steps go in, handles and outputs come out.

These dataclasses are the only thing that the runner, its oracle, and the checkers share. They hold plain
Python values: no tensor crosses this boundary, so a step can be written to JSON and replayed.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .grammar.spec import Grammar as Grammar
from .sampling_params import SamplingParams as SamplingParams


def whole_number(value: object) -> int:
    """An integer of any library as a plain ``int``.

    Raises:
        TypeError: not an integer; nor is a truth value, which Python takes for one and nobody means as one.
    """
    if isinstance(value, bool):
        raise TypeError("a truth value is not a number")
    return operator.index(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class NewRequest:
    """A request that enters the runner: a fresh one, or one resumed after preemption.

    One with the id of a live request replaces it, whose prompt has grown: it may keep its blocks by naming them again.

    Attributes:
        request_id: its name; no two requests of a step have the same.
        token_ids: every token known on the host: the prompt, then what was generated before a preemption.
        prompt_len: how many of ``token_ids`` are the prompt.
        sampling: with ``seed`` filled in whenever ``temperature`` is above 0.
        num_computed_tokens: leading tokens whose keys and values are in the cache already, put there by earlier
            steps, of this request or of others, or by this step's block copies.
    """

    request_id: str
    token_ids: tuple[int, ...]
    prompt_len: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    num_computed_tokens: int = 0


@dataclass(frozen=True)
class Step:
    """One scheduler decision.

    Attributes:
        finished: requests that ended (or were aborted); their rows are freed first.
        preempted: requests that lose their row and blocks now and may come back in ``new`` of a later step.
        new: requests that enter, resumed ones included.
        scheduled: tokens to compute per request; never 0 for a listed request. Their order is that of the batch, if
            the runner does not prefer another one.
        new_blocks: KV blocks appended to a request's block table this step, one tuple per KV group; for a
            request in ``new`` these are its first blocks. Those wholly within its ``num_computed_tokens`` may be
            held by others too; all others are its own. In a group with a sliding window, a block whose tokens have
            all left the window of the next position to compute is free again, and 0 in ``new_blocks``.
        drafts: how many of a request's scheduled tokens are drafts, the last ones; the device knows which they are.
            Only for a request all of whose known tokens but one are computed: it schedules that one and the drafts.
        block_copies: KV blocks, source and target, copied before anything is computed; each target is in
            ``new_blocks``.
        arrived: tokens of requests with a grammar that were drawn by earlier steps and have arrived on the host, in
            order, each once. Before such a request draws again, all of its tokens must have arrived. One in ``new``
            brings its tokens itself.
        draft_tokens: the drafts of requests with a grammar, as an output has shown them; as many as ``drafts`` says.
        verified: drafts of earlier steps whose outcome the scheduler has learnt since the last step: of each live
            request, how many there were and how many of them were rejected. Until then they count as accepted.
    """

    finished: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    new: tuple[NewRequest, ...] = ()
    scheduled: Mapping[str, int] = field(default_factory=dict)
    new_blocks: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    drafts: Mapping[str, int] = field(default_factory=dict)
    block_copies: tuple[tuple[int, int], ...] = ()
    arrived: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    draft_tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    verified: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenLogprobs:
    """What was asked for about the distribution that one token came from, or was given in.

    Attributes:
        value: of the token itself; a log-probability, or what ``RunnerConfig.logprobs_mode`` says.
        rank: 1 + number of tokens whose value is larger.
        token_ids: the likeliest tokens, likeliest first, the lowest id first among equals; for the whole vocabulary
            the ids in order.
        values: of ``token_ids``.
        fixed: of ``SamplingParams.logprob_token_ids``, in their order.
    """

    value: float
    rank: int
    token_ids: tuple[int, ...]
    values: tuple[float, ...]
    fixed: tuple[float, ...] = ()


@dataclass(frozen=True)
class LogitsFault:
    """Logits of the model from which no proper draw can be made; a token is drawn all the same.

    Attributes:
        nan_count: logits that are NaN; they are treated as minus infinity.
        first_nan: lowest token id among them; None if there are none.
        exhausted: every token was minus infinity or forbidden; the token drawn is id 0.
        index: which of the step's tokens of the request it was.
        infinite: none was NaN, but the log-probability is, or the logit drawn is plus infinity: one of the model's
            logits is, or became so when it was divided by the temperature.
    """

    nan_count: int
    first_nan: int | None
    exhausted: bool
    index: int = 0
    infinite: bool = False


@dataclass(frozen=True)
class StepOutput:
    """What one step produced, on the host.

    Attributes:
        token_ids: tokens drawn per request, accepted drafts first; a request whose prefill is not complete has no
            entry.
        logprobs: log-probability of each of those tokens, natural logarithm, same keys and lengths; under the model's
            own distribution, or what ``RunnerConfig.logprobs_mode`` says.
        top_logprobs: more of it, for requests that ask for ``logprobs``; same lengths.
        prompt_logprobs: of requests that ask for them, one entry for each token of the prompt, None for the first,
            with the request's first output.
        faults: of requests whose logits had one; one for each token that was drawn from such logits, in order.
        drafts: tokens proposed for the next step of each request with a grammar; those of others stay on the device.
    """

    token_ids: Mapping[str, tuple[int, ...]]
    logprobs: Mapping[str, tuple[float, ...]]
    top_logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, tuple[TokenLogprobs | None, ...]] = field(default_factory=dict)
    faults: Mapping[str, tuple[LogitsFault, ...]] = field(default_factory=dict)
    drafts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class InvariantViolation:
    """A broken bookkeeping rule, found off the hot path by ``Runner.invariants``.

    Attributes:
        rule: short name of the invariant, e.g. ``"row-bijection"``.
        detail: what was found.
        request_id: the request concerned, if one is.
    """

    rule: str
    detail: str
    request_id: str | None = None


class Handle(Protocol):
    """The pending output of one step."""

    def result(self) -> StepOutput:
        """Wait for the device and return the output; may be called more than once."""
        ...


class Runner(Protocol):
    """Executes scheduler decisions, one at a time: ``execute`` is for one thread, or for several that take turns."""

    def execute(self, step: Step) -> Handle:
        """Enqueue one step and return at once, without waiting for the device.

        Raises:
            StepError: the step breaks the contract, another thread is inside this method, the runner is closed, or a
                step before broke off; no state was changed.
            Exception: whatever else went wrong; it may have left the step half done, and it was the last.
        """
        ...

    def invariants(self) -> list[InvariantViolation]:
        """Check the bookkeeping; may synchronise, so it is not for the hot path."""
        ...

    def close(self) -> None:
        """Wait for outstanding work and release device and pinned memory; idempotent.

        Handles answer ``result()`` after it too; ``execute`` refuses.
        """
        ...
