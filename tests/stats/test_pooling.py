import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrv2.stats.errors import ArgumentError
from mrv2.stats.pooling import index_counts, index_groups, pool_expected, rank_counts, rank_groups
from mrv2.stats.strata import Stratum, log_softmax

EXPECTATIONS = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 200.0)), min_size=1, max_size=60).map(np.array)


def zipf(size, exponent=1.1):
    weights = np.arange(1, size + 1) ** -exponent
    return weights / weights.sum()


@given(EXPECTATIONS)
def test_every_pool_expects_enough_and_zeros_stay_apart(expected):
    labels = pool_expected(expected)
    inside = expected > 0
    totals = np.bincount(labels[inside], weights=expected[inside])
    assert totals.size <= 1 or totals.min() >= 25 * (1 - 1e-8)
    assert (np.diff(labels[inside]) >= 0).all()
    assert set(np.diff(labels[inside]).tolist()) <= {0, 1}
    assert not set(labels[~inside].tolist()) & set(labels[inside].tolist())


def test_pooling_splits_where_the_textbook_rest_bin_would_not():
    labels = pool_expected(np.array([100.0] + [1.0] * 100))
    assert labels.max() == 4
    assert np.bincount(labels).tolist() == [1, 25, 25, 25, 25]


def test_pooling_keeps_exact_cells_apart():
    assert pool_expected(np.full(8, 25.0)).tolist() == list(range(8))


@pytest.mark.parametrize("group", [rank_groups, index_groups])
@pytest.mark.parametrize("size", [2, 17, 1000, 50_000])
@pytest.mark.parametrize("draws", [100, 2000, 1_000_000])
def test_groups_hold_the_whole_mass_and_expect_25_each(group, size, draws):
    probabilities = np.random.default_rng(3).permutation(zipf(size))
    grouping = group(probabilities, draws)
    expected = grouping.expected(probabilities, draws)
    assert 1 <= len(grouping.names) <= 16
    assert expected.sum() == pytest.approx(draws)
    assert expected[-1] == 0
    assert expected[:-1].min() >= min(25, draws) * (1 - 1e-8)


def test_no_rest_bin_a_flat_row_gets_equal_groups():
    expected = rank_groups(np.full(1600, 1 / 1600), 2000).expected(np.full(1600, 1 / 1600), 2000)
    assert expected[:-1] == pytest.approx(np.full(16, 125.0))


def test_the_tail_of_a_peaked_row_is_split_too():
    probabilities = np.concatenate([[0.9], np.full(1000, 1e-4)])
    grouping = rank_groups(probabilities, 2000)
    assert grouping.labels[0] == 0
    assert len(grouping.names) == 9
    assert grouping.names[0] == "ranks 0-0"


def test_rank_groups_follow_probability_and_index_groups_follow_ids():
    probabilities = np.random.default_rng(4).permutation(zipf(500))
    by_rank = rank_groups(probabilities, 5000).labels[np.argsort(-probabilities)]
    by_index = index_groups(probabilities, 5000)
    assert (np.diff(by_rank) >= 0).all()
    assert (np.diff(by_index.labels) >= 0).all()
    assert by_index.names[0].startswith("ids 0-")
    assert by_index.names[-1].endswith("-499")


@pytest.mark.parametrize("group", [rank_groups, index_groups])
def test_draws_outside_the_support_are_counted_apart(group):
    probabilities = np.array([0.5, 0.0, 0.5])
    observed = group(probabilities, 1000).observed(np.array([0, 1, 1, 2]))
    assert observed.sum() == 4
    assert observed[-1] == 2


@pytest.mark.parametrize("counts", [rank_counts, index_counts])
def test_counts_over_strata_lose_no_draw(counts):
    rng = np.random.default_rng(5)
    rows = [log_softmax(rng.normal(size=300) * spread, 1.0) for spread in (0.5, 3.0, 8.0)]
    strata = [Stratum(row, rng.choice(300, 100 * (1 + i), p=np.exp(row))) for i, row in enumerate(rows)]
    total = counts(strata)
    assert total.observed.sum() == 600
    assert total.expected.sum() == pytest.approx(600)
    assert total.expected[total.expected > 0].min() >= 25
    assert len(total.names) == total.observed.size == total.expected.size


@pytest.mark.parametrize("counts", [rank_counts, index_counts])
def test_counts_over_strata_keep_impossible_draws(counts):
    possible = np.array([0.0, 0.0, -np.inf])
    total = counts([Stratum(log_softmax(possible, 1.0), np.array([0, 1, 2] * 40))])
    assert total.observed[total.expected == 0].tolist() == [40]


@pytest.mark.parametrize(
    "call",
    [
        lambda: pool_expected(np.array([1.0, -1.0])),
        lambda: pool_expected(np.array([np.nan])),
        lambda: rank_groups(np.array([0.5, np.nan]), 100),
        lambda: index_groups(np.array([1.0]), 0),
        lambda: rank_groups(np.array([1.0]), 100, groups=0),
        lambda: log_softmax(np.array([1.0]), 0.0),
        lambda: log_softmax(np.array([-np.inf, -np.inf]), 1.0),
        lambda: log_softmax(np.array([np.nan]), 1.0),
        lambda: Stratum(np.log([0.5, 0.4]), np.array([0])),
        lambda: Stratum(np.log([0.5, 0.5]), np.array([2])),
        lambda: Stratum(np.log([0.5, 0.5]), np.array([-1])),
    ],
)
def test_bad_arguments_are_refused_in_four_parts(call):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))


def test_a_likely_token_at_the_end_leaves_the_others_a_group_of_their_own():
    """Row of a model whose best token is among the last ids; one group would show nothing, however many draws."""
    probabilities = np.array([0.002, 0.002, 0.001, 0.994999, 0.000001])
    grouping = index_groups(probabilities, 100_000)
    assert grouping.names == ("ids 0-2", "ids 3-4")
    assert index_groups(probabilities, 2_000).names == ("ids 0-4",)  # 10 expected draws are too few for a group
