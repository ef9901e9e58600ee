"""What the C text looks like, where its speed depends on it: shared loops, rows at once, scratch that is given back."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from mrv2.checks.triton_cpu import frontend, reader
from mrv2.checks.triton_cpu.emit.program import emit
from mrv2.checks.triton_cpu.emit.source import Source
from mrv2.checks.triton_cpu.variants import Binder

X = torch.zeros(4)


def source(kernel: JITFunction, *args: Any) -> Source:
    binder = Binder(kernel)
    variant = binder.variant(binder.bind(args, {}))
    return emit(reader.read(frontend.ttir(variant.function, variant.signature, variant.constants, variant.options)))


@triton.jit
def chain(x, out, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a = tl.load(x + i)
    a = a * 2.0 + 1.0
    a = tl.where(i < n, a / (a + 3.0), -a)
    tl.store(out + i, a)


def test_neighbours_share_a_loop_and_constants_are_not_stored():
    text = source(chain, X, X, 4, 256).text
    assert len(re.findall(r"for \(int32_t i = ", text)) == 1
    assert len(re.findall(r"^  float \*const", text, re.MULTILINE)) == 2


@triton.jit
def unrolled(x, out, STEPS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    for step in tl.static_range(STEPS):
        a = tl.exp(a * step)
        tl.store(out + i * step, a, mask=a > 0)
    tl.store(out + i, a)


def test_scratch_does_not_grow_with_the_steps_of_an_unrolled_loop():
    few, many = (source(unrolled, X, X, steps, 256).scratch for steps in (4, 64))
    assert many == few < 256 * 40


@triton.jit
def rows(x, out, stride, SHAPE: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(0) * M + tl.arange(0, M)
    c = tl.arange(0, N)
    place = r[:, None] * stride + c[None, :]
    if SHAPE == "rows":
        place = r[:, None] * stride + c[None, :]
    elif SHAPE == "widened":
        place = (r[:, None].to(tl.int64) * stride + 2) + (c + 4)[None, :].to(tl.int64)
    elif SHAPE == "halves":
        place = r[:, None] * stride + (c * 2)[None, :]
    elif SHAPE == "columns":
        place = r[:, None] + c[None, :] * stride
    elif SHAPE == "backwards":
        place = r[:, None] * stride + (N - 1 - c)[None, :]
    elif SHAPE == "modulo":
        place = r[:, None] * stride + (c % 8)[None, :]
    elif SHAPE == "loaded":
        place = r[:, None] * stride + tl.load(x + c).to(tl.int32)[None, :]
    tl.store(out + place, 1.0)


@pytest.mark.parametrize("shape", ["rows", "widened"])
def test_rows_side_by_side_in_memory_are_accessed_at_once(shape):
    assert "STORE_ROW(" in source(rows, X, X, 64, shape, 4, 32).text


@pytest.mark.parametrize("shape", ["halves", "columns", "backwards", "modulo", "loaded"])
def test_other_lanes_are_accessed_one_by_one(shape):
    assert "STORE_ROW(" not in source(rows, X, X, 64, shape, 4, 32).text


@triton.jit
def masked_twice(x, y, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    mask = (i < n) & (i != 7)
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def test_a_mask_is_computed_once():
    text = source(masked_twice, X, X, X, 4, 64).text
    assert len(re.findall(r"^  uint8_t \*const", text, re.MULTILINE)) == 1


def test_pointers_out_of_memory_are_noted():
    assert source(table, X.long(), X).from_memory
    assert not source(chain, X, X, 4, 256).from_memory


@triton.jit
def table(pointers, out):
    tl.store(tl.load(pointers).to(tl.pointer_type(tl.float32)), tl.load(out))


@triton.jit
def branches(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i, mask=i < n, other=1.0)
    b = a
    if n > 0:
        b = a * 2.0
    tl.store(out + i, b)


def test_a_branch_computes_where_its_result_lives_and_copies_what_is_there():
    """One loop is the mask's, one the product's; ``b = a`` is a copy, ``other`` fills."""
    text = source(branches, X, X, 4, 64).text
    assert [len(re.findall(word, text)) for word in (r"\bCOPY\(", r"\bFILL\(float", r"for \(int32_t i = ")] == [1, 1, 2]
