"""Loads, stores, atomics: lanes, masks, order, the log, memory that is not there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.triton_cpu.emit.source import AccessKind
from mrv2.checks.triton_cpu.errors import OutOfFuel

from .differential import launch, same
from .numbers import FLOATS, INTEGERS, floats, integers, masks

N = 128

#: The interpreter of Triton 3.6 returns the bits of float64 numbers from atomic_max and atomic_min.
OLD = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)


def values(dtype: torch.dtype, lanes: int, seed: int) -> torch.Tensor:
    return floats(dtype, lanes, seed) if dtype.is_floating_point else integers(dtype, lanes, seed)


def permutation(lanes: int, seed: int) -> torch.Tensor:
    return torch.randperm(lanes, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


@triton.jit
def copy_kernel(x, places, mask, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    first = i < n
    some = tl.load(mask + i) != 0
    place = tl.load(places + i)
    tl.store(out + i, tl.load(x + i))
    tl.store(out + N + i, tl.load(x + i, mask=first), mask=i < N - 3)
    tl.store(out + 2 * N + i, tl.load(x + i, mask=first, other=1))
    tl.store(out + 3 * N + i, tl.load(x + i, mask=some, other=tl.load(x + N - 1 - i)), mask=first)
    tl.store(out + 4 * N + place, tl.load(x + place, mask=some), mask=some)
    tl.store(out + 5 * N + i, tl.load(x + 2 * (i // 2), mask=first & some, other=3), mask=some)
    tl.store(out + 6 * N + i, tl.load(x + 5))
    tl.store(out + 6 * N + n, tl.load(x + 6, mask=n > 64, other=2), mask=n > 3)
    tl.store(out + 7 * N - 1 - i, tl.load(x + N - 1 - i, eviction_policy="evict_first", cache_modifier=".cg"))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_copies(dtype):
    x, places, mask = values(dtype, N, 1), permutation(N, 2), masks(N, 3)
    for n in (0, 1, 77, N) if dtype is torch.int32 else (77,):
        same(copy_kernel, (1,), x, places, mask, torch.zeros(7 * N + 1, dtype=dtype), n, N)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.float64], ids=str)
def test_copies_without_checks(dtype):
    x, places, mask = values(dtype, N, 1), permutation(N, 2), masks(N, 3)
    result = same(copy_kernel, (1,), x, places, mask, torch.zeros(7 * N + 1, dtype=dtype), 77, N, audit=False)
    assert not len(result.records)


@triton.jit
def tile_kernel(x, out, rows, columns, stride, M: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(0) * M + tl.arange(0, M)
    c = tl.arange(0, N)
    inside = (r < rows)[:, None] & (c < columns)[None, :]
    tile = tl.load(x + r[:, None] * stride + c[None, :], mask=inside, other=-1.0)
    tl.store(out + r[:, None] * stride + c[None, :], tile * 2, mask=inside)
    turned = tl.load(x + r[:, None] + c[None, :] * stride, mask=(r < columns)[:, None] & (c < rows)[None, :])
    tl.store(out + rows * stride + r[:, None] * N + c[None, :], turned)


@pytest.mark.parametrize("shape", [(16, 32), (11, 20), (1, 1), (13, 32)], ids=str)
def test_tiles(shape):
    rows, columns = shape
    x = torch.randn(32, 40, generator=torch.Generator().manual_seed(1))
    same(tile_kernel, (4,), x, torch.zeros(32 * 40 + 16 * 32), rows, columns, 40, 4, 32)


@triton.jit
def same_place_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i // 8, tl.load(x + i))
    tl.store(out + 32 + i * 0, tl.load(x + i), mask=i < 50)


def test_the_last_lane_wins():
    same(same_place_kernel, (1,), values(torch.int32, N, 4), torch.zeros(64, dtype=torch.int32), N)


@triton.jit
def order_kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    before = tl.load(x + i)
    tl.store(x + i, before + 1)
    after = tl.load(x + N - 1 - i)
    tl.store(x + i, after * before)
    tl.store(x + (i ^ 1), tl.load(x + i) + 1)


def test_operations_on_one_place_keep_their_order():
    same(order_kernel, (1,), torch.arange(N, dtype=torch.int32), N)


@triton.jit
def overlap_kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i + 1, tl.load(x + i) * 2)


def test_all_lanes_are_loaded_before_any_is_stored():
    same(overlap_kernel, (1,), torch.arange(N + 1, dtype=torch.int32), N)


@triton.jit
def wrap_kernel(x, out, start, N: tl.constexpr):
    i = start + tl.arange(0, N)
    tl.store(out + tl.arange(0, N), tl.load(x + (i & 0xFF), mask=i > 0, other=7))
    high = i.to(tl.int64) + 0x80000000
    tl.store(out + N + tl.arange(0, N), tl.load(x + high * 1 - (high - (i & 0x7F)), mask=i < 0, other=9))


def test_offsets_that_wrap_around():
    x = torch.arange(256, dtype=torch.int32)
    same(wrap_kernel, (1,), x, torch.zeros(2 * N, dtype=torch.int32), (1 << 31) - 40, N)


@triton.jit
def wrapped_row_kernel(x, out, start, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + (i + start), mask=(i + start) >= 0, other=5))


def test_a_row_whose_offset_wraps_around_is_not_dense():
    """The lanes before the wrap lie outside of all memory; those after it are masked off."""
    x, out = torch.arange(64, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
    result = launch(wrapped_row_kernel, (1,), x, out, (1 << 31) - 4, 16)
    assert out.tolist() == [5] * 16
    assert [(int(row["lanes"]), int(row["site"])) for row in result.strays] == [(4, 0)]


# The log


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i * 2, mask=mask), mask=mask)


def test_the_log_says_which_bytes():
    x, y, out = torch.zeros(100), torch.zeros(200), torch.zeros(100)
    result = launch(add_kernel, (2,), x, y, out, 100, 64)
    sites = [(site.kind, site.size) for site in result.sites]
    assert sites == [(AccessKind.READ, 4), (AccessKind.READ, 4), (AccessKind.WRITE, 4)]
    runs = [(r["site"], r["program"], r["low"], r["high"]) for r in result.records]
    dense = [(int(s), int(p), int(low), int(high)) for s, p, low, high in runs if s != 1]
    a, b = x.data_ptr(), out.data_ptr()
    assert dense == [(0, 0, a, a + 256), (2, 0, b, b + 256), (0, 1, a + 256, a + 400), (2, 1, b + 256, b + 400)]
    gathered = {(int(low), int(high)) for s, _, low, high in runs if s == 1}
    assert gathered == {(y.data_ptr() + 8 * k, y.data_ptr() + 8 * k + 4) for k in range(100)}


def test_each_line_has_its_own_site():
    result = launch(add_kernel, (1,), torch.zeros(8), torch.zeros(16), torch.zeros(8), 8, 8)
    lines = [site.location[0] for site in result.sites]
    assert {place.function for place in lines} <= {"add_kernel", ""}
    assert all(place.file.endswith("test_emit_memory.py") for place in lines)
    assert len({place.line for place in lines}) == 1


# Memory that is not there


@pytest.mark.parametrize("lanes", [60, 63, 64])
def test_lanes_outside_of_all_memory_touch_nothing(lanes):
    """``n`` is too large: the last lanes of the block lie behind the tensors."""
    guarded = torch.full((64,), -5.0)
    x, y = torch.ones(64), torch.ones(128)
    out = guarded[:lanes].clone().untyped_storage()
    tail = torch.tensor([], dtype=torch.float32).set_(out)
    result = launch(add_kernel, (1,), x, y, tail, 64, 64)
    assert tail.tolist() == [2.0] * lanes
    strays = [(int(row["low"]), int(row["high"]), int(row["lanes"])) for row in result.strays]
    end = tail.data_ptr() + 4 * lanes
    assert strays == ([(end, end + 4 * (64 - lanes), 64 - lanes)] if lanes < 64 else [])


def test_loads_outside_of_all_memory_are_zero_and_reported():
    base = torch.arange(1, 129, dtype=torch.float32)
    x = torch.tensor([]).set_(base[:32].clone().untyped_storage())
    out = torch.full((64,), -1.0)
    result = launch(add_kernel, (1,), x, torch.zeros(128), out, 64, 64)
    assert out.tolist() == [*range(1, 33), *[0] * 32]
    assert [(int(row["lanes"]), int(row["site"])) for row in result.strays] == [(32, 0)]


# Lanes that are masked off


@triton.jit
def masked_kernel(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i, mask=i < n))
    tl.store(out + N + i, tl.load(x + i * 2 % N, mask=i < n, other=4))
    tl.store(out + 2 * N, tl.load(x, mask=n > N))


@pytest.mark.parametrize("byte", [0, 0x7F])
def test_masked_lanes_without_other_hold_the_byte(byte):
    out = torch.zeros(33, dtype=torch.int32)
    launch(masked_kernel, (1,), torch.full((16,), 6, dtype=torch.int32), out, 5, 16, options={"masked_lanes": byte})
    filler = byte * 0x01010101
    assert out.tolist() == [6] * 5 + [filler] * 11 + [6] * 5 + [4] * 11 + [filler]


def test_each_load_without_other_is_asked_for_by_its_line():
    asked = []

    def byte(place):
        asked.append(place.line)
        return len(asked)

    out = torch.zeros(33, dtype=torch.int32)
    launch(masked_kernel, (1,), torch.full((16,), 6, dtype=torch.int32), out, 15, 16, options={"masked_lanes": byte})
    first = masked_kernel.fn.__code__.co_firstlineno
    assert asked == [first + 3, first + 5]
    assert (out[15].item(), out[32].item()) == (0x01010101, 0x02020202)


# Atomics


# The interpreter returns whatever was in the memory of its result for lanes that are masked off: none of them is kept.


@triton.jit
def integer_atomic_kernel(x, places, mask, out, N: tl.constexpr):
    i = tl.arange(0, N)
    p = tl.load(places + i)
    v = tl.load(x + i)
    m = tl.load(mask + i) != 0
    tl.store(out + 64 + i, tl.atomic_add(out + p, v, mask=m), mask=m)
    tl.store(out + 64 + N + i, tl.atomic_max(out + 8 + p, v, mask=m), mask=m)
    tl.store(out + 64 + 2 * N + i, tl.atomic_min(out + 16 + p, v, mask=m), mask=m)
    tl.store(out + 64 + 3 * N + i, tl.atomic_and(out + 24 + p, v, mask=m), mask=m)
    tl.store(out + 64 + 4 * N + i, tl.atomic_or(out + 32 + p, v, mask=m), mask=m)
    tl.store(out + 64 + 5 * N + i, tl.atomic_xor(out + 40 + p, v, mask=m), mask=m)
    tl.store(out + 64 + 6 * N + i, tl.atomic_xchg(out + 48 + p, v, mask=m), mask=m)
    tl.store(out + 64 + 7 * N + i, tl.atomic_cas(out + 56 + p, tl.load(x + (i ^ 3)) * 0, v))
    tl.store(out + 64 + 8 * N, tl.atomic_add(out, 5))
    tl.store(out + 65 + 8 * N, tl.atomic_cas(out + 1, tl.load(x) * 0, tl.load(x)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64], ids=str)
def test_atomics_on_integers(dtype):
    lanes = 64
    places = torch.randint(0, 8, (lanes,), generator=torch.Generator().manual_seed(7), dtype=torch.int32)
    out = torch.zeros(64 + 8 * lanes + 2, dtype=dtype)
    out[:56] = integers(dtype, 56, 5)
    same(integer_atomic_kernel, (2,), integers(dtype, lanes, 6), places, masks(lanes, 8), out, lanes)


@triton.jit
def float_atomic_kernel(x, places, mask, out, EXTREMES: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    p = tl.load(places + i)
    v = tl.load(x + i)
    m = tl.load(mask + i) != 0
    tl.store(out + 64 + i, tl.atomic_add(out + p, v, mask=m), mask=m)
    tl.store(out + 64 + N, tl.atomic_add(out + 3, tl.load(x)))
    if EXTREMES:
        tl.store(out + 64 + 2 * N + i, tl.atomic_max(out + 8 + p, v, mask=m), mask=m)
        tl.store(out + 64 + 3 * N + i, tl.atomic_min(out + 16 + p, v, mask=m), mask=m)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_atomics_on_floats(dtype):
    lanes = 64
    places = torch.randint(0, 8, (lanes,), generator=torch.Generator().manual_seed(7), dtype=torch.int32)
    x = torch.randn(lanes, generator=torch.Generator().manual_seed(9)).to(dtype)
    out = torch.randn(64 + 5 * lanes, generator=torch.Generator().manual_seed(10)).to(dtype)
    extremes = dtype is torch.float32 or (dtype is torch.float64 and not OLD)
    same(float_atomic_kernel, (2,), x, places, masks(lanes, 8), out, extremes, lanes)


@triton.jit
def exchange_kernel(x, out, old, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(old + i, tl.atomic_xchg(out + i // 2, tl.load(x + i), mask=i < n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exchange_of_floats(dtype):
    """The interpreter knows only that of integers. Lanes that are masked off are zero."""
    x, out, old = torch.arange(1, 9, dtype=dtype), torch.full((4,), -1.0, dtype=dtype), torch.ones(8, dtype=dtype)
    launch(exchange_kernel, (1,), x, out, old, 5, 8)
    assert out.tolist() == [2.0, 4.0, 5.0, -1.0]
    assert old.tolist() == [-1.0, 1.0, -1.0, 3.0, -1.0, 0.0, 0.0, 0.0]


@triton.jit
def ordering_kernel(flag, out):
    tl.atomic_add(flag, 1, sem="relaxed")
    tl.atomic_add(flag, 1, sem="acquire")
    tl.atomic_xchg(flag, 1, sem="release")
    tl.store(out, tl.atomic_cas(flag, 1, 2))


def test_sites_of_atomics_say_what_they_order():
    out = torch.zeros(1, dtype=torch.int32)
    result = launch(ordering_kernel, (1,), torch.zeros(1, dtype=torch.int32), out)
    atomics = [(site.acquires, site.releases) for site in result.sites if site.kind is AccessKind.ATOMIC]
    assert atomics == [(False, False), (True, False), (False, True), (True, True)]
    assert out.item() == 1
    assert np.unique(result.records["site"]).tolist() == [0, 1, 2, 3, 4]


@triton.jit
def atomic_access_kernel(x, out, flag, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_store(out + i, tl.atomic_load(x + i, mask=i < n), mask=i < n + 2)
    tl.store(out + N, tl.atomic_load(x, sem="relaxed"))
    tl.store(out + N + 1, tl.atomic_poll(flag, 3))


needs_atomic_access = pytest.mark.skipif(not hasattr(tl, "atomic_load"), reason="Triton 3.9 brought these")


@needs_atomic_access
def test_atomic_loads_and_stores():
    x, out, flag = torch.arange(5, 21).int(), torch.full((18,), -1).int(), torch.tensor([3]).int()
    result = same(atomic_access_kernel, (1,), x, out, flag, 9, 16)
    found = [(site.kind, site.acquires, site.releases) for site in result.sites[:3]]
    assert found[:2] == [(AccessKind.ATOMIC, True, False), (AccessKind.ATOMIC, False, True)]


@needs_atomic_access
def test_a_poll_that_fails_would_never_end():
    x, out, flag = torch.arange(16).int(), torch.zeros(18).int(), torch.tensor([2]).int()
    error = launch(atomic_access_kernel, (1,), x, out, flag, 9, 16).error()
    assert isinstance(error, OutOfFuel)
