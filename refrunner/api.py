"""The public vocabulary of the runner: requests and steps go in, handles and outputs come out.

These dataclasses are the only thing that the runner, its oracle, and the checkers share. They hold plain
Python values: no tensor crosses this boundary, so a step can be written to JSON and replayed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .errors import RequestError, shown

SEED_RANGE = (-(2**63), 2**64)
# Logits are divided by the temperature in float32; beyond these the quotient of an ordinary logit overflows.
TEMPERATURE_RANGE = (1e-30, 1e30)


def whole_number(value: object) -> int:
    """An integer of any library as a plain ``int``.

    Raises:
        TypeError: not an integer; nor is a truth value, which Python takes for one and nobody means as one.
    """
    if isinstance(value, bool):
        raise TypeError("a truth value is not a number")
    return operator.index(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Attributes:
        temperature: 0 picks the most likely token (lowest id on a tie); above 0 the logits are divided by it
            and a token is drawn by Gumbel-max.
        seed: 64-bit seed of the request's noise; ``None`` lets the engine draw one. Only its value modulo
            2**64 counts. The draw of a token is a function of (seed, position, token id, purpose) alone.
        max_tokens: how many tokens to generate at most.
        stop_token_ids: generation ends when one of these is generated (it is part of the output).

    Raises:
        RequestError: a value is of the wrong type, negative, not finite, or out of range.
    """

    temperature: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._check_temperature()
        if self.seed is not None and not (_is_int(self.seed) and SEED_RANGE[0] <= self.seed < SEED_RANGE[1]):
            raise RequestError(
                f"SamplingParams.seed={shown(self.seed)}",
                "seed must be a whole number of 64 bits",
                "further bits would be dropped, and two different seeds would give the same tokens",
                "a seed between -2**63 and 2**64 - 1, or None",
            )
        if not _is_int(self.max_tokens) or self.max_tokens < 1:
            raise RequestError(
                f"SamplingParams.max_tokens={shown(self.max_tokens)}",
                "max_tokens must be a whole number of at least 1",
                "a request that generates nothing never finishes",
                "max_tokens=1 or more",
            )
        stops = self.stop_token_ids
        if not isinstance(stops, tuple) or not all(_is_int(token) and token >= 0 for token in stops):
            raise RequestError(
                f"SamplingParams.stop_token_ids={shown(stops)}",
                "stop_token_ids must be a tuple of token ids, whole numbers from 0",
                "each generated token is looked up in it, and an id that no token has never stops anything",
                "a tuple such as (2,), or () for the model's own",
            )

    def _check_temperature(self) -> None:
        low, high = TEMPERATURE_RANGE
        number = isinstance(self.temperature, int | float) and not isinstance(self.temperature, bool)
        # An int may be too large for a float, so it is compared and not converted; NaN fails every comparison.
        if not number or not 0 <= self.temperature < math.inf:
            raise RequestError(
                f"SamplingParams.temperature={shown(self.temperature)}",
                "temperature must be a finite number, 0 or above",
                "logits are divided by it, and NaN or a negative value would silently invert or erase the distribution",
                "temperature=0 for greedy decoding, or a positive number such as 0.7",
            )
        if self.temperature and not low <= self.temperature <= high:
            raise RequestError(
                f"SamplingParams.temperature={shown(self.temperature)}",
                f"a temperature above 0 must lie between {low} and {high}",
                "the device divides in float32; the quotients would overflow, tie, and give the lowest token id",
                "temperature=0 for greedy decoding, or a positive number such as 0.7",
            )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class NewRequest:
    """A request that enters the runner: a fresh one, or one resumed after preemption.

    Attributes:
        request_id: unique among the live requests.
        token_ids: every token known on the host: the prompt, then what was generated before a preemption.
        prompt_len: how many of ``token_ids`` are the prompt.
        sampling: with ``seed`` filled in whenever ``temperature`` is above 0.
        num_computed_tokens: leading tokens whose keys and values are in the cache already (0 without prefix
            caching).
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
        scheduled: tokens to compute per request, in execution order; never 0 for a listed request.
        new_blocks: KV blocks appended to a request's block table this step, one tuple per KV group; for a
            request in ``new`` these are its first blocks.
        drafts: draft tokens per request among those scheduled (empty without speculation).
    """

    finished: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    new: tuple[NewRequest, ...] = ()
    scheduled: Mapping[str, int] = field(default_factory=dict)
    new_blocks: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    drafts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StepOutput:
    """What one step produced, on the host.

    Attributes:
        token_ids: tokens drawn per request; a request whose prefill is not complete has no entry.
        logprobs: log-probability of each of those tokens under the model's own distribution (before
            temperature), natural logarithm, same keys and lengths.
    """

    token_ids: Mapping[str, tuple[int, ...]]
    logprobs: Mapping[str, tuple[float, ...]]


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
            StepError: the step breaks the contract, another thread is inside this method, or the runner is closed; no
                state was changed.
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
