"""Gumbel-max sampling and the log-probability of the drawn token, in two launches and one pass over the logits.

With independent standard Gumbel noise g, the index of the largest ``logit / temperature + g`` is distributed as
the softmax (Gumbel 1954; Maddison, Tarlow and Minka 2014, "A* sampling"). No probability is ever stored.

Noise. A draw is a pure function of (seed, position, token, purpose): Philox4x32-10 (Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3") with the 64-bit seed as key and (token // 4, position, purpose, part) as
counter gives 32 bits for each of four neighbouring tokens; part 0 is the high word, part 1 the low word. With
x = high * 2**32 + low and u = (x + 1/2) / 2**64, the noise is -log(-log1p(-u)): large noise comes from small u,
where a float32 is dense. 32 bits would not be enough: 2**-32 is the chance of a token that trails by 22 nats.
"""

import triton.language as tl

from .filters import ordered
from .launch import kernel
from .logits_processing import FILTERS

PURPOSE_TARGET = tl.constexpr(0)
_TWO_POW_32 = tl.constexpr(4294967296.0)
_TWO_POW_MINUS_64 = tl.constexpr(5.421010862427522e-20)


@kernel
def random_words(seed, position, first_token, purpose, part, BLOCK: tl.constexpr) -> tl.tensor:
    """32 random bits for each of the tokens first_token .. first_token + BLOCK - 1 (both multiples of 4)."""
    group = first_token // 4 + tl.arange(0, BLOCK // 4)
    zero = tl.zeros([BLOCK // 4], tl.int32)
    word0, word1, word2, word3 = tl.philox(seed, group, zero + position, zero + purpose, zero + part)
    return tl.reshape(tl.join(tl.join(word0, word2), tl.join(word1, word3)), [BLOCK])


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
def processed_logit(raw, processed_ptr, token, inside, stages, threshold_ptr, temperature) -> tl.tensor:
    """What is drawn from: the logit after every stage, filters and temperature included.

    NaN becomes minus infinity. A row without a stage has neither a processed copy nor a threshold, only a temperature.
    """
    value = raw
    if stages != 0:
        value = tl.load(processed_ptr + token, mask=inside, other=float("-inf"))
        if (stages & FILTERS) != 0:
            value = tl.where(ordered(value) >= tl.load(threshold_ptr), value, float("-inf"))
    elif temperature > 0.0:
        value = tl.div_rn(raw, tl.zeros_like(raw) + temperature)
    return tl.where(value == value, value, float("-inf"))


@kernel
def sample_blocks(
    logits_ptr,  # [N, V] float32
    logits_stride,
    processed_ptr,  # [N, V] float32, dense; read for rows with a stage only
    threshold_ptr,  # [N] int32; read for rows with a filter only
    rows_ptr,  # [N] int32
    positions_ptr,  # [N] int32: number of tokens before the one drawn
    stages_ptr,  # [R] int32
    stages_stride,
    temperature_ptr,  # [R] float32
    temperature_stride,
    seed_ptr,  # [R] int64
    float_ptr,  # [4, N, blocks] float32, out: best score, its reported value, largest reported value, sum of exp
    int_ptr,  # [3, N, blocks] int32, out: best token, number of NaN logits, first of them
    vocab_size,
    num_blocks,
    plane,  # N * blocks
    PROCESSED: tl.constexpr,  # report processed values, not the model's
    BLOCK: tl.constexpr,
) -> None:
    """Winner of one block of one row, and the block's share of the softmax denominator.

    A NaN logit loses against every number. Temperature 0 takes the largest logit; the lowest id wins ties.
    """
    index = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    row = tl.load(rows_ptr + index).to(tl.int64)
    temperature = tl.load(temperature_ptr + row * temperature_stride)
    first_token = block * BLOCK
    token = first_token + tl.arange(0, BLOCK)
    inside = token < vocab_size
    logit = tl.load(logits_ptr + index * logits_stride + token, mask=token < vocab_size, other=float("-inf"))
    stages = tl.load(stages_ptr + row * stages_stride)
    value = processed_logit(
        logit, processed_ptr + index * vocab_size, token, inside, stages, threshold_ptr + index, temperature
    )
    score = value
    if temperature > 0.0:
        seed = tl.load(seed_ptr + row)
        position = tl.load(positions_ptr + index)
        high = random_words(seed, position, first_token, PURPOSE_TARGET, 0, BLOCK)
        low = random_words(seed, position, first_token, PURPOSE_TARGET, 1, BLOCK)
        score = value + gumbel_noise(high, low)
    best_score = tl.max(score, 0)
    best = tl.min(tl.where(score == best_score, token, 2147483647), 0)
    reported = logit
    if PROCESSED:
        reported = value
    largest = tl.max(reported, 0)
    finite = tl.where(largest == float("-inf"), 0.0, largest)
    missing = logit != logit
    out = index * num_blocks + block
    tl.store(float_ptr + out, best_score)
    tl.store(float_ptr + plane + out, tl.sum(tl.where(token == best, reported, 0.0), 0))
    tl.store(float_ptr + 2 * plane + out, largest)
    tl.store(float_ptr + 3 * plane + out, tl.sum(tl.exp(reported - finite), 0))
    tl.store(int_ptr + out, best)
    tl.store(int_ptr + plane + out, tl.sum(missing.to(tl.int32), 0))
    tl.store(int_ptr + 2 * plane + out, tl.min(tl.where(missing, token, 2147483647), 0))


@kernel
def combine_blocks(
    float_ptr,  # [4, N, blocks] float32, see `sample_blocks`
    int_ptr,  # [3, N, blocks] int32, likewise
    result_ptr,  # [4, N] int32, out: token, number of NaN logits, first of them, whether no token was left
    value_ptr,  # [N] float32, out: value of the token
    statistics_ptr,  # [2, N] float32, out: largest value, log of the sum of exp below it
    count,  # N
    num_blocks,
    LOGARITHM: tl.constexpr,  # report log-probabilities, not logits
    BLOCKS: tl.constexpr,
) -> None:
    """Winner of a row over its blocks, and its log-probability.

    The block sums are added as a tree, not one after another, which keeps the rounding error near log2(blocks)
    units instead of blocks.
    """
    index = tl.program_id(0)
    lane = tl.arange(0, BLOCKS)
    inside = lane < num_blocks
    offset = index * num_blocks + lane
    plane = count * num_blocks
    score = tl.load(float_ptr + offset, mask=inside, other=float("-inf"))
    token = tl.load(int_ptr + offset, mask=inside, other=2147483647)
    best_score = tl.max(score, 0)
    best_token = tl.min(tl.where(score == best_score, token, 2147483647), 0)
    value = tl.load(float_ptr + plane + offset, mask=inside, other=0.0)
    value = tl.sum(tl.where(token == best_token, value, 0.0), 0)
    maximum = tl.load(float_ptr + 2 * plane + offset, mask=inside, other=float("-inf"))
    largest = tl.max(maximum, 0)
    share = tl.load(float_ptr + 3 * plane + offset, mask=inside, other=0.0) * tl.exp(maximum - largest)
    log_sum = tl.log(tl.sum(share, 0))
    if LOGARITHM:
        value = (value - largest) - log_sum
    missing = tl.sum(tl.load(int_ptr + plane + offset, mask=inside, other=0), 0)
    first = tl.min(tl.load(int_ptr + 2 * plane + offset, mask=inside, other=2147483647), 0)
    tl.store(result_ptr + index, best_token)
    tl.store(result_ptr + count + index, missing)
    tl.store(result_ptr + 2 * count + index, first)
    tl.store(result_ptr + 3 * count + index, (best_score == float("-inf")).to(tl.int32))
    tl.store(value_ptr + index, value)
    tl.store(statistics_ptr + index, largest)
    tl.store(statistics_ptr + count + index, log_sum)
