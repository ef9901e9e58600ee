import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from mrv2.stats.errors import ArgumentError
from mrv2.stats.gof import (
    binomial_test,
    chi_square,
    g_test,
    index_test,
    pair_agreement_test,
    power_divergence,
    rank_test,
    support_test,
    surprisal_test,
)
from mrv2.stats.pooling import index_groups, rank_groups
from mrv2.stats.saddlepoint import SumLaw
from mrv2.stats.strata import Stratum, log_softmax

OBSERVED, EXPECTED = [43, 22, 60, 75], [50.0, 30.0, 50.0, 70.0]


def stratum(probabilities, tokens):
    with np.errstate(divide="ignore"):
        return Stratum(np.log(np.asarray(probabilities)), np.asarray(tokens, dtype=np.int64))


def zipf(size, exponent=1.1):
    weights = np.arange(1, size + 1) ** -exponent
    return weights / weights.sum()


@pytest.mark.parametrize(("test", "kind"), [(g_test, "log-likelihood"), (chi_square, "pearson")])
def test_divergence_tests_agree_with_scipy(test, kind):
    result = test(OBSERVED, EXPECTED)
    reference = scipy_stats.power_divergence(OBSERVED, EXPECTED, lambda_=kind)
    assert result.statistic == pytest.approx(reference.statistic)
    assert result.p_value == pytest.approx(reference.pvalue)
    assert (result.draws, result.degrees_of_freedom) == (200, 3)
    assert [(g.expected, g.observed) for g in result.groups] == list(zip(EXPECTED, OBSERVED, strict=True))


def test_g_test_takes_an_empty_group():
    result = g_test([0, 60], [30, 30])
    assert result.statistic == pytest.approx(2 * 60 * math.log(2))


@pytest.mark.parametrize("test", [g_test, chi_square])
def test_a_draw_outside_the_support_is_never_dropped(test):
    result = test([99, 100, 1], [100, 100, 0])
    assert result.statistic == math.inf
    assert result.p_value == 0
    assert result.groups[-1].observed == 1


@pytest.mark.parametrize("test", [g_test, chi_square])
def test_an_empty_impossible_group_costs_no_degree_of_freedom(test):
    assert test([90, 110, 0], [100, 100, 0]).degrees_of_freedom == 1


def test_one_group_says_nothing():
    result = g_test([50], [50])
    assert (result.degrees_of_freedom, result.p_value) == (0, 1.0)


@pytest.mark.parametrize("test", [rank_test, index_test])
def test_grouped_tests_of_strata_see_impossible_draws(test):
    assert test([stratum([0.5, 0.5, 0.0], [0, 1] * 50 + [2])]).p_value == 0


@pytest.mark.parametrize(
    ("successes", "draws", "probability"), [(3, 100, 0.1), (0, 2000, 0.005), (900, 2000, 0.5), (1, 1, 0.3)]
)
def test_binomial_test_is_exact(successes, draws, probability):
    counts = np.arange(draws + 1)
    law = scipy_stats.binom.pmf(counts, draws, probability)
    by_hand = law[law <= law[successes] * (1 + 1e-7)].sum()
    result = binomial_test(successes, draws, probability)
    assert result.p_value == pytest.approx(min(1.0, by_hand))
    assert np.sign(result.statistic) == np.sign(successes - draws * probability)


def test_binomial_test_of_an_impossible_event():
    result = binomial_test(1, 1000, 0.0)
    assert (result.p_value, result.statistic, result.degrees_of_freedom) == (0.0, math.inf, 1)


def test_support_test_has_no_error_rate():
    clean = support_test([stratum([0.5, 0.5, 0.0], [0, 1] * 1000)])
    wrong = support_test([stratum([0.5, 0.5, 0.0], [0, 1] * 1000), stratum([0.0, 1.0, 0.0], [2, 1, 2])])
    assert (clean.p_value, clean.statistic, clean.degrees_of_freedom) == (1.0, 0.0, 1)
    assert (wrong.p_value, wrong.statistic, wrong.draws) == (0.0, 2.0, 2003)
    assert [group.name for group in wrong.groups] == ["id 2"]


def test_support_test_without_masked_tokens_says_nothing():
    assert support_test([stratum([0.5, 0.5], [0, 1])]).degrees_of_freedom == 0


def test_surprisal_is_the_z_of_the_mean_against_the_entropy():
    probabilities = zipf(1000)
    tokens = np.random.default_rng(0).choice(1000, 500, p=probabilities)
    surprisal = -np.log(probabilities)
    entropy = probabilities @ surprisal
    spread = math.sqrt(probabilities @ (surprisal - entropy) ** 2 / 500)
    result = surprisal_test([stratum(probabilities, tokens)])
    assert result.statistic == pytest.approx((surprisal[tokens].mean() - entropy) / spread)
    assert result.groups[0].expected == pytest.approx(entropy)
    assert result.groups[0].observed == pytest.approx(surprisal[tokens].mean())


def test_surprisal_pools_distributions():
    first, second = stratum(zipf(100), [0] * 40), stratum(zipf(50, 2.0), [3] * 60)
    both = surprisal_test([first, second])
    parts = [surprisal_test([part]).groups[0] for part in (first, second)]
    assert both.draws == 100
    assert both.groups[0].expected == pytest.approx((40 * parts[0].expected + 60 * parts[1].expected) / 100)


def test_surprisal_of_a_flat_row_says_nothing():
    result = surprisal_test([stratum(np.full(7, 1 / 7), [0, 3, 6])])
    assert (result.degrees_of_freedom, result.p_value) == (0, 1.0)


def test_surprisal_of_an_impossible_draw_is_infinite():
    result = surprisal_test([stratum([0.5, 0.25, 0.25, 0.0], [0, 1, 3])])
    assert (result.statistic, result.p_value) == (math.inf, 0.0)


def test_surprisal_at_the_edge_of_the_possible():
    result = surprisal_test([stratum([0.5, 0.3, 0.2], [0] * 20)])
    assert 0.5**20 <= result.p_value <= 2.1 * 0.5**20


def test_surprisal_tail_agrees_with_the_exact_law():
    """For p = (0.6, 0.3, 0.1) the sum of 60 surprisals can be enumerated over all counts."""
    probabilities, draws = np.array([0.6, 0.3, 0.1]), 60
    surprisal = -np.log(probabilities)
    counts = np.array([(a, b, draws - a - b) for a in range(draws + 1) for b in range(draws + 1 - a)])
    totals = counts @ surprisal
    law = scipy_stats.multinomial.pmf(counts, draws, probabilities)
    tail = SumLaw.of_surprisal([(np.log(probabilities), draws)])
    for quantile in (1e-3, 1e-5, 1e-7):
        order = np.argsort(-totals)
        total = totals[order[np.searchsorted(np.cumsum(law[order]), quantile)]]
        exact = law[totals >= total - 1e-9].sum()
        assert tail.two_sided(total) == pytest.approx(2 * exact, rel=0.15)


def test_surprisal_tail_of_many_tokens_is_right_where_the_normal_is_not():
    """Sums of surprisals of a skewed row, simulated; the two-sided p-value must be uniform far out."""
    probabilities = np.concatenate([[0.9], np.full(1000, 1e-4)]) * np.concatenate([[1.0], np.linspace(0.5, 1.5, 1000)])
    probabilities /= probabilities.sum()
    draws, runs = 200, 200_000
    rng = np.random.default_rng(1)
    surprisal = -np.log(probabilities)
    # Tokens other than the first are almost equal, so their number and their mean decide.
    others = rng.binomial(draws, 1 - probabilities[0], runs)
    bound = np.concatenate([[0], np.cumsum(others)])
    values = surprisal[1:][rng.choice(1000, bound[-1], p=probabilities[1:] / probabilities[1:].sum())]
    sums = np.concatenate([[0.0], np.cumsum(values)])
    totals = (draws - others) * surprisal[0] + sums[bound[1:]] - sums[bound[:-1]]
    tail = SumLaw.of_surprisal([(np.log(probabilities), draws)])
    mean, variance = tail.moments()
    ordered = np.sort(totals)[::-1]
    for rate in (1e-2, 1e-3):
        level = ordered[int(rate * runs)]
        assert tail.two_sided(level) / 2 == pytest.approx(rate, rel=0.2)
    normal = scipy_stats.norm.sf((ordered[int(1e-3 * runs)] - mean) / math.sqrt(variance))
    assert normal < 0.6e-3


@pytest.mark.parametrize("grouping", [rank_groups, index_groups])
def test_g_test_is_calibrated_far_out(grouping):
    """400,000 simulated samples of 2000 draws: alarms at 1e-3 and 1e-4 as often as they should be."""
    probabilities = np.random.default_rng(2).permutation(zipf(5000, 1.2))
    mass = grouping(probabilities, 2000).expected(probabilities, 1)[:-1]
    counts = np.random.default_rng(3).multinomial(2000, mass / mass.sum(), size=400_000)
    expected = 2000 * mass
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts > 0, counts * np.log(counts / expected), 0.0)
    p_values = scipy_stats.chi2.sf(2 * terms.sum(axis=1), mass.size - 1)
    assert p_values[0] == pytest.approx(g_test(counts[0], expected).p_value)
    for rate, slack in ((1e-2, 0.1), (1e-3, 0.2), (1e-4, 0.5)):
        assert (p_values <= rate).mean() == pytest.approx(rate, rel=slack)


def test_pooled_strata_never_alarm_too_often():
    """A sum of different multinomials has a smaller covariance than one multinomial with the mean probabilities."""
    rng = np.random.default_rng(4)
    masses = [np.array([0.7, 0.1, 0.1, 0.1]), np.array([0.1, 0.1, 0.1, 0.7]), np.full(4, 0.25)]
    counts = sum(rng.multinomial(200, mass, size=200_000) for mass in masses)
    expected = 200 * sum(masses)
    statistic = 2 * (counts * np.log(counts / expected)).sum(axis=1)
    p_values = scipy_stats.chi2.sf(statistic, 3)
    for rate in (1e-2, 1e-3):
        assert (p_values <= rate).mean() <= rate


def test_pair_agreement_is_exact():
    probability = np.array([0.1] * 30 + [0.5] * 10)
    agree = np.array([True] * 12 + [False] * 28)
    lows, highs = scipy_stats.binom(30, 0.1), scipy_stats.binom(10, 0.5)
    exact = sum(lows.pmf(k) * highs.sf(11 - k) for k in range(13)) + lows.sf(12)
    result = pair_agreement_test(agree, probability)
    assert result.p_value == pytest.approx(2 * exact)
    assert (result.draws, result.groups[0].expected, result.groups[0].observed) == (40, 8.0, 12)


def test_pair_agreement_sees_reuse_and_the_opposite():
    chance = np.full(400, 0.3)
    assert pair_agreement_test(np.ones(400, bool), chance).p_value < 1e-100
    assert pair_agreement_test(np.zeros(400, bool), chance).p_value < 1e-50
    assert pair_agreement_test(np.arange(400) < 120, chance).p_value > 0.9


@pytest.mark.parametrize(
    "call",
    [
        lambda: g_test([1, 2], [1.0, 1.0]),
        lambda: g_test([1, 2], [3.0]),
        lambda: g_test([-1, 2], [0.5, 0.5]),
        lambda: g_test([1, 2], [4.0, -1.0]),
        lambda: chi_square([1], [1.0], group_names=("a", "b")),
        lambda: binomial_test(2, 1, 0.5),
        lambda: binomial_test(0, 0, 0.5),
        lambda: binomial_test(0, 1, math.nan),
        lambda: surprisal_test([stratum([0.5, 0.5], [])]),
        lambda: pair_agreement_test(np.zeros(0, bool), np.zeros(0)),
        lambda: pair_agreement_test(np.zeros(2, bool), np.zeros(3)),
        lambda: rank_test([Stratum(log_softmax(np.zeros(3), 1.0), np.zeros(0, np.int64))]),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ArgumentError):
        call()


@pytest.mark.parametrize("lambda_", [1.0, 2 / 3, 0.0, -0.5])
def test_power_divergence_agrees_with_scipy(lambda_):
    empty = 0 if lambda_ >= 0 else 1  # scipy answers NaN for an empty group and a negative lambda
    observed, expected = np.array([30, 55 - empty, empty, 15]), np.array([25.0, 50.0, 5.0, 20.0])
    result = power_divergence(observed, expected, lambda_)
    scipy = scipy_stats.power_divergence(observed, expected, lambda_=lambda_)
    assert (result.statistic, result.p_value) == pytest.approx((scipy.statistic, scipy.pvalue))


def test_power_divergence_with_an_empty_group_is_the_limit_of_a_small_one():
    exact = power_divergence([30, 70, 0], [25.0, 70.0, 5.0], -0.5).statistic
    observed = np.array([30, 70 - 1e-12, 1e-12])
    ratio = observed / np.array([25.0, 70.0, 5.0])
    assert exact == pytest.approx(float(2 / -0.25 * (observed * (ratio**-0.5 - 1)).sum()), abs=1e-4)


def test_power_divergence_refuses_what_an_empty_group_makes_infinite():
    with pytest.raises(ArgumentError, match="lambda_"):
        power_divergence([1, 2], [1.5, 1.5], -1.0)
