"""Compare draws one by one with an independent exact computation of the same draws.

A draw is a pure function of its key, so nothing random is left: a defect that changes a share d of the draws shows
after ``2.3 / d`` of them with probability 0.9, where a test of the distribution needs about ``40 / d**2``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError, require_rate

NOISE_ERROR = 2.1e-6  # largest error measured of a float32 Gumbel transform, over its 2**32 inputs


class ExactScores(Protocol):
    """The scores whose argmax a sampler draws, computed apart from it in float64."""

    def __call__(
        self, logits: NDArray[np.float32], temperature: float, seed: int, position: int
    ) -> NDArray[np.float64]:
        """Scores of every token, float64 [V]; temperature above 0 and representable in float32."""
        ...


@dataclass(frozen=True)
class Mismatch:
    """A draw that is not the argmax of its exact scores, by more than rounding explains.

    Attributes:
        seed: key of the draw.
        position: key of the draw.
        drawn: token of the sampler under test.
        exact: argmax of the exact scores.
        drawn_score: exact score of ``drawn``.
        exact_score: exact score of ``exact``, the larger one.
    """

    seed: int
    position: int
    drawn: int
    exact: int
    drawn_score: float
    exact_score: float

    @property
    def gap(self) -> float:
        """By how much the token drawn loses."""
        return self.exact_score - self.drawn_score


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found.

    Attributes:
        replayed: draws compared.
        ambiguous: draws whose token differs within the guard; they count as equal.
        mismatches: draws that differ beyond it, in the order of the draws.
    """

    replayed: int
    ambiguous: int
    mismatches: tuple[Mismatch, ...]


def gumbel_scores(noise: Callable[[int, int, int], NDArray[np.float64]]) -> ExactScores:
    """Gumbel-max scores ``logits / temperature + noise`` in float64.

    Args:
        noise: (seed, position, vocabulary size V) to standard Gumbel noise, float64 [V].
    """

    def scores(logits: NDArray[np.float32], temperature: float, seed: int, position: int) -> NDArray[np.float64]:
        scaled: NDArray[np.float64] = logits.astype(np.float64) / float(np.float32(temperature))
        return scaled + noise(seed, position, logits.size)

    return scores


def float32_guard(magnitude: float) -> float:
    """Largest score gap that a correct float32 sampler can get wrong: 4 ulp of the score and the noise's own error.

    Args:
        magnitude: largest absolute score or scaled logit among those that can win.

    Returns:
        ``4 * ulp(float32(magnitude)) + 2.1e-6``.
    """
    return 4.0 * float(np.spacing(np.float32(abs(magnitude)))) + NOISE_ERROR


def replay(
    tokens: NDArray[np.int64],
    seeds: NDArray[np.uint64],
    positions: NDArray[np.int64],
    exact_scores: Callable[[int, int], NDArray[np.float64]],
    guard: float,
) -> ReplayResult:
    """Recompute every draw and compare.

    Args:
        tokens: int64 [N], drawn by the sampler under test, in [0, V).
        seeds: uint64 [N].
        positions: int64 [N].
        exact_scores: (seed, position) to float64 [V].
        guard: score gap up to which rounding may decide, e.g. :func:`float32_guard`.

    Raises:
        ArgumentError: lengths differ, a token is outside the vocabulary, or a score is NaN.
    """
    if not len(tokens) == len(seeds) == len(positions):
        raise ArgumentError(
            f"{len(tokens)} tokens, {len(seeds)} seeds, {len(positions)} positions",
            "one seed and one position per token",
            "a draw is recomputed from its own key",
            "three arrays of one length",
        )
    ambiguous, mismatches = 0, []
    for token, seed, position in zip(tokens.tolist(), seeds.tolist(), positions.tolist(), strict=True):
        scores = exact_scores(seed, position)
        _require_scores(scores, token)
        exact = int(scores.argmax())
        mismatch = Mismatch(seed, position, token, exact, float(scores[token]), float(scores[exact]))
        if mismatch.gap > guard:
            mismatches.append(mismatch)
        elif token != exact:
            ambiguous += 1
    return ReplayResult(len(tokens), ambiguous, tuple(mismatches))


def merge(results: Sequence[ReplayResult]) -> ReplayResult:
    """One result from several, in order."""
    return ReplayResult(
        sum(result.replayed for result in results),
        sum(result.ambiguous for result in results),
        tuple(mismatch for result in results for mismatch in result.mismatches),
    )


def min_replayed(changed_share: float, false_pass_rate: float) -> int:
    """Draws to replay so that a defect which changes this share of them is missed at most at the given rate.

    Raises:
        ArgumentError: one of the two is not in (0, 1).
    """
    require_rate("changed_share", changed_share)
    require_rate("false_pass_rate", false_pass_rate)
    return math.ceil(math.log(false_pass_rate) / math.log1p(-changed_share))


def min_changed_share(replayed: int, false_pass_rate: float) -> float:
    """Smallest share of changed draws that this many replayed draws show; 1 without draws.

    Raises:
        ArgumentError: the rate is not in (0, 1).
    """
    require_rate("false_pass_rate", false_pass_rate)
    return -math.expm1(math.log(false_pass_rate) / replayed) if replayed else 1.0


def _require_scores(scores: NDArray[np.float64], token: int) -> None:
    if not 0 <= token < scores.size:
        raise ArgumentError(
            f"token {token} of vocabulary {scores.size}",
            "a token must be in [0, V)",
            "it has no score to compare",
            "report such draws before replaying",
        )
    if np.isnan(scores.max()):
        raise ArgumentError(
            "exact scores with NaN",
            "every exact score is a number",
            "the argmax would be the NaN's position",
            "finite noise, and logits that are finite or -inf",
        )
