"""Which tokens a prompt holds, and how often each was generated: the state that penalties need.

Notation as in ``logits_processing``. The state is never sent: it is counted on the device from the token table, when a
request enters and after each draw.
"""

import triton.language as tl

from .launch import kernel
from .logits_processing import NUMBERS, PENALTIES, PROMPT_LEN, STAGES


@kernel
def clear_counts(
    rows_ptr,  # [M] int32, rows to count anew
    prompt_mask_ptr,  # [R, W] int32, out
    counts_ptr,  # [R, V] int32, out
    vocab_size,
    mask_words,  # W
    BLOCK: tl.constexpr,
) -> None:
    """Forget the former owner. One program per row and block of the vocabulary."""
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(counts_ptr + row * vocab_size + token, 0, mask=token < vocab_size)
    tl.store(prompt_mask_ptr + row * mask_words + token, 0, mask=token < mask_words)


@kernel
def count_known_tokens(
    rows_ptr,  # [M] int32
    numbers_ptr,  # [R, NUMBERS] int32
    total_len_ptr,  # [R] int32
    token_ids_ptr,  # [R, L] int32
    token_ids_stride,
    prompt_mask_ptr,  # [R, W] int32, in and out
    counts_ptr,  # [R, V] int32, in and out
    vocab_size,
    mask_words,  # W
    BLOCK: tl.constexpr,
) -> None:
    """Mark the tokens of the prompt and count those after it, which a resumed request has generated before.

    One program per row and block of the sequence. Programs meet in one word, so the updates are atomic; sums and
    unions of integers come out the same in any order.
    """
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = place < tl.load(total_len_ptr + row)
    prompt = place < tl.load(numbers_ptr + row * NUMBERS + PROMPT_LEN)
    token = tl.load(token_ids_ptr + row * token_ids_stride + place, mask=known, other=0)
    word_ptr = prompt_mask_ptr + row * mask_words + token // 32
    tl.atomic_or(word_ptr, tl.full([BLOCK], 1, tl.int32) << (token % 32), mask=known & prompt)
    tl.atomic_add(counts_ptr + row * vocab_size + token, 1, mask=known & ~prompt)


@kernel
def count_drawn_tokens(
    rows_ptr,  # [N] int32
    query_start_loc_ptr,  # [N + 1] int32
    sampled_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    num_computed_ptr,  # [R] int32, before the step
    total_len_ptr,  # [R] int32, before the step
    counts_ptr,  # [R, V] int32, in and out
    vocab_size,
) -> None:
    """Count the token that each request has drawn, if its draw counts. One program per request."""
    request = tl.program_id(0)
    row = tl.load(rows_ptr + request).to(tl.int64)
    length = tl.load(query_start_loc_ptr + request + 1) - tl.load(query_start_loc_ptr + request)
    penalized = (tl.load(numbers_ptr + row * NUMBERS + STAGES) & PENALTIES) != 0
    if penalized & (tl.load(num_computed_ptr + row) + length == tl.load(total_len_ptr + row)):
        count_ptr = counts_ptr + row * vocab_size + tl.load(sampled_ptr + request)
        tl.store(count_ptr, tl.load(count_ptr) + 1)
