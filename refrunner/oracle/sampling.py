"""What a token is drawn from: the logits after every stage of the sampling parameters, one request at a time.

The stages, in order: allowed ids, bias, minimum of tokens, penalties, bad words, temperature; then the filters min-p,
top-k and top-p, each on what the one before it left. NaN counts as minus infinity from the start.

:func:`process` computes in the type of its logits. In float64 it is the reference. In float32 it is the contract to the
last bit: each operation rounds once, so a kernel has no freedom, and its result must be equal.

A filter draws a line, and a logit that is known only up to an error may fall on either side of it. :func:`filtered`
therefore answers twice: which tokens are kept however the errors fall, and which may be kept for some of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..api import NewRequest, SamplingParams, TokenLogprobs

Row = NDArray[np.floating]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Kept:
    """Which tokens the filters keep, bool [V] each.

    Attributes:
        surely: kept for all errors within the slack.
        possibly: kept for some.
    """

    surely: Mask
    possibly: Mask


@dataclass(frozen=True)
class Drawing:
    """What one token is drawn from.

    Attributes:
        processed: [V], logits through all stages before the filters.
        scores: [V], what the sampler maximises among the tokens that the filters keep.
        magnitude: largest intermediate number on the way, before the temperature; rounding errors are a share of it.
    """

    processed: Row
    scores: Row
    magnitude: float


def is_plain(sampling: SamplingParams) -> bool:
    """Whether a token is drawn from the model's own logits, divided by the temperature and nothing else."""
    neutral = SamplingParams()
    stages = (
        "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "min_tokens",
        "logit_bias", "allowed_token_ids", "bad_words",
    )  # fmt: skip
    return all(getattr(sampling, name) == getattr(neutral, name) for name in stages)


def error_gain(sampling: SamplingParams) -> float:
    """By how much the stages may enlarge an error of a logit."""
    repetition = sampling.repetition_penalty
    return max(1.0, repetition, 1 / repetition) / (float(np.float32(sampling.temperature)) or 1.0)


def magnitude(logits: Row, sampling: SamplingParams, length: int) -> float:
    """Bound of the intermediate numbers of :func:`process` for a sequence of some length, before the temperature."""
    largest = np.abs(logits[np.isfinite(logits)]).max(initial=0.0)
    largest += max((abs(bias) for _, bias in sampling.logit_bias), default=0.0)
    largest *= max(1.0, sampling.repetition_penalty, 1 / sampling.repetition_penalty)
    return float(largest + abs(sampling.frequency_penalty) * length + abs(sampling.presence_penalty))


def process(logits: Row, request: NewRequest, tokens: Sequence[int]) -> Row:
    """Logits after all stages before the filters.

    Args:
        logits: [V], float32 or float64.
        request: its parameters and how much of ``tokens`` is its prompt.
        tokens: everything before the token to draw, prompt and generated.
    """
    sampling, number = request.sampling, logits.dtype.type
    row = np.where(np.isnan(logits), number(-np.inf), logits)
    if sampling.allowed_token_ids is not None:
        forbidden = np.ones(len(row), dtype=bool)
        forbidden[list(sampling.allowed_token_ids)] = False
        row[forbidden] = -np.inf
    for token, bias in sampling.logit_bias:
        row[token] = row[token] + _stored(bias, number)
    if len(tokens) - request.prompt_len < sampling.min_tokens:
        row[list(sampling.stop_token_ids)] = -np.inf
    row = _penalize(row, sampling, tokens[: request.prompt_len], tokens[request.prompt_len :])
    for *prefix, last in sampling.bad_words:
        if len(prefix) <= len(tokens) and list(tokens[len(tokens) - len(prefix) :]) == prefix:
            row[last] = -np.inf
    temperature = _stored(sampling.temperature, number)
    return row / temperature if temperature else row


def filtered(processed: Row, sampling: SamplingParams, slack: float = 0.0) -> Kept:
    """What min-p, top-k and top-p keep.

    Args:
        processed: [V], through all stages before.
        sampling: the parameters.
        slack: how far each of ``processed`` may be from the truth. Two of them may differ by twice as much.
    """
    row = processed.astype(np.float64)
    everything = row > -np.inf
    kept = Kept(everything, everything.copy())
    if not everything.any():
        return kept
    if sampling.min_p:
        # In the type of the logits, as the stages are: the sum is one more rounding.
        line = float(processed.max() + processed.dtype.type(np.float32(math.log(np.float32(sampling.min_p)))))
        kept = Kept(everything & (row - 2 * slack >= line), everything & (row + 2 * slack >= line))
    if sampling.top_k:
        kept = _top_k(row, kept, sampling.top_k, slack)
    if sampling.top_p < 1:
        kept = _top_p(row, kept, float(np.float32(sampling.top_p)), slack)
    return kept


def top_p_error(row: Row) -> float:
    """How far a sampler's share of probability may be from the exact one.

    A sampler may cut each weight exp(x - max) to a multiple of 2^-40, and its float32 exponential is good to two units
    in the last place of the result and to one rounding of the argument, on average over the distribution.
    """
    finite = row[row > -np.inf]
    drop = finite.max() - finite
    weight = np.exp(-drop)
    return float(2.0**-19 + len(row) * 2.0**-39 + 2.0**-22 * (weight @ drop) / weight.sum())


def report(values: Row, token: int, count: int | None, fixed: Sequence[int] = ()) -> TokenLogprobs:
    """What is reported of a token: its value, its rank, and the largest values, the lowest id first among equals.

    Args:
        values: [V], log-probabilities or logits.
        token: the token.
        count: as ``SamplingParams.logprobs``; -1 is the whole vocabulary, in order.
        fixed: further tokens to report.
    """
    order = np.arange(len(values)) if count == -1 else np.lexsort((np.arange(len(values)), -values))[: count or 0]
    return TokenLogprobs(
        value=float(values[token]),
        rank=1 + int((values > values[token]).sum()),
        token_ids=tuple(order.tolist()),
        values=tuple(values[order].tolist()),
        fixed=tuple(float(values[other]) for other in fixed),
    )


def log_softmax(row: Row) -> NDArray[np.float64]:
    """Natural logarithm of the softmax, float64; minus infinity stays so."""
    shifted = row.astype(np.float64) - float(row.max())
    return shifted - np.log(np.exp(shifted).sum())  # type: ignore[no-any-return]


def _stored(value: float, number: type[np.floating]) -> np.floating:
    """A parameter as the device stores it, in float32."""
    return number(np.float32(value))


def _penalize(row: Row, sampling: SamplingParams, prompt: Sequence[int], generated: Sequence[int]) -> Row:
    number, counts = row.dtype.type, Counter(generated)
    repetition = _stored(sampling.repetition_penalty, number)
    seen = sorted({*prompt, *generated})
    row[seen] = np.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
    for token, count in counts.items():
        row[token] = row[token] - number(count) * _stored(sampling.frequency_penalty, number)
        row[token] = row[token] - _stored(sampling.presence_penalty, number)
    return row


def _top_k(row: Row, kept: Kept, k: int, slack: float) -> Kept:
    surely_above = _sums_above(row, row + 2 * slack, kept.surely, np.ones_like(row))
    possibly_above = _sums_above(row, row - 2 * slack, kept.possibly, np.ones_like(row)) - (slack > 0)
    return Kept(kept.surely & (possibly_above < k), kept.possibly & (surely_above < k))


def _top_p(row: Row, kept: Kept, share: float, slack: float) -> Kept:
    weight, error = np.exp(row - row.max()), top_p_error(row)
    with np.errstate(over="ignore"):  # logits over the smallest temperature: nothing is certain of their ratios then
        spread = np.exp(2 * slack)
    least = _sums_above(row, row + 2 * slack, kept.surely, weight) / weight[kept.possibly].sum() / spread
    most = _sums_above(row, row - 2 * slack, kept.possibly, weight) - (slack > 0) * weight
    with np.errstate(invalid="ignore"):  # 0 times infinity, and the line below says what 0 means
        certain = most * spread < (share - error) * weight[kept.surely].sum()
    # With nothing above it, a token is kept whatever the share.
    return Kept(kept.surely & (certain | (most <= 0)), kept.possibly & ((least < share + error) | (least <= 0)))


def _sums_above(row: Row, lines: Row, mask: Mask, weight: Row) -> Row:
    """For each line the weight of the masked entries that lie above it."""
    order = np.argsort(row[mask], kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(weight[mask][order][::-1])))
    above = mask.sum() - np.searchsorted(row[mask][order], lines, side="right")
    return sums[above]  # type: ignore[no-any-return]
