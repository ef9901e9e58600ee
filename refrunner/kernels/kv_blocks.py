"""Whole blocks of the KV cache: copied for a request that goes its own way inside one, or filled before it is used.

Notation: the cache is [layers * 2, blocks, E], E elements being one block of keys or values of a layer.
"""

import triton.language as tl

from .launch import kernel


@kernel
def copy_blocks(
    cache_ptr,  # [layers * 2, blocks, E], in and out
    layer_stride,
    elements,  # E
    sources_ptr,  # [copies] int32
    targets_ptr,  # [copies] int32
    BLOCK: tl.constexpr,
) -> None:
    """Program (copy, layer and kind). No block may be a source and a target in one launch, and none a target twice."""
    copy, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source_ptr = cache_ptr + layer * layer_stride + tl.load(sources_ptr + copy).to(tl.int64) * elements
    target_ptr = cache_ptr + layer * layer_stride + tl.load(targets_ptr + copy).to(tl.int64) * elements
    for done in range(0, elements, BLOCK):
        element = done + tl.arange(0, BLOCK)
        inside = element < elements
        tl.store(target_ptr + element, tl.load(source_ptr + element, mask=inside), mask=inside)


@kernel
def fill_blocks(
    cache_ptr,  # [layers * 2, blocks, E], out
    layer_stride,
    elements,  # E
    blocks_ptr,  # [blocks to fill] int32
    value,
    BLOCK: tl.constexpr,
) -> None:
    """Program (block, layer and kind)."""
    block, layer = tl.load(blocks_ptr + tl.program_id(0)).to(tl.int64), tl.program_id(1).to(tl.int64)
    target_ptr = cache_ptr + layer * layer_stride + block * elements
    for done in range(0, elements, BLOCK):
        element = done + tl.arange(0, BLOCK)
        tl.store(target_ptr + element, tl.zeros([BLOCK], tl.float32) + value, mask=element < elements)
