"""Noise of known defects, from public records of samplers, for the tests of the noise layer."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mrv2.stats.targets import Purpose

Words = NDArray[np.uint64]


def _uniform(words: Words, bits: int, add: float = 0.0) -> NDArray[np.float64]:
    return np.maximum(words.astype(np.float64) + add, 1.0 if add == 0.0 else 0.0) / 2.0**bits


def top_24(words: Words) -> NDArray[np.float64]:
    """24 bits, largest noise at u near 1, 0 clamped."""
    return -np.log(-np.log(_uniform(words, 24)))


def race_24(words: Words) -> NDArray[np.float64]:
    """Exponential race of 24 bits, 0 clamped."""
    return -np.log(-np.log1p(-_uniform(words, 24)))


def flip_31(words: Words) -> NDArray[np.float64]:
    """31 bits, largest noise at u near 0, 0 clamped to the smallest step."""
    return -np.log(-np.log1p(-_uniform(words, 31)))


def middle_32(words: Words) -> NDArray[np.float64]:
    """32 bits in the middle of their steps: noise ends at log(2**33)."""
    return -np.log(-np.log1p(-_uniform(words, 32, 0.5)))


def exact_64(words: Words) -> NDArray[np.float64]:
    """64 bits, exact at both ends."""
    upper = words >= np.uint64(2**63)
    small = (np.where(upper, ~words, words).astype(np.float64) + 0.5) * 2.0**-64
    return -np.log(np.where(upper, -np.log(small), -np.log1p(-small)))


TAIL = 262_143  # tokens
LADDER = (9.0, 12.5, 16.0, 18.0, 20.0, 23.25)  # gaps, in nats


def sampled_ladder(transform, bits, draws, falls):
    """Noise of the best of a tail's tokens, and of the head, float64 [draws] each.

    The best word of many is drawn by the law of an extreme of independent uniform integers; all else is comparison.
    """
    random, words = np.random.default_rng(bits), 2.0**bits
    share = -np.expm1(np.log(random.random(draws)) / TAIL)
    rank = np.minimum(np.floor(share * words), np.nextafter(words, 0)).astype(np.uint64)
    best = transform(rank if falls else np.uint64(2**bits - 1) - rank)
    return best, transform(random.integers(0, 2**bits - 1, draws, dtype=np.uint64, endpoint=True))


class HashedNoise:
    """Words from a hash of the key; ``fold`` says what of the key is used, ``keep`` which bits of a word come out."""

    def __init__(
        self,
        bits: int = 64,
        transform: Callable[[Words], NDArray[np.float64]] = exact_64,
        fold: Callable[[Words, Words, Words, Words], Words] | None = None,
        keep: int = 2**64 - 1,
    ) -> None:
        self.noise_bits, self.transform, self.fold, self.keep = bits, transform, fold, np.uint64(keep)

    def noise(self, words: Words) -> NDArray[np.float64]:
        return self.transform(words)

    def words(self, seeds, positions, tokens, purpose=Purpose.TARGET):
        number = np.uint64(list(Purpose).index(purpose))
        key = [np.asarray(part).astype(np.uint64) for part in (seeds, positions, tokens)]
        with np.errstate(over="ignore"):
            row = (self.fold or _row)(key[0], key[1], number, np.uint64(0))
            mixed = _mix(_mix(row) + key[2] * np.uint64(0x9E3779B97F4A7C15))
        return (mixed >> np.uint64(64 - self.noise_bits)) & self.keep


def _row(seeds, positions, purpose, _):
    return _mix(_mix(seeds) ^ positions) + purpose


def _mix(x):
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
