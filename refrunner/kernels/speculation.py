"""Drafts: where each row of logits stands, n-gram proposals, verification, and the state update behind it.

Notation: N requests in the batch, R rows in the state table, L longest sequence, K drafts at most, M rows of logits in
the step. Request i has rows ``bounds[i] .. bounds[i + 1] - 1``, one more than its step has drafts: the row at offset j
judges draft j, and the last one has a token of its own to add. Known tokens of a row of the state table end at
``total_len``; its drafts stand right behind them in the token table, ``num_drafts`` of them.
"""

import triton.language as tl

from .launch import kernel
from .logits_processing import NUMBERS, PENALTIES, STAGES


@kernel
def locate_logits(
    bounds_ptr,  # [N + 1] int32
    seq_lens_ptr,  # [N] int32, after the step, drafts included
    positions_ptr,  # [M] int32, out: number of tokens before the one that the row judges or draws
) -> None:
    """Position of every row of logits. One program per request."""
    request = tl.program_id(0)
    first = tl.load(bounds_ptr + request)
    end = tl.load(bounds_ptr + request + 1)
    length = tl.load(seq_lens_ptr + request)
    for row in range(first, end):
        tl.store(positions_ptr + row, length - (end - 1 - row))


@kernel
def accept_equal(
    rows_ptr,  # [N] int32
    query_start_loc_ptr,  # [N + 1] int32
    bounds_ptr,  # [N + 1] int32
    num_computed_ptr,  # [R] int32, before the step
    total_len_ptr,  # [R] int32, likewise
    num_drafts_ptr,  # [R] int32, likewise
    token_ids_ptr,  # [R, L] int32
    token_ids_stride,
    drawn_ptr,  # [M] int32, the token that the target draws after the tokens and drafts before it
    num_emitted_ptr,  # [N] int32, out
) -> None:
    """Accept the drafts that are what the target itself draws; one program per request.

    The request gets the drawn tokens up to the first one that differs from its draft, or all of them. A step that does
    not reach the end of the known tokens emits nothing.
    """
    request = tl.program_id(0)
    row = tl.load(rows_ptr + request).to(tl.int64)
    first = tl.load(bounds_ptr + request)
    drafts = tl.load(bounds_ptr + request + 1) - first - 1
    length = tl.load(query_start_loc_ptr + request + 1) - tl.load(query_start_loc_ptr + request)
    total = tl.load(total_len_ptr + row)
    emitted = 0
    if tl.load(num_computed_ptr + row) + length - drafts == total:
        proposed = tl.minimum(drafts, tl.load(num_drafts_ptr + row))
        emitted = 1
        for place in range(proposed):
            draft = tl.load(token_ids_ptr + row * token_ids_stride + total + place)
            same = draft == tl.load(drawn_ptr + first + place)
            emitted += (same & (emitted == place + 1)).to(tl.int32)
    tl.store(num_emitted_ptr + request, emitted)


@kernel
def count_emitted_tokens(
    rows_ptr,  # [N] int32
    bounds_ptr,  # [N + 1] int32
    tokens_ptr,  # [M] int32
    num_emitted_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    counts_ptr,  # [R, V] int32, in and out
    vocab_size,
) -> None:
    """Count the tokens that each request has got, for the penalties. One program per request.

    The additions are atomic, since a token may occur twice and the loop's turns are not ordered within a program.
    """
    request = tl.program_id(0)
    row = tl.load(rows_ptr + request).to(tl.int64)
    if (tl.load(numbers_ptr + row * NUMBERS + STAGES) & PENALTIES) != 0:
        first = tl.load(bounds_ptr + request)
        for place in range(tl.load(num_emitted_ptr + request)):
            tl.atomic_add(counts_ptr + row * vocab_size + tl.load(tokens_ptr + first + place), 1)


@kernel
def post_update_verified(
    rows_ptr,  # [N] int32
    query_start_loc_ptr,  # [N + 1] int32
    bounds_ptr,  # [N + 1] int32
    tokens_ptr,  # [M] int32
    num_emitted_ptr,  # [N] int32
    num_computed_ptr,  # [R] int32, in and out
    total_len_ptr,  # [R] int32, in and out
    last_sampled_ptr,  # [R] int32, out
    num_drafts_ptr,  # [R] int32, out
    token_ids_ptr,  # [R, L] int32, out
    token_ids_stride,
    max_model_len,
) -> None:
    """Advance each row by what was computed and not rejected, and by the tokens it got; its drafts are used up.

    Keys and values of rejected drafts stay in their slots; the positions are computed anew before anything reads them.
    """
    request = tl.program_id(0)
    row = tl.load(rows_ptr + request).to(tl.int64)
    first = tl.load(bounds_ptr + request)
    drafts = tl.load(bounds_ptr + request + 1) - first - 1
    length = tl.load(query_start_loc_ptr + request + 1) - tl.load(query_start_loc_ptr + request)
    emitted = tl.load(num_emitted_ptr + request)
    computed = tl.load(num_computed_ptr + row)
    tl.store(num_drafts_ptr + row, 0)
    if emitted == 0:
        tl.store(num_computed_ptr + row, computed + length)
    else:
        total = tl.load(total_len_ptr + row)
        for place in range(emitted):
            token = tl.load(tokens_ptr + first + place)
            at = row * token_ids_stride + total + place
            tl.store(token_ids_ptr + at, token, mask=total + place < max_model_len)
        tl.store(last_sampled_ptr + row, tl.load(tokens_ptr + first + emitted - 1))
        tl.store(num_computed_ptr + row, computed + length - drafts + emitted - 1)
        tl.store(total_len_ptr + row, total + emitted)


@kernel
def propose_ngrams(
    rows_ptr,  # [N] int32
    num_emitted_ptr,  # [N] int32
    total_len_ptr,  # [R] int32
    num_drafts_ptr,  # [R] int32, out
    token_ids_ptr,  # [R, L] int32, in and out
    token_ids_stride,
    max_model_len,
    LONGEST: tl.constexpr,
    DRAFTS: tl.constexpr,  # K
    BLOCK: tl.constexpr,
) -> None:
    """Propose what followed the latest tokens when they last occurred; one program per request.

    Of all earlier places the one with the longest match counts, up to LONGEST tokens, then the latest. What followed it
    begins anew where the known tokens end, as a text that repeats itself would. Without a match there is no draft.
    """
    request = tl.program_id(0)
    row = tl.load(rows_ptr + request).to(tl.int64)
    sequence_ptr = token_ids_ptr + row * token_ids_stride
    total = tl.minimum(tl.load(total_len_ptr + row), max_model_len)
    best = total * 0
    if tl.load(num_emitted_ptr + request) > 0:
        for start in range(1, total, BLOCK):
            place = start + tl.arange(0, BLOCK)
            matched = tl.zeros([BLOCK], tl.int32)
            for back in range(1, LONGEST + 1):
                inside = (place < total) & (place >= back)
                there = tl.load(sequence_ptr + place - back, mask=inside, other=-1)
                latest = tl.load(sequence_ptr + total - back, mask=total > back, other=-2)
                matched += ((there == latest) & (matched == back - 1)).to(tl.int32)
            # Longest first, then latest: both in one number, which is 0 where nothing matches.
            best = tl.maximum(best, tl.max(tl.where(matched > 0, matched * max_model_len + place, 0), 0))
        if best > 0:
            source = best % max_model_len
            count = tl.minimum(DRAFTS, max_model_len - total)
            for draft in range(count):
                tl.store(sequence_ptr + total + draft, tl.load(sequence_ptr + source + draft % (total - source)))
            tl.store(num_drafts_ptr + row, count)
