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

from .launch import kernel

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
def sample_blocks(
    logits_ptr,  # [N, V] float32
    logits_stride,
    rows_ptr,  # [N] int32
    positions_ptr,  # [N] int32: number of tokens before the one drawn
    temperature_ptr,  # [R] float32
    seed_ptr,  # [R] int64
    best_score_ptr,  # [N, blocks] float32, out
    best_token_ptr,  # [N, blocks] int32, out
    best_logit_ptr,  # [N, blocks] float32, out
    max_logit_ptr,  # [N, blocks] float32, out
    sum_exp_ptr,  # [N, blocks] float32, out
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
) -> None:
    """Winner of one block of one row, and the block's share of the softmax denominator.

    A NaN logit loses against every number. Temperature 0 takes the largest logit; the lowest id wins ties.
    """
    index = tl.program_id(0)
    block = tl.program_id(1)
    row = tl.load(rows_ptr + index)
    temperature = tl.load(temperature_ptr + row)
    first_token = block * BLOCK
    token = first_token + tl.arange(0, BLOCK)
    row_ptr = logits_ptr + index.to(tl.int64) * logits_stride
    logit = tl.load(row_ptr + token, mask=token < vocab_size, other=float("-inf"))
    score = tl.where(logit == logit, logit, float("-inf"))
    if temperature > 0.0:
        seed = tl.load(seed_ptr + row)
        position = tl.load(positions_ptr + index)
        high = random_words(seed, position, first_token, PURPOSE_TARGET, 0, BLOCK)
        low = random_words(seed, position, first_token, PURPOSE_TARGET, 1, BLOCK)
        score = tl.div_rn(score, tl.zeros([BLOCK], tl.float32) + temperature) + gumbel_noise(high, low)
    best_score = tl.max(score, 0)
    best = tl.min(tl.where(score == best_score, token, 2147483647), 0)
    largest = tl.max(logit, 0)
    finite = tl.where(largest == float("-inf"), 0.0, largest)
    out = index * num_blocks + block
    tl.store(best_score_ptr + out, best_score)
    tl.store(best_token_ptr + out, best)
    tl.store(best_logit_ptr + out, tl.sum(tl.where(token == best, logit, 0.0), 0))
    tl.store(max_logit_ptr + out, largest)
    tl.store(sum_exp_ptr + out, tl.sum(tl.exp(logit - finite), 0))


@kernel
def combine_blocks(
    best_score_ptr,  # [N, blocks] float32
    best_token_ptr,  # [N, blocks] int32
    best_logit_ptr,  # [N, blocks] float32
    max_logit_ptr,  # [N, blocks] float32
    sum_exp_ptr,  # [N, blocks] float32
    token_ptr,  # [N] int32, out
    logprob_ptr,  # [N] float32, out
    num_blocks,
    BLOCKS: tl.constexpr,
) -> None:
    """Winner of a row over its blocks, and its log-probability under the softmax of the raw logits.

    The block sums are added as a tree, not one after another, which keeps the rounding error near log2(blocks)
    units instead of blocks.
    """
    index = tl.program_id(0)
    lane = tl.arange(0, BLOCKS)
    inside = lane < num_blocks
    offset = index * num_blocks + lane
    score = tl.load(best_score_ptr + offset, mask=inside, other=float("-inf"))
    token = tl.load(best_token_ptr + offset, mask=inside, other=2147483647)
    best_token = tl.min(tl.where(score == tl.max(score, 0), token, 2147483647), 0)
    best_logit = tl.load(best_logit_ptr + offset, mask=inside, other=0.0)
    best_logit = tl.sum(tl.where(token == best_token, best_logit, 0.0), 0)
    maximum = tl.load(max_logit_ptr + offset, mask=inside, other=float("-inf"))
    largest = tl.max(maximum, 0)
    share = tl.load(sum_exp_ptr + offset, mask=inside, other=0.0) * tl.exp(maximum - largest)
    tl.store(token_ptr + index, best_token)
    tl.store(logprob_ptr + index, (best_logit - largest) - tl.log(tl.sum(share, 0)))
