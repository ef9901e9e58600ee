"""Step view of the block tables, and the KV slot of every lane.

Notation as in ``input_prep``; G KV groups, B blocks per row at most. Block 0 is the null block: nothing is ever read
from it.
"""

import triton.language as tl

from .launch import kernel

PAD_SLOT = tl.constexpr(-1)
NULL = tl.constexpr(0)


@kernel
def gather_block_tables(
    rows_ptr,  # [N] int32
    num_blocks_ptr,  # [G, N] int32
    num_computed_ptr,  # [R] int32
    windows_ptr,  # [G] int32; 0 for full attention
    block_table_ptr,  # [G, R, B] int32
    group_stride,
    block_table_stride,
    batch_table_ptr,  # [G, capacity, B] int32, out
    batch_group_stride,
    batch_table_stride,
    num_requests,
    columns,  # B
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copy the valid entries of each row into the batch's table, program (request, group).

    A padding request gets null blocks throughout. So do the blocks that lie wholly below the window of the request's
    next position: they may be another request's by now.
    """
    request = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1).to(tl.int64)
    out_ptr = batch_table_ptr + group * batch_group_stride + request * batch_table_stride
    if request >= num_requests:
        for done in range(0, columns, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            tl.store(out_ptr + lane, NULL, mask=lane < columns)
    else:
        row = tl.load(rows_ptr + request).to(tl.int64)
        count = tl.load(num_blocks_ptr + group * num_requests + request)
        window = tl.load(windows_ptr + group)
        lowest = tl.maximum(tl.load(num_computed_ptr + row) - window + 1, 0)
        dead = tl.where(window > 0, lowest // BLOCK_SIZE, 0)
        table_ptr = block_table_ptr + group * group_stride
        for done in range(0, count, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            alive = (lane >= dead) & (lane < count)
            block = tl.load(table_ptr + row * block_table_stride + lane, mask=alive, other=NULL)
            tl.store(out_ptr + lane, block, mask=lane < count)


@kernel
def compute_slot_mapping(
    query_start_loc_ptr,  # [N + 1] int32
    positions_ptr,  # [T] int64
    batch_table_ptr,  # [G, padded N, B] int32
    batch_group_stride,
    batch_table_stride,
    slot_mapping_ptr,  # [G, capacity] int64, out
    num_requests,
    capacity,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """KV slot of each lane: block id * block size + offset, program (request, group).

    The last program of each group pads the whole rest of the buffer.
    """
    request = tl.program_id(0)
    group = tl.program_id(1).to(tl.int64)
    start = tl.load(query_start_loc_ptr + request)
    out_ptr = slot_mapping_ptr + group * capacity
    if request == num_requests:
        for done in range(start, capacity, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            tl.store(out_ptr + lane, PAD_SLOT, mask=lane < capacity)
    else:
        end = tl.load(query_start_loc_ptr + request + 1)
        table_ptr = batch_table_ptr + group * batch_group_stride + request * batch_table_stride
        for done in range(start, end, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            position = tl.load(positions_ptr + lane, mask=lane < end, other=0)
            block = tl.load(table_ptr + position // BLOCK_SIZE, mask=lane < end, other=0).to(tl.int64)
            tl.store(out_ptr + lane, block * BLOCK_SIZE + position % BLOCK_SIZE, mask=lane < end)
