"""The random words behind draws: do they use all their bits, and does every key have words of its own?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError
from .targets import NoiseTarget, Purpose
from .timing import UNLIMITED, TimeBudget

_FINGERPRINT_BITS = 96  # a row is told from others by so many bits at least: 2**22 keys then agree by chance in 1e-16
_MOST = 256  # duplicates looked at a second time
_CALL = 2**16  # keys of one call of words()
_MULTIPLIERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))  # odd, otherwise arbitrary


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys of draws, no two alike.

    Attributes:
        seeds: uint64 [N].
        positions: int64 [N].
    """

    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many."""
        return self.seeds.size


@dataclass(frozen=True)
class Duplicate:
    """Two keys with the same noise for every token looked at."""

    first: tuple[int, int, str]
    second: tuple[int, int, str]


def lattice_bits(words: NDArray[np.uint64], bits: int) -> int:
    """On which lattice do words lie: the number of leading bits that are not 0 in all of them.

    n words of a b-bit source lie on the lattice of c bits with probability ``2**(-n * (b - c))``: three draws tell 31
    bits from 24 at 1e-6, where the largest of millions of draws does not.

    Args:
        words: uint64 [n], each below ``2**bits``.
        bits: b.
    """
    together = int(np.bitwise_or.reduce(words.ravel(), initial=np.uint64(0)))
    return bits - ((together & -together).bit_length() - 1) if together else 0


def stuck_bits(words: NDArray[np.uint64], bits: int) -> tuple[int, ...]:
    """Bits (0 is the lowest) that have one value in all words; with 64 fair words the chance of any is 1e-17."""
    flat = words.ravel()
    ones, zeros = int(np.bitwise_and.reduce(flat)), ~int(np.bitwise_or.reduce(flat))
    return tuple(bit for bit in range(bits) if (ones | zeros) >> bit & 1)


def key_domain(count: int, random: np.random.Generator) -> Keys:
    """Keys that a sampler may confuse, and as many random ones.

    A quarter is a square of neighbouring seeds and positions (which a sum of both would fold), a quarter changes one
    bit of the seed or the position of one key and of others near it, the rest is random over all 64 and 31 bits.

    Args:
        count: N, at least 512.
        random: source.
    """
    if count < 512:
        raise ArgumentError(f"count={count}", "at least 512 keys", "the patterns do not fit into fewer", "2**18 keys")
    patterns = [_square(count // 4, random), _flips(count // 4, random)]
    seeds = np.concatenate([part.seeds for part in patterns])
    positions = np.concatenate([part.positions for part in patterns])
    order = np.lexsort((positions, seeds))
    seeds, positions = seeds[order], positions[order]
    new = np.append(True, (seeds[1:] != seeds[:-1]) | (positions[1:] != positions[:-1]))
    rest = count - int(new.sum())
    return Keys(
        np.append(seeds[new], random.integers(0, 2**64, rest, dtype=np.uint64)),
        np.append(positions[new], random.integers(0, 2**31, rest)),
    )


def _square(count: int, random: np.random.Generator) -> Keys:
    """All combinations of neighbouring seeds and neighbouring positions."""
    side = int(count**0.5)
    seed, position = random.integers(2**62), random.integers(2**30)
    cells = np.arange(side**2)
    return Keys((seed + cells // side).astype(np.uint64), position + cells % side)


def _flips(count: int, random: np.random.Generator) -> Keys:
    """A key with one of its 95 bits changed, and the same for keys at other positions."""
    seed, position = random.integers(0, 2**64, dtype=np.uint64), int(random.integers(2**31))
    number = np.arange(count)
    bit, lane = number % 95, number // 95
    in_seed = bit < 64
    changed_seed = seed ^ (np.uint64(1) << np.minimum(bit, 63).astype(np.uint64))
    changed_position = position ^ lane ^ (1 << np.maximum(bit - 64, 0))
    return Keys(np.where(in_seed, changed_seed, seed), np.where(in_seed, position ^ lane, changed_position))


def duplicate_rows(
    target: NoiseTarget,
    keys: Keys,
    purposes: Sequence[Purpose],
    vocab_size: int,
    drawn: Callable[[int], None] = lambda count: None,
    time: TimeBudget = UNLIMITED,
) -> list[Duplicate]:
    """Pairs of keys (seed, position, purpose) whose noise is the same.

    A row of noise is told by the words of a few tokens, enough for 96 bits; rows that agree there are compared again at
    eight times as many tokens. A sampler with a row state of 32 bits has about 8 such pairs among 2**18 keys.

    Args:
        target: shows its words.
        keys: to look at.
        purposes: each is looked at for every key.
        vocab_size: tokens are spread over it.
        drawn: told of the keys done.
        time: when to stop; of each purpose only the keys that ``drawn`` was told of are compared then.

    Returns:
        duplicates, at most one for each key, and at most 256.
    """
    some, many = _spread_tokens(target.noise_bits, vocab_size, 1), _spread_tokens(target.noise_bits, vocab_size, 8)
    parts = [_fingerprints(target, keys, purpose, some, drawn, time) for purpose in purposes]
    prints = np.concatenate(parts)
    places = np.concatenate([index * keys.count + np.arange(part.size) for index, part in enumerate(parts)])
    order = np.argsort(prints, kind="stable")
    same = np.flatnonzero(prints[order][1:] == prints[order][:-1])
    found, suspects = [], same[:_MOST]
    for first, second in zip(places[order[suspects]].tolist(), places[order[suspects + 1]].tolist(), strict=True):
        one, other = (_key(keys, purposes, index) for index in (first, second))
        if (_row(target, one, many) == _row(target, other, many)).all():
            found.append(Duplicate((*one[:2], one[2].value), (*other[:2], other[2].value)))
    return found


def _spread_tokens(bits: int, vocab_size: int, times: int) -> NDArray[np.int64]:
    wanted = times * (-(-_FINGERPRINT_BITS // bits))
    return np.unique(np.linspace(0, vocab_size - 1, min(wanted, vocab_size)).astype(np.int64))


def _fingerprints(
    target: NoiseTarget,
    keys: Keys,
    purpose: Purpose,
    tokens: NDArray[np.int64],
    drawn: Callable[[int], None],
    time: TimeBudget,
) -> NDArray[np.uint64]:
    """64 bits per key, mixed from the words of a few tokens; of the first keys alone if time is over."""
    prints, part = np.empty(keys.count, np.uint64), slice(0, 0)
    for part in time.calls(keys.count, _CALL):
        words = target.words(keys.seeds[part, None], keys.positions[part, None], tokens[None, :], purpose)
        mixed = np.zeros(len(words), np.uint64)
        for column in words.T:
            mixed = (mixed ^ column) * _MULTIPLIERS[0]
            mixed = (mixed ^ (mixed >> np.uint64(29))) * _MULTIPLIERS[1]
        prints[part] = mixed
        drawn(len(words))
    return prints[: part.stop]


def _key(keys: Keys, purposes: Sequence[Purpose], index: int) -> tuple[int, int, Purpose]:
    purpose, key = divmod(index, keys.count)
    return int(keys.seeds[key]), int(keys.positions[key]), purposes[purpose]


def _row(target: NoiseTarget, key: tuple[int, int, Purpose], tokens: NDArray[np.int64]) -> NDArray[np.uint64]:
    seed, position, purpose = key
    return target.words(np.array([seed], np.uint64), np.array([position], np.int64), tokens, purpose)
