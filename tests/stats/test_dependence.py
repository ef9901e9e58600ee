import math

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from mrv2.stats.dependence import collision_test, independence_g_test
from mrv2.stats.errors import ArgumentError


def test_independence_agrees_with_scipy():
    table = np.random.default_rng(0).integers(20, 60, (4, 5))
    result = independence_g_test(table)
    scipy = chi2_contingency(table, correction=False, lambda_="log-likelihood")
    assert (result.statistic, result.p_value) == pytest.approx((scipy.statistic, scipy.pvalue))
    assert result.degrees_of_freedom == 12


def test_independence_finds_pairs_that_agree_one_time_in_fifty():
    random = np.random.default_rng(1)
    first, second = random.integers(0, 8, (2, 40_000))
    linked = np.where(random.random(40_000) < 0.02, first, second)
    table = np.zeros((2, 8, 8), np.int64)
    for index, other in enumerate((second, linked)):
        np.add.at(table[index], (first, other), 1)
    clean, wrong = map(independence_g_test, table)
    assert clean.p_value > 1e-3 and wrong.p_value < 1e-6
    assert all(int(a) == int(b) for a, b in (cell.name.split(", ") for cell in wrong.groups[:4]))


def test_a_table_with_one_column_says_nothing():
    assert independence_g_test(np.array([[3, 0], [5, 0]])).degrees_of_freedom == 0


def test_collision_law_of_the_birthday_problem():
    # 23 people: no repeat has probability 0.4927, so the lower tail of "none" doubled is capped.
    none = collision_test(np.arange(23), 365)
    assert none.p_value == pytest.approx(2 * 0.492703, abs=1e-5)
    assert none.groups[0].expected == pytest.approx(23 - 365 * (1 - (364 / 365) ** 23), rel=1e-9)


def test_collisions_of_a_small_space():
    # Three draws of two cells: at least one repeat, two with probability 1/4.
    assert collision_test(np.array([1, 1, 1]), 2).p_value == pytest.approx(0.5)
    assert collision_test(np.array([1, 0, 1]), 2).p_value == 1.0


def test_collisions_find_a_space_of_half_the_size_and_draws_that_avoid_each_other():
    random = np.random.default_rng(2)
    cells, draws = 2**20, 2**13
    assert collision_test(random.integers(0, cells, draws), cells).p_value > 1e-3
    assert collision_test(random.integers(0, cells // 2, draws), cells).p_value < 1e-4
    assert collision_test(random.permutation(cells)[:draws], cells).p_value < 1e-10


@pytest.mark.parametrize(
    "call",
    [
        lambda: independence_g_test(np.zeros((2, 2), np.int64)),
        lambda: independence_g_test(np.ones(4, np.int64)),
        lambda: independence_g_test(np.array([[1, -1], [1, 1]])),
        lambda: collision_test(np.array([1]), 5),
        lambda: collision_test(np.array([1, 2]), 1),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ArgumentError):
        call()


def test_mean_of_repeats_is_right_for_many_draws():
    draws, cells = 4096, 65536
    group = collision_test(np.arange(draws), cells).groups[0]
    assert group.expected == pytest.approx(draws - cells * -math.expm1(draws * math.log1p(-1 / cells)), rel=1e-9)
