"""Attention over a paged cache of keys and values, in two launches: write the step's own, then attend."""

import triton.language as tl

from .launch import kernel


@kernel
def write_keys_and_values(
    key_ptr,  # [T, kv_heads, D], the last two dimensions dense
    key_stride,
    value_ptr,  # like key
    value_stride,
    slot_mapping_ptr,  # [T] int64; -1 for padding lanes
    key_cache_ptr,  # [slots, kv_heads, D], out
    value_cache_ptr,  # like key_cache, out
    slot_stride,
    WIDTH: tl.constexpr,  # kv_heads * D
    BLOCK: tl.constexpr,
) -> None:
    """One program per lane of the batch. Padding lanes write nothing."""
    lane = tl.program_id(0)
    slot = tl.load(slot_mapping_ptr + lane)
    if slot >= 0:
        element = tl.arange(0, BLOCK)
        inside = element < WIDTH
        at = lane.to(tl.int64)
        key = tl.load(key_ptr + at * key_stride + element, mask=inside)
        value = tl.load(value_ptr + at * value_stride + element, mask=inside)
        tl.store(key_cache_ptr + slot * slot_stride + element, key, mask=inside)
        tl.store(value_cache_ptr + slot * slot_stride + element, value, mask=inside)


@kernel
def attend_paged(
    query_ptr,  # [T, heads, D], the last two dimensions dense
    query_stride,
    key_cache_ptr,  # [slots, kv_heads, D]
    value_cache_ptr,  # like key_cache
    slot_stride,
    block_table_ptr,  # [padded N, B] int32
    block_table_stride,
    query_start_loc_ptr,  # [padded N + 1] int32
    positions_ptr,  # [T] int64
    out_ptr,  # [T, heads, D], dense, out; zero for padding lanes
    num_requests,
    scale,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads that share one key head
    GROUP_LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_LANES: tl.constexpr,
    REQUEST_LANES: tl.constexpr,
    KEYS: tl.constexpr,  # keys in one turn of the loop
) -> None:
    """One program per lane of the batch and key head: softmax over the sequence up to the lane's own position.

    The softmax is taken in one pass, rescaled whenever a larger score comes (Milakov and Gimelshein 2018, "Online
    normalizer calculation for softmax"), in float32.
    """
    lane = tl.program_id(0)
    key_head = tl.program_id(1)
    requests = tl.arange(0, REQUEST_LANES)
    ends = tl.load(query_start_loc_ptr + 1 + requests, mask=requests < num_requests, other=2147483647)
    request = tl.sum((ends <= lane).to(tl.int32), 0)
    head = tl.arange(0, GROUP_LANES)[:, None]
    dim = tl.arange(0, DIM_LANES)[None, :]
    inside = (head < GROUP) & (dim < HEAD_DIM)
    of_head = (key_head * GROUP + head) * HEAD_DIM + dim
    out_at = out_ptr + lane.to(tl.int64) * HEADS * HEAD_DIM + of_head
    if request >= num_requests:
        tl.store(out_at, tl.zeros([GROUP_LANES, DIM_LANES], tl.float32), mask=inside)
        return
    query = tl.load(query_ptr + lane.to(tl.int64) * query_stride + of_head, mask=inside, other=0.0).to(tl.float32)
    query = query * scale
    position = tl.load(positions_ptr + lane)
    largest = tl.full([GROUP_LANES], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_LANES], tl.float32)
    mixed = tl.zeros([GROUP_LANES, DIM_LANES], tl.float32)
    for start in range(0, position + 1, KEYS):
        place = start + tl.arange(0, KEYS)
        visible = place <= position
        block = tl.load(block_table_ptr + request * block_table_stride + place // BLOCK_SIZE, mask=visible, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + place % BLOCK_SIZE
        at = slot[:, None] * slot_stride + key_head * HEAD_DIM + dim
        there = visible[:, None] & (dim < HEAD_DIM)
        key = tl.load(key_cache_ptr + at, mask=there, other=0.0).to(tl.float32)
        value = tl.load(value_cache_ptr + at, mask=there, other=0.0).to(tl.float32)
        score = tl.sum(query[:, None, :] * key[None, :, :], 2)
        score = tl.where(visible[None, :], score, float("-inf"))
        larger = tl.maximum(largest, tl.max(score, 1))
        weight = tl.exp(score - larger[:, None])
        shrink = tl.exp(largest - larger)
        mixed = mixed * shrink[:, None] + tl.sum(weight[:, :, None] * value[None, :, :], 1)
        total = total * shrink + tl.sum(weight, 1)
        largest = larger
    tl.store(out_at, mixed / total[:, None], mask=inside)
