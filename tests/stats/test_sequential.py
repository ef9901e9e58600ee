import math

import numpy as np
import pytest
from scipy.stats import chi2, multinomial

from mrv2.stats.design import min_num_samples
from mrv2.stats.errors import ArgumentError
from mrv2.stats.sequential import (
    BetaBinomialEProcess,
    DirichletMixtureEProcess,
    LikelihoodRatioEProcess,
    confidence_sequence,
    e_bonferroni,
)


def test_evidence_is_a_fair_bet():
    """Its mean under the claim is 1, summed over every outcome of five draws."""
    p, mean = np.array([0.5, 0.3, 0.2]), 0.0
    for a in range(6):
        for b in range(6 - a):
            counts = np.array([a, b, 5 - a - b])
            mean += multinomial.pmf(counts, 5, p) * math.exp(DirichletMixtureEProcess(p, counts).log_e)
    assert mean == pytest.approx(1.0, abs=1e-9)


def test_evidence_grows_by_portions_as_at_once():
    p = np.full(8, 1 / 8)
    counts = np.random.default_rng(0).multinomial(1000, p, 5)
    process = DirichletMixtureEProcess(p)
    for portion in counts:
        process.add(portion)
    assert process.draws == 5000
    assert process.log_e == pytest.approx(DirichletMixtureEProcess(p, counts.sum(axis=0)).log_e)


def test_looking_often_costs_nothing_and_repeating_a_chi_square_test_does():
    random, p, runs, looks = np.random.default_rng(1), np.full(4, 0.25), 100, 50
    alarms = {"evidence": 0, "chi-square": 0}
    for _ in range(runs):
        counts = np.cumsum(random.multinomial(100, p, looks), axis=0)
        expected = counts.sum(axis=1, keepdims=True) / 4
        alarms["chi-square"] += chi2.sf(((counts - expected) ** 2 / expected).sum(axis=1), 3).min() < 0.01
        alarms["evidence"] += max(DirichletMixtureEProcess(p, row).log_e for row in counts) >= math.log(100)
    assert alarms["evidence"] <= 5 and alarms["chi-square"] >= 5


def test_a_deviation_is_found_with_few_more_draws_than_by_a_fixed_test():
    p = np.array([4e-3, 1 - 4e-3])
    fixed = min_num_samples(0.92 * math.sqrt(p[0] / p[1]), 1e-6, 0.1)
    random, found = np.random.default_rng(2), 0
    for _ in range(100):
        successes = random.binomial(int(1.4 * fixed), 0.08 * p[0])
        found += BetaBinomialEProcess(p[0], successes, int(1.4 * fixed) - successes).log_e >= math.log(1e6)
    assert found >= 90


def test_an_impossible_draw_is_infinite_evidence():
    process = DirichletMixtureEProcess(np.array([0.0, 1.0]), np.array([1, 5]))
    assert process.log_e == math.inf and process.p_value == 0.0
    assert DirichletMixtureEProcess(np.array([0.5, 0.5])).p_value == 1.0


def test_likelihood_ratio_of_a_named_alternative():
    claimed, short = np.array([4e-3, 0.996]), np.array([3.2e-4, 1 - 3.2e-4])
    process = LikelihoodRatioEProcess(claimed, short)
    process.add(np.array([2, 5998]))
    assert process.log_e == pytest.approx(2 * math.log(0.08) + 5998 * math.log(short[1] / 0.996))
    cut = LikelihoodRatioEProcess(claimed, np.array([0.0, 1.0]))
    cut.add(np.array([1, 10]))
    assert cut.log_e == -math.inf
    with pytest.raises(ArgumentError):
        LikelihoodRatioEProcess(claimed, np.ones(3))


def test_confidence_sequence_covers_at_all_times():
    random, missed = np.random.default_rng(3), 0
    for _ in range(200):
        successes = np.cumsum(random.random(400) < 0.3)
        missed += any(
            not low <= 0.3 <= high
            for low, high in (confidence_sequence(int(successes[n - 1]), n, 0.05) for n in range(20, 401, 20))
        )
    assert missed <= 12  # 10 expected at the very most


def test_confidence_sequence_ends():
    assert confidence_sequence(0, 0, 0.05) == (0.0, 1.0)
    low, high = confidence_sequence(0, 1000, 0.05)
    assert low == 0.0 and 3e-3 < high < 2e-2
    assert confidence_sequence(1000, 1000, 0.05)[0] == pytest.approx(1 - high)
    low, high = confidence_sequence(5000, 10_000, 0.05)
    assert 0.47 < low < 0.5 < high < 0.53


def test_e_bonferroni_weighs():
    log_e = np.log([1e5, 1e5, 1e9])
    assert e_bonferroni(log_e, 1e-4, np.array([0.5, 0.01, 0.49])).tolist() == [True, False, True]


@pytest.mark.parametrize(
    "call",
    [
        lambda: DirichletMixtureEProcess(np.array([0.5, 0.6])),
        lambda: DirichletMixtureEProcess(np.array([0.5, 0.5]), np.array([1, 2, 3])),
        lambda: DirichletMixtureEProcess(np.array([0.5, 0.5]), np.array([1, -2])),
        lambda: confidence_sequence(5, 3, 0.05),
        lambda: confidence_sequence(1, 3, 0.0),
        lambda: e_bonferroni(np.array([math.nan]), 1e-4, np.array([1.0])),
        lambda: e_bonferroni(np.array([1.0, 2.0]), 1e-4, np.array([0.9, 0.9])),
        lambda: e_bonferroni(np.array([]), 1e-4, np.array([])),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ArgumentError):
        call()
