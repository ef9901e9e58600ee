"""Gather of a step's inputs from the state table, and the state update after sampling.

Notation: N real requests in the batch, R rows in the state table, L longest sequence, T tokens in the batch.
Every kernel runs one program per request of the padded batch; ``rows[i]`` maps it to its row.
"""

import triton.language as tl

from .launch import kernel


@kernel
def prepare_inputs(
    rows_ptr,  # [N] int32
    query_start_loc_ptr,  # [padded N + 1] int32
    num_computed_ptr,  # [R] int32
    total_len_ptr,  # [R] int32
    last_sampled_ptr,  # [R] int32
    token_ids_ptr,  # [R, L] int32
    token_ids_stride,
    prompts_ptr,  # [R, L] int32, strides of token_ids; perhaps in pinned host memory
    in_place_ptr,  # [R] int32
    input_ids_ptr,  # [T] int32, out
    positions_ptr,  # [T] int64, out
    seq_lens_ptr,  # [padded N] int32, out
    bounds_ptr,  # [padded N + 1] int32, out
    num_requests,
    max_model_len,
    BLOCK: tl.constexpr,
) -> None:
    """Position and token of every lane, and the sequence length of every request after this step.

    Padding requests get length 0, so that an attention kernel reads nothing for them. ``query_start_loc`` came with
    the step's upload, somewhere in memory; its copy in ``bounds`` is where a captured graph looks for it.

    The first ``in_place`` tokens of a row are read from ``prompts``, later ones from the token table. The newest token
    of a sequence comes from ``last_sampled``. It has one home, whoever wrote it: the host (request added or resumed)
    or the sampler of the previous step, whose result the host does not know yet.
    """
    request = tl.program_id(0)
    start = tl.load(query_start_loc_ptr + request)
    end = tl.load(query_start_loc_ptr + request + 1)
    tl.store(bounds_ptr + request, start)
    if request == tl.num_programs(0) - 1:
        tl.store(bounds_ptr + request + 1, end)
    if request >= num_requests:
        tl.store(seq_lens_ptr + request, 0)
    else:
        row = tl.load(rows_ptr + request).to(tl.int64)
        length = end - start
        computed = tl.load(num_computed_ptr + row)
        tl.store(seq_lens_ptr + request, computed + length)
        newest = tl.load(total_len_ptr + row) - 1
        in_place = tl.load(in_place_ptr + row)
        newest_token = tl.load(last_sampled_ptr + row)
        for done in range(0, length, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            position = computed + lane
            tl.store(positions_ptr + start + lane, (computed + lane).to(tl.int64), mask=lane < length)
            known = (lane < length) & (position < max_model_len)
            in_prompt = known & (position < in_place)
            at = row * token_ids_stride + position
            token = tl.load(token_ids_ptr + at, mask=known & (position >= in_place), other=0)
            token = tl.where(in_prompt, tl.load(prompts_ptr + at, mask=in_prompt, other=0), token)
            token = tl.where(position == newest, newest_token, token)
            tl.store(input_ids_ptr + start + lane, token, mask=lane < length)


@kernel
def post_update(
    rows_ptr,  # [N] int32
    query_start_loc_ptr,  # [N + 1] int32
    sampled_ptr,  # [N] int32
    num_computed_ptr,  # [R] int32, in and out
    total_len_ptr,  # [R] int32, in and out
    last_sampled_ptr,  # [R] int32, out
    token_ids_ptr,  # [R, L] int32, out
    token_ids_stride,
    max_model_len,
) -> None:
    """Advance the state of each row by what this step computed and drew.

    The drawn token counts only if the step reached the end of the known sequence; after a prefill chunk that did
    not, it is discarded.
    """
    request = tl.program_id(0)
    row = tl.load(rows_ptr + request).to(tl.int64)
    length = tl.load(query_start_loc_ptr + request + 1) - tl.load(query_start_loc_ptr + request)
    computed = tl.load(num_computed_ptr + row) + length
    total = tl.load(total_len_ptr + row)
    tl.store(num_computed_ptr + row, computed)
    if computed == total:
        token = tl.load(sampled_ptr + request)
        tl.store(last_sampled_ptr + row, token)
        tl.store(token_ids_ptr + row * token_ids_stride + total, token, mask=total < max_model_len)
        tl.store(total_len_ptr + row, total + 1)
