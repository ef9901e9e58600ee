"""Loops, branches, early returns, calls, assertions, prints: what they compute, and how a launch ends."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.triton_cpu.errors import DeviceAssertion, OutOfFuel
from mrv2.checks.triton_cpu.launcher import FUEL

from .differential import copied, interpret, launch, same

LANES = 64


def numbers(lanes: int = LANES, low: int = -50, high: int = 50, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (lanes,), generator=generator, dtype=torch.int32)


@triton.jit
def branches(x, out, N: tl.constexpr):
    pid = tl.program_id(0)
    value = tl.load(x + pid)
    i = tl.arange(0, N)
    tile = i * value
    if value > 10:
        tile = tile + 1
        scale = 2
    elif value > 0:
        tile = i
        scale = 3
    else:
        scale = value
    tl.store(out + pid * N + i, tile * scale)


def test_branches_with_tensor_results():
    same(branches, (8,), torch.tensor([-3, 0, 1, 10, 11, 50, -1, 7], dtype=torch.int32), torch.zeros(128).int(), 16)


@triton.jit
def fibonacci(out, n, N: tl.constexpr):
    a = tl.full((N,), 0, tl.int32)
    b = tl.full((N,), 1, tl.int32) + tl.arange(0, N)
    p = 0
    q = 1
    for _ in range(n):
        a, b = b, a + b
        p, q = q, p
    tl.store(out + tl.arange(0, N), a)
    tl.store(out + N + tl.arange(0, N), b)
    tl.store(out + 2 * N, p)
    tl.store(out + 2 * N + 1, q)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_loop_variables_change_all_at_once(n):
    same(fibonacci, (1,), torch.zeros(2 * 16 + 2, dtype=torch.int32), n, 16)


@triton.jit
def twins(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = a
    for _ in range(n):
        a, b = a + 1, a
    tl.store(out + i, a)
    tl.store(out + N + i, b)


def test_a_loop_variable_that_begins_as_another_one_is_what_the_front_end_says():
    """Triton takes ``b`` for constant, as it begins with the value that ``a`` begins with; the interpreter does not."""
    x, out = torch.arange(4).int(), torch.zeros(8).int()
    launch(twins, (1,), x, out, 3, 4)
    assert out.tolist() == [3, 4, 5, 6, 0, 1, 2, 3]
    interpret(twins, (1,), x, out, 3, 4)
    assert out.tolist() == [3, 4, 5, 6, 2, 3, 4, 5]


@triton.jit
def steps(out, lower, upper, step, BACK: tl.constexpr):
    count = 0
    for i in range(lower, upper, step):
        tl.store(out + count, i)
        count += 1
    for i in range(upper, lower, BACK):
        tl.store(out + count, i)
        count += 1
    tl.store(out + 63, count)


@pytest.mark.parametrize("bounds", [(0, 10, 3), (5, 5, 1), (7, 2, 1), (-4, 9, 2)])
def test_counted_loops(bounds):
    same(steps, (1,), torch.zeros(64, dtype=torch.int32), *bounds, -bounds[-1])


@triton.jit
def near_the_end(out, lower, upper, step):
    count = 0
    for _ in range(lower, upper, step):
        count += 1
    tl.store(out, count)


def test_an_overflow_of_the_counter_ends_the_loop():
    same(near_the_end, (1,), torch.zeros(1, dtype=torch.int32), (1 << 31) - 20, (1 << 31) - 1, 15)
    same(near_the_end, (1,), torch.zeros(1, dtype=torch.int64), (1 << 63) - 20, (1 << 63) - 1, 15)


@triton.jit
def collatz(x, out):
    pid = tl.program_id(0)
    value = tl.load(x + pid)
    length = 0
    while value > 1:
        if value % 2 == 0:  # noqa: SIM108 - a branch is what is tested
            value = value // 2
        else:
            value = 3 * value + 1
        length += 1
    tl.store(out + pid, length)


def test_while():
    same(collatz, (16,), numbers(16, 1, 1000), torch.zeros(16, dtype=torch.int32))


@triton.jit
def nested_loops(x, out, rows, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for row in range(rows):
        part = tl.zeros((N,), tl.float32)
        column = 0
        while column < row:
            part += tl.load(x + (row * N + i + column) % 256)
            column += 1
        total = total * 0.5 + part
    tl.store(out + i, total)


def test_nested_loops():
    same(nested_loops, (1,), torch.randn(256, generator=torch.Generator().manual_seed(1)), torch.zeros(32), 9, 32)


@triton.jit
def early_return(x, out, n, N: tl.constexpr):
    pid = tl.program_id(0)
    if pid >= n:
        return
    value = tl.load(x + pid)
    if value < 0:
        tl.store(out + pid * N, -1)
        return
    for k in range(value):
        tl.store(out + pid * N + k % N, k)


def test_early_returns():
    same(early_return, (24,), numbers(24), torch.zeros(24 * 8, dtype=torch.int32), 20, 8)


@triton.jit
def clamp_or_count(value, limit):
    if value > limit:
        return limit
    count = 0
    while count * count < value:
        count += 1
    return count


@triton.jit(noinline=True)
def called(x, scalar, out):
    i = tl.arange(0, 16)
    tile = tl.load(x + i)
    tl.store(out + i, tile)
    total = tl.sum(tile)
    if scalar < 0:
        total = -total
    return tile * scalar, total


@triton.jit
def calls(x, out, log):
    pid = tl.program_id(0)
    i = tl.arange(0, 16)
    tile = tl.load(x + pid * 16 + i)
    limited = clamp_or_count(tl.max(tile), 20)
    once, first = called(x + pid * 16, limited, log + pid * 32)
    twice, total = called(x, first - limited, log + pid * 32 + 16)
    tl.store(out + pid * 16 + i, once + twice * 3 + total)


def test_functions_inlined_or_not():
    out = torch.zeros(64, dtype=torch.int32)
    same(calls, (4,), numbers(64), out, torch.zeros(128, dtype=torch.int32))


@triton.jit
def first_half_or_all(tile, limit):
    if limit < 0:
        return tile
    tile = tl.where(tile < limit, tile, 0)
    if limit > 30:
        return tile * 2
    return tile + limit


@triton.jit
def calls_in_a_loop(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.load(x + i)
    for k in range(-1, 40, 13):
        total += first_half_or_all(total, k)
    tl.store(out + i, total)


def test_functions_with_returns_called_in_a_loop():
    same(calls_in_a_loop, (1,), numbers(), torch.zeros(LANES, dtype=torch.int32), LANES)


@triton.jit(noinline=True)
def spin(flag):
    value = tl.load(flag)
    while value == 0:
        value = tl.load(flag)
    return value


@triton.jit
def waits_in_a_function(flag, out):
    tl.store(out, 1)
    tl.store(out + 1, spin(flag))


def test_a_function_that_never_ends_runs_out_of_fuel():
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    result = launch(waits_in_a_function, (1,), flag, out, options={"fuel": 1000})
    assert isinstance(result.error(), OutOfFuel)
    assert out.tolist() == [1, 0]
    flag.fill_(1)
    assert launch(waits_in_a_function, (1,), flag, out).error() is None
    assert out.tolist() == [1, 1]


@triton.jit
def counts_to(n, out):
    total = 0
    for k in range(n):
        total += k
    tl.store(out, total)


def test_a_counted_loop_spends_fuel():
    out = torch.zeros(1, dtype=torch.int32)
    assert launch(counts_to, (1,), 100, out, options={"fuel": 100}).error() is None
    assert out.item() == 4950
    error = launch(counts_to, (1,), 101, out, options={"fuel": 100}).error()
    assert isinstance(error, OutOfFuel)


@triton.jit
def never_ends_on_a_block(count, out, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    while tl.atomic_add(count, 1) >= 0:
        total = total * 0.5 + 1.0
    tl.store(out + i, total)


@pytest.mark.parametrize("audit", [True, False])
@pytest.mark.parametrize(("width", "iterations"), [(1, 1000), (1 << 16, 10)])
def test_a_loop_over_wide_blocks_takes_more_fuel(width, iterations, audit):
    """At the price of a scalar's iterations, a loop without end over 64 Ki lanes would run for minutes."""
    count, out = torch.zeros(1, dtype=torch.int32), torch.zeros(width)
    result = launch(never_ends_on_a_block, (1,), count, out, width, audit=audit, options={"fuel": 1000})
    assert isinstance(result.error(), OutOfFuel)
    assert iterations // 2 <= count.item() <= iterations


@triton.jit
def multiplies(a, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    block = tl.load(a + i[:, None] * N + i[None, :])
    total = tl.zeros([N, N], tl.float32)
    for _ in range(n):
        total = tl.dot(block, block, total)
    tl.store(out + i[:, None] * N + i[None, :], total)


def test_real_loops_over_wide_blocks_have_fuel_to_spare():
    a, out = torch.eye(128), torch.zeros(128, 128)
    assert launch(multiplies, (1,), a, out, 100, 128, options={"fuel": FUEL // 300}).error() is None
    assert torch.equal(out, 100 * a)


@triton.jit
def asserts(x, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + i)
    tl.device_assert(value < 40, "too large")
    tl.store(out + i, value)


def test_assertions():
    x, out = torch.arange(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    assert launch(asserts, (2,), x, out, 16, debug=True).error() is None
    assert torch.equal(x, out)
    x[20] = 40
    out.zero_()
    result = launch(asserts, (2,), x, out, 16, debug=True)
    assert isinstance(result.error(), DeviceAssertion)
    assert "too large" in str(result.error())
    assert out.tolist() == [*range(16), *[0] * 16]


def test_assertions_are_not_there_without_debug():
    x, out = torch.full((32,), 50, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    assert launch(asserts, (2,), x, out, 16).error() is None
    assert torch.equal(x, out)


@triton.jit
def grid_place(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (x * tl.num_programs(1) + y) * tl.num_programs(2) + z
    tl.store(out + place, x * 100 + y * 10 + z)


def test_programs_know_their_place():
    same(grid_place, (2, 3, 4), torch.zeros(24, dtype=torch.int32))


def test_the_harness_leaves_its_arguments_alone():
    out = torch.zeros(24, dtype=torch.int32)
    same(grid_place, (2, 3, 4), out)
    assert not out.any()
    one = copied((out, out[3:]))
    one[0][3] = 5
    assert one[1][0] == 5
