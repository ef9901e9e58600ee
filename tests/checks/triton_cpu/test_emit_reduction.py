"""Reductions and scans: bit for bit what Triton's interpreter computes, or a difference that is named."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from .differential import launch, same
from .numbers import floats, integers

SHAPES = [(16, 1), (8, 4), (64, 2), (4, 256), (1, 2048)]
FLOATS = [torch.float16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]


@triton.jit
def sums(x, rows, columns, total, M: tl.constexpr, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(rows + tl.arange(0, M), tl.sum(value, axis=1))
    tl.store(columns + tl.arange(0, N)[None, :], tl.sum(value, axis=0, keep_dims=True))
    tl.store(total, tl.sum(value))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_sums_round_as_numpy_does(dtype, shape):
    torch.manual_seed(1)
    x = (torch.randn(shape) * torch.exp2(torch.randint(-6, 6, shape).float())).to(dtype)
    same(sums, (1,), x, *(torch.zeros(n, dtype=dtype) for n in (shape[0], shape[1], 1)), *shape)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_zeros_infinities_and_nans(dtype):
    x = floats(dtype, 128, 3).reshape(2, 64)
    x[0] = -0.0
    same(sums, (1,), x, *(torch.zeros(n, dtype=dtype) for n in (2, 64, 1)), 2, 64)


@pytest.mark.parametrize("shape", [(2, 8), (64, 2)], ids=str)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_sums_wrap(dtype, shape):
    x = integers(dtype, shape[0] * shape[1], 1).reshape(shape)
    if triton.__version__.startswith("3.6"):
        x = x >> 8  # its interpreter refuses scalars that wrap
    same(sums, (1,), x, *(torch.zeros(n, dtype=dtype) for n in (shape[0], shape[1], 1)), *shape)


@triton.jit
def extremes(x, out, places, M: tl.constexpr, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    row, column = tl.arange(0, M), tl.arange(0, N)
    tl.store(out + row, tl.max(value, axis=1))
    tl.store(out + M + row, tl.min(value, axis=1))
    tl.store(out + 2 * M + column, tl.max(value, axis=0))
    tl.store(out + 2 * M + N + column, tl.min(value, axis=0))
    tl.store(places + row, tl.argmax(value, axis=1))
    tl.store(places + M + row, tl.argmin(value, axis=1))
    tl.store(places + 2 * M + column, tl.argmax(value, axis=0))
    most, where = tl.max(value, axis=0, return_indices=True)
    tl.store(places + 2 * M + N + column, tl.where(most == tl.max(value, axis=0), where, -1))


@pytest.mark.parametrize("shape", [(1, 16), (16, 2), (4, 64)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_extremes_and_their_places(dtype, shape):
    lanes = shape[0] * shape[1]
    x = floats(dtype, lanes, 5).nan_to_num(0.25) if dtype.is_floating_point else integers(dtype, lanes, 5)
    if dtype.is_floating_point:
        x = torch.where(x == 0, x.abs(), x)  # which of two zeros is greater is numpy's secret
    out, places = torch.zeros(2 * sum(shape), dtype=dtype), torch.zeros(2 * sum(shape), dtype=torch.int32)
    same(extremes, (1,), x, out, places, *shape)


@triton.jit
def maximum_of(x, out, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.max(value, 0))
    tl.store(out + 1, tl.min(value, 0))


@pytest.mark.parametrize("lanes", [2, 8, 64, 512])
def test_extremes_skip_nans_and_pick_the_zero_that_numpy_picks(lanes):
    x = floats(torch.float32, lanes, lanes)
    x[::3], x[1::5] = 0.0, -0.0
    same(maximum_of, (1,), x, torch.zeros(2), lanes)
    same(maximum_of, (1,), x.clamp(max=0.0), torch.zeros(2), lanes)
    same(maximum_of, (1,), torch.full((lanes,), torch.nan), torch.zeros(2), lanes)


@triton.jit
def place_of_any(x, out, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.argmax(value, 0, tie_break_left=False))
    tl.store(out + 1, tl.argmin(value, 0, tie_break_left=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_of_equals_the_first_is_taken_where_any_may_be(dtype):
    """Triton 3.6's interpreter takes the last, a GPU any."""
    out = torch.zeros(2, dtype=torch.int32)
    launch(place_of_any, (1,), torch.tensor([1, 3, 0, 3, 0, 3, 2, 0], dtype=dtype), out, 8)
    assert out.tolist() == [1, 2]
    distinct = torch.randperm(64, generator=torch.Generator().manual_seed(0)).to(dtype)
    same(place_of_any, (1,), distinct, out, 64)


@triton.jit
def place_of_largest(x, out, N: tl.constexpr):
    tl.store(out, tl.argmax(tl.load(x + tl.arange(0, N)), 0))


@pytest.mark.parametrize("place", [0, 5, 15])
def test_a_nan_in_front_of_an_argmax_is_reported(place):
    x = torch.arange(16.0)
    assert launch(place_of_largest, (1,), x, torch.zeros(1, dtype=torch.int32), 16).nan_count == 0
    x[place] = torch.nan
    result = launch(place_of_largest, (1,), x, torch.zeros(1, dtype=torch.int32), 16)
    assert result.nan_count == 1
    x = x.to(torch.float16)
    assert launch(place_of_largest, (1,), x, torch.zeros(1, dtype=torch.int32), 16).nan_count == 1
    x = x.to(torch.bfloat16)
    assert launch(place_of_largest, (1,), x, torch.zeros(1, dtype=torch.int32), 16).nan_count == 1


@triton.jit
def larger_or_nan(value, place, other_value, other_place):
    is_nan, other_is_nan = value != value, other_value != other_value
    first = (is_nan & ~other_is_nan) | ((is_nan == other_is_nan) & ((value > other_value) | (place < other_place)))
    return tl.where(first, value, other_value), tl.where(first, place, other_place)


@triton.jit
def place_of_largest_or_nan(x, out, N: tl.constexpr):
    places = tl.arange(0, N)
    _, place = tl.reduce((tl.load(x + places), places), 0, larger_or_nan)
    tl.store(out, place)


def test_a_reduction_that_asks_for_nans_is_left_alone():
    x, out = torch.arange(16.0), torch.zeros(1, dtype=torch.int32)
    x[5] = torch.nan
    assert launch(place_of_largest_or_nan, (1,), x, out, 16).nan_count == 0
    assert out.item() == 5


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def difference(a, b):
    return a - b


@triton.jit
def welford(mean_a, square_a, weight_a, mean_b, square_b, weight_b):
    weight = weight_a + weight_b
    delta = mean_b - mean_a
    share = (weight_b / weight).to(weight.dtype)
    return mean_a + delta * share, square_a + square_b + delta * delta * weight_a * share, weight


@triton.jit
def branching(a, b):
    result = a - b
    if a <= b:
        result = a + b * 2
    return result


@triton.jit
def swapping(a, b, c, d):
    return d, a + c


@triton.jit
def custom(x, out, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, LEFT: tl.constexpr):
    value = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    at = out + tl.arange(0, LEFT)
    tl.store(at, tl.reduce(value, AXIS, plus))
    tl.store(at + LEFT, tl.reduce(value, AXIS, difference))
    tl.store(at + 2 * LEFT, tl.reduce(value, AXIS, branching))
    mean, square, weight = tl.reduce((value, value * 0, value * 0 + 1), AXIS, welford)
    tl.store(at + 3 * LEFT, mean)
    tl.store(at + 4 * LEFT, square)
    tl.store(at + 5 * LEFT, weight)
    left, right = tl.reduce((value, value + 1), AXIS, swapping)
    tl.store(at + 6 * LEFT, left)
    tl.store(at + 7 * LEFT, right)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_the_user_fold_in_order(dtype, axis):
    shape = (8, 32)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    same(custom, (1,), x, torch.zeros(8 * shape[1 - axis], dtype=dtype), *shape, axis, shape[1 - axis])


@triton.jit
def leaving(a, b):
    if a > b:
        return a
    return b * 2


@triton.jit
def looping(a, b):
    result = a + b
    while result > 10:
        result = result * 0.5
    for _ in range(3):
        result += b * 0.25
    return result


@triton.jit
def controlled(x, out, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.reduce(value, 0, leaving))
    tl.store(out + 1, tl.reduce(value, 0, looping))
    tl.store(out + 2 + tl.arange(0, N), tl.associative_scan(value, 0, leaving))
    tl.store(out + 2 + N + tl.arange(0, N), tl.associative_scan(value, 0, looping))


def test_early_returns_and_loops_in_functions_of_the_user():
    x = torch.randn(16, generator=torch.Generator().manual_seed(6)).abs() * 3
    same(controlled, (1,), x, torch.zeros(2 + 32), 16)


@triton.jit
def bits(x, out, M: tl.constexpr, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out + tl.arange(0, M), tl.xor_sum(value, axis=1))
    tl.store(out + M + tl.arange(0, M), tl.reduce_or(value, axis=1))
    tl.store(out + 2 * M, tl.xor_sum(value))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bitwise_reductions(dtype):
    out = torch.zeros(16 * 2 + 1, dtype=dtype)
    same(bits, (1,), integers(dtype, 16 * 8, 1), out, 16, 8)


@triton.jit
def cube(x, out, AXIS: tl.constexpr):
    i, j, k = tl.arange(0, 4)[:, None, None], tl.arange(0, 8)[None, :, None], tl.arange(0, 16)[None, None, :]
    value = tl.load(x + i * 128 + j * 16 + k)
    total = tl.sum(value, axis=AXIS, keep_dims=True)
    tl.store(out + i * 128 + j * 16 + k, tl.broadcast_to(total, (4, 8, 16)) - tl.max(value, axis=AXIS, keep_dims=True))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes_of_a_cube(axis):
    x = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(axis))
    same(cube, (1,), x, torch.zeros(4, 8, 16), axis)


@triton.jit
def transposed_sums(x, y, out):
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 32)[None, :]
    one = tl.trans(tl.load(x + i * 32 + j))
    tl.store(out + tl.arange(0, 32), tl.sum(one, axis=1))
    tl.store(out + 32 + tl.arange(0, 16), tl.sum(one * one, axis=0))
    other = tl.load(y + tl.arange(0, 32)[:, None] * 16 + tl.arange(0, 16)[None, :])
    tl.store(out + 48 + tl.arange(0, 32), tl.sum(one * other, axis=1))
    tl.store(out + 80 + tl.arange(0, 32), tl.sum(tl.exp(one).to(tl.float16), axis=1).to(tl.float32))


def test_sums_of_what_was_transposed_follow_numpys_memory():
    generator = torch.Generator().manual_seed(7)
    same(
        transposed_sums,
        (1,),
        torch.randn(16, 32, generator=generator),
        torch.randn(32, 16, generator=generator),
        torch.zeros(112),
    )


@triton.jit
def promoted(x, out, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.sum(value > 1))
    tl.store(out + 1, tl.max(value.to(tl.bfloat16)))
    most, place = tl.max(value.to(tl.float16), 0, return_indices=True)
    tl.store(out + 2, most + place)
    tl.store(out + 3, tl.sum(value.to(tl.uint8)))
    tl.store(out + 4, tl.max(value.to(tl.uint32)))
    tl.store(out + 5, tl.sum(value, dtype=tl.float64))
    tl.store(out + 6, tl.max(value > 1).to(tl.float32))
    tl.store(out + 7, tl.xor_sum((value > 1).to(tl.int8)))
    tl.store(out + 8, tl.min(value.to(tl.int8)))


def test_narrow_types_are_widened_as_the_front_end_says():
    x = torch.randn(64, generator=torch.Generator().manual_seed(1)).abs() * 30
    same(promoted, (1,), x, torch.zeros(9), 64)


def test_bfloat16_sums_round_after_each_addition():
    """The interpreter adds the bits as integers."""
    x, out = torch.arange(64).bfloat16(), torch.zeros(1, dtype=torch.bfloat16)
    launch(sum_of, (1,), x, out, 64, truncate_bf16=False)
    expected = torch.zeros((), dtype=torch.bfloat16)
    for number in x:
        expected = expected + number
    assert out[0] == expected


@triton.jit
def sum_of(x, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, N))))
