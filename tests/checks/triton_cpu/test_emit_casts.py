"""Conversions between all types of numbers."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from .differential import compare, launch, same
from .numbers import FLOATS, INTEGERS, floats, integers

N = 256
NUMBERS = (*INTEGERS, *FLOATS)


@triton.jit
def cast_kernel(x, y, i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64, flags, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(i8 + i, a.to(tl.int8))
    tl.store(i16 + i, a.to(tl.int16))
    tl.store(i32 + i, a.to(tl.int32))
    tl.store(i64 + i, a.to(tl.int64))
    tl.store(u8 + i, a.to(tl.uint8))
    tl.store(u16 + i, a.to(tl.uint16))
    tl.store(u32 + i, tl.load(y + i).to(tl.uint32))
    tl.store(u64 + i, a.to(tl.uint64))
    tl.store(f16 + i, a.to(tl.float16))
    tl.store(f32 + i, a.to(tl.float32))
    tl.store(f64 + i, a.to(tl.float64))
    tl.store(flags + i, a.to(tl.int1))


def _numbers(dtype: torch.dtype, lanes: int = N) -> torch.Tensor:
    return floats(dtype, lanes, 1) if dtype.is_floating_point else integers(dtype, lanes, 1)


def _for_uint32(x: torch.Tensor) -> torch.Tensor:
    """Floats that do not fit: numpy's loop for single numbers and that for vectors give different results."""
    if not x.is_floating_point():
        return x
    fits = (x > -(2.0**31)) & (x < 2.0**32)
    return torch.where(fits, x, torch.full_like(x, 3.0))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_casts(dtype):
    x, outputs = _numbers(dtype), [torch.zeros(N, dtype=kind) for kind in NUMBERS]
    same(cast_kernel, (1,), x, _for_uint32(x), *outputs, torch.zeros(N, dtype=torch.int8), N)


@triton.jit
def scalar_cast_kernel(x, i32, f16, f32, i64):
    a = tl.load(x + tl.program_id(0))
    tl.store(i32 + tl.program_id(0), a.to(tl.int32))
    tl.store(f16 + tl.program_id(0), a.to(tl.float16))
    tl.store(f32 + tl.program_id(0), a.to(tl.float32))
    tl.store(i64 + tl.program_id(0), a.to(tl.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8], ids=str)
def test_casts_of_scalars(dtype):
    outputs = [torch.zeros(32, dtype=kind) for kind in (torch.int32, torch.float16, torch.float32, torch.int64)]
    same(scalar_cast_kernel, (32,), _numbers(dtype, 32), *outputs)


@triton.jit
def to_unsigned_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.uint32))


def test_floats_that_do_not_fit_uint32_are_the_low_bits_of_int64():
    x = torch.tensor([math.nan, math.inf, -math.inf, 2.0**32 + 2**10, -1.0, -(2.0**31) - 2**8, 1e30, 2.0**31])
    out = torch.zeros(8, dtype=torch.uint32)
    launch(to_unsigned_kernel, (1,), x, out, 8)
    assert out.tolist() == [0, 0, 0, 1 << 10, (1 << 32) - 1, (1 << 31) - (1 << 8), 0, 1 << 31]


@triton.jit
def to_bf16_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16))


def _between_bfloats(lanes: int = N) -> torch.Tensor:
    """Float32 numbers halfway between two bfloat16 numbers, and their neighbours."""
    generator = torch.Generator().manual_seed(3)
    upper = torch.randint(-(1 << 15), 1 << 15, (lanes,), generator=generator, dtype=torch.int32)
    lower = torch.tensor([0x8000, 0x8001, 0x7FFF, 0, 0xFFFF], dtype=torch.int32).repeat(lanes)[:lanes]
    found = (upper << 16 | lower).view(torch.float32)
    return torch.where(found.isnan(), torch.full_like(found, 1.5), found)


def _to_bf16(x: torch.Tensor, **options) -> torch.Tensor:
    out = torch.zeros(len(x), dtype=torch.bfloat16)
    launch(to_bf16_kernel, (1,), x, out, len(x), **options)
    return out


def test_float32_to_bfloat16_is_rounded_to_nearest_even():
    """Halfway cases, denormals, overflow to infinity; torch is the reference."""
    for x in (_between_bfloats(), floats(torch.float32, N, 4)):
        compare([_to_bf16(x, truncate_bf16=False)], [x.to(torch.bfloat16)])


def test_float32_to_bfloat16_is_truncated_on_request_as_in_the_interpreter():
    """But for denormals, whose significand the interpreter shifts without changing the exponent."""
    x, out = _between_bfloats(), torch.zeros(N, dtype=torch.bfloat16)
    normal = (x.abs() >= torch.finfo(torch.float32).tiny) | (x == 0)
    same(to_bf16_kernel, (1,), torch.where(normal, x, torch.full_like(x, 2.5)), out, N, truncate_bf16=True)
    x = torch.tensor([1.0078125 - 2**-20] * 16)
    assert not torch.equal(_to_bf16(x, truncate_bf16=True), _to_bf16(x, truncate_bf16=False))


def test_a_nan_stays_one_whatever_its_bits():
    x = torch.tensor([0x7F800001, -0x7FFFFF, 0x7FFFFFFF, 0x7FC00000] * 4, dtype=torch.int32).view(torch.float32)
    assert x.isnan().all()
    assert _to_bf16(x, truncate_bf16=False).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.uint8, torch.int64], ids=str)
def test_to_bfloat16_from_other_types(dtype):
    """The interpreter converts most of these to the integers that it stores bfloat16 in; torch is the reference."""
    x = _numbers(dtype)
    compare([_to_bf16(x, truncate_bf16=False)], [x.to(torch.float32).to(torch.bfloat16)])


@triton.jit
def from_bf16_kernel(x, f16, f32, f64, i32, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(f16 + i, a.to(tl.float16))
    tl.store(f32 + i, a.to(tl.float32))
    tl.store(f64 + i, a.to(tl.float64))
    tl.store(i32 + i, a.to(tl.int32))


def test_from_bfloat16():
    x = floats(torch.bfloat16, N, 5)
    outputs = [torch.zeros(N, dtype=kind) for kind in (torch.float16, torch.float32, torch.float64, torch.int32)]
    launch(from_bf16_kernel, (1,), x, *outputs, N)
    whole = x.double()
    fits = whole.abs() < 2.0**31
    integers_ = torch.where(fits, whole, torch.full_like(whole, -(2.0**31))).to(torch.int32)
    compare(outputs, [x.to(torch.float16), x.float(), whole, integers_])


@triton.jit
def bitcast_kernel(x, out, half, word, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.int32, bitcast=True) ^ 0x40000000)
    tl.store(word + i, (tl.load(x + i).to(tl.int32, bitcast=True) | 1).to(tl.float32, bitcast=True))
    tl.store(half + i, tl.load(half + i).to(tl.int16, bitcast=True).to(tl.float16, bitcast=True))


def test_bitcasts():
    x, half = floats(torch.float32, N, 1), floats(torch.float16, N, 2)
    same(bitcast_kernel, (1,), x, torch.zeros(N, dtype=torch.int32), half, torch.zeros(N), N)


@triton.jit
def address_kernel(table, out, N: tl.constexpr):
    row = tl.program_id(0)
    base = tl.load(table + row).to(tl.pointer_type(tl.float32))
    tl.store(out + row * N + tl.arange(0, N), tl.load(base + tl.arange(0, N)))
    as_number = (out + row).to(tl.int64)
    tl.store(table + 2 + row, as_number - out.to(tl.int64))


def test_pointers_from_numbers():
    rows = [torch.arange(16, dtype=torch.float32), torch.arange(16, dtype=torch.float32) * -1]
    table = torch.tensor([*(row.data_ptr() for row in rows), 0, 0])
    result = same(address_kernel, (2,), table, torch.zeros(32), 16, memory=rows)
    assert len(result.records)
