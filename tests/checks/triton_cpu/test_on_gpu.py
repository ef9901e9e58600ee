"""Kernels whose results are exact, on a real GPU and compiled for the CPU: bit for bit the same.

Left out is where a GPU is known to differ: Triton's conversion of e5m2 to bfloat16 makes numbers of infinity and NaN;
libdevice takes float32 denormals for zero; the sums of a product of bytes saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from . import test_emit_float8 as float8
from . import test_emit_library as library
from . import test_emit_matmul as matmul
from . import test_emit_reduction as reduction
from . import test_emit_scan as scan
from . import test_emit_shape as shape
from .differential import compare, copied, launch, tensors_of
from .numbers import floats, integers

pytestmark = pytest.mark.gpu


def on_gpu(kernel: Any, *args: Any) -> list[torch.Tensor]:
    """Launch one program on the GPU, as one warp; returns the tensors afterwards."""
    moved = tuple(arg.cuda() if isinstance(arg, torch.Tensor) else arg for arg in args)
    kernel[(1,)](*moved, num_warps=1)
    return [tensor.cpu() for tensor in tensors_of(moved)]


def agree(kernel: Any, *args: Any) -> None:
    """Launch on both; compare all tensors."""
    mine = copied(args)
    launch(kernel, (1,), *mine, truncate_bf16=False)
    compare(tensors_of(mine), on_gpu(kernel, *args))


def _normal(x: torch.Tensor) -> torch.Tensor:
    """One in the place of zeros, whose neighbours are denormals, and of denormals."""
    return torch.where(x.abs() < torch.finfo(x.dtype).tiny, 1, x)


def _bytes(lanes: int) -> torch.Tensor:
    return torch.zeros(lanes, dtype=torch.uint8)


@pytest.mark.parametrize("kind", [torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_float8(kind, wide):
    codes = torch.arange(256, dtype=torch.uint8)
    if wide == torch.bfloat16:
        codes = torch.where(codes.view(kind).float().isfinite(), codes, 0)
    agree(float8.decoded, codes.view(kind), torch.zeros(256, dtype=wide), 256)
    edges = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, -1e30, 449.0, 464.0, 465.0, 57345.0, 61440.0])
    values = torch.cat([float8._between(kind, wide), edges.to(wide)])[-256:]
    agree(float8.encoded, values, _bytes(256), 256, float8.FORMATS[kind], None)


def test_float8_toward_zero():
    edges = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, -1e30, 57345.0, 65519.0, 1e-9])
    values = torch.cat([float8._between(torch.float8_e5m2, torch.float32), edges])[-256:]
    agree(float8.encoded, values, _bytes(256), 256, tl.float8e5, "rtz")


def test_tritons_own_float8():
    values = torch.cat(
        [torch.arange(-248, 0, dtype=torch.float16) / 128, torch.tensor([torch.inf, 0.3, 2e-5, 70.0] * 2)]
    )
    agree(float8.fifteen, values.half(), torch.zeros(256, dtype=torch.int8), torch.zeros(256).half(), 256)


@pytest.mark.parametrize("wide", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_toward_zero(wide):
    agree(float8.cut, floats(torch.float32, 256, 4), torch.zeros(256, dtype=wide), 256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exact_library(dtype):
    agree(library.exact, _normal(floats(dtype, 128, 7)), torch.zeros(1280, dtype=dtype), 128)


def test_library_of_bits_and_conversions():
    x, y = integers(torch.int32, 128, 1), integers(torch.int32, 128, 2)
    agree(library.bitwise, x, y, torch.zeros(1024, dtype=torch.int32), 128)
    agree(library.saturated, _normal(floats(torch.float32, 64, 1)), torch.zeros(320, dtype=torch.int64), 64)


@pytest.mark.parametrize("dtype", reduction.INTEGERS, ids=str)
def test_reductions_of_integers(dtype):
    x = integers(dtype, 256, 5)
    agree(reduction.sums, x, *(torch.zeros(n, dtype=dtype) for n in (4, 64, 1)), 4, 64)
    agree(reduction.extremes, x, torch.zeros(136, dtype=dtype), torch.zeros(136, dtype=torch.int32), 4, 64)
    agree(reduction.bits, x, torch.zeros(9, dtype=dtype), 4, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_extremes_of_floats(dtype):
    x = floats(dtype, 256, 5).nan_to_num(0.25)
    x = torch.where(x == 0, x.abs(), x)
    agree(reduction.extremes, x, torch.zeros(136, dtype=dtype), torch.zeros(136, dtype=torch.int32), 4, 64)


def test_extremes_skip_nans():
    x = floats(torch.float32, 64, 64)
    agree(reduction.maximum_of, torch.where(x == 0, x.abs(), x), torch.zeros(2), 64)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_running_sums(dtype, reverse):
    agree(scan.running, integers(dtype, 128, 2), torch.zeros(256, dtype=dtype), 8, 16, 1, reverse)


def test_shapes():
    agree(shape.permuted, torch.arange(64.0), torch.zeros(128), 2, 8, 4, 2, 0, 1)
    places = torch.randint(0, 100, (128,), generator=torch.Generator().manual_seed(0)).int()
    agree(shape.picked, torch.arange(64.0), places, torch.zeros(160), 4, 16, 8)
    x = torch.randint(0, 16, (128,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    agree(shape.counted, x, torch.ones(128, dtype=torch.int8), torch.zeros(32, dtype=torch.int32), 128, 16)
    x, y = torch.randn(2, 128, generator=torch.Generator().manual_seed(2))
    agree(shape.mapped, x, y, torch.zeros(512), 128)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_sort(dtype):
    x = floats(dtype, 64, 3).nan_to_num(0.5) if dtype.is_floating_point else integers(dtype, 64, 3)
    agree(shape.ordered, x, torch.zeros(144, dtype=dtype), 4, 16, True)


@triton.jit
def noise(out, seed, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(out + lane, tl.rand(seed, lane))
    tl.store(out + N + lane, tl.randint(seed, lane).to(tl.float32))


@pytest.mark.parametrize("seed", [0, 1234567, 2**40 + 3])
def test_random_numbers(seed):
    agree(noise, torch.zeros(512), seed, 256)


def _small(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return lambda *extents: torch.randint(-4, 5, extents, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=str)
def test_products_of_small_integers(dtype):
    a, b = _small(dtype)(32, 32), _small(dtype)(32, 32)
    agree(matmul.product, a, b, _small(torch.float32)(32, 32), torch.zeros(32, 32), 32, 32, 32, "ieee")


def test_products_of_bytes():
    a, b = (integers(torch.int8, 1024, seed).reshape(32, 32) for seed in (1, 2))
    c = integers(torch.int16, 1024, 3).reshape(32, 32).int()
    agree(matmul.product, a, b, c, torch.zeros(32, 32, dtype=torch.int32), 32, 32, 32, "ieee")


@pytest.mark.parametrize(("left", "right"), [("e4m3", "e5m2"), ("e2m1", "e2m1")])
def test_scaled_products_of_few_bits(left, right):
    generator = torch.Generator().manual_seed(1)
    scales = [torch.randint(125, 129, (size, 2), generator=generator, dtype=torch.uint8) for size in (128, 64)]
    numbers = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    sides = [
        torch.randint(0, 256, (lanes // 2,), generator=generator, dtype=torch.uint8)
        if kind == "e2m1"
        else torch.randint(-3, 4, (lanes,), generator=generator).to(numbers[kind])
        for kind, lanes in ((left, 128 * 64), (right, 64 * 64))
    ]
    agree(matmul.scaled, *sides, *scales, torch.zeros(128, 64), 128, 64, 64, left, right, True, True)
