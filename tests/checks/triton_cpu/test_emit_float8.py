"""Floats of eight bits: what PTX says, and the interpreter wherever it is right."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.triton_cpu.errors import Unsupported

from .differential import launch, same
from .numbers import floats

N = 256
FORMATS = {
    torch.float8_e5m2: tl.float8e5,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e5m2fnuz: tl.float8e5b16,
    torch.float8_e4m3fnuz: tl.float8e4b8,
}


@triton.jit
def decoded(x, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(out + lane, tl.load(x + lane).to(out.dtype.element_ty))


@triton.jit
def encoded(x, out, N: tl.constexpr, FORMAT: tl.constexpr, ROUNDING: tl.constexpr):
    lane = tl.arange(0, N)
    value = tl.load(x + lane).to(FORMAT, fp_downcast_rounding=ROUNDING)
    tl.store(out + lane, value.to(tl.uint8, bitcast=True))


def _codes(kind: torch.dtype) -> torch.Tensor:
    return torch.arange(N, dtype=torch.uint8).view(kind)


@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_every_code_has_the_value_that_torch_gives_it(kind, wide):
    out = torch.zeros(N, dtype=wide)
    launch(decoded, (1,), _codes(kind), out, N)
    torch.testing.assert_close(out, _codes(kind).to(wide), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("wide", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", [torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
def test_the_interpreter_agrees_where_it_knows_the_format(kind, wide):
    """It gives infinities and NaNs numbers, and loses bits of the smallest ones."""
    value = _codes(kind).float()
    known = value.isfinite() & ((value == 0) | (value.abs() >= torch.finfo(kind).tiny))
    plain = torch.where(known, _codes(kind).view(torch.uint8), 0)
    same(decoded, (1,), plain.view(kind), torch.zeros(N, dtype=wide), N)
    exact = plain.view(kind).to(wide)
    same(encoded, (1,), exact, torch.zeros(N, dtype=torch.uint8), N, FORMATS[kind], None)


def _between(kind: torch.dtype, wide: torch.dtype) -> torch.Tensor:
    """Numbers on, between and halfway between those of a format, none beyond the largest."""
    grid = _codes(kind).double()
    grid = grid[grid.isfinite()].sort().values.unique()
    middle = (grid[1:] + grid[:-1]) / 2
    pool = torch.cat([grid, middle, middle * (1 + 2**-9), middle * (1 - 2**-9), floats(torch.float64, 64, 1)])
    pool = pool.nan_to_num().clamp(grid[0], grid[-1]).to(wide)
    return pool[torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))][: 2 * N]


@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_numbers_are_rounded_to_nearest_even(kind, wide):
    x, out = _between(kind, wide), torch.zeros(2 * N, dtype=torch.uint8)
    launch(encoded, (1,), x, out, 2 * N, FORMATS[kind], None)
    assert torch.equal(out[: len(x)], x.float().to(kind).view(torch.uint8))


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_the_largest_number_stands_for_all_above(kind):
    values = torch.tensor([math.inf, -math.inf, 1e30, -1e30, math.nan, 0.0, -0.0, 1e-30], dtype=torch.float32)
    out = torch.zeros(8, dtype=torch.uint8)
    launch(encoded, (1,), values, out, 8, FORMATS[kind], None)
    result = out.view(kind).float()
    largest = torch.finfo(kind).max
    assert result[:4].tolist() == [largest, -largest, largest, -largest]
    assert result[4].isnan()
    assert not result[5:].any()


def test_rounding_toward_zero():
    """The upper half of the float16 toward zero, as PTX gets it."""
    x = _between(torch.float8_e5m2, torch.float32)
    out = torch.zeros(2 * N, dtype=torch.uint8)
    launch(encoded, (1,), x, out, 2 * N, tl.float8e5, "rtz")
    half = x.half()
    bits = half.view(torch.int16) - (half.float().abs() > x.abs()).short()
    assert torch.equal(out[: len(x)].view(torch.int8), (bits >> 8).to(torch.int8))
    assert not torch.equal(out[: len(x)], x.to(torch.float8_e5m2).view(torch.uint8))


@triton.jit
def cut(x, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(out + lane, tl.load(x + lane).to(out.dtype.element_ty, fp_downcast_rounding="rtz"))


def test_wider_floats_toward_zero():
    x = floats(torch.float32, N, 4)
    out = torch.zeros(N, dtype=torch.bfloat16)
    launch(cut, (1,), x, out, N)
    expected = (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    half = torch.zeros(N, dtype=torch.float16)
    launch(cut, (1,), x, half, N)
    finite = x.isfinite()
    assert (half[finite].double().abs() <= x[finite].double().abs()).all()
    nearest = x.clamp(-65504, 65504).half()
    apart = (half.view(torch.int16).int() - nearest.view(torch.int16).int())[finite]
    assert set(apart.tolist()) == {0, -1}
    assert torch.equal(half[x.isinf()], x[x.isinf()].half())


def test_there_is_no_other_rounding_toward_zero():
    with pytest.raises(Unsupported, match="f8E4M3FN toward zero"):
        launch(encoded, (1,), torch.zeros(8), torch.zeros(8, dtype=torch.uint8), 8, tl.float8e4nv, "rtz")


@triton.jit
def fifteen(x, codes, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    small = tl.load(x + lane).to(tl.float8e4b15)
    tl.store(codes + lane, small.to(tl.int8, bitcast=True))
    tl.store(out + lane, small.to(tl.float16))


def test_tritons_own_format():
    """Four bits of exponent with bias 15 and three of mantissa; ties go away from zero, all above 1.75 is 1.75."""
    values = torch.tensor([0.0, 1.0, -1.0, 1.75, 2.0, math.inf, 1.0625, 1.06, 2.0**-14, -(2.0**-17), 0.3, -300.0])
    x = torch.zeros(16, dtype=torch.float16)
    x[:12] = values
    codes, out = torch.zeros(16, dtype=torch.int8), torch.zeros(16, dtype=torch.float16)
    launch(fifteen, (1,), x, codes, out, 16)
    expected = [0.0, 1.0, -1.0, 1.75, 1.75, 1.75, 1.125, 1.0, 2.0**-14, -(2.0**-17), 0.3125, -1.75]
    assert out[:12].tolist() == expected
    assert codes[:4].tolist() == [0, 0x78, 0x78 - 128, 0x7E]
    exact = torch.where(out.abs() < 2.0**-14, 0, out)  # the interpreter loses the smallest numbers
    same(fifteen, (1,), exact, codes, out, 16)


@triton.jit
def added(x, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    value = tl.load(x + lane)
    tl.store(out + lane, (value + value).to(tl.float32))


def test_arithmetic_in_eight_bits_is_refused():
    with pytest.raises(Unsupported, match="f8E5M2"):
        launch(added, (1,), _codes(torch.float8_e5m2), torch.zeros(N), N)
