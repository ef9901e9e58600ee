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
    WINDOW: tl.constexpr,  # keys that a query sees at most, its own included; 0 for all
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads that share one key head
    GROUP_LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_LANES: tl.constexpr,
    REQUEST_LANES: tl.constexpr,
    KEYS: tl.constexpr,  # keys in one turn of the loop
) -> None:
    """One program per lane of the batch and key head: softmax over what the lane's position sees, in float32."""
    lane = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    request = request_of_lane(lane, query_start_loc_ptr, num_requests, REQUEST_LANES)
    head = tl.arange(0, GROUP_LANES)[:, None]
    dim = tl.arange(0, DIM_LANES)[None, :]
    inside = (head < GROUP) & (dim < HEAD_DIM)
    of_head = (key_head * GROUP + head) * HEAD_DIM + dim
    mixed = tl.zeros([GROUP_LANES, DIM_LANES], tl.float32)
    if request < num_requests:
        query = tl.load(query_ptr + lane * query_stride + of_head, mask=inside, other=0.0).to(tl.float32) * scale
        position = tl.load(positions_ptr + lane)
        first = tl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else position * 0
        largest = tl.full([GROUP_LANES], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_LANES], tl.float32)
        for start in range(first, position + 1, KEYS):
            place = start + tl.arange(0, KEYS)
            visible = place <= position
            table_ptr = block_table_ptr + request * block_table_stride
            at = cache_place(table_ptr, place, visible, slot_stride, BLOCK_SIZE)[:, None] + key_head * HEAD_DIM + dim
            there = visible[:, None] & (dim < HEAD_DIM)
            key = tl.load(key_cache_ptr + at, mask=there, other=0.0).to(tl.float32)
            value = tl.load(value_cache_ptr + at, mask=there, other=0.0).to(tl.float32)
            largest, total, mixed = take_keys(query, key, value, visible, largest, total, mixed)
        mixed = mixed / total[:, None]
    tl.store(out_ptr + lane * HEADS * HEAD_DIM + of_head, mixed, mask=inside)


@kernel
def request_of_lane(lane, query_start_loc_ptr, num_requests, REQUEST_LANES: tl.constexpr) -> tl.tensor:
    """Index of the request whose lanes include this one; ``num_requests`` or more for a padding lane."""
    requests = tl.arange(0, REQUEST_LANES)
    ends = tl.load(query_start_loc_ptr + 1 + requests, mask=requests < num_requests, other=2147483647)
    return tl.sum((ends <= lane).to(tl.int32), 0)


@kernel
def cache_place(table_ptr, place, visible, slot_stride, BLOCK_SIZE: tl.constexpr) -> tl.tensor:
    """Offset in the cache of the key at each position ``place`` of one request."""
    block = tl.load(table_ptr + place // BLOCK_SIZE, mask=visible, other=0).to(tl.int64)
    return (block * BLOCK_SIZE + place % BLOCK_SIZE) * slot_stride


@kernel
def take_keys(query, key, value, visible, largest, total, mixed) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Take further keys into a softmax that is rescaled whenever a larger score comes.

    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".

    Args:
        query: float32 [heads, D], scaled.
        key, value: float32 [keys, D].
        visible: [keys], which of them count.
        largest, total: float32 [heads], largest score so far and sum of the weights relative to it.
        mixed: float32 [heads, D], sum of the weighted values.
    """
    score = tl.sum(query[:, None, :] * key[None, :, :], 2)
    score = tl.where(visible[None, :], score, float("-inf"))
    larger = tl.maximum(largest, tl.max(score, 1))
    weight = tl.exp(score - larger[:, None])
    shrink = tl.exp(largest - larger)
    mixed = mixed * shrink[:, None] + tl.sum(weight[:, :, None] * value[None, :, :], 1)
    return larger, total * shrink + tl.sum(weight, 1), mixed
