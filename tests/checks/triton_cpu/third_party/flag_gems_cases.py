"""Kernels of flag-gems: PyTorch's operators written in Triton."""

from __future__ import annotations

from typing import Any

import torch

from .cases import Cases, Draw

CASES = Cases()
_INT64 = torch.int64


@CASES.of("flag_gems.ops.topk")
def top(module: Any, draw: Draw) -> None:
    rows = draw.floats(draw.one_of(1, 2, 3), draw.one_of(20, 300, 700))
    module.topk(rows, draw.one_of(1, 3, 9), largest=draw.size != 1)


@CASES.of("flag_gems.ops.sort", conflicts=True, ordered=True)
def sorted_by_digits(module: Any, draw: Draw) -> None:
    """A program waits for those before it, by volatile loads and no atomics: nothing orders what they store."""
    rows, columns = draw.one_of(1, 2, 1), draw.one_of(20, 100, 3000)
    values = draw.one_of(draw.floats(rows, columns), draw.ints(-99, 99, rows, columns).to(torch.int16), None)
    values = draw.ints(0, 255, rows, columns).to(torch.uint8) if values is None else values
    module.sort(values, descending=draw.size == 1)


@CASES.of("flag_gems.ops.argmax")
def argmax(module: Any, draw: Draw) -> None:
    module.argmax(draw.floats(draw.one_of(7, 100, 1000)))


@CASES.of("flag_gems.ops.multinomial")
def samples(module: Any, draw: Draw) -> None:
    rows, categories, samples = draw.one_of(1, 2, 3), draw.one_of(5, 50, 400), draw.one_of(9, 200, 130)
    sums = draw.floats(rows, categories).softmax(-1).cumsum(-1)
    module.multinomial_with_replacement[((samples + 127) // 128, rows)](
        sums, torch.zeros(rows, samples, dtype=_INT64), categories, samples, 2**40 + 17, 12
    )


@CASES.of("flag_gems.ops.randn")
def normal_numbers(module: Any, draw: Draw) -> None:
    count, block = draw.one_of(9, 100, 5000), 64
    module.randn_kernel[((count + 4 * block - 1) // (4 * block),)](torch.zeros(count), count, 7, 4)


@CASES.of("flag_gems.ops.mm")
def product(module: Any, draw: Draw) -> None:
    dtype = draw.one_of(torch.float32, torch.float16, torch.bfloat16)
    rows, inner, columns = draw.one_of(4, 20, 40), draw.one_of(16, 50, 70), draw.one_of(4, 17, 33)
    left, right = draw.floats(rows, inner, dtype=dtype), draw.floats(inner, columns, dtype=dtype)
    out, tile = torch.zeros(rows, columns, dtype=dtype), 16
    module.mm_kernel_general[(-(-rows // tile) * -(-columns // tile),)](
        *(left, right, out, rows, columns, inner, *left.stride(), *right.stride(), *out.stride()),
        BLOCK_M=tile,
        BLOCK_N=tile,
        BLOCK_K=32,
        GROUP_M=2,
    )


@CASES.of("flag_gems.fused.bincount", ordered=True)
def counted(module: Any, draw: Draw) -> None:
    """Adds float weights atomically."""
    count = draw.one_of(9, 300, 1000)
    numbers, grid = draw.ints(0, 40, count, dtype=_INT64), ((count + 255) // 256,)
    top = torch.zeros(1, dtype=_INT64)
    module.fused_max_bincount_kernel[grid](numbers, top, torch.zeros(40, dtype=_INT64), count, 40, BLOCK_SIZE=256)
    module.bincount_kernel[grid](numbers, torch.zeros(40, dtype=_INT64), count, BLOCK_SIZE=256)
    weights, out = draw.floats(count), torch.zeros(40)
    module.bincount_weights_fp32_kernel[grid](numbers, weights, out, count, BLOCK_SIZE=256)


@CASES.of("flag_gems.fused.moe_align_block_size")
def aligned_experts(module: Any, draw: Draw) -> None:
    experts, block = draw.one_of(2, 4, 6), 4
    chosen, room = draw.ints(0, experts, draw.one_of(3, 20, 50)), 100
    places, blocks = torch.zeros(room, dtype=torch.int32), torch.zeros(room // block, dtype=torch.int32)
    module.moe_align_block_size_triton(chosen, experts, block, places, blocks, torch.zeros(1, dtype=torch.int32))


@CASES.of("flag_gems.fused.topk_softmax")
def chosen_experts(module: Any, draw: Draw) -> None:
    tokens, experts, chosen = draw.one_of(32, 16, 40), draw.one_of(4, 60, 128), draw.one_of(1, 2, 4)  # full blocks
    indices, rows = (torch.zeros(tokens, chosen, dtype=torch.int32) for _ in range(2))
    weights = torch.zeros(tokens, chosen)
    module.topk_softmax(weights, indices, rows, draw.floats(tokens, experts, scale=2.0), draw.size == 2)


@CASES.of("flag_gems.experimental_ops.erfinv")
def inverse_error_function(module: Any, draw: Draw) -> None:
    values = draw.uniform(draw.one_of(9, 300, 1000)) * 2.2 - 1.1
    values[:3] = torch.tensor([1.0, -1.0, float("nan")])
    module.erfinv_kernel[((len(values) + 255) // 256,)](values, torch.zeros_like(values), len(values), BLOCK_SIZE=256)


@CASES.of("flag_gems.ops.hadamard_transform")
def hadamard(module: Any, draw: Draw) -> None:
    rows, size = draw.one_of(1, 3, 5), draw.one_of(8, 64, 256)
    values = draw.floats(rows, size, dtype=draw.one_of(torch.float32, torch.float16, torch.float16))
    module._fht_kernel_2d_native[((rows + 3) // 4,)](
        *(values, torch.zeros_like(values), size, size, rows),
        DIM=size,
        LOG_N=size.bit_length() - 1,
        BLOCK_SIZE=size,
        ROWS_PER_PROGRAM=4,
        SCALE=0.125,
    )
