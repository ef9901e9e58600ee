"""The noises of a float32 transform, each seen once; that the noise of the reference is of that kind."""

from bisect import bisect_left

import numpy as np
import pytest
import triton.language as tl

from mrv2.fuzz.targets.reference_noise import source_of
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.refrunner.kernels import gumbel
from mrv2.stats.errors import ArgumentError
from mrv2.stats.noise import merged
from mrv2.stats.noise_floats import SHARED, enumerate_float32, float32_count, float32_words

from .noises import exact_64


def rounded(words):
    """The word that stands for each: of equal float32 value below the middle, or of equal complement above it."""
    upper = words >= np.uint64(1 << 63)
    low = np.where(upper, ~words, words)
    halves = [(low >> np.uint64(32)).astype(np.float32), (low & np.uint64(0xFFFFFFFF)).astype(np.float32)]
    number = halves[0] * np.float32(2.0**32) + halves[1]
    stands = np.minimum(number.astype(np.float64), float((1 << 63) - 1024)).astype(np.uint64)
    stands = np.where(number == np.float32(2.0**63), np.uint64((1 << 63) - 1), stands)
    stands = np.where(low < np.uint64(1 << 24), low, stands)
    return np.where(upper, ~stands, stands)


def edge_words(random, count):
    """Words of every length, and such as lie beside the middle of two float32 numbers."""
    length = random.integers(1, 65, count)
    words = random.integers(0, 2**64, count, dtype=np.uint64) >> (64 - length).astype(np.uint64)
    tie = (words | np.uint64(1 << 40)) >> np.uint64(17) << np.uint64(17) | np.uint64(1 << 16)
    return np.concatenate([words, ~words, tie, tie - np.uint64(1), tie + np.uint64(1), ~tie])


@pytest.mark.parametrize("power", [23, 24, 25, 26, 27])
def test_words_of_28_bits_round_to_every_float32_below_the_middle(power):
    """Around each power of two: all words there round to the numbers of the list, each to one."""
    count, span = float32_count(28), 1 << 10
    words = np.arange((1 << power) - span, min((1 << power) + span, 1 << 27), dtype=np.uint64)
    every = np.unique(words.astype(np.float32))
    first = bisect_left(_Listed(count), int(words[0]))
    listed = float32_words(28, first, first + every.size)
    assert np.array_equal(listed.astype(np.float32), every)
    mirrored = float32_words(28, 2 * count - first - every.size, 2 * count - first)
    assert np.array_equal(mirrored, 2**28 - 1 - listed[::-1])


class _Listed:
    """The first half of the list as a sequence of numbers that can be searched, without making all of it."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        return int(float32_words(28, place, place + 1)[0])


def test_parts_of_the_list_fit_together():
    count = float32_count(64)
    for place in (0, 2**23, 2**24, count, count + 2**24, 2 * count - 10):
        whole = float32_words(64, place, place + 10)
        assert np.array_equal(
            whole, np.append(float32_words(64, place, place + 4), float32_words(64, place + 4, place + 10))
        )
    assert float32_words(64, 0, 1) == 0 and float32_words(64, 2 * count - 1, 2 * count) == 2**64 - 1
    assert float32_words(64, count - 1, count + 1).tolist() == [2**63 - 1, 2**63]


def test_short_words_are_refused():
    with pytest.raises(ArgumentError, match="bits=25"):
        float32_count(25)


@pytest.mark.parametrize("seed", range(4))
def test_the_noise_of_the_reference_sees_words_as_float32(seed):
    words = edge_words(np.random.default_rng(seed), 20_000)
    noise = ReferenceSampler(compiled=True).noise
    stand_ins = rounded(words)
    assert np.array_equal(noise(words), noise(stand_ins))
    assert (stand_ins != words).mean() > 0.5, "words that are float32 numbers would show nothing"


@pytest.mark.parametrize("seed", range(4))
def test_no_noise_of_the_reference_is_above_its_bound(seed):
    """The bound is of the leading 32 bits; it is worth having where it is close to what may win."""
    sampler = ReferenceSampler(compiled=True)
    words = edge_words(np.random.default_rng(seed), 20_000)
    ends = words >> np.uint64(32) << np.uint64(32)
    words = np.concatenate([words, ends, ends | np.uint64(0xFFFFFFFF)])
    noise = sampler.noise(words)
    room = sampler.noise_bound(words) - noise
    assert -2e-6 < room.min() < 1e-3, "but for the noise's own rounding"
    assert room[(noise > 5.0) & (noise < 14.0)].max() < 0.07


def test_the_noise_identity_is_of_the_noise_alone():
    sampler = ReferenceSampler(compiled=True)
    told = sampler.noise_identity()
    assert told.kernel != sampler.identity().kernel and told.device == "cpu"
    assert source_of((gumbel.gumbel_noise,)) != source_of((gumbel.gumbel_noise, gumbel.random_words))


def test_a_constant_is_part_of_the_source(monkeypatch):
    before = source_of((gumbel.gumbel_noise,))
    monkeypatch.setattr(gumbel, "_TWO_POW_MINUS_64", tl.constexpr(2.0**-63))
    assert source_of((gumbel.gumbel_noise,)) != before


def test_a_noise_that_sees_more_is_not_of_that_kind():
    words = edge_words(np.random.default_rng(0), 1000)
    assert not np.array_equal(exact_64(words), exact_64(rounded(words)))


def test_stand_ins_are_in_the_list():
    stand_ins = rounded(edge_words(np.random.default_rng(1), 1000))
    below = np.where(stand_ins >> np.uint64(63) == 1, ~stand_ins, stand_ins)
    length = np.array([int(word).bit_length() for word in below])
    octave = np.maximum(length - 24, 0)
    place = (below >> octave.astype(np.uint64)).astype(np.int64) + octave * 2**23
    last = below == 2**63 - 1
    place[last] = float32_count(64) - 1
    place = np.where(stand_ins >> np.uint64(63) == 1, 2 * float32_count(64) - 1 - place, place)
    listed = [int(float32_words(64, at, at + 1)[0]) for at in place.tolist()]
    assert listed == stand_ins.tolist()


def test_the_quantile_moves_by_less_than_stated_between_words_that_round_alike():
    below = np.array([2.0**-64, 2.0**-40, 2.0**-24, 0.01, 0.25, 0.5]) * 2.0**64
    for factor in (1.0 - 1.5 * 2.0**-23, 1.0 + 1.5 * 2.0**-23):
        u, moved = below * 2.0**-64, below * factor * 2.0**-64
        assert (np.abs(np.log(-np.log1p(-u)) - np.log(-np.log1p(-moved))) <= SHARED * 1.001).all()
        assert (np.abs(np.log(-np.log(u)) - np.log(-np.log(moved))) <= SHARED * 1.001).all()


@pytest.mark.parametrize("part", [0, 1, 341, 511, 512, 700, 1023])
def test_every_noise_is_the_quantile_of_its_word(part):
    """Parts of all 688 million; the certificate of ``mrv2.ci.gpu.noise_certificate`` looks at each."""
    errors = enumerate_float32(lambda words: ReferenceSampler(compiled=True).noise(words), 64, (part * 64, 2**16))
    assert errors.not_finite == errors.turns == 0
    assert errors.winning_error < 3e-6 - SHARED


def test_parts_are_the_whole():
    parts = [enumerate_float32(exact_64, 64, (part, 2**18)) for part in (2**16, 2**16 + 1)]
    assert merged(parts) == enumerate_float32(exact_64, 64, (2**15, 2**17))
