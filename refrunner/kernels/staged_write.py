"""Scatter of staged writes: the compact diff of a step goes into large device tables."""

import triton.language as tl

from .launch import kernel


@kernel
def apply_staged_writes(
    table_ptr,  # [words] int32, out; one table or several, of any types
    targets_ptr,  # [writes] int64, first word of each segment
    offsets_ptr,  # [writes + 1] int32, prefix sums of the segments' lengths in words
    values_ptr,  # [offsets[-1]] int32
    BLOCK: tl.constexpr,
) -> None:
    """Program i copies segment i of ``values`` to ``table[targets[i]:]``. All but the table may be pinned host memory.

    Segments must not overlap: programs run in no particular order, so the host resolves conflicts before.
    """
    write = tl.program_id(0)
    begin = tl.load(offsets_ptr + write)
    length = tl.load(offsets_ptr + write + 1) - begin
    target_ptr = table_ptr + tl.load(targets_ptr + write)
    for done in range(0, length, BLOCK):
        lane = done + tl.arange(0, BLOCK)
        value = tl.load(values_ptr + begin + lane, mask=lane < length)
        tl.store(target_ptr + lane, value, mask=lane < length)
