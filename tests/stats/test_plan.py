import numpy as np
import pytest

from mrv2.stats.errors import ArgumentError
from mrv2.stats.plan import POSITIONS, SEEDS, plan_draws
from mrv2.stats.sample import Sample

TEMPERATURES = (0.7, 1.0, 1.3)


@pytest.fixture(scope="module")
def plan():
    return plan_draws(2000, 4, TEMPERATURES, seed=0)


@pytest.mark.parametrize("draws", [1, 2, 3, 31, 32, 33, 2000])
def test_a_plan_has_just_the_draws_asked_for(draws):
    plan = plan_draws(draws, 4, TEMPERATURES, seed=1)
    sizes = {len(part) for part in (plan.rows, plan.temperatures, plan.seeds, plan.positions, plan.replayed)}
    assert sizes == {draws}
    assert len(np.unique(plan.pairs)) == plan.pairs.size == (plan.temperatures > 0).sum()


def test_no_two_draws_share_a_key(plan):
    keys = set(zip(plan.seeds.tolist(), plan.positions.tolist(), strict=True))
    assert len(keys) == 2000


def test_pairs_share_row_and_temperature(plan):
    first, second = plan.pairs.T
    assert (plan.rows[first] == plan.rows[second]).all()
    assert (plan.temperatures[first] == plan.temperatures[second]).all()


def test_half_of_the_pairs_differ_in_one_seed_bit_only(plan):
    first, second = plan.pairs[plan.variation == SEEDS].T
    bits = plan.bits[plan.variation == SEEDS]
    assert (plan.positions[first] == plan.positions[second]).all()
    assert (plan.seeds[first] ^ plan.seeds[second]).tolist() == [1 << bit for bit in bits.tolist()]
    assert np.bincount(bits, minlength=64).min() >= 7


def test_the_other_half_has_one_seed_and_neighbouring_positions(plan):
    first, second = plan.pairs[plan.variation == POSITIONS].T
    assert len(np.unique(plan.seeds[[*first, *second]])) == 1
    assert (plan.positions[second] - plan.positions[first] == 1).all()


def test_every_combination_of_row_temperature_and_variation_occurs(plan):
    rows, temperatures = plan.rows[plan.pairs[:, 0]], plan.temperatures[plan.pairs[:, 0]]
    combinations = list(zip(rows.tolist(), temperatures.tolist(), plan.variation.tolist(), strict=True))
    counts = [combinations.count(each) for each in set(combinations)]
    assert len(counts) == 24
    assert max(counts) - min(counts) <= 2


def test_a_share_is_greedy_and_a_share_is_replayed(plan):
    assert (plan.temperatures == 0).sum() == 126
    assert 400 <= plan.replayed.sum() <= 600
    assert not plan.replayed[plan.temperatures == 0].any()


def test_a_plan_depends_on_its_seed_alone(plan):
    again, other = plan_draws(2000, 4, TEMPERATURES, seed=0), plan_draws(2000, 4, TEMPERATURES, seed=1)
    assert (again.seeds == plan.seeds).all()
    assert (again.pairs == plan.pairs).all()
    assert (other.seeds != plan.seeds).any()


def test_cells_of_a_sample_hold_each_warm_draw_once(plan):
    logits = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    sample = Sample(logits, plan, np.zeros(2000, np.int64))
    chosen = np.concatenate([cell.chosen for cell in sample.cells()])
    assert sorted([*chosen.tolist(), *sample.greedy.tolist()]) == list(range(2000))
    strata = sample.strata()
    assert list(strata) == pytest.approx(TEMPERATURES)
    assert sum(stratum.draws for group in strata.values() for stratum in group) == chosen.size


@pytest.mark.parametrize("arguments", [(0, 4, TEMPERATURES), (10, 0, TEMPERATURES), (10, 4, ())])
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ArgumentError):
        plan_draws(*arguments, seed=0)
