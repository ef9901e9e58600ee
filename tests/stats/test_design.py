import math

import numpy as np
import pytest
from scipy.special import xlogy
from scipy.stats import binom, chi2

from mrv2.stats.design import (
    event_discrepancy,
    min_discrepancy,
    min_event_loss,
    min_event_loss_samples,
    min_event_probability,
    min_event_samples,
    min_num_samples,
    noncentrality,
    power_curve,
    temperature_discrepancy,
)
from mrv2.stats.errors import ArgumentError
from mrv2.stats.gof import surprisal_test
from mrv2.stats.strata import Stratum, log_softmax

# Power 0.9: the table of the project's survey of sampler statistics, section 3.5.
TABLE = {
    1e-2: {1: 14.9, 15: 30.7, 255: 93},
    1e-3: {1: 20.9, 15: 39.6, 255: 115},
    1e-6: {1: 38.1, 15: 62.2, 255: 165, 1023: 302, 4095: 575, 262_143: 4399},
    1e-9: {1: 54.6, 15: 82.2, 255: 206},
}


@pytest.mark.parametrize(("rate", "df"), [(rate, df) for rate, row in TABLE.items() for df in row])
def test_noncentrality_reproduces_the_table(rate, df):
    assert noncentrality(rate, 0.1, df) == pytest.approx(TABLE[rate][df], rel=5e-3)


@pytest.mark.parametrize(("df", "numerator"), [(1, 6.2), (15, 7.9)])
def test_detection_floor(df, numerator):
    assert min_discrepancy(10_000, 1e-6, 0.1, df) == pytest.approx(numerator / 100, rel=0.01)


@pytest.mark.parametrize("df", [1, 15])
def test_samples_and_discrepancy_are_inverse(df):
    draws = min_num_samples(0.1, 1e-6, 0.1, df)
    assert min_discrepancy(draws, 1e-6, 0.1, df) <= 0.1 < min_discrepancy(draws - 1, 1e-6, 0.1, df)


def test_power_curve_meets_the_design():
    draws = min_num_samples(0.25, 1e-6, 0.1, 15)
    curve = power_curve(np.array([draws - 1, draws, 4 * draws]), 0.25, 1e-6, 15)
    assert curve[0] < 0.9 <= curve[1] < curve[2] <= 1
    assert power_curve(np.array([10, 1000]), 0.0, 1e-3) == pytest.approx([1e-3, 1e-3])


def test_the_g_test_has_the_designed_power():
    """Simulated: a defect of discrepancy D is seen in about 90 % of the samples of the designed size."""
    claimed = np.full(16, 1 / 16)
    tilt = np.linspace(-1, 1, 16)
    true = claimed * (1 + 0.3 * tilt)
    discrepancy = math.sqrt(((true - claimed) ** 2 / claimed).sum())
    draws = min_num_samples(discrepancy, 1e-4, 0.1, 15)
    counts = np.random.default_rng(0).multinomial(draws, true, size=20_000)
    statistic = 2 * xlogy(counts, counts / (draws * claimed)).sum(axis=1)
    assert (chi2.sf(statistic, 15) <= 1e-4).mean() == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("direction", [1, -1])
def test_the_surprisal_test_has_the_designed_power(direction):
    """Simulated: the temperature error of the design is seen in about 90 % of the samples, up to second order."""
    logits = np.random.default_rng(2).normal(size=1000) * 2.5
    claimed = log_softmax(logits, 1.0)
    draws = 20_000
    error = direction * min_discrepancy(draws, 1e-6, 0.1) / temperature_discrepancy(np.exp(claimed), 1.0)
    true = np.exp(log_softmax(logits, 1.0 + error))
    tokens = np.random.default_rng(3).choice(1000, (300, draws), p=true)
    failed = [surprisal_test([Stratum(claimed, each)]).p_value <= 1e-6 for each in tokens]
    assert np.mean(failed) == pytest.approx(0.9, abs=0.07)


def test_a_tail_event():
    """Survey: a tail of mass p shows a relative error of 6.2 / sqrt(N p)."""
    draws = min_num_samples(event_discrepancy(1e-3, 0.2), 1e-6, 0.1)
    assert 6.2 / math.sqrt(draws * 1e-3) == pytest.approx(0.2, rel=0.01)


def test_a_temperature_error_is_first_order():
    """The discrepancy of a small temperature error is the root of the true chi-square divergence."""
    logits = np.random.default_rng(1).normal(size=2000) * 2
    claimed, true = np.exp(log_softmax(logits, 1.0)), np.exp(log_softmax(logits, 1.001))
    exact = math.sqrt(((true - claimed) ** 2 / claimed).sum())
    assert temperature_discrepancy(claimed, 0.001) == pytest.approx(exact, rel=0.01)
    assert temperature_discrepancy(np.full(50, 0.02), 0.5) == pytest.approx(0, abs=1e-12)
    assert temperature_discrepancy(np.array([0.5, 0.0, 0.5]), 0.5) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("trials", "probability"), [(469, 0.05), (469, 0.9), (100, 0.001), (5000, 0.3)])
def test_a_raised_event_is_seen_with_the_designed_power(trials, probability):
    raised = min_event_probability(trials, probability, 1e-6, 0.1)
    critical = next(k for k in range(trials + 1) if binom.sf(k - 1, trials, probability) <= 0.5e-6)
    assert binom.sf(critical - 1, trials, raised) == pytest.approx(0.9)


def test_too_few_trials_see_nothing():
    assert min_event_probability(3, 0.5, 1e-6, 0.1) == math.inf


@pytest.mark.parametrize(("probability", "raised"), [(0.05, 0.5), (0.9, 0.95), (0.01, 1.0)])
def test_event_samples_suffice(probability, raised):
    trials = min_event_samples(probability, raised, 1e-6, 0.1)
    assert min_event_probability(trials, probability, 1e-6, 0.1) <= raised
    assert min_event_probability(trials - 1, probability, 1e-6, 0.1) > raised


@pytest.mark.parametrize(
    "call",
    [
        lambda: noncentrality(0.0, 0.1, 1),
        lambda: noncentrality(1e-6, 1.0, 1),
        lambda: noncentrality(0.6, 0.5, 1),
        lambda: noncentrality(1e-6, 0.1, 0),
        lambda: noncentrality(math.nan, 0.1, 1),
        lambda: min_num_samples(0.0, 1e-6, 0.1),
        lambda: min_discrepancy(0, 1e-6, 0.1),
        lambda: power_curve(np.array([1]), 0.1, 2.0),
        lambda: event_discrepancy(0.0, 0.1),
        lambda: min_event_probability(10, 1.0, 1e-6, 0.1),
        lambda: min_event_probability(0, 0.5, 1e-6, 0.1),
        lambda: min_event_samples(0.5, 0.5, 1e-6, 0.1),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ArgumentError, match="Instead"):
        call()


@pytest.mark.parametrize(("probability", "loss"), [(0.5, 0.01), (4e-3, 0.5), (3.6e-6, 0.95)])
def test_loss_of_an_event_is_seen_with_the_stated_power(probability, loss):
    draws = min_event_loss_samples(probability, loss, 1e-3, 0.1)
    critical = int(binom.ppf(5e-4, draws, probability)) - 1
    assert binom.cdf(critical, draws, probability) <= 5e-4
    assert 0.9 <= binom.cdf(critical, draws, probability * (1 - loss)) < 0.98  # a saw, because counts are whole
    assert min_event_loss(draws, probability, 1e-3, 0.1) <= loss
    assert min_event_loss(int(0.8 * draws), probability, 1e-3, 0.1) > loss


def test_a_rare_event_cannot_be_missed_by_few_draws():
    assert min_event_loss(1000, 1e-4, 1e-3, 0.1) == math.inf


@pytest.mark.parametrize("loss", [0.0, 1.5])
def test_impossible_losses_are_refused(loss):
    with pytest.raises(ArgumentError):
        min_event_loss_samples(0.1, loss, 1e-3, 0.1)
