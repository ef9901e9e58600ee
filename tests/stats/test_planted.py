"""The planted samplers: the correct one agrees with the specification, the faults have the law that they claim."""

import math

import numpy as np
import pytest

from mrv2.fuzz.targets.plain_samplers import OracleSampler
from mrv2.stats import targets
from mrv2.stats.gof import g_test
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import PLANTED, RoundedTemperature, bfloat16
from mrv2.stats.planted.lattice import LatticeSampler
from mrv2.stats.pooling import pool_expected
from mrv2.stats.strata import log_softmax

RANDOM = np.random.default_rng(2)


def pooled(observed, expected):
    labels = pool_expected(expected)
    return g_test(np.bincount(labels, weights=observed).astype(np.int64), np.bincount(labels, weights=expected)).p_value


class TestClean:
    def test_keeps_what_the_specification_keeps(self):
        count = 300
        logits = RANDOM.normal(size=(count, 40)).astype(np.float32).round(1)
        filters = targets.Filters(
            RANDOM.choice([0, 1, 5, 60], count).astype(np.int32),
            RANDOM.choice([1, 0.5, 0.9, 0.01], count).astype(np.float32),
            RANDOM.choice([0, 0.1, 0.5, 1], count).astype(np.float32),
        )
        warmth = RANDOM.choice([0.5, 1, 1.5], count).astype(np.float32)
        kept, exact = CleanSampler().kept(logits, warmth, filters), OracleSampler().kept(logits, warmth, filters)
        assert (kept == exact).all()

    def test_its_draws_follow_its_bits(self):
        clean, logits = CleanSampler(), RANDOM.normal(size=(64, 300)).astype(np.float32)
        keys = RANDOM.integers(0, 2**64, 64, dtype=np.uint64), RANDOM.integers(0, 2**31, 64)
        drawn = clean.sample(logits, np.ones(64, np.float32), *keys)
        noise = clean.noise(clean.words(keys[0][:, None], keys[1][:, None], np.arange(300)))
        assert (drawn == (logits + noise).argmax(axis=1)).all()

    def test_draws_and_counts_have_one_law(self):
        clean, row = CleanSampler(), RANDOM.normal(size=30).astype(np.float32)
        expected = 20000 * np.exp(log_softmax(row, 0.5))
        keys = np.arange(20000, dtype=np.uint64), np.zeros(20000, np.int64)
        drawn = np.bincount(clean.sample(row, np.full(20000, 0.5, np.float32), *keys), minlength=30)
        counted = clean.count(row, 0.5, 3, 0, 20000)
        assert pooled(drawn, expected) > 1e-3
        assert pooled(counted[:-1], expected) > 1e-3
        assert counted[-1] == 0

    def test_speculation_gives_the_targets_distribution(self):
        target, draft = np.log([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]]), np.log([[0.6, 0.1, 0.3]])
        keys = np.arange(30000, dtype=np.uint64), np.zeros(30000, np.int64)
        warm = np.ones(30000, np.float32)
        drawn = CleanSampler().speculate(target.astype(np.float32), draft.astype(np.float32), warm, *keys)
        first = np.bincount(drawn.emitted[:, 0], minlength=3)
        assert pooled(first, 30000 * np.array([0.1, 0.6, 0.3])) > 1e-3
        accepted = drawn.emitted[:, 1] >= 0
        assert (drawn.emitted[accepted, 0] == drawn.drafts[accepted, 0]).all()
        assert abs(accepted.mean() - 0.5) < 0.02  # sum of min(p, q)


@pytest.mark.parametrize("clamped", [False, True])
class TestLattice:
    """A lattice of 8 bits, so coarse that ties decide half of the draws."""

    def test_counts_of_few_groups_are_those_of_single_draws(self, clamped):
        sampler, count = LatticeSampler("8 bits", 8, clamped), 40000
        row = np.repeat([0.0, -2.0, -5.0], [3, 30, 27]).astype(np.float32)
        keys = np.arange(count, dtype=np.uint64), np.zeros(count, np.int64)
        drawn = np.bincount(sampler.sample(row, np.ones(count, np.float32), *keys), minlength=60)
        counted = sampler.count(row, 1.0, 3, 4, count)[:-1]
        both = (drawn + counted)[(drawn + counted) > 20]
        statistic = float((((drawn - counted) ** 2)[(drawn + counted) > 20] / both).sum())
        assert statistic < both.size + 4 * math.sqrt(2 * both.size)

    def test_counts_of_many_groups_are_close_to_single_draws(self, clamped):
        sampler, count = LatticeSampler("8 bits", 8, clamped), 40000
        row = (RANDOM.normal(size=200) * 2).astype(np.float32)
        keys = np.arange(count, dtype=np.uint64), np.zeros(count, np.int64)
        drawn = np.bincount(sampler.sample(row, np.ones(count, np.float32), *keys), minlength=200)
        expected = sampler._integrated(log_softmax(row, 1.0))
        assert pooled(drawn, count * expected / expected.sum()) > 1e-4

    def test_its_noise_ends(self, clamped):
        sampler = LatticeSampler("24 bits", 24, clamped)
        top, second = sampler.noise(np.array([0, 1], np.uint64))
        assert top == pytest.approx(24 * math.log(2), abs=1e-6)
        assert second == pytest.approx((24 if clamped else 23) * math.log(2), abs=1e-6)


@pytest.mark.parametrize(
    ("bits", "clamped", "gap", "deviation"),
    # The survey's table: from the exact model of the lattice.
    [(24, False, 12.5, -0.008), (24, False, 16.0, -0.24), (24, False, 18.0, -0.92), (31, True, 23.25, -0.97)],
)
def test_tails_deviate_as_computed(bits, clamped, gap, deviation):
    row = np.full(262144, -gap, np.float32)
    row[131072] = 0.0
    draws = 300_000 if gap < 20 else 2_000_000
    tail = draws - LatticeSampler("bits", bits, clamped).count(row, 1.0, 7, 0, draws)[131072]
    mass = 262143 * math.exp(-gap) / (1 + 262143 * math.exp(-gap))
    error = 5 * math.sqrt(mass * draws) / (mass * draws)
    assert tail / (mass * draws) - 1 == pytest.approx(deviation, abs=error)


def test_there_are_fourteen_of_different_names():
    assert len({planted.name for planted in PLANTED}) == 14
    assert all(isinstance(planted.make(), targets.SamplerTarget) for planted in PLANTED)


def test_a_temperature_is_rounded_to_bfloat16():
    values = np.array([0.7, 1.0, 1.3, 0.3, 1.00390625], np.float32)
    assert bfloat16(values).tolist() == [0.69921875, 1.0, 1.296875, 0.30078125, 1.0]
    row = np.array([0, -200], np.float32)
    assert RoundedTemperature().count(row, 0.7, 0, 0, 100)[0] == 100
