import math

import numpy as np
import pytest

from mrv2.stats.errors import ArgumentError
from mrv2.stats.multiplicity import bonferroni, holm


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
