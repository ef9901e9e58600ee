import math

import numpy as np
import pytest

from mrv2.stats.errors import ArgumentError
from mrv2.stats.multiplicity import benjamini_hochberg, bonferroni, holm, weighted_holm


def test_holm_steps_down():
    # 0.05 / 4, / 3, / 2, / 1 = 0.0125, 0.0167, 0.025, 0.05
    assert holm([0.024, 0.01, 0.9, 0.016], 0.05).tolist() == [True, True, False, True]


def test_holm_stops_at_the_first_that_holds():
    # 0.018 misses 0.05 / 3, so 0.02 is not compared with 0.05 / 2 any more.
    assert holm([0.01, 0.018, 0.02, 0.9], 0.05).tolist() == [True, False, False, False]


def test_holm_contains_bonferroni():
    values = np.random.default_rng(0).random((1000, 8)) ** 3
    for row in values:
        assert (holm(row, 0.05) | ~bonferroni(row, 0.05, np.full(8, 1 / 8))).all()


def test_holm_keeps_the_family_wise_rate():
    values = np.random.default_rng(1).random((100_000, 9))
    # Any failure at all is a failure of the smallest p-value, which Holm compares with rate / 9.
    assert np.mean(values.min(axis=1) <= 0.01 / 9) == pytest.approx(0.01, rel=0.1)
    assert all(holm(row, 0.01).any() == (row.min() <= 0.01 / 9) for row in values[:2000])


def test_zero_p_values_fail():
    assert holm([0.0, 1.0], 1e-6).tolist() == [True, False]


def test_bonferroni_weighs():
    assert bonferroni([0.008, 0.008], 0.01, [0.9, 0.1]).tolist() == [True, False]


@pytest.mark.parametrize(
    "call",
    [
        lambda: holm([], 0.05),
        lambda: holm([math.nan], 0.05),
        lambda: holm([1.5], 0.05),
        lambda: holm([[0.1]], 0.05),
        lambda: holm([0.1], 0.0),
        lambda: bonferroni([0.1], 0.05, [1.1]),
        lambda: bonferroni([0.1, 0.2], 0.05, [0.5]),
        lambda: bonferroni([0.1, 0.2], 0.05, [1.0, 0.0]),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ArgumentError):
        call()


def test_weighted_holm_with_equal_weights_is_holm():
    values = np.random.default_rng(2).random((500, 7)) ** 3
    assert all((holm(row, 0.05) == weighted_holm(row, 0.05, np.full(7, 3.0))).all() for row in values)


def test_weighted_holm_contains_weighted_bonferroni():
    random = np.random.default_rng(3)
    for row in random.random((500, 5)) ** 4:
        weights = random.dirichlet(np.ones(5))
        assert (weighted_holm(row, 0.05, weights) | ~bonferroni(row, 0.05, weights)).all()


def test_weighted_holm_passes_on_the_share_of_a_failed_test():
    assert weighted_holm([0.001, 0.03], 0.05, [0.9, 0.1]).tolist() == [True, True]
    assert bonferroni([0.001, 0.03], 0.05, [0.9, 0.1]).tolist() == [True, False]


def test_benjamini_hochberg_steps_up():
    # 0.05 * k / 4 = 0.0125, 0.025, 0.0375, 0.05: the third holds, and takes the second along.
    assert benjamini_hochberg([0.01, 0.03, 0.9, 0.026], 0.05).tolist() == [True, True, False, True]
    assert not benjamini_hochberg([0.2, 0.9], 0.05).any()


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, math.nan]])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ArgumentError):
        weighted_holm([0.1, 0.2], 0.05, weights)
