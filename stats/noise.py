"""The law of a sampler's noise, from its own transform of random words, and what follows for the tails of its draws.

A transform of b random bits to noise is a monotone function on ``2**b`` words, each equally likely. So the noise at
rank j from the top has exactly j words at or above it, and the survival function is known without a single draw: at
both ends, where steps are coarse, word by word; between them on a grid of ranks with 1,024 points per factor of two,
where the logarithm of the rank is interpolated. The error is of second order in the grid's steps: below 1e-7 of a tail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError
from .timing import UNLIMITED, TimeBudget

Transform = Callable[[NDArray[np.uint64]], NDArray[np.float64]]
SINGLE = 1024  # ranks at each end that are taken one by one; beyond them so many per factor of two
MOST_BITS = 64


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    """Distribution of the noise of one token.

    Attributes:
        size: number of equally likely words, ``2**bits``.
        top_ranks: float64 [M], 1 up to half of ``size``: how many words have at least this noise.
        top_values: float64 [M], the noise at those ranks, not increasing.
        bottom_ranks: float64 [K], likewise counted from the least noise.
        bottom_values: float64 [K], not decreasing.
    """

    size: float
    top_ranks: NDArray[np.float64]
    top_values: NDArray[np.float64]
    bottom_ranks: NDArray[np.float64]
    bottom_values: NDArray[np.float64]

    @property
    def largest(self) -> float:
        """The largest noise there is, in nats: where the tails end."""
        return float(self.top_values[0])

    @property
    def least(self) -> float:
        """The least noise there is, in nats."""
        return float(self.bottom_values[0])

    def survival(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """P(noise > value), for values above the median; float64, same shape."""
        return _shares(-values, self.top_ranks, -self.top_values, "left") / self.size

    def cumulative(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """P(noise <= value), any value; float64, same shape."""
        low = values < self.bottom_values[-1]
        below = _shares(values, self.bottom_ranks, self.bottom_values, "right") / self.size
        return np.where(low, below, 1.0 - self.survival(np.maximum(values, self.bottom_values[-1])))


def noise_law(transform: Transform, bits: int) -> NoiseLaw:
    """The law of a transform's noise.

    Args:
        transform: words uint64 [n], each below ``2**bits``, to noise float64 [n]; monotone in the word, either way.
        bits: 2 to 64.

    Raises:
        ArgumentError: ``bits`` is out of range, or the noise is NaN or not monotone on the grid of ranks.
    """
    if not 2 <= bits <= MOST_BITS:
        raise ArgumentError(
            f"bits={bits}", "2 to 64 bits per word", "words are uint64, and one bit makes no law", "the sampler's own"
        )
    ranks = rank_grid(bits)
    top, bottom = transform(words_of_ranks(transform, bits, ranks)), transform(_opposite(transform, bits, ranks))
    for values in (-top, bottom):
        if np.isnan(values).any() or _turns(values).any():
            raise ArgumentError(
                f"a transform of {bits} bits",
                "noise must be a number, and monotone in the word",
                "the law is found by rank, and a noise that goes back and forth has no ranks",
                "test the transform by itself: mrv2.stats.noise.enumerate_transform",
            )
    numbers = ranks.astype(np.float64)
    return NoiseLaw(2.0**bits, numbers, -np.maximum.accumulate(-top), numbers, np.maximum.accumulate(bottom))


def rank_grid(bits: int) -> NDArray[np.uint64]:
    """Ranks 1 to ``2**(bits - 1)``, uint64 [M]: the first :data:`SINGLE` one by one, then as many per factor of two."""
    half = 1 << (bits - 1)
    single = np.arange(1, min(SINGLE, half) + 1, dtype=np.uint64)
    octaves = [single]
    for power in range(SINGLE.bit_length() - 1, bits - 1):
        step = np.uint64(max(1, (1 << power) // SINGLE))
        octaves.append(np.uint64(1 << power) + step * np.arange(1, SINGLE + 1, dtype=np.uint64))
    return np.concatenate(octaves)


def words_of_ranks(transform: Transform, bits: int, ranks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The words whose noise has these ranks from the top, 1 being the largest; uint64, same shape."""
    return ranks - np.uint64(1) if _falls(transform, bits) else np.uint64((1 << bits) - 1) - (ranks - np.uint64(1))


def _opposite(transform: Transform, bits: int, ranks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.uint64((1 << bits) - 1) - words_of_ranks(transform, bits, ranks)


def _falls(transform: Transform, bits: int) -> bool:
    """Whether small words have large noise; told from words inside, since transforms err at the very ends."""
    quarter = 1 << (bits - 2)
    inside = transform(np.array([quarter, 3 * quarter], np.uint64))
    return bool(inside[0] > inside[1])


def _shares(
    values: NDArray[np.float64], ranks: NDArray[np.float64], at: NDArray[np.float64], side: str
) -> NDArray[np.float64]:
    """How many words lie before ``value``, given ascending values ``at`` of some ranks: steps first, then a line."""
    found = np.searchsorted(at, values, side="left" if side == "left" else "right")
    single = min(SINGLE, ranks.size)
    steps = np.minimum(found, single).astype(np.float64)
    # Between grid points a word stands for a step of its own; half of it lies on either side of its value.
    index = np.clip(found, single, ranks.size - 1) if ranks.size > single else np.zeros(found.shape, np.int64)
    if ranks.size == single:
        return steps
    left, right = at[index - 1], at[index]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(right > left, (values - left) / (right - left), 0.5)
    logs = np.log(ranks - 0.5)
    smooth = np.exp(logs[index - 1] + np.clip(part, 0.0, 1.0) * (logs[index] - logs[index - 1]))
    return np.where(found < single, steps, np.where(found >= ranks.size, ranks[-1], smooth))


# Tails


def true_tail_mass(gap: float, tokens: int) -> float:
    """Probability that softmax gives to ``tokens`` tokens which all lie ``gap`` nats below one other."""
    return 1.0 / (1.0 + math.exp(gap) / tokens)


def tail_mass(law: NoiseLaw, gap: float, tokens: int) -> float:
    """Probability that one of ``tokens`` equal tokens wins against one that is ``gap`` nats better.

    With head noise h the best of the tail wins if one of n independent noises is above h + gap:
    ``E[1 - (1 - S(h + gap))**n]``, summed over the steps of S with the law of h. Equal scores have no share, since they
    are rarer than the rounding of this sum. The addition of noise and logit is taken as exact.

    Args:
        law: of each token's noise.
        gap: nats.
        tokens: n, at least 1.
    """
    values = np.concatenate([law.top_values, law.bottom_values[::-1]])
    above = np.concatenate([law.top_ranks, law.size - law.bottom_ranks[::-1] + 1.0]) / law.size
    head = law.cumulative(values - gap)
    # From one value to the next on the grid, S falls in steps of one word from the rank of the first to one below that
    # of the second; for neighbours these are the same.
    ends = np.stack([above[:-1], above[1:] - 1.0 / law.size])
    wins = -np.expm1(tokens * np.log1p(-np.minimum(ends, 1.0 - 1e-16))).mean(axis=0)
    return float((head[:-1] - head[1:]) @ wins + head[-1])


def tail_error(law: NoiseLaw, gap: float, tokens: int) -> float:
    """Relative error of the tail's mass: -1 for a tail that is never drawn."""
    return tail_mass(law, gap, tokens) / true_tail_mass(gap, tokens) - 1.0


def tail_error_bound(error: float, bits: int, gap: float, tokens: int) -> float:
    """What the relative error of a tail's mass is at most, if every noise is within ``error`` of its quantile.

    Let a uniform number inside each word's step stand for exact noise. But for the j words at an end, a step is at most
    1 / j nats wide there, so noise and exact noise differ by at most e + 1 / j, for the head too: the mass lies between
    those of the gaps 2 (e + 1 / j) above and below. That a token's word is among the j largest, or the head's among the
    j least, happens with probability ``(tokens + 2) * j / 2**bits``. The best j is taken.

    Args:
        error: e, the largest distance of any word's noise from between the quantiles of its rank, in nats.
        bits: of each word.
        gap: nats, at least 1.
        tokens: of the tail.
    """
    ends = (tokens + 2) * 2.0**-bits / true_tail_mass(gap, tokens)
    return min(math.expm1(2.0 * (error + 2.0**-power)) + ends * 2.0**power for power in range(bits - 1))


# The transform, word by word


@dataclass(frozen=True)
class TransformErrors:
    """What an enumeration of a transform found.

    Attributes:
        words: how many were looked at.
        not_finite: words whose noise is NaN or infinite.
        turns: neighbours, in the order of the words looked at, at which the noise goes the wrong way by more than
            rounding.
        winning_error: largest distance, in nats, of the noise from where its rank belongs, for noise above
            :data:`WINNING`.
        losing_error: likewise for the rest.
        examples: words without a number, at most 4.
    """

    words: int
    not_finite: int
    turns: int
    winning_error: float
    losing_error: float
    examples: tuple[int, ...]


WINNING = -1.0  # a token whose noise is below it, one in fifteen, wins only among hopeless ones


def enumerate_transform(
    transform: Transform, bits: int, coarse_bits: int, share: tuple[int, int] = (0, 1), time: TimeBudget = UNLIMITED
) -> TransformErrors:
    """Look at the words with all values of the leading bits, each with its least and its largest trailing bits.

    The transform is compared with the Gumbel quantile of each word's rank: with j words at or above it, noise belongs
    between the quantiles ``-log(-log(1 - j / 2**b))`` and the same for j - 1, whatever formula makes it.

    Args:
        transform: as in :func:`noise_law`.
        bits: b of each word.
        coarse_bits: how many leading bits to enumerate; all words if that is ``bits`` or more.
        share: (i, n) for the i-th of n equal parts of the words, counted from 0; see :func:`merged`.
        time: when to stop; the result then holds fewer words (:func:`words_to_enumerate`).
    """
    leading = min(bits, coarse_bits)
    return enumerate_words(
        transform, bits, lambda start, stop: _ends_of_cells(start, stop, bits - leading), 1 << leading, share, time
    )


def enumerate_words(
    transform: Transform,
    bits: int,
    words_of: Callable[[int, int], NDArray[np.uint64]],
    count: int,
    share: tuple[int, int] = (0, 1),
    time: TimeBudget = UNLIMITED,
) -> TransformErrors:
    """As :func:`enumerate_transform`, for any list of words.

    Args:
        transform: as in :func:`noise_law`.
        bits: b of each word.
        words_of: the words of places i to j - 1 of the list; all words ascend.
        count: places of the list.
        share: (i, n) for the i-th of n equal parts of the list.
        time: when to stop; the result then holds fewer words.
    """
    falls = _falls(transform, bits)
    first, end = (count * (share[0] + step) // share[1] for step in (0, 1))
    found = TransformErrors(0, 0, 0, 0.0, 0.0, ())
    before = _ordered(transform(words_of(first - 1, first)[-1:]), falls) if first else None
    for start in range(first, end, _CHUNK):
        words = words_of(start, min(start + _CHUNK, end))
        noise = transform(words)
        ordered = _ordered(noise, falls)
        line = ordered if before is None else np.append(before, ordered)
        found = merged([found, _errors(noise, words, bits, falls, int(_turns(line).sum()))])
        before = ordered[-1:]
        if time.over():
            break
    return found


def _ordered(noise: NDArray[np.float64], falls: bool) -> NDArray[np.float64]:
    return -noise if falls else noise


def words_to_enumerate(bits: int, coarse_bits: int) -> int:
    """How many words :func:`enumerate_transform` looks at if nothing stops it."""
    return 1 << bits if coarse_bits >= bits else 2 << coarse_bits


def merged(parts: Sequence[TransformErrors]) -> TransformErrors:
    """What several parts of an enumeration found."""
    return TransformErrors(
        sum(part.words for part in parts),
        sum(part.not_finite for part in parts),
        sum(part.turns for part in parts),
        max(part.winning_error for part in parts),
        max(part.losing_error for part in parts),
        tuple(word for part in parts for word in part.examples)[:4],
    )


def _ends_of_cells(start: int, stop: int, trailing: int) -> NDArray[np.uint64]:
    """The first and the last word of each cell of leading bits; one word where there are no trailing bits."""
    heads = np.arange(start, stop, dtype=np.uint64) << np.uint64(trailing)
    return heads if not trailing else np.stack([heads, heads | np.uint64((1 << trailing) - 1)], 1).ravel()


def _errors(
    noise: NDArray[np.float64], words: NDArray[np.uint64], bits: int, falls: bool, turns: int
) -> TransformErrors:
    upper, lower = (_quantile(words, bits, falls, part) for part in (0.0, 1.0))
    error = _distances(noise, upper, lower)
    winning = upper > WINNING
    bad = ~np.isfinite(noise)
    return TransformErrors(
        words.size,
        int(bad.sum()),
        turns,
        float(error[winning].max(initial=0.0)),
        float(error[~winning].max(initial=0.0)),
        tuple(words[bad][:4].tolist()),
    )


# Words at a time, twice that with both ends: they fit the processor's cache, three times as fast as a million.
_CHUNK = 2**16
# Nats. Where a float32 transform changes its formula, it may step back by some units in the last place.
_ROUNDING = 4e-6


def _turns(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where values that should ascend fall by more than rounding."""
    return np.asarray(values[1:] < values[:-1] - _ROUNDING)


def _distances(
    noise: NDArray[np.float64], upper: NDArray[np.float64], lower: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Distance of each noise from the interval of its rank; 0 inside, and where it is no number."""
    finite = np.isfinite(noise)
    known = noise if finite.all() else np.where(finite, noise, 0.0)
    distance: NDArray[np.float64] = np.maximum(np.maximum(known - upper, lower - known), 0.0)
    return distance if finite.all() else np.where(finite, distance, 0.0)


def _quantile(words: NDArray[np.uint64], bits: int, falls: bool, part: float) -> NDArray[np.float64]:
    """Gumbel quantile with ``part`` of the word itself, and all words of larger noise, above it.

    There are two forms, each exact where the other is not: one for few words above, one for few below. Neighbouring
    words nearly always need the same one.
    """
    last = np.uint64((1 << bits) - 1)
    above, below = (words, last - words) if falls else (last - words, words)
    high = above < below
    if high.all():
        return _from_above(above, bits, part)
    if not high.any():
        return _from_below(below, bits, part)
    return np.where(high, _from_above(above, bits, part), _from_below(below, bits, part))


def _from_above(above: NDArray[np.uint64], bits: int, part: float) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return -np.log(-np.log1p((above.astype(np.float64) + part) * -(2.0**-bits)))


def _from_below(below: NDArray[np.uint64], bits: int, part: float) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return -np.log(-np.log((below.astype(np.float64) + (1.0 - part)) * 2.0**-bits))
