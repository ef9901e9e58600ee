"""Rejection sampling of drafts that were drawn, in three launches; the result is distributed as without drafts.

Notation as in ``speculation``; p is what the target draws from at a row of logits (after every stage of the sampler),
q what the draft was drawn from. Token by token (Leviathan, Kalman and Matias 2023, "Fast inference from transformers
via speculative decoding"): draft d is accepted with probability min(1, p(d) / q(d)); the first one that is not is
replaced by a token drawn from the positive part of p - q. In blocks (Sun et al. 2024, "Block verification accelerates
speculative decoding"): with w = 1 before the first draft and w = min(1, w p(d) / q(d)) behind each, the first j drafts
are acceptable with probability m / (m + 1 - w), where m is the sum of the positive part of w p - q at the row behind
them, or w behind the last draft; the longest acceptable prefix counts, and the token behind it comes from that part.

Noise. Each decision has bits of its own: purpose DRAFT for the drawn drafts, ACCEPT, RECOVER, and TARGET for what the
target draws itself. All but the last carry the draft's offset in its step beside the purpose, so that a position that
is drafted again in a later step has fresh bits: in blocks, whether a draft counts depends on later ones, too.
A request at temperature 0 accepts what equals the target's largest logit.
"""

import triton.language as tl

from .gumbel import gumbel_noise, processed_logit, random_words
from .launch import kernel

PURPOSE_DRAFT = tl.constexpr(1)
PURPOSE_ACCEPT = tl.constexpr(2)
PURPOSE_RECOVER = tl.constexpr(3)
#: The offset in the step is in the bits of the purpose from here on.
OFFSET_UNIT = tl.constexpr(256)
_TWO_POW_MINUS_32 = tl.constexpr(2.3283064365386963e-10)


@kernel
def uniform(seed, position, purpose) -> tl.tensor:
    """A number above 0, at most 1, float32 [1]: the high word of token 0."""
    zero = tl.zeros([1], tl.int32)
    word, _, _, _ = tl.philox(seed, zero, zero + position, zero + purpose, zero)
    return (word.to(tl.float32) + 0.5) * _TWO_POW_MINUS_32


@kernel
def token_noise(seed, position, first_token, purpose, BLOCK: tl.constexpr) -> tl.tensor:
    """Gumbel noise of a block of tokens."""
    high = random_words(seed, position, first_token, purpose, 0, BLOCK)
    low = random_words(seed, position, first_token, purpose, 1, BLOCK)
    return gumbel_noise(high, low)


@kernel
def draft_logit(draft_ptr, token, inside) -> tl.tensor:
    """What a draft is drawn from; NaN as minus infinity."""
    value = tl.load(draft_ptr + token, mask=inside, other=float("-inf"))
    return tl.where(value == value, value, float("-inf"))


@kernel
def draw_drafts(
    logits_ptr,  # [N, V] float32, of the draft model
    logits_stride,
    rows_ptr,  # [N] int32
    num_emitted_ptr,  # [N] int32; 0 gets no draft
    total_len_ptr,  # [R] int32
    temperature_ptr,  # [R] float32
    temperature_stride,
    seed_ptr,  # [R] int64
    draft_logits_ptr,  # [R, K, V] float32, out: what the draft is drawn from; with DRAWN only
    num_drafts_ptr,  # [R] int32, out
    token_ids_ptr,  # [R, L] int32, out
    token_ids_stride,
    vocab_size,
    max_model_len,
    offset,  # how many drafts there are before this one
    DRAFTS: tl.constexpr,  # K
    DRAWN: tl.constexpr,  # draw with the request's temperature; otherwise take the largest logit
    BLOCK: tl.constexpr,
) -> None:
    """One draft for each request, put behind its known tokens and earlier drafts. One program per request."""
    request = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + request).to(tl.int64)
    position = tl.load(total_len_ptr + row) + offset
    if (tl.load(num_emitted_ptr + request) > 0) & (position < max_model_len):
        temperature = tl.full([], 0.0, tl.float32)
        if DRAWN:
            temperature = tl.load(temperature_ptr + row * temperature_stride)
        seed = tl.load(seed_ptr + row)
        best_score = tl.full([], float("-inf"), tl.float32)
        best = tl.full([], 0, tl.int32)
        for first_token in range(0, vocab_size, BLOCK):
            token = first_token + tl.arange(0, BLOCK)
            inside = token < vocab_size
            score = draft_logit(logits_ptr + request * logits_stride, token, inside)
            if temperature > 0.0:
                score = tl.div_rn(score, tl.zeros_like(score) + temperature)
                at = (row * DRAFTS + offset) * vocab_size
                tl.store(draft_logits_ptr + at + token, score, mask=inside)
                purpose = PURPOSE_DRAFT + OFFSET_UNIT * offset
                score += token_noise(seed, position, first_token, purpose, BLOCK)
            block_best = tl.max(score, 0)
            winner = tl.min(tl.where(score == block_best, token, 2147483647), 0)
            best = tl.where(block_best > best_score, winner, best)
            best_score = tl.maximum(block_best, best_score)
        tl.store(token_ids_ptr + row * token_ids_stride + position, best)
        tl.store(num_drafts_ptr + row, offset + 1)


@kernel
def judge_drafts(
    logits_ptr,  # [M, V] float32, of the target
    logits_stride,
    processed_ptr,  # [M, V] float32, see `draw.sample_blocks`, as the next five
    threshold_ptr,  # [M] int32
    stages_ptr,  # [R] int32
    stages_stride,
    temperature_ptr,  # [R] float32
    temperature_stride,
    rows_ptr,  # [M] int32
    offsets_ptr,  # [M] int32
    positions_ptr,  # [M] int32
    num_drafts_ptr,  # [R] int32
    token_ids_ptr,  # [R, L] int32
    token_ids_stride,
    drawn_ptr,  # [M] int32, the target's own draw
    draft_logits_ptr,  # [R, K, V] float32
    judged_ptr,  # [3, M] float32, out: p(d) / q(d), log of the sum of exp, of the target and of the draft
    vocab_size,
    count,  # M
    DRAFTS: tl.constexpr,  # K
    BLOCK: tl.constexpr,
) -> None:
    """How much likelier each draft is for the target than for who drew it. One program per row of logits."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index).to(tl.int64)
    offset = tl.load(offsets_ptr + index)
    temperature = tl.load(temperature_ptr + row * temperature_stride)
    draft = tl.load(token_ids_ptr + row * token_ids_stride + tl.load(positions_ptr + index), mask=offset < DRAFTS)
    ratio = (draft == tl.load(drawn_ptr + index)).to(tl.float32)
    target_sum = tl.full([], 0.0, tl.float32)
    draft_sum = tl.full([], 0.0, tl.float32)
    if (temperature > 0.0) & (offset < tl.load(num_drafts_ptr + row)):
        stages = tl.load(stages_ptr + row * stages_stride)
        draft_ptr = draft_logits_ptr + (row * DRAFTS + offset) * vocab_size
        target_top = tl.full([], float("-inf"), tl.float32)
        draft_top = tl.full([], float("-inf"), tl.float32)
        target_of = tl.full([], 0.0, tl.float32)
        draft_of = tl.full([], 0.0, tl.float32)
        for first_token in range(0, vocab_size, BLOCK):
            token = first_token + tl.arange(0, BLOCK)
            inside = token < vocab_size
            raw = tl.load(logits_ptr + index * logits_stride + token, mask=inside, other=float("-inf"))
            p = processed_logit(
                raw, processed_ptr + index * vocab_size, token, inside, stages, threshold_ptr + index, temperature
            )
            q = draft_logit(draft_ptr, token, inside)
            # Each sum is kept relative to the largest logit so far (Milakov and Gimelshein 2018).
            larger = tl.maximum(target_top, tl.max(p, 0))
            kept = tl.where(larger == float("-inf"), 0.0, larger)
            target_sum = target_sum * tl.exp(target_top - kept) + tl.sum(tl.exp(p - kept), 0)
            target_top = larger
            larger = tl.maximum(draft_top, tl.max(q, 0))
            kept = tl.where(larger == float("-inf"), 0.0, larger)
            draft_sum = draft_sum * tl.exp(draft_top - kept) + tl.sum(tl.exp(q - kept), 0)
            draft_top = larger
            target_of += tl.sum(tl.where(token == draft, p, 0.0), 0)
            draft_of += tl.sum(tl.where(token == draft, q, 0.0), 0)
        target_sum = target_top + tl.log(target_sum)
        draft_sum = draft_top + tl.log(draft_sum)
        ratio = tl.exp((target_of - target_sum) - (draft_of - draft_sum))
        # No number if every token is forbidden, or a model's logits are not finite: such a draft is not accepted.
        ratio = tl.where(ratio == ratio, ratio, 0.0)
    tl.store(judged_ptr + index, ratio)
    tl.store(judged_ptr + count + index, target_sum)
    tl.store(judged_ptr + 2 * count + index, draft_sum)


@kernel
def recover_tokens(
    logits_ptr,  # [M, V] float32; this and the following as in `judge_drafts`
    logits_stride,
    processed_ptr,
    threshold_ptr,
    stages_ptr,
    stages_stride,
    temperature_ptr,
    temperature_stride,
    seed_ptr,  # [R] int64
    rows_ptr,
    offsets_ptr,
    positions_ptr,
    num_drafts_ptr,
    drawn_ptr,
    draft_logits_ptr,
    judged_ptr,  # [3, M] float32
    recovered_ptr,  # [M] int32, out
    mass_ptr,  # [M] float32, out: sum of the positive part
    vocab_size,
    count,  # M
    IN_BLOCKS: tl.constexpr,
    DRAFTS: tl.constexpr,  # K
    BLOCK: tl.constexpr,
) -> None:
    """What a request gets if the draft of this row is not accepted. One program per row of logits.

    Where there is no draft to replace it is the target's own draw, and so it is if rounding leaves nothing of the
    positive part.
    """
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index).to(tl.int64)
    offset = tl.load(offsets_ptr + index)
    temperature = tl.load(temperature_ptr + row * temperature_stride)
    recovered = tl.load(drawn_ptr + index)
    mass = tl.full([], 0.0, tl.float32)
    if (temperature > 0.0) & (offset < tl.load(num_drafts_ptr + row)):
        stages = tl.load(stages_ptr + row * stages_stride)
        seed = tl.load(seed_ptr + row)
        position = tl.load(positions_ptr + index)
        draft_ptr = draft_logits_ptr + (row * DRAFTS + offset) * vocab_size
        target_sum = tl.load(judged_ptr + count + index)
        draft_sum = tl.load(judged_ptr + 2 * count + index)
        weight = tl.full([], 1.0, tl.float32)
        if IN_BLOCKS:
            for place in range(offset):
                weight = tl.minimum(weight * tl.load(judged_ptr + index - offset + place), 1.0)
        best_score = tl.full([], float("-inf"), tl.float32)
        for first_token in range(0, vocab_size, BLOCK):
            token = first_token + tl.arange(0, BLOCK)
            inside = token < vocab_size
            raw = tl.load(logits_ptr + index * logits_stride + token, mask=inside, other=float("-inf"))
            p = processed_logit(
                raw, processed_ptr + index * vocab_size, token, inside, stages, threshold_ptr + index, temperature
            )
            q = tl.exp(draft_logit(draft_ptr, token, inside) - draft_sum)
            rest = weight * tl.exp(p - target_sum) - tl.where(q == q, q, 0.0)
            rest = tl.where(rest > 0.0, rest, 0.0)
            mass += tl.sum(rest, 0)
            purpose = PURPOSE_RECOVER + OFFSET_UNIT * offset
            score = tl.log(rest) + token_noise(seed, position, first_token, purpose, BLOCK)
            block_best = tl.max(score, 0)
            winner = tl.min(tl.where(score == block_best, token, 2147483647), 0)
            recovered = tl.where(block_best > best_score, winner, recovered)
            best_score = tl.maximum(block_best, best_score)
    tl.store(recovered_ptr + index, recovered)
    tl.store(mass_ptr + index, mass)


@kernel
def accept_by_chance(
    rows_ptr,  # [N] int32
    query_start_loc_ptr,  # [N + 1] int32
    bounds_ptr,  # [N + 1] int32
    num_computed_ptr,  # [R] int32, before the step
    total_len_ptr,  # [R] int32, likewise
    num_drafts_ptr,  # [R] int32, likewise
    token_ids_ptr,  # [R, L] int32
    token_ids_stride,
    seed_ptr,  # [R] int64
    judged_ptr,  # [3, M] float32
    recovered_ptr,  # [M] int32
    mass_ptr,  # [M] float32
    reported_ptr,  # [M, V] float32, the logits that reports are about
    reported_stride,
    statistics_ptr,  # [2, M or more] float32, of each of their rows: largest value, log of the sum of exp below it
    tokens_ptr,  # [M] int32, in: the target's draws, out: the tokens that requests get
    values_ptr,  # [M] float32, in and out: their reported values
    num_emitted_ptr,  # [N] int32, out
    count,  # M
    plane,  # columns of `statistics`
    IN_BLOCKS: tl.constexpr,
    LOGARITHM: tl.constexpr,  # values are log-probabilities, not logits
) -> None:
    """How many drafts count, and which token comes behind them. One program per request."""
    request = tl.program_id(0)
    row = tl.load(rows_ptr + request).to(tl.int64)
    first = tl.load(bounds_ptr + request)
    drafts = tl.load(bounds_ptr + request + 1) - first - 1
    length = tl.load(query_start_loc_ptr + request + 1) - tl.load(query_start_loc_ptr + request)
    total = tl.load(total_len_ptr + row)
    emitted = 0
    if tl.load(num_computed_ptr + row) + length - drafts == total:
        proposed = tl.minimum(drafts, tl.load(num_drafts_ptr + row))
        seed = tl.load(seed_ptr + row)
        accepted = 0
        weight = tl.full([], 1.0, tl.float32)
        for place in range(proposed):
            ratio = tl.load(judged_ptr + first + place)
            chance = tl.minimum(ratio, 1.0)
            if IN_BLOCKS:
                weight = tl.minimum(weight * ratio, 1.0)
                chance = weight
                if place + 1 < proposed:
                    mass = tl.load(mass_ptr + first + place + 1)
                    chance = tl.where(weight >= 1.0, 1.0, mass / (mass + 1.0 - weight))
            purpose = PURPOSE_ACCEPT + OFFSET_UNIT * place
            lucky = tl.sum((uniform(seed, total + place, purpose) < chance).to(tl.int32), 0)
            acceptable = tl.where(chance >= 1.0, 1, lucky)
            if IN_BLOCKS:
                accepted = tl.where(acceptable != 0, place + 1, accepted)
            else:
                accepted += tl.where(accepted == place, acceptable, 0)
        for place in range(accepted + 1):
            at = first + place
            token = tl.load(recovered_ptr + at)
            if place < accepted:
                token = tl.load(token_ids_ptr + row * token_ids_stride + total + place)
            if (place < accepted) | (accepted < proposed):
                value = tl.load(reported_ptr + at.to(tl.int64) * reported_stride + token)
                if LOGARITHM:
                    value = (value - tl.load(statistics_ptr + at)) - tl.load(statistics_ptr + plane + at)
                tl.store(tokens_ptr + at, token)
                tl.store(values_ptr + at, value)
        emitted = accepted + 1
    tl.store(num_emitted_ptr + request, emitted)
