"""Shapes, gather, histogram, sorting and maps: bit for bit what Triton's interpreter computes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from .differential import launch, same
from .numbers import floats, integers


@triton.jit
def permuted(
    x, out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr
):
    value = tl.reshape(tl.load(x + tl.arange(0, A * B * C)), (A, B, C))
    moved = tl.permute(value, (P, Q, R))
    lanes = tl.arange(0, A * B * C)
    tl.store(out + lanes, tl.reshape(moved, (A * B * C,)))
    tl.store(out + A * B * C + lanes, tl.reshape(moved + moved, (A * B * C,)))


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (2, 0, 1), (2, 1, 0), (1, 2, 0)], ids=str)
def test_axes_in_any_order(order):
    same(permuted, (1,), torch.arange(64.0), torch.zeros(128), 2, 8, 4, *order)


@triton.jit
def paired(x, y, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    a, b = tl.load(x + lane), tl.load(y + lane)
    both = tl.join(a, b)
    tl.store(out + 2 * lane[:, None] + tl.arange(0, 2)[None, :], both)
    left, right = tl.split(both * 2)
    tl.store(out + 2 * N + lane, left)
    tl.store(out + 3 * N + lane, right)
    tl.store(out + 4 * N + tl.arange(0, 2 * N), tl.interleave(a, b))
    tl.store(out + 6 * N + tl.arange(0, 2 * N), tl.cat(a, b, can_reorder=True))
    halves = tl.reshape(a, (N // 2, 2))
    even, odd = tl.split(halves)
    tl.store(out + 8 * N + tl.arange(0, N // 2), even - odd)
    one, two = tl.split(tl.load(x + tl.arange(0, 2)))
    tl.store(out + 9 * N, one + two)


@pytest.mark.filterwarnings("ignore:tl.cat")
def test_pairs():
    """Of other types: `test_operations.test_every_type_is_moved`."""
    x = floats(torch.float16, 16, 1)
    same(paired, (1,), x, x.flip(0), torch.zeros(9 * 16 + 1, dtype=torch.float16), 16)


@triton.jit
def picked(x, places, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    value = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    along = tl.load(places + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :])
    tl.store(out + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :], tl.gather(value, along % N, 1))
    down = tl.load(places + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out + M * K + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :], tl.gather(value, down % M, 0))


@pytest.mark.parametrize("kind", [torch.int8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int16], ids=str)
def test_gather(dtype, kind):
    places = torch.randint(0, 100, (128,), generator=torch.Generator().manual_seed(0)).to(kind)
    same(picked, (1,), torch.arange(64).to(dtype), places, torch.zeros(4 * 8 + 8 * 16, dtype=dtype), 4, 16, 8)


@triton.jit
def picked_row(x, places, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(out + lane, tl.gather(tl.load(x + lane), tl.load(places + lane), 0))


@pytest.mark.parametrize("wrong", [8, -1, 2**31 - 1, -(2**31)])
def test_gather_beyond_the_axis_ends_the_launch(wrong):
    x, places, out = torch.arange(8.0), torch.arange(8, dtype=torch.int32), torch.zeros(8)
    assert launch(picked_row, (1,), x, places, out, 8).stopped is None
    places[3] = wrong
    result = launch(picked_row, (1,), x, places, torch.zeros(8), 8)
    assert result.stopped is not None
    assert "outside of the 8 lanes of axis 0" in str(result.error())


@triton.jit
def counted(x, keep, out, N: tl.constexpr, BINS: tl.constexpr):
    lane = tl.arange(0, N)
    value = tl.load(x + lane)
    tl.store(out + tl.arange(0, BINS), tl.histogram(value, BINS))
    tl.store(out + BINS + tl.arange(0, BINS), tl.histogram(value, BINS, mask=tl.load(keep + lane) != 0))


@pytest.mark.parametrize("bins", [2, 16, 64])
def test_histogram(bins):
    generator = torch.Generator().manual_seed(bins)
    x = torch.randint(-3, bins, (128,), generator=generator, dtype=torch.int32)
    keep = torch.randint(0, 2, (128,), generator=generator, dtype=torch.int8)
    same(counted, (1,), x, keep, torch.zeros(2 * bins, dtype=torch.int32), 128, bins)


def test_histogram_counts_nothing_beyond_the_last_bin():
    """As a GPU; Triton 3.6's interpreter puts a number that equals the number of bins into the last one."""
    out = torch.zeros(8, dtype=torch.int32)
    x = torch.tensor([0, 3, 4, 5, 2**31 - 1, -1, -(2**31), 3], dtype=torch.int32)
    launch(counted, (1,), x, torch.ones(8, dtype=torch.int8), out, 8, 4)
    assert out.tolist() == [1, 0, 0, 2] * 2


@triton.jit
def ordered(x, out, M: tl.constexpr, N: tl.constexpr, DOWN: tl.constexpr):
    lane = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + lane)
    tl.store(out + lane, tl.sort(value, descending=DOWN))
    tl.store(out + M * N + lane, tl.flip(value, 1))
    tl.store(out + 2 * M * N + tl.arange(0, M)[:, None] * 4 + tl.arange(0, 4)[None, :], tl.topk(value, 4))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_sort_flip_and_topk(dtype, descending):
    x = floats(dtype, 64, 3).nan_to_num(0.5) if dtype.is_floating_point else integers(dtype, 64, 3)
    same(ordered, (1,), x, torch.zeros(2 * 64 + 16, dtype=dtype), 4, 16, descending)


@triton.jit
def chosen(a, b):
    result = a - b
    if a > b:
        result = a * b
    return result


@triton.jit
def exchanged(a, b):
    return b, a


@triton.jit
def divided(a, b, c, d):
    return a + c, b + d, a * 2, b * 3


@triton.jit
def mapped(x, y, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    a, b = tl.load(x + lane), tl.load(y + lane)
    tl.store(out + lane, tl.map_elementwise(chosen, a, b))
    pairs = tl.map_elementwise(exchanged, a, pack=2)
    tl.store(out + N + lane, pairs[0])
    sums, others = tl.map_elementwise(divided, a, b, pack=2)
    tl.store(out + 2 * N + lane, sums)
    tl.store(out + 3 * N + lane, others)


def test_a_scalar_function_for_each_lane():
    """Triton's interpreter lacks it."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, 16, generator=generator)
    out = torch.zeros(64)
    launch(mapped, (1,), x, y, out, 16)
    one, two, three, four = out.view(4, 16)
    torch.testing.assert_close(one, torch.where(x > y, x * y, x - y), rtol=0, atol=0)
    torch.testing.assert_close(two, x.view(8, 2).flip(1).reshape(16), rtol=0, atol=0)
    torch.testing.assert_close(three, x + y, rtol=0, atol=0)
    torch.testing.assert_close(four, x * torch.tensor([2.0, 3.0]).repeat(8), rtol=0, atol=0)


@triton.jit
def softmax_and_noise(x, out, seed, M: tl.constexpr, N: tl.constexpr):
    lane = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + tl.arange(0, M * N), tl.softmax(tl.load(x + tl.arange(0, M * N))))
    tl.store(out + M * N + lane, tl.rand(seed, lane))
    tl.store(out + 2 * M * N + lane, tl.randn(seed, lane))
    tl.store(out + 3 * M * N + lane, tl.randint(seed, lane).to(tl.float32))
    a, b, c, d = tl.philox(seed, lane, lane * 2, lane * 0, lane * 0)
    tl.store(out + 4 * M * N + lane, (a ^ b ^ c ^ d).to(tl.float32))


@pytest.mark.parametrize("seed", [0, 1234567, 2**40 + 3])
def test_softmax_and_random_numbers(seed):
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(3)) * 10
    same(softmax_and_noise, (1,), x, torch.zeros(5 * 128), seed, 4, 32)
