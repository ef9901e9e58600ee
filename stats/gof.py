"""Goodness of fit: does a sample follow the distribution it should?

Every test returns a :class:`TestResult` and decides nothing; :mod:`mrv2.stats.multiplicity` does. The p-values are
exact, or are approximations chosen because they hold far out in the tail (1e-7), where the usual ones do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy
from scipy.stats import binom, binomtest, chi2

from .errors import ArgumentError
from .pooling import GroupedCounts, index_counts, rank_counts
from .saddlepoint import SumLaw
from .strata import Stratum


@dataclass(frozen=True)
class GroupCount:
    """What was expected and observed in one group.

    Attributes:
        name: what the group is.
        expected: expected count (or value, where the test says so).
        observed: observed count (or value).
    """

    name: str
    expected: float
    observed: float


@dataclass(frozen=True)
class TestResult:
    """Answer of one test.

    Attributes:
        name: what was tested.
        statistic: the test's statistic; infinite if something impossible was observed.
        p_value: chance of a statistic at least as extreme from a correct sampler; 0.0 also stands for less than the
            smallest float.
        draws: number of independent observations.
        degrees_of_freedom: 0 if the data could not have contradicted the claim; then the test says nothing.
        groups: expected and observed, per group.
    """

    __test__: ClassVar[bool] = False  # the name starts with "Test", and pytest must not collect it

    name: str
    statistic: float
    p_value: float
    draws: int
    degrees_of_freedom: int
    groups: tuple[GroupCount, ...] = ()


def g_test(
    observed: ArrayLike, expected: ArrayLike, name: str = "G test", group_names: Sequence[str] = ()
) -> TestResult:
    """Likelihood ratio test of counts, ``G = 2 * sum(observed * ln(observed / expected))``, against chi-square.

    With 25 expected per group (:mod:`mrv2.stats.pooling`) the p-value is right down to 1e-5 and beyond.

    Args:
        observed: int [K] counts.
        expected: float [K], same sum as ``observed``. A group that expects 0 has no degree of freedom; a draw in it
            makes the statistic infinite and the p-value 0.
        name: of the result.
        group_names: K names; their numbers if left out.

    Returns:
        the result, with the number of groups that expect something, less 1, as degrees of freedom.

    Raises:
        ArgumentError: shapes or sums differ (outcomes were dropped), or a count is negative.
    """
    counts = _require_counts(observed, expected, group_names)
    possible = counts.expected > 0
    ratio = counts.observed[possible] / counts.expected[possible]
    return _divergence_result(name, counts, 2.0 * float(xlogy(counts.observed[possible], ratio).sum()))


def chi_square(
    observed: ArrayLike, expected: ArrayLike, name: str = "chi-square test", group_names: Sequence[str] = ()
) -> TestResult:
    """Pearson's test of counts, ``sum((observed - expected)**2 / expected)``.

    Its p-value is 1.5 times too small at 1e-5 with 25 expected per group; prefer :func:`g_test` for strict error rates.
    Arguments, result and errors as there.
    """
    counts = _require_counts(observed, expected, group_names)
    possible = counts.expected > 0
    difference = counts.observed[possible] - counts.expected[possible]
    return _divergence_result(name, counts, float((difference**2 / counts.expected[possible]).sum()))


def power_divergence(
    observed: ArrayLike,
    expected: ArrayLike,
    lambda_: float = 2.0 / 3.0,
    name: str = "power divergence",
    group_names: Sequence[str] = (),
) -> TestResult:
    """Test of Cressie and Read (1984, Journal of the Royal Statistical Society B 46), against chi-square.

    ``2 / (lambda * (lambda + 1)) * sum(observed * ((observed / expected)**lambda - 1))``: 1 gives Pearson's statistic,
    the limit 0 gives G. Larger lambdas look at excesses, smaller ones at holes; 2/3 is their compromise.
    Arguments, result and errors as in :func:`g_test`.

    Args:
        observed: int [K] counts.
        expected: float [K], same sum as ``observed``.
        lambda_: above -1; there an empty group makes the statistic infinite.
        name: of the result.
        group_names: K names; their numbers if left out.

    Raises:
        ArgumentError: as in :func:`g_test`, or lambda_ is -1 or below.
    """
    if not lambda_ > -1:
        raise ArgumentError(
            f"lambda_={lambda_!r}",
            "lambda_ must be above -1",
            "an empty group would make the statistic infinite, however little it expects",
            "2/3, 0 for G or 1 for Pearson's statistic",
        )
    if lambda_ == 0.0:
        return g_test(observed, expected, name, group_names)
    counts = _require_counts(observed, expected, group_names)
    seen, wanted = counts.observed[counts.expected > 0], counts.expected[counts.expected > 0]
    seen, wanted = seen[seen > 0], wanted[seen > 0]  # an empty group adds nothing to this form of the sum
    excess = float((seen * ((seen / wanted) ** lambda_ - 1.0)).sum())
    return _divergence_result(name, counts, 2.0 / (lambda_ * (lambda_ + 1.0)) * excess)


def rank_test(strata: Sequence[Stratum], name: str = "rank groups") -> TestResult:
    """G test on up to 16 groups by probability rank, over draws of one or more distributions."""
    counts = rank_counts(strata)
    return g_test(counts.observed, counts.expected, name, counts.names)


def index_test(strata: Sequence[Stratum], name: str = "index groups") -> TestResult:
    """G test on up to 16 ranges of token ids, over draws of one or more distributions."""
    counts = index_counts(strata)
    return g_test(counts.observed, counts.expected, name, counts.names)


def binomial_test(successes: int, draws: int, probability: float, name: str = "binomial test") -> TestResult:
    """Exact two-sided test of one event: sums the probability of every count no likelier than the observed one.

    Raises:
        ArgumentError: ``successes`` is not in [0, draws], there is no draw, or the probability is not in [0, 1].
    """
    if draws < 1 or not 0 <= successes <= draws or not 0.0 <= probability <= 1.0:
        raise ArgumentError(
            f"successes={successes!r}, draws={draws!r}, probability={probability!r}",
            "0 <= successes <= draws, at least one draw, and a probability in [0, 1]",
            "other values describe no experiment",
            "the count of an event, the number of draws, and the probability under the claim",
        )
    expected = draws * probability
    spread = math.sqrt(expected * (1.0 - probability))
    distance = successes - expected
    statistic = distance / spread if spread else math.copysign(math.inf, distance) if distance else 0.0
    groups = (GroupCount("event", expected, successes), GroupCount("rest", draws - expected, draws - successes))
    p_value = float(binomtest(successes, draws, probability).pvalue)
    return TestResult(name, statistic, p_value, draws, int(spread > 0 or distance != 0), groups)


def support_test(strata: Sequence[Stratum], name: str = "support") -> TestResult:
    """Was a token of probability zero drawn? It has no error rate: one such draw gives p-value 0, else it is 1.

    Returns:
        the number of such draws as statistic; one group per offending token id.
    """
    outside = [s.tokens[np.isneginf(s.log_probabilities[s.tokens])] for s in strata]
    ids, counts = np.unique(np.concatenate([np.empty(0, np.int64), *outside]), return_counts=True)
    masked = any(np.isneginf(stratum.log_probabilities).any() for stratum in strata)
    groups = tuple(GroupCount(f"id {token}", 0.0, float(count)) for token, count in zip(ids, counts, strict=True))
    draws = sum(stratum.draws for stratum in strata)
    return TestResult(name, float(counts.sum()), float(ids.size == 0), draws, int(masked), groups)


def surprisal_test(strata: Sequence[Stratum], name: str = "surprisal") -> TestResult:
    """Is the mean of ``-log p(token)`` the entropy? The most powerful test for a wrong temperature.

    The statistic is z = (sum of surprisal - sum of entropy) / standard deviation. Its two-sided p-value is the
    Lugannani-Rice saddlepoint one, because surprisal is skewed: the normal tail of z is off by a factor of 2 to 100.

    Args:
        strata: draws with the distribution of each.
        name: of the result.

    Returns:
        the result; one group with the expected and observed mean surprisal in nats. 0 degrees of freedom if every
        token of each distribution is equally likely.

    Raises:
        ArgumentError: there is no draw.
    """
    draws = sum(stratum.draws for stratum in strata)
    if draws == 0:
        raise ArgumentError(
            "strata without draws", "at least one draw is needed", "a mean of nothing is undefined", "draws"
        )
    law = SumLaw.of_surprisal([(stratum.log_probabilities, stratum.draws) for stratum in strata if stratum.draws])
    total = -sum(float(stratum.log_probabilities[stratum.tokens].sum()) for stratum in strata)
    mean, variance = law.moments()
    group = GroupCount("mean surprisal, nats", mean / draws, total / draws)
    if math.isinf(total):
        return TestResult(name, math.inf, 0.0, draws, 1, (group,))
    # A flat distribution leaves only rounding, about 1e-16 of the squared mean.
    if variance <= 1e-12 * draws:
        return TestResult(name, 0.0, 1.0, draws, 0, (group,))
    return TestResult(name, (total - mean) / math.sqrt(variance), law.two_sided(total), draws, 1, (group,))


def pair_agreement_test(
    agree: NDArray[np.bool_], probability: NDArray[np.float64], name: str = "pair agreement"
) -> TestResult:
    """Do two draws with different keys agree as often as independent draws do? Finds noise shared between keys.

    Exact: the number of agreements is a sum of independent binomials, one per distinct probability; their laws are
    convolved and the smaller tail is doubled. Meant for up to about 1e5 pairs.

    Args:
        agree: bool [P], whether the two draws of a pair gave one token. No draw may be in two pairs.
        probability: float64 [P], chance of that for independent draws, ``sum(p**2)`` of the pair's distribution.
        name: of the result.

    Returns:
        the number of agreements, standardised, as statistic; one group with the expected and observed number.

    Raises:
        ArgumentError: shapes differ or there is no pair.
    """
    if agree.shape != probability.shape or agree.size == 0:
        raise ArgumentError(
            f"agree of shape {agree.shape}, probability of shape {probability.shape}",
            "both must have the same length, at least 1",
            "each pair is judged against its own chance of agreement",
            "one entry per pair",
        )
    count, expected = int(agree.sum()), float(probability.sum())
    spread = math.sqrt(float((probability * (1.0 - probability)).sum()))
    law = _sum_of_bernoulli(probability)
    tail = min(float(law[: count + 1].sum()), float(law[count:].sum()))
    statistic = (count - expected) / spread if spread > 0 else 0.0
    group = GroupCount("agreeing pairs", expected, count)
    return TestResult(name, statistic, min(1.0, 2.0 * tail), int(agree.size), int(spread > 0), (group,))


def _sum_of_bernoulli(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exact law of a sum of independent events, float64 [P + 1]."""
    law = np.ones(1)
    for value, trials in zip(*np.unique(probability, return_counts=True), strict=True):
        law = np.convolve(law, binom.pmf(np.arange(trials + 1), trials, value))
    return law


def _require_counts(observed: ArrayLike, expected: ArrayLike, group_names: Sequence[str]) -> GroupedCounts:
    seen, wanted = np.asarray(observed), np.asarray(expected, dtype=np.float64)
    names = tuple(group_names) or tuple(f"group {index}" for index in range(seen.size))
    if seen.shape != wanted.shape or seen.ndim != 1 or len(names) != seen.size or not (seen >= 0).all():
        raise ArgumentError(
            f"observed of shape {seen.shape}, expected of shape {wanted.shape}, {len(names)} names",
            "three lists of one length, counts 0 or above",
            "each count is compared with its own expectation",
            "one entry per group in each",
        )
    if not (wanted >= 0).all() or abs(seen.sum() - wanted.sum()) > 1e-6 * max(1.0, float(wanted.sum())):
        raise ArgumentError(
            f"observed with sum {seen.sum()}, expected with sum {wanted.sum()}",
            "both must have the same sum, and no expectation may be negative",
            "a difference means that outcomes were dropped, which hides the very defect looked for",
            "a group for every outcome, with expected 0 for impossible ones",
        )
    return GroupedCounts(names, seen, wanted)


def _divergence_result(name: str, counts: GroupedCounts, statistic: float) -> TestResult:
    impossible = bool(counts.observed[counts.expected == 0].any())
    df = int((counts.expected > 0).sum()) - 1
    statistic = math.inf if impossible else statistic if df > 0 else 0.0
    p_value = 0.0 if impossible else float(chi2.sf(statistic, df)) if df > 0 else 1.0
    rows = zip(counts.names, counts.expected.tolist(), counts.observed.tolist(), strict=True)
    groups = tuple(GroupCount(*row) for row in rows if row[1] > 0 or row[2] > 0)
    return TestResult(name, statistic, p_value, int(counts.observed.sum()), max(df, int(impossible)), groups)
