"""Tensor descriptors and block pointers: bit for bit what Triton's interpreter computes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .differential import launch, same

OLD = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)


@triton.jit
def moved(p, q, rows, columns, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_tensor_descriptor(p, [rows, columns], [columns, 1], [M, N], padding_option=PADDING)
    target = tl.make_tensor_descriptor(q, [rows, columns], [columns, 1], [M, N])
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([row, column], source.load([row, column]))


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_loads_and_stores(dtype, padding):
    x = torch.randn(20, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    same(moved, (4, 3), x, torch.zeros_like(x), 20, 24, 8, 16, padding)


@triton.jit
def summed(p, out, rows, columns, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_tensor_descriptor(p, [rows, columns], [columns, 1], [M, N], padding_option=PADDING)
    value = source.load([4, 16])
    lane = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + lane, value)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_what_lies_outside_is_padded(padding):
    x, out = torch.ones(8, 24), torch.full((8, 16), 5.0)
    same(summed, (1,), x, out, 8, 24, 8, 16, padding)
    launch(summed, (1,), x, out, 8, 24, 8, 16, padding)
    pad = 0.0 if padding == "zero" else torch.nan
    expected = torch.full((8, 16), pad)
    expected[:4, :8] = 1
    torch.testing.assert_close(out, expected, equal_nan=True)


@triton.jit
def cube(p, q, a, b, c):
    source = tl.make_tensor_descriptor(p, [a, b, c], [b * c, c, 1], [2, 2, 8])
    target = tl.make_tensor_descriptor(q, [a, b, c], [b * c, c, 1], [2, 2, 8])
    value = tl.load_tensor_descriptor(source, [1, 1, 0])
    tl.store_tensor_descriptor(target, [0, 0, 8], value)


def test_three_dimensions():
    same(cube, (1,), torch.arange(3 * 3 * 16).float(), torch.zeros(3 * 3 * 16), 3, 3, 16)


@triton.jit
def picked_rows(p, q, places, rows, columns, N: tl.constexpr):
    source = tl.make_tensor_descriptor(p, [rows, columns], [columns, 1], [1, 16])
    target = tl.make_tensor_descriptor(q, [rows, columns], [columns, 1], [1, 16])
    chosen = tl.load(places + tl.arange(0, N))
    value = source.gather(chosen, 16)
    target.scatter(value + 1, chosen, 0)


def test_gather_and_scatter():
    places = torch.tensor([3, 1, 11, 7, 0, 9, 2, 12], dtype=torch.int32)  # 12 is outside
    same(picked_rows, (1,), torch.randn(12, 32), torch.zeros(12, 32), places, 12, 32, 8)


@triton.jit
def reduced(p, q, rows, columns, KIND: tl.constexpr):
    source = tl.make_tensor_descriptor(p, [rows, columns], [columns, 1], [4, 8])
    target = tl.make_tensor_descriptor(q, [rows, columns], [columns, 1], [4, 8])
    value = source.load([2, 0])
    if KIND == 0:
        target.atomic_add([4, 8], value)
    if KIND == 1:
        target.atomic_max([4, 8], value)
    if KIND == 2:
        target.atomic_xor([4, 8], value)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_atomic_reductions(kind):
    """Triton's interpreter lacks them."""
    x = torch.randint(-9, 9, (8, 16), generator=torch.Generator().manual_seed(kind), dtype=torch.int32)
    got, expected = x * 3, x * 3
    launch(reduced, (1,), x, got, 6, 16, kind)
    tile, value = expected[4:6, 8:], x[2:4, :8]
    tile.copy_([tile + value, torch.maximum(tile, value), tile ^ value][kind])
    assert torch.equal(got, expected)


@triton.jit
def from_host(source, target, M: tl.constexpr, N: tl.constexpr):
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([row, column], source.load([row, column]) + 1)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors_made_on_the_host(padding):
    x, out = torch.randn(20, 24), torch.zeros(20, 24)
    source = TensorDescriptor(x, [20, 24], [24, 1], [8, 16], padding=padding)
    target = TensorDescriptor(out, [20, 24], [24, 1], [8, 16])
    same(from_host, (3, 2), source, target, 8, 16)


@triton.jit
def advanced(p, q, rows, columns, M: tl.constexpr, N: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_block_ptr(p, (rows, columns), (columns, 1), (tl.program_id(0) * M, 0), (M, N), (1, 0))
    target = tl.make_block_ptr(q, (rows, columns), (columns, 1), (tl.program_id(0) * M, 0), (M, N), (1, 0))
    for _ in range(0, columns, N):
        value = tl.load(source, boundary_check=(0, 1), padding_option=PADDING)
        tl.store(target, value + 1, boundary_check=(0, 1))
        source = tl.advance(source, (0, N))
        target = tl.advance(target, (0, N))


@triton.jit
def one_side(p, out, rows, columns):
    source = tl.make_block_ptr(p, (rows, columns), (columns, 1), (2, 4), (4, 8), (1, 0))
    value = tl.load(source, boundary_check=(1,), padding_option="zero")
    tl.store(out + tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :], value)


@pytest.mark.skipif(not OLD, reason="later versions have no block pointers")
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_block_pointers(padding):
    x = torch.randn(10, 12)
    same(advanced, (3,), x, torch.zeros(10, 12), 10, 12, 4, 8, padding)
    same(one_side, (1,), x, torch.zeros(4, 8), 10, 12)


@pytest.mark.skipif(OLD, reason="Triton 3.6 to 3.8 has block pointers")
def test_later_versions_refuse_block_pointers():
    with pytest.raises(Exception, match="Block pointers have been removed"):
        launch(one_side, (1,), torch.zeros(10, 12), torch.zeros(4, 8), 10, 12)
