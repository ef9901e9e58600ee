"""Every noise that float32 arithmetic can make of a word, where it sees the word only as a rounded number.

A transform that first rounds a word x to float32 (and, above the middle, its complement, lest 1 - u cancel) gives equal
noise to all words that round alike. So the 2**64 words have no more noises than float32 has numbers between the least
word and the middle one, twice: 688 million, and one word for each of them shows every noise there is.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError
from .noise import Transform, TransformErrors, enumerate_words

_SIGNIFICAND = 24  # bits of float32
_OCTAVE = 1 << (_SIGNIFICAND - 1)  # float32 numbers from one power of two to the next
# Nats. Words that round to one float32 lie within 1.5 units of its last place, by two roundings; below the middle the
# quantile moves by at most 1 / log(2) times the relative change of u, and above it by less.
SHARED = 1.5 * 2.0**-23 / math.log(2.0)


def float32_count(bits: int) -> int:
    """How many float32 numbers the words of b bits below the middle round to; the largest is the middle itself.

    Raises:
        ArgumentError: float32 holds each of them, so that there is nothing to round.
    """
    if not _SIGNIFICAND < bits - 1 < 64:
        raise ArgumentError(
            f"bits={bits}", "26 to 64 bits per word", "shorter words are float32 numbers", "enumerate_transform"
        )
    return 2 * _OCTAVE + (bits - 1 - _SIGNIFICAND) * _OCTAVE + 1


def float32_words(bits: int, start: int, stop: int) -> NDArray[np.uint64]:
    """One word for each float32 number, ascending: uint64 [stop - start].

    Args:
        bits: b of each word, 26 to 64.
        start: place of the first; places from 0 below ``float32_count(bits)`` are words below the middle, and as many
            behind them are their complements.
        stop: one behind the last.
    """
    count = float32_count(bits)
    places = np.arange(start, stop, dtype=np.int64)
    upper = places >= count
    numbers = _numbers(np.where(upper, 2 * count - 1 - places, places).astype(np.uint64))
    below = np.minimum(numbers, np.uint64((1 << (bits - 1)) - 1))
    words: NDArray[np.uint64] = np.where(upper, np.uint64((1 << bits) - 1) - below, below)
    return words


def _numbers(places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers of 24 bits each by itself, then those whose leading 24 bits vary and whose others are 0."""
    octave = np.maximum(places >> np.uint64(_SIGNIFICAND - 1), np.uint64(1)) - np.uint64(1)
    numbers: NDArray[np.uint64] = (places - octave * np.uint64(_OCTAVE)) << octave
    return numbers


def enumerate_float32(transform: Transform, bits: int, share: tuple[int, int] = (0, 1)) -> TransformErrors:
    """Look at every noise of a transform that sees words as float32; see :func:`mrv2.stats.noise.enumerate_transform`.

    A word's noise is at most :data:`SHARED` nats farther from its place than that of the word which stands for it.

    Args:
        transform: as in :func:`mrv2.stats.noise.noise_law`.
        bits: b of each word, 26 to 64.
        share: (i, n) for the i-th of n equal parts.
    """
    return enumerate_words(
        transform, bits, lambda start, stop: float32_words(bits, start, stop), 2 * float32_count(bits), share
    )
