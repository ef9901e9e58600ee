"""Tests that use the order of token ids: a trend over the ids, and the largest distance of cumulated counts."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError, require_rate
from .gof import GroupCount, TestResult
from .saddlepoint import SumLaw

_RANGES = 1024  # ids are told apart no finer than this, which keeps the law of their mean cheap


def index_trend_test(
    counts: NDArray[np.int64], log_probabilities: NDArray[np.float64], name: str = "index trend"
) -> TestResult:
    """Is the mean of the drawn ids what it should be? The most powerful test for ties that the lowest id wins.

    A sampler with noise of few bits has many equal scores on a flat row, and resolving them by id tilts its draws
    towards low ids a little everywhere. Ids are cut into at most 1,024 equal ranges; the p-value is two-sided, by the
    saddlepoint approximation of :mod:`mrv2.stats.saddlepoint`.

    Args:
        counts: int64 [V], draws of each id.
        log_probabilities: float64 [V], -inf outside the support.
        name: of the result.

    Returns:
        the standardised sum as statistic; one group with the expected and observed mean, as a share of the vocabulary.
        0 degrees of freedom if only one range can be drawn.

    Raises:
        ArgumentError: the shapes differ or there is no draw.
    """
    draws = _require_counts(counts, log_probabilities)
    ranges = min(_RANGES, counts.size)
    label = np.arange(counts.size) * ranges // counts.size
    mass = np.bincount(label, weights=np.exp(log_probabilities), minlength=ranges)
    values = (np.arange(ranges) + 0.5) / ranges
    total = float(np.bincount(label, weights=counts, minlength=ranges) @ values)
    with np.errstate(divide="ignore"):
        law = SumLaw.of([(np.log(mass / mass.sum()), values, draws)])
    mean, variance = law.moments()
    group = GroupCount("mean id, as a share of the vocabulary", mean / draws, total / draws)
    if variance <= 1e-12 * draws:
        return TestResult(name, 0.0, 1.0, draws, 0, (group,))
    return TestResult(name, (total - mean) / math.sqrt(variance), law.two_sided(total), draws, 1, (group,))


def dkwm_test(
    counts: NDArray[np.int64], probabilities: NDArray[np.float64], name: str = "largest distance of cumulated counts"
) -> TestResult:
    """The bound of Dvoretzky, Kiefer and Wolfowitz with the constant of Massart (1990, Annals of Probability 18).

    ``P(sup |F_N - F| > d) <= 2 * exp(-2 * N * d**2)`` for any distribution and any N: the p-value is never too small,
    and too large by up to an order of magnitude for discrete ones. It is blind in the tails.

    Args:
        counts: int64 [K], in an order that means something.
        probabilities: float64 [K], sum 1.
        name: of the result.

    Returns:
        the distance as statistic; one group for the place where it is reached.

    Raises:
        ArgumentError: the shapes differ or there is no draw.
    """
    draws = _require_counts(counts, probabilities)
    observed, expected = np.cumsum(counts) / draws, np.cumsum(probabilities)
    place = int(np.abs(observed - expected).argmax())
    distance = float(abs(observed[place] - expected[place]))
    group = GroupCount(f"cells 0-{place}", float(expected[place]) * draws, float(observed[place]) * draws)
    return TestResult(name, distance, min(1.0, 2.0 * math.exp(-2.0 * draws * distance**2)), draws, 1, (group,))


def dkwm_min_samples(distance: float, false_fail_rate: float, false_pass_rate: float) -> int:
    """Draws from which on :func:`dkwm_test` sees a distance between distribution functions with these error rates.

    The test fails above ``sqrt(log(2 / false_fail_rate) / 2N)``; the sample stays within
    ``sqrt(log(2 / false_pass_rate) / 2N)`` of the truth. The sum of both must not exceed the distance.

    Raises:
        ArgumentError: a rate is not in (0, 1) or the distance is not in (0, 1].
    """
    require_rate("false_fail_rate", false_fail_rate)
    require_rate("false_pass_rate", false_pass_rate)
    if not 0 < distance <= 1:
        raise ArgumentError(
            f"distance={distance!r}",
            "a distance between distribution functions is in (0, 1]",
            "both functions run from 0 to 1",
            "the smallest difference that matters, e.g. 0.01",
        )
    roots = math.sqrt(math.log(2 / false_fail_rate)) + math.sqrt(math.log(2 / false_pass_rate))
    return math.ceil(0.5 * (roots / distance) ** 2)


def _require_counts(counts: NDArray[np.int64], other: NDArray[np.float64]) -> int:
    draws = int(counts.sum()) if counts.size else 0
    if counts.shape != other.shape or counts.ndim != 1 or draws < 1:
        raise ArgumentError(
            f"counts of shape {counts.shape} and sum {draws}, a distribution of shape {other.shape}",
            "one count per outcome, and at least one draw",
            "each outcome is compared with its own probability",
            "numpy.bincount(tokens, minlength=vocab_size)",
        )
    return draws
