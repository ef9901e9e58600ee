"""Inputs of a draft model: which tokens it computes, where their keys go, and the target's states that it continues.

Notation as in ``speculation``; D lanes of the draft model's batch, H columns of a hidden state. The draft model keeps
keys and values of its own in the blocks of the target's full-attention group. A step's first pass computes what the
target has computed, and the newest token: ``starts[i] .. starts[i + 1] - 1`` are the lanes of request i. They end at
its newest token, or where an unfinished prefill has come to. Each further pass computes the draft of the one before.
"""

import triton.language as tl

from .launch import kernel

PAD_SLOT = tl.constexpr(-1)


@kernel
def prepare_draft_inputs(
    rows_ptr,  # [N] int32
    starts_ptr,  # [N + 1] int32; read without LANES only
    num_emitted_ptr,  # [N] int32
    num_computed_ptr,  # [R] int32, after the step
    total_len_ptr,  # [R] int32, likewise
    token_ids_ptr,  # [R, L] int32, drafts included
    token_ids_stride,
    batch_table_ptr,  # [capacity, B] int32, of the target's first KV group
    batch_table_stride,
    num_blocks_ptr,  # [N] int32, valid entries of each of its rows
    input_ids_ptr,  # [D] int32, out
    positions_ptr,  # [D] int64, out
    slots_ptr,  # [D] int64, out; -1 where nothing is to be kept
    seq_lens_ptr,  # [padded N] int32, out; 0 for padding
    bounds_ptr,  # [padded N + 1] int32, out
    num_requests,
    ahead,  # drafts before this pass
    max_model_len,
    LANES: tl.constexpr,  # of each request, padding requests too; 0: as many as `starts` says, and no padding
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per request of the padded batch. A request that is not to get drafts has an inert lane.

    A lane beyond the request's blocks or the longest sequence keeps nothing, and no draft is made of it.
    """
    request = tl.program_id(0)
    start = tl.minimum(request, num_requests) * LANES
    end = tl.minimum(request + 1, num_requests) * LANES
    if LANES == 0:
        start = tl.load(starts_ptr + request)
        end = tl.load(starts_ptr + request + 1)
    tl.store(bounds_ptr + request, start)
    if request == tl.num_programs(0) - 1:
        tl.store(bounds_ptr + request + 1, end)
    length = 0
    if request < num_requests:
        row = tl.load(rows_ptr + request).to(tl.int64)
        emitted = tl.load(num_emitted_ptr + request)
        length = tl.load(num_computed_ptr + row)
        if emitted > 0:
            length = tl.load(total_len_ptr + row) + ahead
        limit = tl.where((emitted > 0) | (ahead == 0), max_model_len, 0)
        num_blocks = tl.load(num_blocks_ptr + request)
        for done in range(0, end - start, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            inside = lane < end - start
            position = length - (end - start) + lane
            known = inside & (position < limit)
            token = tl.load(token_ids_ptr + row * token_ids_stride + position, mask=known, other=0)
            place = position // BLOCK_SIZE
            kept = known & (place < num_blocks)
            block = tl.load(batch_table_ptr + request.to(tl.int64) * batch_table_stride + place, mask=kept, other=0)
            slot = tl.where(kept, block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE, PAD_SLOT)
            tl.store(input_ids_ptr + start + lane, token, mask=inside)
            tl.store(positions_ptr + start + lane, tl.where(known, position, 0).to(tl.int64), mask=inside)
            tl.store(slots_ptr + start + lane, slot, mask=inside)
    else:
        for lane in range(LANES):
            tl.store(input_ids_ptr + request * LANES + lane, 0)
            tl.store(positions_ptr + request * LANES + lane, 0)
            tl.store(slots_ptr + request * LANES + lane, PAD_SLOT)
    tl.store(seq_lens_ptr + request, tl.minimum(length, max_model_len))


@kernel
def states_before(
    rows_ptr,  # [N] int32
    starts_ptr,  # [N + 1] int32
    query_start_loc_ptr,  # [N + 1] int32, of the target
    logit_bounds_ptr,  # [N + 1] int32
    num_emitted_ptr,  # [N] int32
    enters_ptr,  # [N] int32, whether the request computes its first tokens since it got its row
    hidden_ptr,  # [T, H], the target's states
    kept_ptr,  # [R, H], the state of each row's last token before the step
    out_ptr,  # [D, H], out
    width,  # H
    BLOCK: tl.constexpr,
) -> None:
    """The target's state of the token before each lane; program (request, block of columns).

    Before a request's first token there is none, nor is one known before the first after a cached prefix: zeros.
    """
    request = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    row = tl.load(rows_ptr + request).to(tl.int64)
    start = tl.load(starts_ptr + request)
    count = tl.load(starts_ptr + request + 1) - start
    first_lane = tl.load(query_start_loc_ptr + request)
    computed = tl.load(query_start_loc_ptr + request + 1) - first_lane
    emitted = tl.load(num_emitted_ptr + request)
    if emitted > 0:
        drafts = tl.load(logit_bounds_ptr + request + 1) - tl.load(logit_bounds_ptr + request) - 1
        # What the target has computed for good, and its newest token, which it has not.
        computed = computed - drafts + emitted
    enters = tl.load(enters_ptr + request)
    for lane in range(count):
        before = computed - count + lane - 1
        source = hidden_ptr + (first_lane + before).to(tl.int64) * width
        state = tl.load(source + column, mask=column < tl.where(before >= 0, width, 0), other=0.0)
        known = tl.where((before < 0) & (enters == 0), width, 0)
        earlier = tl.load(kept_ptr + row * width + column, mask=column < known, other=0.0)
        out = out_ptr + (start + lane).to(tl.int64) * width
        tl.store(out + column, tl.where(before >= 0, state, earlier), mask=inside)


@kernel
def keep_states(
    rows_ptr,  # [N] int32
    query_start_loc_ptr,  # [N + 1] int32, of the target
    logit_bounds_ptr,  # [N + 1] int32
    num_emitted_ptr,  # [N] int32
    hidden_ptr,  # [T, H]
    kept_ptr,  # [R, H], out
    width,  # H
    BLOCK: tl.constexpr,
) -> None:
    """Keep the state of the last token that counts; program (request, block of columns)."""
    request = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows_ptr + request).to(tl.int64)
    last = tl.load(query_start_loc_ptr + request + 1) - 1
    emitted = tl.load(num_emitted_ptr + request)
    if emitted > 0:
        drafts = tl.load(logit_bounds_ptr + request + 1) - tl.load(logit_bounds_ptr + request) - 1
        last = last - drafts + emitted - 1
    state = tl.load(hidden_ptr + last.to(tl.int64) * width + column, mask=column < width, other=0.0)
    tl.store(kept_ptr + row * width + column, state, mask=column < width)
