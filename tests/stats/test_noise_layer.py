import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.stats.decision import run_audit
from mrv2.stats.errors import ArgumentError
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.noise_keys import duplicate_rows, key_domain, lattice_bits, stuck_bits
from mrv2.stats.noise_layer import NoiseLayer
from mrv2.stats.targets import Purpose

from .noises import HashedNoise, _mix, _row, exact_64, flip_31, middle_32, top_24

PLAN = AuditPlan(262_144, seed=2)
LAYER = NoiseLayer(coarse_bits=12, keys=2**13, random_words=2**17)
SMALL = NoiseLayer(coarse_bits=10, keys=2**11, random_words=2**12)  # enough for a fault, not for a verdict without one


def failed(target, layer=SMALL):
    decision = run_audit([layer], target, PLAN, Silent()).decision
    return {test.first.name for test in decision.failed}


def test_good_noise_passes():
    decision = run_audit([LAYER], HashedNoise(), PLAN, Silent()).decision
    assert decision.verdict is RunVerdict.PASS and len(decision.tests) == 3 + 6 + 2 + 4
    tail = next(test for test in decision.tests if test.first.name == "mass of a tail 25 nats down")
    assert abs(tail.first.evidence["relative error"]) < 1e-7


@pytest.mark.parametrize(
    ("bits", "transform", "gaps"),
    [(24, top_24, {16, 18, 20, 23.25, 25}), (31, flip_31, {18, 20, 23.25, 25}), (32, middle_32, {23.25, 25})],
)
def test_short_noise_loses_its_tails(bits, transform, gaps):
    assert failed(HashedNoise(bits, transform)) == {f"mass of a tail {gap:g} nats down" for gap in gaps}


def bfloat16(words):
    bits = exact_64(words).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def test_noise_in_bfloat16_is_not_the_quantile():
    assert "noise is the Gumbel quantile of its rank" in failed(HashedNoise(transform=bfloat16))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (HashedNoise(keep=2**64 - 2**40), "every bit of a word varies"),
        (HashedNoise(fold=lambda s, p, u, _: _mix(s + p) + u), "no two keys have the same noise"),
        (
            HashedNoise(fold=lambda s, p, u, _: _row(s & np.uint64(2**32 - 1), p, u, _)),
            "no two keys have the same noise",
        ),
        (HashedNoise(fold=lambda s, p, u, _: _row(s, p, np.uint64(0), _)), "no two keys have the same noise"),
        (HashedNoise(keep=2**63 - 1), "leading bits of words are uniform"),
    ],
)
def test_faults_of_words(target, expected):
    assert expected in failed(target)


def test_a_small_row_state_shows_as_often_as_birthdays_say():
    small = HashedNoise(fold=lambda s, p, u, _: _row(s, p, u, _) & np.uint64(2**28 - 1))
    keys = key_domain(2**17, np.random.default_rng(0))
    found = len(duplicate_rows(small, keys, (Purpose.TARGET,), 50_000))
    assert 12 <= found <= 60, "2**33 pairs of keys and 2**28 states: 32 expected"
    assert duplicate_rows(HashedNoise(), keys, (Purpose.TARGET,), 50_000) == []


def test_duplicates_name_their_keys():
    target = HashedNoise(fold=lambda s, p, u, _: _mix(s + p) + u)
    found = duplicate_rows(target, key_domain(2048, np.random.default_rng(1)), (Purpose.TARGET,), 4096)
    assert found
    for pair in found:
        assert sum(pair.first[:2]) == sum(pair.second[:2]) and pair.first != pair.second


def test_neighbours_that_depend_on_each_other():
    class Neighbours(HashedNoise):
        """The leading bit of a token's word is that of the token before, one time in eight."""

        def words(self, seeds, positions, tokens, purpose=Purpose.TARGET):
            words = super().words(seeds, positions, tokens, purpose)
            before = super().words(seeds, positions, np.asarray(tokens) - 1, purpose)
            return np.where(words & np.uint64(7) == 0, before, words)

    assert failed(Neighbours(), NoiseLayer(10, 2**11, (), 2**15)) == {"words of neighbouring tokens are independent"}


def test_keys_of_the_domain_differ():
    keys = key_domain(4096, np.random.default_rng(5))
    assert len(set(zip(keys.seeds.tolist(), keys.positions.tolist(), strict=True))) == keys.count == 4096
    assert keys.positions.max() < 2**31 and keys.positions.min() >= 0
    with pytest.raises(ArgumentError):
        key_domain(100, np.random.default_rng(5))


def test_lattice():
    words = np.random.default_rng(0).integers(0, 2**24, 3, dtype=np.uint64) << np.uint64(7)
    assert lattice_bits(words, 31) <= 24 and stuck_bits(words, 31)[:7] == tuple(range(7))
    full = np.random.default_rng(1).integers(0, 2**31, 64, dtype=np.uint64)
    assert lattice_bits(full, 31) == 31 and stuck_bits(full, 31) == ()
    assert lattice_bits(np.zeros(3, np.uint64), 31) == 0


def test_a_target_without_words_is_not_asked():
    result = LAYER.run(object(), PLAN, Silent())
    assert result.not_run and not result.tests
