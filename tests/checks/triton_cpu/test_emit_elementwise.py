"""Element-wise operations: bit for bit what Triton's interpreter computes, over edges of every type."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from .differential import same
from .numbers import FLOATS, INTEGERS, floats, integers

N = 256


@triton.jit
def integer_kernel(x, y, out, flags, N: tl.constexpr):
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
    same(integer_kernel, (1,), integers(dtype, N, 1), integers(dtype, N, 2), out, flags, N)


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
