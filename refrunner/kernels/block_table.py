"""Step view of the block tables, and the KV slot of every lane.

Notation as in ``input_prep``; B blocks per row at most. Block 0 is the null block: nothing is ever read from it.
"""

import triton.language as tl

from .launch import kernel

PAD_SLOT = tl.constexpr(-1)


@kernel
def gather_block_tables(
    rows_ptr,  # [N] int32
    num_blocks_ptr,  # [N] int32
    block_table_ptr,  # [R, B] int32
    block_table_stride,
    batch_table_ptr,  # [padded N, B] int32, out
    batch_table_stride,
    num_requests,
    BLOCK: tl.constexpr,
) -> None:
    """Copy the valid entries of each row into the batch's table; a padding request gets the null block."""
    request = tl.program_id(0).to(tl.int64)
    out_ptr = batch_table_ptr + request * batch_table_stride
    if request >= num_requests:
        tl.store(out_ptr, 0)
    else:
        row = tl.load(rows_ptr + request).to(tl.int64)
        count = tl.load(num_blocks_ptr + request)
        for done in range(0, count, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            block = tl.load(block_table_ptr + row * block_table_stride + lane, mask=lane < count, other=0)
            tl.store(out_ptr + lane, block, mask=lane < count)


@kernel
def compute_slot_mapping(
    query_start_loc_ptr,  # [N + 1] int32
    positions_ptr,  # [T] int64
    batch_table_ptr,  # [padded N, B] int32
    batch_table_stride,
    slot_mapping_ptr,  # [capacity] int64, out
    num_requests,
    capacity,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """KV slot of each lane: block id * block size + offset. The last program pads the whole rest of the buffer."""
    request = tl.program_id(0)
    start = tl.load(query_start_loc_ptr + request)
    if request == num_requests:
        for done in range(start, capacity, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            tl.store(slot_mapping_ptr + lane, PAD_SLOT, mask=lane < capacity)
    else:
        end = tl.load(query_start_loc_ptr + request + 1)
        for done in range(start, end, BLOCK):
            lane = done + tl.arange(0, BLOCK)
            position = tl.load(positions_ptr + lane, mask=lane < end, other=0)
            entry_ptr = batch_table_ptr + request * batch_table_stride + position // BLOCK_SIZE
            block = tl.load(entry_ptr, mask=lane < end, other=0).to(tl.int64)
            tl.store(slot_mapping_ptr + lane, block * BLOCK_SIZE + position % BLOCK_SIZE, mask=lane < end)
