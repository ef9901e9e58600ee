"""Scatter of staged writes: the compact diff of a step goes into a large device table."""

import triton.language as tl

from .launch import kernel


@kernel
def apply_staged_writes(
    table_ptr,  # [rows, columns], any 4- or 8-byte type
    row_stride,
    rows_ptr,  # [writes] int32
    starts_ptr,  # [writes] int32
    offsets_ptr,  # [writes + 1] int32, prefix sums of the lengths
    values_ptr,  # [offsets[-1]], type of the table
    BLOCK: tl.constexpr,
) -> None:
    """Program i copies segment i of ``values`` to ``table[rows[i], starts[i]:]``.

    Segments must not overlap: programs run in no particular order, so the host resolves conflicts before.
    """
    write = tl.program_id(0)
    begin = tl.load(offsets_ptr + write)
    length = tl.load(offsets_ptr + write + 1) - begin
    row = tl.load(rows_ptr + write).to(tl.int64)
    target_ptr = table_ptr + row * row_stride + tl.load(starts_ptr + write)
    for done in range(0, length, BLOCK):
        lane = done + tl.arange(0, BLOCK)
        value = tl.load(values_ptr + begin + lane, mask=lane < length)
        tl.store(target_ptr + lane, value, mask=lane < length)
