"""What a request must produce: tokens and log-probabilities, one whole sequence at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..api import NewRequest, SamplingParams, TokenLogprobs
from ..errors import RequestError
from .grammar import GrammarOracle
from .llama import LlamaOracle, check_vocabulary
from .noise import Purpose, gumbel
from .sampling import Drawing, filtered, is_plain, log_softmax, magnitude, process, report


@dataclass(frozen=True)
class OracleTokens:
    """The output of a request.

    Attributes:
        token_ids: tokens generated after ``request.token_ids``.
        logprobs: natural logarithm of each one's probability under the model, before temperature.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class ScoredToken:
    """One observed token, judged given everything observed before it.

    A *score* is what the sampler maximises: the logit for greedy decoding, else logit / temperature + Gumbel noise.
    All numbers are float64.

    Attributes:
        index: 0 for the first token after the prompt.
        position: number of tokens before it in the sequence.
        choice: the oracle's own token after the observed prefix.
        observed: the token that was observed.
        gap: score of ``choice`` minus score of ``observed``; 0 when they are the same token, never negative.
        logprob: natural logarithm of the probability of ``observed`` under the model, before temperature.
        choice_logprob: the same for ``choice``.
        scores: scores of ``choice`` and ``observed``.
        logits: logits of ``choice`` and ``observed``.
        top_logit: the largest logit of the row.
        mean_drop: mean of ``top_logit`` - logit under the model's distribution; part of the rounding bound.
        drawing: what the token is drawn from, if that is more than the logits divided by the temperature.
    """

    index: int
    position: int
    choice: int
    observed: int
    gap: float
    logprob: float
    choice_logprob: float
    scores: tuple[float, float]
    logits: tuple[float, float]
    top_logit: float
    mean_drop: float
    drawing: Drawing | None = field(default=None, repr=False, compare=False)


class Oracle:
    """Answers for requests by the definition of the model and of the noise, without any state between calls.

    Args:
        model: the model; float64 for a reference.
        grammars: reads grammars; needed for requests that have one.
    """

    def __init__(self, model: LlamaOracle, grammars: GrammarOracle | None = None) -> None:
        self.model = model
        self._grammars = grammars

    def generate(self, request: NewRequest) -> OracleTokens:
        """Continue a request token by token until ``max_tokens`` or a stop token; every token costs a whole pass.

        ``max_tokens`` counts from the end of the prompt, so a resumed request gets what it had left.

        Raises:
            RequestError: see :meth:`score`.
        """
        _check(request)
        tokens, logprobs = list(request.token_ids), []
        while len(tokens) < request.prompt_len + request.sampling.max_tokens:
            logits = self.masked(self._logits(tokens)[-1], request, tokens)
            tokens.append(_choose(_draw(logits, request, tokens), request.sampling))
            logprobs.append(float(log_softmax(logits)[tokens[-1]]))
            if tokens[-1] in request.sampling.stop_token_ids:
                break
        return OracleTokens(tuple(tokens[len(request.token_ids) :]), tuple(logprobs))

    def score(self, request: NewRequest, token_ids: Sequence[int]) -> tuple[ScoredToken, ...]:
        """Judge tokens that someone generated after ``request.token_ids``, in one pass.

        A logit depends on earlier tokens only, so each row of the pass is the row that token-by-token decoding sees.

        Raises:
            RequestError: the request draws without a seed, its ``prompt_len`` is not a part of its tokens, a token
                id is outside the vocabulary, or the sequence is longer than the model's positions.
        """
        _check(request)
        if not token_ids:
            return ()
        check_vocabulary(token_ids, self.model.config)
        known = len(request.token_ids)
        tokens = [*request.token_ids, *token_ids]
        logits = self._logits(tokens[:-1])[known - 1 :]
        return tuple(
            _score(self.masked(row, request, tokens[:position]), request, tokens[:position], token)
            for position, (row, token) in enumerate(zip(logits, token_ids, strict=True), start=known)
        )

    def prompt_logprobs(self, request: NewRequest) -> tuple[TokenLogprobs | None, ...]:
        """What a request that asks for ``prompt_logprobs`` is told of its prompt; None for the first token.

        Raises:
            RequestError: see :meth:`score`.
        """
        _check(request)
        prompt, sampling = request.token_ids[: request.prompt_len], request.sampling
        rows = [log_softmax(row) for row in self._logits(prompt)[:-1]]
        count, fixed = sampling.prompt_logprobs, sampling.logprob_token_ids
        pairs = zip(rows, prompt[1:], strict=True)
        return (None, *(report(row, token, count, fixed) for row, token in pairs))

    def masked(self, logits: NDArray[np.float64], request: NewRequest, tokens: Sequence[int]) -> NDArray[np.float64]:
        """The logits that the request's grammar leaves behind some tokens; they count as the model's own from here on.

        Args:
            logits: float64 [V].
            tokens: of the request, its prompt among them.

        Returns:
            float64 [V], minus infinity for tokens that the grammar forbids; ``logits`` itself without a grammar.

        Raises:
            RequestError: the oracle was made without grammars.
        """
        if request.sampling.grammar is None:
            return logits
        if self._grammars is None:
            raise RequestError(
                f"request {request.request_id!r} with a grammar",
                "this oracle was made without grammars",
                "whoever ignores a grammar draws other tokens",
                "Oracle(model, GrammarOracle(...)) with the model's vocabulary",
            )
        return np.where(self._grammars.allowed(request, tokens), logits, -np.inf)

    def _logits(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        logits: NDArray[np.float64] = self.model.logits(tokens).numpy().astype(np.float64)
        return logits


def runner_temperature(sampling: SamplingParams) -> float:
    """The temperature as the device stores it, in float32."""
    return float(np.float32(sampling.temperature))


def _score(logits: NDArray[np.float64], request: NewRequest, before: Sequence[int], observed: int) -> ScoredToken:
    drawing, logprobs = _draw(logits, request, before), log_softmax(logits)
    choice = _choose(drawing, request.sampling)
    kept, scores = filtered(drawing.processed, request.sampling).possibly, drawing.scores
    return ScoredToken(
        index=len(before) - request.prompt_len,
        position=len(before),
        choice=choice,
        observed=observed,
        gap=0.0 if observed == choice else float(scores[choice] - scores[observed]) if kept[observed] else math.inf,
        logprob=float(logprobs[observed]),
        choice_logprob=float(logprobs[choice]),
        scores=(float(scores[choice]), float(scores[observed])),
        logits=(float(logits[choice]), float(logits[observed])),
        top_logit=float(logits.max()),
        mean_drop=_mean_drop(logits, logprobs),
        drawing=None if is_plain(request.sampling) else drawing,
    )


def _mean_drop(logits: NDArray[np.float64], logprobs: NDArray[np.float64]) -> float:
    possible = logits > -np.inf  # what is forbidden has no share in a mean, though it is infinitely far
    return float(np.exp(logprobs[possible]) @ (logits.max() - logits[possible]))


def _draw(logits: NDArray[np.float64], request: NewRequest, before: Sequence[int]) -> Drawing:
    processed, sampling = process(logits, request, before), request.sampling
    scores = processed
    if runner_temperature(sampling) != 0 and sampling.seed is not None:
        scores = processed + gumbel(sampling.seed, len(before), len(logits), Purpose.TARGET)
    return Drawing(processed, scores, magnitude(logits, sampling, len(before)))


def _choose(drawing: Drawing, sampling: SamplingParams) -> int:
    kept = filtered(drawing.processed, sampling).possibly
    if not kept.any():
        return 0  # every token is forbidden
    return int(np.argmax(np.where(kept, drawing.scores, -np.inf)))  # of equals the first, the lowest token id


def _check(request: NewRequest) -> None:
    if request.sampling.temperature > 0 and request.sampling.seed is None:
        raise RequestError(
            f"request {request.request_id!r} with temperature={request.sampling.temperature} and seed=None",
            "a request that draws must carry its seed",
            "the noise is a function of the seed, so without it there is no defined answer",
            "the seed that the engine drew for this request",
        )
    if not 1 <= request.prompt_len <= len(request.token_ids):
        raise RequestError(
            f"request {request.request_id!r} with prompt_len={request.prompt_len}",
            f"prompt_len must be between 1 and its {len(request.token_ids)} tokens",
            "max_tokens counts from the end of the prompt",
            "the number of leading token_ids that are the prompt",
        )
