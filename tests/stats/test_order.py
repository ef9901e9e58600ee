import numpy as np
import pytest
from scipy.stats import binom, ksone

from mrv2.stats.errors import ArgumentError
from mrv2.stats.order import dkwm_min_samples, dkwm_test, index_trend_test

FLAT = np.full(4096, 1 / 4096)


def draw(probabilities: np.ndarray, draws: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).multinomial(draws, probabilities)


def test_trend_finds_a_tilt_of_one_percent_and_chi_square_of_the_vocabulary_does_not():
    tilted = FLAT * (1.0 + 0.01 * np.linspace(1, -1, 4096))
    result = index_trend_test(draw(tilted / tilted.sum(), 3_000_000, 0), np.log(FLAT))
    assert result.p_value < 1e-15 and result.statistic < 0


def test_trend_of_a_correct_sampler_is_uniform():
    flat = np.full(128, 1 / 128)
    values = [index_trend_test(draw(flat, 500, seed), np.log(flat)).p_value for seed in range(200)]
    assert dkwm_test(np.histogram(values, 20, (0, 1))[0], np.full(20, 0.05)).p_value > 1e-4


def test_trend_is_the_binomial_for_two_ids():
    counts = np.array([300, 700])
    result = index_trend_test(counts, np.log([0.4, 0.6]))
    assert result.p_value == pytest.approx(2 * binom.cdf(300, 1000, 0.4), rel=0.25)


def test_trend_without_anything_to_order_says_nothing():
    log_p = np.array([0.0, -np.inf])
    assert index_trend_test(np.array([5, 0]), log_p).degrees_of_freedom == 0


def test_dkwm_never_claims_too_much():
    # Exact one-sided law of the distance for a continuous distribution; the two-sided one is below twice that.
    for draws, distance in ((50, 0.25), (200, 0.1)):
        counts = np.round(np.linspace(0, draws, 11)).astype(int)
        observed = np.diff(counts)
        shift = np.array([0.1 + distance] + [0.1] * 8 + [0.1 - distance])
        result = dkwm_test(observed, shift / shift.sum())
        assert result.p_value >= ksone.sf(result.statistic, draws)


def test_dkwm_rate_and_power():
    half = np.array([0.5, 0.5])
    draws = dkwm_min_samples(0.05, 1e-3, 0.1)
    random = np.random.default_rng(4)
    clean = [dkwm_test(random.multinomial(draws, half), half).p_value for _ in range(500)]
    wrong = [dkwm_test(random.multinomial(draws, [0.55, 0.45]), half).p_value for _ in range(500)]
    assert min(clean) > 1e-3 / 5
    assert np.mean(np.array(wrong) < 1e-3) >= 0.9


@pytest.mark.parametrize(
    "call",
    [
        lambda: index_trend_test(np.zeros(4, np.int64), np.log(np.full(4, 0.25))),
        lambda: index_trend_test(np.ones(3, np.int64), np.log(np.full(4, 0.25))),
        lambda: dkwm_test(np.zeros(4, np.int64), np.full(4, 0.25)),
        lambda: dkwm_min_samples(0.0, 1e-3, 0.1),
        lambda: dkwm_min_samples(0.1, 0.0, 0.1),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ArgumentError):
        call()
