"""Scans: bit for bit what Triton's interpreter computes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from .differential import same
from .numbers import floats, integers


@triton.jit
def running(x, out, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    lane = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + lane)
    tl.store(out + lane, tl.cumsum(value, axis=AXIS, reverse=REVERSE))
    tl.store(out + M * N + lane, tl.cumprod(value, axis=AXIS, reverse=REVERSE))


@pytest.mark.parametrize(("axis", "reverse"), [(0, False), (1, True)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64])
def test_running_sums_and_products(dtype, axis, reverse):
    x = floats(dtype, 128, 2) if dtype.is_floating_point else integers(dtype, 128, 2)
    same(running, (1,), x, torch.zeros(256, dtype=dtype), 8, 16, axis, reverse)


@triton.jit
def linear_step(a_left, b_left, a_right, b_right):
    return a_left * a_right, b_left * a_right + b_right


@triton.jit
def latest(a, b):
    result = b
    if b == 0:
        result = a
    return result


@triton.jit
def scans(x, y, out, N: tl.constexpr, REVERSE: tl.constexpr):
    lane = tl.arange(0, N)
    a, b = tl.associative_scan((tl.load(x + lane), tl.load(y + lane)), 0, linear_step, reverse=REVERSE)
    tl.store(out + lane, a)
    tl.store(out + N + lane, b)
    tl.store(out + 2 * N + lane, tl.associative_scan(tl.floor(tl.load(x + lane)), 0, latest, reverse=REVERSE))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lanes", [1, 64])
def test_functions_of_the_user(lanes, reverse):
    generator = torch.Generator().manual_seed(lanes)
    x, y = torch.randn(2, lanes, generator=generator)
    same(scans, (1,), x, y, torch.zeros(3 * lanes), lanes, reverse)


@triton.jit
def middle(x, out):
    lane = tl.arange(0, 4)[:, None, None] * 32 + tl.arange(0, 8)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    tl.store(out + lane, tl.cumsum(tl.load(x + lane), axis=1))


def test_an_axis_in_the_middle():
    same(middle, (1,), torch.randn(128, generator=torch.Generator().manual_seed(1)), torch.zeros(128))
