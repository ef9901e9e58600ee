import math

import numpy as np
import pytest

from mrv2.stats.errors import ArgumentError
from mrv2.stats.gof import binomial_test
from mrv2.stats.noise import (
    enumerate_transform,
    merged,
    noise_law,
    tail_error,
    tail_error_bound,
    tail_mass,
    true_tail_mass,
    words_of_ranks,
)

from .noises import LADDER, TAIL, exact_64, flip_31, middle_32, race_24, sampled_ladder, top_24

# Relative error of the mass of 262,143 tokens in percent, by gap: the survey of sampler statistics, section 3.1.
SURVEY = {
    (top_24, 24): {9: -0.024, 12.5: -0.80, 15: -9.4, 16: -24, 17: -55, 18: -92, 20: -100, 25: -100},
    (race_24, 24): {9: 0.023, 12.5: 0.75, 15: 6.3, 16: 6.5, 17: -22, 18: -84, 20: -100},
    (flip_31, 31): {
        12.5: 0.006,
        15: 0.08,
        16: 0.21,
        17: 0.55,
        18: 1.4,
        20: 7.2,
        20.5: 8.2,
        21: 5.6,
        22: -30,
        23.25: -97,
    },
    (middle_32, 32): {17: -0.0001, 18: -0.001, 20: -0.05, 20.5: -0.14, 21: -0.39, 22: -2.8, 24: -72, 25: -100},
}


@pytest.mark.parametrize("case", SURVEY, ids=lambda case: case[0].__name__)
def test_tails_of_known_defects(case):
    law = noise_law(*case)
    for gap, percent in SURVEY[case].items():
        assert 100 * tail_error(law, gap, 262_143) == pytest.approx(percent, rel=0.07, abs=5e-4)


def test_noise_without_a_defect_has_no_error():
    law = noise_law(exact_64, 64)
    assert law.largest == pytest.approx(65 * math.log(2)) and law.least == pytest.approx(-3.8078, abs=1e-4)
    for tokens in (1, 1000, 262_143):
        assert max(abs(tail_error(law, gap, tokens)) for gap in (0.0, 3.0, 12.5, 18.0, 25.0, 35.0)) < 1e-7


@pytest.mark.parametrize("bits", [6, 10])
def test_tail_mass_is_the_share_of_draws(bits):
    """Every combination of three words, counted; ties are split, since the sum leaves them out."""

    def noise(words):
        return -np.log(-np.log((words.astype(np.float64) + 0.5) / 2.0**bits))

    every = noise(np.arange(2**bits, dtype=np.uint64))
    gap, best = 1.234567, np.sort(every)  # a gap that makes no tie
    law = noise_law(noise, bits)
    # P(max of two <= h + gap), for every h
    below = np.searchsorted(best, every + gap, side="right") / 2**bits
    assert tail_mass(law, gap, 2) == pytest.approx(1.0 - float((below**2).mean()), abs=1e-12)


@pytest.mark.parametrize(
    ("transform", "bits"),
    [(top_24, 24), (race_24, 24), (flip_31, 31), (exact_64, 64)],
    ids=["top", "race", "flip", "exact"],
)
def test_the_sampled_ladder_agrees_with_the_enumerated_one(transform, bits):
    law = noise_law(transform, bits)
    best, head = sampled_ladder(transform, bits, 2_000_000, falls=transform is not top_24)
    for gap in LADDER:
        wins = int((best > head + gap).sum())
        assert binomial_test(wins, head.size, tail_mass(law, gap, TAIL)).p_value > 1e-4, gap


@pytest.mark.parametrize(
    ("transform", "bits", "gap"), [(top_24, 24, 16.0), (race_24, 24, 18.0), (flip_31, 31, 23.25)],
    ids=["top", "race", "flip"],
)  # fmt: skip
def test_the_sampled_ladder_tells_a_defect_from_exact_noise(transform, bits, gap):
    best, head = sampled_ladder(transform, bits, 2_000_000, falls=transform is not top_24)
    wins = int((best > head + gap).sum())
    assert binomial_test(wins, head.size, true_tail_mass(gap, TAIL)).p_value < 1e-9


def test_survival_and_cumulative_are_counts():
    law = noise_law(top_24, 24)
    assert law.survival(np.array([law.largest, law.largest - 1e-9])).tolist() == [0.0, 2.0**-24]
    values = np.array([-2.0, -0.5, 0.3, 1.0, 5.0, 14.0])
    exact = np.exp(-np.exp(-values))
    assert law.cumulative(values) == pytest.approx(exact, rel=1e-4)  # one word is 1e-4 of the words below -2


def test_words_of_ranks_follow_the_direction():
    ranks = np.array([1, 2], np.uint64)
    assert words_of_ranks(top_24, 24, ranks).tolist() == [2**24 - 1, 2**24 - 2]
    assert words_of_ranks(race_24, 24, ranks).tolist() == [0, 1]
    assert words_of_ranks(exact_64, 64, ranks).tolist() == [0, 1]


def test_true_mass():
    weights = np.exp([0.0] + [-3.0] * 7)
    assert true_tail_mass(3.0, 7) == pytest.approx(weights[1:].sum() / weights.sum())


@pytest.mark.parametrize(("transform", "bits"), [(exact_64, 64), (middle_32, 32)])
def test_enumeration_finds_nothing_in_exact_noise(transform, bits):
    errors = enumerate_transform(transform, bits, 14)
    assert errors.words == 2**15 and errors.not_finite == errors.turns == 0
    assert errors.winning_error < 1e-12


@pytest.mark.parametrize("bits", [24, 31, 32, 64])
@pytest.mark.parametrize("error", [0.0, 1e-6, 1e-4, 1e-2])
def test_the_bound_of_a_tail_holds_for_noise_that_errs_so_much(bits, error):
    """The error has the sign that moves the tail's mass most: up for the best of noise, down for the rest."""

    def noise(words):
        exact = exact_64(words << np.uint64(64 - bits) | np.uint64((1 << (64 - bits)) >> 1))
        return exact + error * np.tanh(exact - 6.0)

    law = noise_law(noise, bits)
    for gap in (3.0, 9.0, 12.5, 16.0, 18.0, 20.0):
        assert abs(tail_error(law, gap, TAIL)) <= tail_error_bound(error, bits, gap, TAIL) + 1e-7, gap


def test_the_bound_of_a_tail_is_worth_having():
    assert tail_error_bound(1e-6, 64, 18.0, TAIL) < 1e-5
    assert tail_error_bound(1e-6, 64, 22.0, TAIL) < 1e-3
    assert tail_error_bound(1e-6, 32, 18.0, TAIL) > 0.1, "32 bits prove nothing so far down"
    assert tail_error_bound(1e-3, 64, 12.5, TAIL) == pytest.approx(2e-3, rel=1e-2)


def test_enumeration_of_all_words():
    assert enumerate_transform(lambda w: top_24(w << np.uint64(8)), 16, 99).words == 2**16


def test_enumeration_finds_what_is_wrong():
    def zero_is_infinite(words):
        with np.errstate(divide="ignore"):
            return -np.log(-np.log(words.astype(np.float64) / 2**24))

    def float16(words):
        return exact_64(words).astype(np.float16).astype(np.float64)

    def dips(words):
        return exact_64(words) - 1e-3 * (words >> np.uint64(56) == 7)

    infinite = enumerate_transform(zero_is_infinite, 24, 12)
    assert infinite.not_finite == 1 and infinite.examples == (0,)
    assert 1e-3 < enumerate_transform(float16, 64, 12).winning_error < 1e-2
    dip = enumerate_transform(dips, 64, 14)
    assert dip.turns == 1 and dip.winning_error == pytest.approx(1e-3, rel=0.1)


def test_parts_of_an_enumeration_are_its_whole():
    parts = [enumerate_transform(exact_64, 64, 10, (part, 3)) for part in range(3)]
    assert merged(parts) == enumerate_transform(exact_64, 64, 10)


def test_a_turn_between_two_chunks_is_seen(monkeypatch):
    monkeypatch.setattr("mrv2.stats.noise._CHUNK", 64)
    half = np.uint64(1 << 63)
    errors = enumerate_transform(lambda w: exact_64(w) + (w >= half), 64, 7)
    assert errors.turns == 1


def test_laws_that_cannot_be_are_refused():
    with pytest.raises(ArgumentError, match="bits"):
        noise_law(exact_64, 65)
    with pytest.raises(ArgumentError, match="monotone"):
        noise_law(lambda w: np.sin(w.astype(np.float64)), 16)
    with pytest.raises(ArgumentError, match="monotone"):
        noise_law(lambda w: np.full(w.shape, np.nan), 16)
