"""Arguments of every kind reach the kernel as they are, through launches in Triton's own syntax."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from mrv2.checks.triton_cpu import enabled

Pair = namedtuple("Pair", "pointer factor")


@triton.jit
def store(out_ptr, value):
    tl.store(out_ptr, value)


@triton.jit
def store_typed(out_ptr, byte: tl.int8, wide: tl.int64, half: tl.float16, brain: tl.bfloat16, double: tl.float64):
    tl.store(out_ptr, byte)
    tl.store(out_ptr + 1, wide)
    tl.store(out_ptr + 2, half)
    tl.store(out_ptr + 3, brain)
    tl.store(out_ptr + 4, double)


@triton.jit
def store_unless_absent(out_ptr, extra_ptr):
    if extra_ptr is not None:
        tl.store(out_ptr, tl.load(extra_ptr))
    else:
        tl.store(out_ptr, -1)


@triton.jit
def scale(out_ptr, pair, rest):
    value = tl.load(pair.pointer) * pair.factor
    for part in tl.static_range(len(rest)):
        value += rest[part]
    tl.store(out_ptr, value)


@triton.jit
def read_at(out_ptr, pair, index):
    tl.store(out_ptr, tl.load(pair.pointer + index))


@triton.jit
def twice(x):
    return 2 * x


@triton.jit
def apply(out_ptr, x, FUNCTION: tl.constexpr, TYPE: tl.constexpr, WORD: tl.constexpr, SHAPE: tl.constexpr):
    value = FUNCTION(x).to(TYPE)
    if WORD == "add":
        value += SHAPE[0] + SHAPE[1]
    tl.store(out_ptr, value)


@triton.jit
def copy_block(descriptor, out_ptr, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    block = descriptor.load([row, column])
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + places, block)


@triton.jit(do_not_specialize=["value"])
def keyword_defaults(out_ptr, value=3, ADD: tl.constexpr = 4):
    tl.store(out_ptr, value + ADD)


@triton.jit
def widen(x_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr).to(tl.float32))


def launched(kernel, dtype, *args, count=1, **kwargs):
    out = torch.zeros(count, dtype=dtype)
    with enabled() as session:
        kernel[(1,)](out, *args, **kwargs)
    assert not session.findings
    return out.tolist()


@pytest.mark.parametrize("value", [0, 1, -1, 16, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), True])
def test_integers(value):
    assert launched(store, torch.int64, value) == [int(value)]


def test_an_unsigned_integer():
    assert launched(store, torch.int64, 2**64 - 1) == [-1]
    assert launched(store, torch.float64, 2**64 - 2**11) == [float(2**64 - 2**11)]


@pytest.mark.parametrize("value", [0.1, -0.0, 1e300, float("inf"), -2.5])
def test_floats_are_float32(value):
    (found,) = launched(store, torch.float64, value)
    assert found == torch.tensor(value, dtype=torch.float64).to(torch.float32).item()


def test_declared_types():
    values = launched(store_typed, torch.float64, -7, 2**40, 0.1, 1.01171875, 0.1, count=5)
    assert values == [-7.0, 2.0**40, torch.tensor(0.1).half().item(), 1.015625, 0.1]


def test_absent_pointers():
    assert launched(store_unless_absent, torch.int32, None) == [-1]
    assert launched(store_unless_absent, torch.int32, torch.tensor([5], dtype=torch.int32)) == [5]


def test_tuples_and_named_tuples():
    pair = Pair(torch.tensor([3.0]), 2.0)
    assert launched(scale, torch.float32, pair, (10, 0.5, tl.constexpr(100))) == [116.5]
    assert launched(scale, torch.float32, pair, ()) == [6.0]


def test_memory_within_tuples_is_known():
    pair = Pair(torch.tensor([1.0, 2.0, 3.0]), 2.0)
    assert launched(read_at, torch.float32, pair, 2) == [3.0]
    out = torch.zeros(1)
    with enabled() as session:
        read_at[(1,)](out, pair, 3)
    assert [(finding.evidence["argument"], finding.evidence["bytes"]) for finding in session.findings] == [
        ("pair", [12, 16])
    ]
    assert out.item() == 0.0


def test_functions_types_words_and_tuples_as_constants():
    assert launched(apply, torch.int32, 2.75, twice, tl.int32, "add", (10, 20)) == [35]
    assert launched(apply, torch.float32, 2.75, twice, tl.float32, "leave", (10, 20)) == [5.5]


def test_defaults_and_keywords():
    assert launched(keyword_defaults, torch.int32) == [7]
    assert launched(keyword_defaults, torch.int32, ADD=1, value=1) == [2]


def test_a_wrapped_tensor_has_the_type_it_is_said_to_have():
    numbers = torch.tensor([1.5]).to(torch.float8_e4m3fn)
    out = torch.zeros(1)
    with enabled():
        widen[(1,)](TensorWrapper(numbers.view(torch.int8), tl.float8e4nv), out)
    assert out.tolist() == [1.5]


@pytest.mark.parametrize(("row", "column"), [(0, 0), (4, 4), (5, 3)])
def test_tensor_descriptors(row, column):
    memory = torch.arange(64, dtype=torch.float32).reshape(8, 8)
    descriptor = TensorDescriptor(memory, [8, 8], [8, 1], [4, 4])
    padded = torch.zeros(12, 12)
    padded[:8, :8] = memory
    out = torch.zeros(4, 4)
    with enabled() as session:
        copy_block[(1,)](descriptor, out, row, column, ROWS=4, COLUMNS=4)
    assert torch.equal(out, padded[row : row + 4, column : column + 4])
    assert not session.findings
