"""The noise contract: which random bits belong to a draw, and how they become Gumbel noise.

Every bit is a pure function of (seed, position, token id, purpose); batch, row, padding and preemption never enter.
This is the integer-exact specification; kernels implement it on their own and are compared with it.

* Bits: Philox4x32 with 10 rounds (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3").
  The key is the seed modulo 2^64, low half first; the counter is (token >> 2, position, purpose, part), and the
  token takes word ``token & 3`` of the result. Part 0 gives the high 32 bits of a 64-bit word, part 1 the low ones.
* Uniform: u = (word + 1/2) / 2^64, which never reaches 0 or 1.
* Exponential: e = -log(1 - u); Gumbel: -log(e). A small u wins, so the noise of the winners rests on the end of the
  scale where u is fine-grained, and it reaches up to 65 log 2 = 45.05.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(32)


class Purpose(enum.IntEnum):
    """What a draw is for; draws for different purposes are independent."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RECOVER = 3


def philox4x32(
    counter: NDArray[np.uint64], key: tuple[int | NDArray[np.uint64], int | NDArray[np.uint64]]
) -> NDArray[np.uint64]:
    """Philox4x32-10, the four-word counter cipher of Salmon et al. 2011.

    Args:
        counter: uint64 [4, ...], each value below 2^32.
        key: two values below 2^32, or two arrays of them, broadcast against each value of the counter.

    Returns:
        uint64 [4, ...], each value below 2^32.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (second >> _HALF_WORD) ^ c1 ^ k0, second & _LOW, (first >> _HALF_WORD) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack((c0, c1, c2, c3))


def words(
    seed: int, position: int, tokens: NDArray[np.integer], purpose: Purpose, offset: int = 0
) -> NDArray[np.uint64]:
    """The 64 random bits of each token's draw.

    Args:
        seed: the request's seed; only its value modulo 2^64 counts.
        position: number of tokens before the one being drawn, below 2^32.
        tokens: token ids, any shape, not negative and below 2^34.
        purpose: what the draw is for.
        offset: of a draft in its step, 0 to 2^24 - 1; it stands above the lowest 8 bits of the purpose's word.

    Returns:
        uint64, same shape as ``tokens``.

    Raises:
        RequestError: a position or a token id outside its range.
    """
    _check_range("position", position, position, 2**32)
    if tokens.size:
        _check_range("token id", int(tokens.min()), int(tokens.max()), 2**34)
    word = int(purpose) + 256 * offset
    high, low = (_part(seed, position, tokens.astype(np.uint64), word, part) for part in (0, 1))
    return (high << _HALF_WORD) | low


def exponential(word: NDArray[np.uint64]) -> NDArray[np.float64]:
    """-log(1 - u) for u = (word + 1/2) / 2^64, with a relative error of a few 2^-53 over the whole range.

    In floating point 1 - u would lose the low bits of u near 1 (and reach 0 at the end). Its integer counterpart is
    exact: 1 - u = (~word + 1/2) / 2^64. So the upper half of the range takes the logarithm of that, and the lower
    half, where u itself is the small number, takes log1p.
    """
    upper = word >= np.uint64(2**63)
    small = (np.where(upper, ~word, word).astype(np.float64) + 0.5) * 2.0**-64
    return np.where(upper, -np.log(small), -np.log1p(-small))


def gumbel(
    seed: int, position: int, vocab_size: int, purpose: Purpose = Purpose.TARGET, offset: int = 0
) -> NDArray[np.float64]:
    """Gumbel noise of every token of a vocabulary: float64 [vocab_size], between -3.81 and 45.06.

    Args:
        seed: the request's seed; only its value modulo 2^64 counts.
        position: number of tokens before the one being drawn.
        vocab_size: token ids 0 to ``vocab_size`` - 1.
        purpose: what the draw is for.
        offset: of a draft in its step.

    Raises:
        RequestError: a position outside 0 to 2^32 - 1.
    """
    return -np.log(exponential(words(seed, position, np.arange(vocab_size), purpose, offset)))


def _part(seed: int, position: int, tokens: NDArray[np.uint64], purpose: int, part: int) -> NDArray[np.uint64]:
    block = tokens >> np.uint64(2)
    constants = (np.full_like(block, value) for value in (position, purpose, part))
    key = seed % 2**64
    results = philox4x32(np.stack((block, *constants)), (key & 0xFFFFFFFF, key >> 32))
    lane = (tokens & np.uint64(3)).astype(np.int64)
    chosen: NDArray[np.uint64] = np.take_along_axis(results, lane[np.newaxis], axis=0)[0]
    return chosen


def _check_range(name: str, low: int, high: int, limit: int) -> None:
    if low >= 0 and high < limit:
        return
    raise RequestError(
        f"{name} {low if low < 0 else high}",
        f"must be between 0 and {limit - 1}",
        "it is part of a 32-bit counter, and a larger one would repeat the noise of another draw",
        f"a {name} within that range",
    )
