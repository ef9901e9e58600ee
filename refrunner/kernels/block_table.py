"""Step view of the block tables, and the KV slot of every lane.

Notation as in ``input_prep``; G KV groups, B blocks per row at most. Block 0 is the null block: nothing is ever read
from it.
"""

import triton.language as tl

from .launch import kernel

PAD_SLOT = tl.constexpr(-1)
NULL = tl.constexpr(0)


@kernel
def prepare_block_tables(
    rows_ptr,  # [N] int32
    query_start_loc_ptr,  # [N + 1] int32
    num_blocks_ptr,  # [G, N] int32
    num_computed_ptr,  # [R] int32
    windows_ptr,  # [G] int32; 0 for full attention
    block_table_ptr,  # [G, R, B] int32
    group_stride,
    block_table_stride,
    batch_table_ptr,  # [G, capacity, B] int32, out
    batch_group_stride,
    batch_table_stride,
    slot_mapping_ptr,  # [G, lanes] int64, out
    num_requests,
    columns,  # B
    capacity,  # lanes
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The batch's block tables and the slot of every lane, program (request, group).

    A padding request gets null blocks throughout, and its lanes no slot.
    """
    request = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1).to(tl.int64)
    out_ptr = batch_table_ptr + group * batch_group_stride + request * batch_table_stride
    slots_ptr = slot_mapping_ptr + group * capacity
    if request >= num_requests:
        for done in range(0, columns, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            tl.store(out_ptr + lane, NULL, mask=lane < columns)
    else:
        row = tl.load(rows_ptr + request).to(tl.int64)
        count = tl.load(num_blocks_ptr + group * num_requests + request)
        computed = tl.load(num_computed_ptr + row)
        window = tl.load(windows_ptr + group)
        table_ptr = block_table_ptr + group * group_stride + row * block_table_stride
        gather_blocks(table_ptr, out_ptr, count, computed, window, BLOCK_SIZE, BLOCK)
        start = tl.load(query_start_loc_ptr + request)
        end = tl.load(query_start_loc_ptr + request + 1)
        map_slots(table_ptr, slots_ptr, start, end, computed, BLOCK_SIZE, BLOCK)
    if request == tl.num_programs(0) - 1:
        pad_slots(slots_ptr, tl.load(query_start_loc_ptr + num_requests), capacity, BLOCK)


@kernel
def gather_blocks(table_ptr, out_ptr, count, computed, window, BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Copy a row's valid entries.

    Blocks that lie wholly below the window of the next position become null: they may be another request's by now.
    """
    lowest = tl.maximum(computed - window + 1, 0)
    dead = tl.where(window > 0, lowest // BLOCK_SIZE, 0)
    for done in range(0, count, BLOCK):
        lane = done + tl.arange(0, BLOCK)
        alive = (lane >= dead) & (lane < count)
        block = tl.load(table_ptr + lane, mask=alive, other=NULL)
        tl.store(out_ptr + lane, block, mask=lane < count)


@kernel
def map_slots(table_ptr, slots_ptr, start, end, computed, BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Slot of each of a request's lanes: block id * block size + offset."""
    for done in range(start, end, BLOCK):
        lane = done + tl.arange(0, BLOCK)
        position = computed + lane - start
        block = tl.load(table_ptr + position // BLOCK_SIZE, mask=lane < end, other=0).to(tl.int64)
        tl.store(slots_ptr + lane, block * BLOCK_SIZE + position % BLOCK_SIZE, mask=lane < end)


@kernel
def pad_slots(slots_ptr, first, capacity, BLOCK: tl.constexpr) -> None:
    """The whole rest of the buffer belongs to no lane."""
    for done in range(first, capacity, BLOCK):
        lane = done + tl.arange(0, BLOCK)
        tl.store(slots_ptr + lane, PAD_SLOT, mask=lane < capacity)
