"""Log-probabilities: what is right, and how far a correct float32 computation may be from it.

The oracle is float64 on the very tensor that the sampler got. A tolerance chosen by taste is either blind or alarms:
the error grows with the vocabulary, with the distance of logits from the largest and with the order of the sum, so
the bound is derived for each token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from .errors import ArgumentError

UNIT = 2.0**-24  # unit roundoff of float32
_FIXED = (
    4.0  # roundings of a term that do not depend on its size: exp, its argument, the logarithm, the last difference
)


def oracle_log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Log-probabilities in float64.

    Args:
        logits: [N, V], read as it is: for bfloat16 logits pass the rounded values. NaN counts as -inf.

    Returns:
        float64 [N, V]; -inf where the logit is.

    Raises:
        ArgumentError: a row has no finite largest logit.
    """
    values = np.asarray(logits, np.float64)
    values = np.where(np.isnan(values), -np.inf, values)
    if not np.isfinite(values.max(axis=1)).all():
        raise ArgumentError(
            f"logits with rows {np.flatnonzero(~np.isfinite(values.max(axis=1))).tolist()}",
            "the largest logit of a row must be finite",
            "such a row defines no probabilities",
            "leave the row out",
        )
    result: NDArray[np.float64] = values - logsumexp(values, axis=1, keepdims=True)
    return result


def error_bound(logits: NDArray[np.floating], block: int, serial: bool, divided: bool = False) -> NDArray[np.float64]:
    """Largest error of a float32 log-softmax, per token: float64 [N, V], in nats.

    With u = 2**-24, m the largest logit, o the log-probability, S the sum of exp(x - m), in units of u:
    ``|x - m| + |o| + 2 |ln S| + additions + 4 + sum(p |x - m|)``. The first two are the differences, the last the
    errors of the arguments of exp, weighted as they enter the sum. A block of B tokens is added as a tree, the V / B
    blocks one after another or as a tree (Higham, Accuracy and Stability of Numerical Algorithms, chapter 4), which
    takes ``V / B + log2 B`` or ``log2 V`` additions. The worst inputs found come within a tenth of it.

    Args:
        logits: [N, V], what the softmax is taken of.
        block: B.
        serial: whether the blocks are added one after another.
        divided: the logits are themselves quotients by a temperature, rounded to float32 before.
    """
    log_p = oracle_log_softmax(logits)
    values = np.where(np.isneginf(log_p), 0.0, np.asarray(logits, np.float64))
    top = np.max(np.where(np.isneginf(log_p), -np.inf, values), axis=1, keepdims=True)
    inside = ~np.isneginf(log_p)
    distance = np.where(inside, np.abs(values - top), 0.0)
    probabilities = np.exp(log_p)
    blocks = -(-log_p.shape[1] // block)
    additions = math.log2(min(block, log_p.shape[1])) + (blocks if serial else math.ceil(math.log2(blocks)))
    log_sum = np.abs(np.where(inside, log_p, 0.0).max(axis=1, where=inside, initial=-np.inf))[:, np.newaxis]
    units = distance + np.abs(np.where(inside, log_p, 0.0)) + 2.0 * log_sum + additions + _FIXED
    units = units + (probabilities * distance).sum(axis=1, keepdims=True)
    if divided:
        size = np.abs(values) + np.abs(top)
        units = units + size + (probabilities * size).sum(axis=1, keepdims=True)
    bound: NDArray[np.float64] = UNIT * units
    return bound


@dataclass(frozen=True)
class Accuracy:
    """How log-probabilities compare with the oracle.

    Attributes:
        largest: largest error, nats.
        ratio: largest error over its bound; above 1 it is wrong.
        row: where that is.
        token: where that is.
        support: tokens that are possible for one side only.
    """

    largest: float
    ratio: float
    row: int
    token: int
    support: int


def accuracy(logprobs: NDArray[np.floating], oracle: NDArray[np.float64], bound: NDArray[np.float64]) -> Accuracy:
    """Compare, all [N, V]. NaN counts as infinitely wrong."""
    given = np.asarray(logprobs, np.float64)
    impossible = np.isneginf(oracle)
    support = int((np.isneginf(given) != impossible).sum())
    with np.errstate(invalid="ignore"):
        error = np.where(impossible | np.isneginf(given), 0.0, np.abs(given - oracle))
    error = np.where(np.isnan(error), np.inf, error)
    ratio = error / bound
    row, token = (int(index) for index in np.unravel_index(ratio.argmax(), ratio.shape))
    return Accuracy(float(error.max()), float(ratio[row, token]), row, token, support)


def ranks(logits: NDArray[np.floating], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """1 + the number of logits above the token's own, int64 [N], for logits [N, V] and tokens [N]."""
    own = np.take_along_axis(np.asarray(logits, np.float64), tokens[:, np.newaxis], axis=1)
    above = np.asarray(logits, np.float64) > own
    return np.asarray(1 + above.sum(axis=1), np.int64)


def telltale_rows(count: int, vocab_size: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Rows that differ by more than a nat at every token from each other: a result of another row cannot pass.

    Each row has a level of its own per token, drawn without repetition from levels two nats apart.

    Returns:
        float32 [count, vocab_size].
    """
    levels = np.argsort(random.random((count, vocab_size)), axis=0)
    return (2.0 * levels + random.normal(0.0, 0.1, (count, vocab_size))).astype(np.float32)
