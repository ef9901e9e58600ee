"""Element-wise operations: bit for bit what Triton's interpreter computes, over edges of every type."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from .differential import compare, launch, same
from .numbers import FLOATS, INTEGERS, floats, integers, masks

N = 256

#: What the interpreter of Triton 3.6 computes otherwise than a GPU, and that of 3.9 as a GPU does: minnumf and maxnumf
#: of a NaN, clamp of a NaN (it has ``numpy.clip`` for all), fma (it rounds twice), umulhi of signed numbers; and it
#: fails on ``~`` of unsigned numbers. Its front end negates by subtracting from zero.
OLD = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)


@triton.jit
def integer_kernel(x, y, out, flags, INVERT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(out + i, a + b)
    tl.store(out + N + i, a - b)
    tl.store(out + 2 * N + i, a * b)
    tl.store(out + 3 * N + i, a // b)
    tl.store(out + 4 * N + i, a % b)
    tl.store(out + 5 * N + i, a & b)
    tl.store(out + 6 * N + i, a | b)
    tl.store(out + 7 * N + i, a ^ b)
    tl.store(out + 8 * N + i, a << b)
    tl.store(out + 9 * N + i, a >> b)
    tl.store(out + 10 * N + i, tl.minimum(a, b))
    tl.store(out + 11 * N + i, tl.maximum(a, b))
    if INVERT:
        tl.store(out + 12 * N + i, ~a)
    tl.store(out + 13 * N + i, tl.where(a < b, a, b * 3))
    tl.store(flags + i, a == b)
    tl.store(flags + N + i, a != b)
    tl.store(flags + 2 * N + i, a < b)
    tl.store(flags + 3 * N + i, a <= b)
    tl.store(flags + 4 * N + i, a > b)
    tl.store(flags + 5 * N + i, a >= b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype):
    out, flags = torch.zeros(14 * N, dtype=dtype), torch.zeros(6 * N, dtype=torch.int8)
    invert = dtype.is_signed or not OLD
    same(integer_kernel, (1,), integers(dtype, N, 1), integers(dtype, N, 2), out, flags, invert, N)


@triton.jit
def float_kernel(x, y, z, out, flags, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    c = tl.load(z + i)
    tl.store(out + i, a + b)
    tl.store(out + N + i, a - b)
    tl.store(out + 2 * N + i, a * b)
    tl.store(out + 3 * N + i, a / b)
    tl.store(out + 4 * N + i, a % b)
    tl.store(out + 5 * N + i, tl.abs(a))
    tl.store(out + 6 * N + i, tl.where(a < b, a, c))
    tl.store(out + 7 * N + i, a * b + c)
    tl.store(flags + i, a == b)
    tl.store(flags + N + i, a != b)
    tl.store(flags + 2 * N + i, a < b)
    tl.store(flags + 3 * N + i, a <= b)
    tl.store(flags + 4 * N + i, a > b)
    tl.store(flags + 5 * N + i, a >= b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(dtype):
    out, flags = torch.zeros(8 * N, dtype=dtype), torch.zeros(6 * N, dtype=torch.int8)
    x, y, z = (floats(dtype, N, seed) for seed in (1, 2, 3))
    same(float_kernel, (1,), x, y, z, out, flags, N)


@triton.jit
def extremes_kernel(x, y, lo, hi, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    low = tl.load(lo + i)
    high = tl.load(hi + i)
    tl.store(out + i, tl.minimum(a, b))
    tl.store(out + N + i, tl.maximum(a, b))
    tl.store(out + 2 * N + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 3 * N + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 4 * N + i, tl.clamp(a, low, high))
    tl.store(out + 5 * N + i, tl.clamp(a, low, high, propagate_nan=tl.PropagateNan.ALL))


def without_zeros(numbers: torch.Tensor) -> torch.Tensor:
    """Which of -0.0 and 0.0 is the smaller one differs from lane to lane in numpy's fmin."""
    return torch.where(numbers == 0, torch.ones_like(numbers), numbers)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extremes_of_floats(dtype):
    x, y = (without_zeros(floats(dtype, N, seed)) for seed in (1, 2))
    low, high = floats(dtype, N, 3).nan_to_num(0.5), floats(dtype, N, 4).nan_to_num(0.25)
    low, high = without_zeros(torch.minimum(low, high)), without_zeros(torch.maximum(low, high))
    if OLD:
        x, y = x.nan_to_num(7.0), y.nan_to_num(8.0)
    same(extremes_kernel, (1,), x, y, low, high, torch.zeros(6 * N, dtype=dtype), N)


def extremes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    low, high = torch.full_like(x, -1.0), torch.full_like(x, 1.0)
    out = torch.zeros(6 * len(x), dtype=x.dtype)
    launch(extremes_kernel, (1,), x, y, low, high, out, len(x))
    return out.view(6, len(x))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bfloat16], ids=str)
def test_a_number_is_preferred_to_nan_unless_nans_propagate(dtype):
    nan = math.nan
    x, y = torch.tensor([nan, 2.0, nan, 3.0], dtype=dtype), torch.tensor([1.0, nan, nan, 4.0], dtype=dtype)
    least, greatest, least_nan, greatest_nan, clamped, clamped_nan = extremes(x, y).tolist()
    assert str(least) == str([1.0, 2.0, nan, 3.0])
    assert str(greatest) == str([1.0, 2.0, nan, 4.0])
    assert str(least_nan) == str([nan, nan, nan, 3.0])
    assert str(greatest_nan) == str([nan, nan, nan, 4.0])
    assert str(clamped) == str([-1.0, 1.0, -1.0, 1.0])
    assert str(clamped_nan) == str([nan, 1.0, nan, 1.0])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bfloat16], ids=str)
def test_the_positive_zero_is_the_greater_one(dtype):
    """As in PTX, whatever the order of operands."""
    found = extremes(torch.tensor([0.0, -0.0], dtype=dtype), torch.tensor([-0.0, 0.0], dtype=dtype))
    assert torch.signbit(found[:4]).tolist() == [[True, True], [False, False], [True, True], [False, False]]


@triton.jit
def math_kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(out + i, tl.exp(a))
    tl.store(out + N + i, tl.exp2(a))
    tl.store(out + 2 * N + i, tl.log(a))
    tl.store(out + 3 * N + i, tl.log2(a))
    tl.store(out + 4 * N + i, tl.sin(a))
    tl.store(out + 5 * N + i, tl.cos(a))
    tl.store(out + 6 * N + i, tl.sqrt(a))
    tl.store(out + 7 * N + i, tl.rsqrt(a))
    tl.store(out + 8 * N + i, tl.floor(a))
    tl.store(out + 9 * N + i, tl.ceil(a))
    tl.store(out + 10 * N + i, tl.erf(a))
    tl.store(out + 11 * N + i, tl.abs(a))
    tl.store(out + 12 * N + i, -a)
    tl.store(out + 13 * N + i, tl.sigmoid(a))
    tl.store(out + 14 * N + i, tl.exp(tl.load(x + 3)))
    tl.store(out + 15 * N + i, tl.math.div_rn(a, b) if out.dtype.element_ty == tl.float32 else a / b)
    tl.store(out + 16 * N + i, tl.math.sqrt_rn(a) if out.dtype.element_ty == tl.float32 else tl.sqrt(a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions(dtype):
    same(math_kernel, (1,), floats(dtype, N, 5), floats(dtype, N, 6), torch.zeros(17 * N, dtype=dtype), N)


@triton.jit
def fma_kernel(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_fused_product_and_sum_is_rounded_once(dtype):
    x, y = floats(dtype, N, 8), floats(dtype, N, 9)
    z = -(x * y)
    if OLD:
        got = torch.zeros(N, dtype=dtype)
        launch(fma_kernel, (1,), x, y, z, got, N)
        exact = (x.double() * y.double() + z.double()).to(dtype)
        compare([got], [exact]) if dtype is not torch.float64 else None
    else:
        same(fma_kernel, (1,), x, y, z, torch.zeros(N, dtype=dtype), N)


@triton.jit
def high_kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.umulhi(tl.load(x + i), tl.load(y + i)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64], ids=str)
def test_upper_half_of_a_product(dtype):
    x, y, out = integers(dtype, N, 1), integers(dtype, N, 2), torch.zeros(N, dtype=dtype)
    launch(high_kernel, (1,), x, y, out, N)
    mask = (1 << torch.iinfo(dtype).bits) - 1
    wide = [(a & mask) * (b & mask) >> torch.iinfo(dtype).bits for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert [number & mask for number in out.tolist()] == wide
    if not (OLD and dtype.is_signed):
        same(high_kernel, (1,), x, y, torch.zeros(N, dtype=dtype), N)


@triton.jit
def flag_kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i) != 0
    b = tl.load(y + i) != 0
    tl.store(out + i, a & b)
    tl.store(out + N + i, a | b)
    tl.store(out + 2 * N + i, a ^ b)
    tl.store(out + 3 * N + i, ~a)
    tl.store(out + 4 * N + i, a == b)
    tl.store(out + 5 * N + i, tl.where(a, b, ~b))
    tl.store(out + 6 * N + i, a.to(tl.int8) + b.to(tl.int8))


def test_flags():
    same(flag_kernel, (1,), masks(64, 1), masks(64, 2), torch.zeros(7 * 64, dtype=torch.int8), 64)


@triton.jit
def bfloat_kernel(x, y, out, flags, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(out + i, a + b)
    tl.store(out + N + i, a - b)
    tl.store(out + 2 * N + i, a * b)
    tl.store(out + 3 * N + i, tl.abs(a))
    tl.store(out + 4 * N + i, tl.where(a < b, a, b))
    tl.store(out + 5 * N + i, -a)
    tl.store(flags + i, a < b)
    tl.store(flags + N + i, a == b)


def test_bfloat16_is_rounded_to_nearest_even_after_each_operation():
    """The interpreter adds the bits of bfloat16 numbers as integers; torch computes what a GPU does."""
    a, b = floats(torch.bfloat16, N, 1), floats(torch.bfloat16, N, 2)
    out, flags = torch.zeros(6 * N, dtype=torch.bfloat16), torch.zeros(2 * N, dtype=torch.int8)
    launch(bfloat_kernel, (1,), a, b, out, flags, N, truncate_bf16=False)
    wanted = torch.cat([a + b, a - b, a * b, a.abs(), torch.where(a < b, a, b), 0 - a if OLD else -a])
    compare([out, flags], [wanted, torch.cat([a < b, a == b]).to(torch.int8)])
