"""How many draws a test needs, and what it could have missed.

The *discrepancy* D between the true distribution q and the claimed p is the square root of their chi-square divergence,
``D = sqrt(sum((q - p)**2 / p))``, summed over the groups of the test. After N draws the G and chi-square statistics
follow a noncentral chi-square law with noncentrality ``N * D**2`` (Patnaik 1949, Biometrika 36; Cohen 1988 calls D the
effect size w), so D, N and the error rates fix each other. D is a relative error: with D = 0.1 the root mean square of
``q/p - 1`` under p is 10 %.

Error rates are named as TensorFlow Probability's statistical testing names them: ``false_fail_rate`` is the chance that
a correct sampler fails, ``false_pass_rate`` the chance that a sampler wrong by D passes (power is its complement).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, binom, chi2, ncx2

from .errors import ArgumentError, require_rate


@lru_cache(maxsize=1024)
def noncentrality(false_fail_rate: float, false_pass_rate: float, df: int) -> float:
    """Smallest noncentrality of a chi-square test with these error rates.

    Args:
        false_fail_rate: alpha of the test.
        false_pass_rate: 1 - power.
        df: degrees of freedom, at least 1.

    Returns:
        lambda with ``P(chi2'(df, lambda) > critical value) = 1 - false_pass_rate``.

    Raises:
        ArgumentError: a rate is not in (0, 1), their sum is 1 or more, or df is below 1.
    """
    _require_test(false_fail_rate, false_pass_rate, df)
    critical = float(chi2.isf(false_fail_rate, df))

    def excess(value: float) -> float:
        return float(ncx2.sf(critical, df, value)) - (1.0 - false_pass_rate)

    # The mean of the noncentral law is df + lambda, and its spread is below the critical value's own distance.
    upper = critical
    while excess(upper) < 0:
        upper *= 2.0
    return float(brentq(excess, 1e-12, upper, xtol=1e-9))


def min_num_samples(discrepancy: float, false_fail_rate: float, false_pass_rate: float, df: int = 1) -> int:
    """Draws needed to see a discrepancy D with these error rates: ``lambda / D**2``, rounded up.

    Raises:
        ArgumentError: D is not above 0, or as in :func:`noncentrality`.
    """
    if not discrepancy > 0:
        raise ArgumentError(
            f"discrepancy={discrepancy!r}",
            "discrepancy must be above 0",
            "no number of draws tells equal distributions apart",
            "the smallest error that matters, e.g. 0.1",
        )
    return math.ceil(noncentrality(false_fail_rate, false_pass_rate, df) / discrepancy**2)


def min_discrepancy(num_samples: int, false_fail_rate: float, false_pass_rate: float, df: int = 1) -> float:
    """Smallest discrepancy D that this many draws show with these error rates: ``sqrt(lambda / N)``.

    Raises:
        ArgumentError: there is no draw, or as in :func:`noncentrality`.
    """
    _require_draws(num_samples)
    return math.sqrt(noncentrality(false_fail_rate, false_pass_rate, df) / num_samples)


def power_curve(
    num_samples: NDArray[np.int64], discrepancy: float, false_fail_rate: float, df: int = 1
) -> NDArray[np.float64]:
    """Chance to fail a sampler that is wrong by ``discrepancy``, for each number of draws.

    Args:
        num_samples: int64 [M].
        discrepancy: D of this module, 0 or above; at 0 the curve is ``false_fail_rate``.
        false_fail_rate: alpha of the test.
        df: degrees of freedom.

    Returns:
        float64 [M].

    Raises:
        ArgumentError: the rate is not in (0, 1) or df is below 1.
    """
    _require_test(false_fail_rate, 0.0, df)
    critical = chi2.isf(false_fail_rate, df)
    result: NDArray[np.float64] = ncx2.sf(critical, df, np.asarray(num_samples) * discrepancy**2)
    return result


def event_discrepancy(probability: float, relative_error: float) -> float:
    """Discrepancy of one event (a tail, a block) whose probability is off by a relative error.

    With event probability p and true probability ``p * (1 + r)`` the chi-square divergence is ``p * r**2 / (1 - p)``.
    Use it with ``df=1``; below about 25 expected events :func:`min_event_probability` is the exact answer.

    Raises:
        ArgumentError: the probability is not in (0, 1).
    """
    _require_event(probability)
    return abs(relative_error) * math.sqrt(probability / (1.0 - probability))


def temperature_discrepancy(probabilities: NDArray[np.float64], relative_error: float) -> float:
    """Discrepancy of a sampler whose temperature is off by a small relative error, to first order.

    softmax(x / T) is an exponential family in 1/T, and the Fisher information of ln T is the variance of ``log p`` (the
    varentropy, in nats squared): the mean surprisal moves by that variance times the error. The surprisal test is the
    most powerful one for it, so use ``df=1``. The flatter the row, the less a temperature error changes and shows.

    Args:
        probabilities: float64 [V], the claimed distribution at the nominal temperature.
        relative_error: e.g. 0.15 for a temperature of 0.805 instead of 0.7.

    Returns:
        ``abs(relative_error) * sqrt(Var(log p))``.
    """
    inside = probabilities[probabilities > 0]
    surprisal = -np.log(inside)
    entropy = float(inside @ surprisal)
    return abs(relative_error) * math.sqrt(float(inside @ (surprisal - entropy) ** 2))


def min_event_probability(
    num_samples: int, probability: float, false_fail_rate: float, false_pass_rate: float
) -> float:
    """Smallest raised probability of an event that an exact two-sided binomial test sees.

    Half of ``false_fail_rate`` belongs to the upper tail. The critical count is the smallest k with
    ``P(X >= k) <= false_fail_rate / 2``; that k is reached with the wanted power from the quantile of the
    Beta(k, n - k + 1) law on (Clopper and Pearson 1934, Biometrika 26).

    Args:
        num_samples: trials n.
        probability: probability of the event for a correct sampler.
        false_fail_rate: alpha of the test.
        false_pass_rate: 1 - power.

    Returns:
        a probability in (probability, 1], or infinity if even a certain event would not fail the test.

    Raises:
        ArgumentError: a rate or the probability is not in (0, 1), or there is no trial.
    """
    _require_test(false_fail_rate, false_pass_rate, 1)
    _require_event(probability)
    _require_draws(num_samples)
    critical = int(binom.isf(false_fail_rate / 2, num_samples, probability)) + 1
    if critical > num_samples:
        return math.inf
    return float(beta.ppf(1.0 - false_pass_rate, critical, num_samples - critical + 1))


@lru_cache(maxsize=1024)
def min_event_samples(probability: float, raised: float, false_fail_rate: float, false_pass_rate: float) -> int:
    """Trials from which on an exact binomial test sees an event raised from ``probability`` to ``raised``.

    Found by doubling and halving; the discreteness of the binomial makes the power a saw, so the answer can be a few
    trials above the very smallest number.

    Raises:
        ArgumentError: ``raised`` is not above ``probability``, or as in :func:`min_event_probability`.
    """
    if not probability < raised <= 1.0:
        raise ArgumentError(
            f"raised={raised!r} with probability={probability!r}",
            "raised must be above the probability and at most 1",
            "there is no excess to see otherwise",
            "the probability that a faulty sampler would show",
        )

    def seen(trials: int) -> bool:
        return min_event_probability(trials, probability, false_fail_rate, false_pass_rate) <= raised

    return _first(seen)


def min_event_loss(num_samples: int, probability: float, false_fail_rate: float, false_pass_rate: float) -> float:
    """Smallest relative loss of an event's probability that an exact two-sided binomial test sees.

    The critical count is the largest k with ``P(X <= k) <= false_fail_rate / 2``; a probability q reaches it with the
    wanted power from the quantile of the Beta(k + 1, n - k) law down (Clopper and Pearson 1934, Biometrika 26).

    Args:
        num_samples: trials n.
        probability: probability of the event for a correct sampler.
        false_fail_rate: alpha of the test.
        false_pass_rate: 1 - power.

    Returns:
        r in (0, 1], with ``q = probability * (1 - r)``; infinity if not even a full loss fails the test.

    Raises:
        ArgumentError: as in :func:`min_event_probability`.
    """
    _require_test(false_fail_rate, false_pass_rate, 1)
    _require_event(probability)
    _require_draws(num_samples)
    # The quantile is the first count whose tail reaches the level; only the one below it can be critical.
    critical = int(binom.ppf(false_fail_rate / 2, num_samples, probability)) - 1
    if critical < 0:
        return math.inf
    return 1.0 - float(beta.ppf(false_pass_rate, critical + 1, num_samples - critical)) / probability


@lru_cache(maxsize=1024)
def min_event_loss_samples(probability: float, loss: float, false_fail_rate: float, false_pass_rate: float) -> int:
    """Trials from which on an exact binomial test sees an event lose this share of its probability.

    Raises:
        ArgumentError: ``loss`` is not in (0, 1], or as in :func:`min_event_loss`.
    """
    if not 0.0 < loss <= 1.0:
        raise ArgumentError(
            f"loss={loss!r}",
            "the relative loss of a probability is above 0 and at most 1",
            "nothing lost cannot show, and no more than everything can be lost",
            "the share that a faulty sampler would lose",
        )

    def seen(trials: int) -> bool:
        return min_event_loss(trials, probability, false_fail_rate, false_pass_rate) <= loss + 1e-12

    return _first(seen)


def _first(seen: Callable[[int], bool]) -> int:
    """Smallest number for which the answer is yes, by doubling and halving."""
    above = 1
    while not seen(above):
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (below, middle) if seen(middle) else (middle, above)
    return above


def _require_test(false_fail_rate: float, false_pass_rate: float, df: int) -> None:
    require_rate("false_fail_rate", false_fail_rate)
    if false_pass_rate:
        require_rate("false_pass_rate", false_pass_rate)
    if false_fail_rate + false_pass_rate >= 1.0:
        raise ArgumentError(
            f"false_fail_rate={false_fail_rate!r}, false_pass_rate={false_pass_rate!r}",
            "the two rates must sum to less than 1",
            "a coin reaches that without a single draw",
            "false_fail_rate=1e-6, false_pass_rate=0.1",
        )
    if df < 1:
        raise ArgumentError(
            f"df={df!r}",
            "a test needs at least 1 degree of freedom",
            "with a single group every sampler passes",
            "more draws or a flatter row, so that two groups or more can be told apart",
        )


def _require_event(probability: float) -> None:
    if not 0.0 < probability < 1.0:
        raise ArgumentError(
            f"probability={probability!r}",
            "the probability of an event lies strictly between 0 and 1",
            "an impossible or certain event is a support test, without an error rate",
            "an event that can both happen and not happen",
        )


def _require_draws(num_samples: int) -> None:
    if num_samples < 1:
        raise ArgumentError(
            f"num_samples={num_samples!r}",
            "at least one draw is needed",
            "without draws every discrepancy is missed",
            "num_samples=1 or more",
        )
