"""The noise of Gumbel-max sampling, and bounds of it.

With independent standard Gumbel noise g, the index of the largest ``logit / temperature + g`` is distributed as
the softmax (Gumbel 1954; Maddison, Tarlow and Minka 2014, "A* sampling"). No probability is ever stored.

Noise. A draw is a pure function of (seed, position, token, purpose): Philox4x32-10 (Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3") with the 64-bit seed as key and (token // 4, position, purpose, part) as
counter gives 32 bits for each of four neighbouring tokens; part 0 is the high word, part 1 the low word. With
x = high * 2**32 + low and u = (x + 1/2) / 2**64, the noise is -log(-log1p(-u)): large noise comes from small u,
where a float32 is dense. 32 bits would not be enough: 2**-32 is the chance of a token that trails by 22 nats.
"""

import triton.language as tl

from .launch import kernel
from .logits_processing import FILTERS, STORED
from .order import divided, ordered

PURPOSE_TARGET = tl.constexpr(0)
_TWO_POW_32 = tl.constexpr(4294967296.0)
_TWO_POW_MINUS_64 = tl.constexpr(5.421010862427522e-20)
_MULTIPLIER_0 = tl.constexpr(0xD2511F53)
_MULTIPLIER_1 = tl.constexpr(0xCD9E8D57)
_KEY_STEP_0 = tl.constexpr(0x9E3779B9)
_KEY_STEP_1 = tl.constexpr(0xBB67AE85)


@kernel
def multiplied(word, multiplier: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """High and low word of a product of 32-bit words; on a GPU one instruction, where two halves would be two."""
    product = tl.mul(word.to(tl.uint64), tl.full([], multiplier, tl.uint64), sanitize_overflow=False)
    return (product >> 32).to(tl.uint32), product.to(tl.uint32)


@kernel
def philox(seed, group, position, purpose, part) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Four words of 32 bits for each group of tokens: Philox4x32-10, as `tl.philox` has it."""
    zero = tl.zeros_like(group)
    key0, key1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    word0, word1 = group.to(tl.uint32), (zero + position).to(tl.uint32)
    word2, word3 = (zero + purpose).to(tl.uint32), (zero + part).to(tl.uint32)
    for _ in tl.static_range(10):
        high0, low0 = multiplied(word0, _MULTIPLIER_0)
        high1, low1 = multiplied(word2, _MULTIPLIER_1)
        word0, word1, word2, word3 = high1 ^ word1 ^ key0, low1, high0 ^ word3 ^ key1, low0
        key0 = tl.add(key0, tl.full([], _KEY_STEP_0, tl.uint32), sanitize_overflow=False)
        key1 = tl.add(key1, tl.full([], _KEY_STEP_1, tl.uint32), sanitize_overflow=False)
    return word0, word1, word2, word3


@kernel
def words_of_groups(seed, position, group, purpose, part) -> tl.tensor:
    """32 random bits for each token of some groups, group by group."""
    word0, word1, word2, word3 = philox(seed, group, position, purpose, part)
    return tl.reshape(tl.join(tl.join(word0, word2), tl.join(word1, word3)), [4 * group.shape[0]])


@kernel
def random_words(seed, position, first_token, purpose, part, BLOCK: tl.constexpr) -> tl.tensor:
    """32 random bits for each of the tokens first_token .. first_token + BLOCK - 1 (both multiples of 4)."""
    return words_of_groups(seed, position, first_token // 4 + tl.arange(0, BLOCK // 4), purpose, part)


@kernel
def gumbel_noise(high, low) -> tl.tensor:
    """Standard Gumbel noise, float32, from 64 random bits per token.

    -log1p(-u) is taken by Kahan's device for small u: with w = 1 - u rounded, log(w) * u / (w - 1) is accurate
    because the error of w cancels. For u above 1/2 the integer complement gives 1 - u without cancellation.
    """
    small = (high.to(tl.float32) * _TWO_POW_32 + low.to(tl.float32) + 0.5) * _TWO_POW_MINUS_64
    upper_half = high >= 2147483648
    rest = tl.where(upper_half, 0.5, 1.0 - small)
    exact = rest == 1.0
    ratio = tl.div_rn(small, tl.where(exact, -1.0, rest - 1.0))
    exponential = tl.where(exact, small, tl.log(rest) * ratio)
    complement = (4294967295 - high).to(tl.float32) * _TWO_POW_32 + (4294967295 - low).to(tl.float32) + 0.5
    exponential = tl.where(upper_half, -tl.log(complement * _TWO_POW_MINUS_64), exponential)
    return -tl.log(exponential)


@kernel
def coarse_logarithm(high) -> tl.tensor:
    """At most 2**17 * (64 + log2(high)), float32, for words of 32 bits, by integers alone.

    A float's bits, read as an integer, grow linearly between powers of two, and the logarithm is concave. Zero gives
    2**17 * 16, which is below 64 + log2(2**-33).
    """
    bits = high.to(tl.float32).to(tl.int32, bitcast=True)
    return ((bits >> 6) + 0x4A020000).to(tl.float32, bitcast=True)


@kernel
def processed_logit(raw, processed_ptr, token, inside, stages, threshold_ptr, temperature) -> tl.tensor:
    """What is drawn from: the logit after every stage, filters and temperature included.

    NaN becomes minus infinity. A row has a processed copy if it has a stage of STORED, and a threshold if a filter.
    """
    value = raw
    if (stages & STORED) != 0:
        value = tl.load(processed_ptr + token, mask=inside, other=float("-inf")).to(tl.float32)
    elif temperature > 0.0:
        value = divided(raw, temperature)
    if (stages & FILTERS) != 0:
        value = tl.where(ordered(value) >= tl.load(threshold_ptr), value, float("-inf"))
    return tl.where(value == value, value, float("-inf"))
