"""Matrix products: bit for bit what Triton's interpreter computes, with numpy's BLAS."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from .differential import launch, same
from .numbers import integers


@triton.jit
def product(a, b, c, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    start = tl.load(c + m[:, None] * N + n[None, :])
    once = tl.dot(left, right, start, input_precision=PRECISION, out_dtype=out.dtype.element_ty)
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(left, right, once, out_dtype=out.dtype.element_ty))


def _matrices(dtype: torch.dtype, into: torch.dtype, rows: int, columns: int, inner: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + columns + inner)
    shapes = (rows, inner), (inner, columns), (rows, columns)
    a, b, c = (torch.randn(shape, generator=generator) for shape in shapes)
    return [a.to(dtype), b.to(dtype), c.to(into), torch.zeros(rows, columns, dtype=into)]


PAIRS = [
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
    (torch.float16, torch.float32),
    (torch.float16, torch.float16),
]


@pytest.mark.parametrize("shape", [(16, 16, 16), (64, 16, 32), (16, 64, 128)], ids=str)
@pytest.mark.parametrize(("dtype", "into"), PAIRS, ids=str)
def test_products_of_floats(dtype, into, shape):
    same(product, (1,), *_matrices(dtype, into, *shape), *shape, "ieee")


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_input_precision_changes_nothing(precision):
    same(product, (1,), *_matrices(torch.float32, torch.float32, 32, 32, 32), 32, 32, 32, precision)


def test_products_of_bytes_wrap():
    a, b = (integers(torch.int8, 32 * 32, seed).reshape(32, 32) for seed in (1, 2))
    c = integers(torch.int32, 32 * 32, 3).reshape(32, 32)
    same(product, (1,), a, b, c, torch.zeros(32, 32, dtype=torch.int32), 32, 32, 32, "ieee")


def test_bfloat16_is_multiplied_as_float32():
    """The interpreter multiplies the bits as integers."""
    a, b, c, out = _matrices(torch.bfloat16, torch.float32, 16, 16, 32)
    launch(product, (1,), a, b, c, out, 16, 16, 32, "ieee")
    torch.testing.assert_close(out, c + 2 * (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-5)
    assert not torch.equal(out, c)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
def test_products_of_floats_of_eight_bits(dtype):
    same(product, (1,), *_matrices(dtype, torch.float32, 32, 32, 32), 32, 32, 32, "ieee")


@triton.jit
def attention(q, k, v, out, M: tl.constexpr, D: tl.constexpr):
    m, d = tl.arange(0, M)[:, None], tl.arange(0, D)[None, :]
    queries, keys, values = tl.load(q + m * D + d), tl.load(k + m * D + d), tl.load(v + m * D + d)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    scores -= tl.max(scores, axis=1)[:, None]
    weights = tl.exp(scores)
    weights /= tl.sum(weights, axis=1)[:, None]
    tl.store(out + m * D + d, tl.dot(weights, values, input_precision="ieee"))
    scaled = tl.dot(tl.trans(queries * 0.5), tl.trans(tl.trans(keys)), input_precision="ieee")
    tl.store(out + M * D + tl.arange(0, D)[:, None] * D + d, scaled)
    tl.store(out + M * D + D * D + tl.arange(0, D)[:, None] * D + d, tl.dot(tl.trans(values), values))


@pytest.mark.parametrize("shape", [(16, 16), (64, 16), (32, 128)], ids=str)
def test_what_was_transposed_is_multiplied_as_it_lies_in_numpys_memory(shape):
    generator = torch.Generator().manual_seed(shape[0])
    q, k, v = torch.randn(3, *shape, generator=generator)
    same(attention, (1,), q, k, v, torch.zeros(shape[0] * shape[1] + 2 * shape[1] ** 2), *shape)


@triton.jit
def batched(a, b, out, B: tl.constexpr, N: tl.constexpr):
    i, j, k = tl.arange(0, B)[:, None, None], tl.arange(0, N)[None, :, None], tl.arange(0, N)[None, None, :]
    lane = i * N * N + j * N + k
    left, right = tl.load(a + lane), tl.load(b + lane)
    tl.store(out + lane, tl.dot(left, right, input_precision="ieee"))
    tl.store(out + B * N * N + lane, tl.dot(left, tl.permute(right, (0, 2, 1)), input_precision="ieee"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_stacks_of_matrices(dtype):
    a, b = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    same(batched, (1,), a, b, torch.zeros(2 * 4 * 16 * 16), 4, 16)


@triton.jit
def tiled(a, b, out, M, N, K, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(out + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


def test_a_tiled_product():
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(37, 50, generator=generator), torch.randn(50, 41, generator=generator)
    out = torch.zeros(37, 41)
    same(tiled, (3, 3), a, b, out, 37, 41, 50, 16)
    launch(tiled, (3, 3), a, b, out, 37, 41, 50, 16)
    torch.testing.assert_close(out, a @ b)


@triton.jit
def scaled(a, b, a_scale, b_scale, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A: tl.constexpr,
           B: tl.constexpr, A_INNER: tl.constexpr, B_INNER: tl.constexpr):  # fmt: skip
    a_rows: tl.constexpr = M if A_INNER or A != "e2m1" else M // 2
    a_columns: tl.constexpr = K // 2 if A_INNER and A == "e2m1" else K
    b_rows: tl.constexpr = K // 2 if B_INNER and B == "e2m1" else K
    b_columns: tl.constexpr = N if B_INNER or B != "e2m1" else N // 2
    left = tl.load(a + tl.arange(0, a_rows)[:, None] * a_columns + tl.arange(0, a_columns)[None, :])
    right = tl.load(b + tl.arange(0, b_rows)[:, None] * b_columns + tl.arange(0, b_columns)[None, :])
    group = tl.arange(0, K // 32)[None, :]
    lefts = None if a_scale is None else tl.load(a_scale + tl.arange(0, M)[:, None] * (K // 32) + group)
    rights = None if b_scale is None else tl.load(b_scale + tl.arange(0, N)[:, None] * (K // 32) + group)
    product = tl.dot_scaled(left, lefts, A, right, rights, B, lhs_k_pack=A_INNER, rhs_k_pack=B_INNER)
    tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], product)


def _numbers(kind: str, lanes: int, seed: int) -> torch.Tensor:
    """Neither subnormal, infinite nor NaN, which the interpreter has wrong."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "e2m1":
        return torch.randint(0, 256, (lanes // 2,), generator=generator, dtype=torch.uint8)
    dtypes = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.randn(lanes, generator=generator).add(3).to(torch.float8_e5m2).float().to(dtypes[kind])


CASES = [
    ("e4m3", "e5m2", True, True, True, True),
    ("e5m2", "e4m3", True, False, True, True),
    ("e2m1", "e2m1", True, True, True, True),
    ("e2m1", "e2m1", True, True, False, False),
    ("e2m1", "e4m3", False, True, False, True),
    ("fp16", "e2m1", False, True, True, True),
    ("e4m3", "bf16", True, False, True, True),
]


@pytest.mark.skipif(triton.__version__.startswith("3.6"), reason="Triton 3.6's interpreter lacks tl.dot_scaled")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_scaled_products(case):
    left, right, left_scaled, right_scaled, left_inner, right_inner = case
    m, n, k = 128, 64, 64
    generator = torch.Generator().manual_seed(1)
    scales = [torch.randint(120, 132, (size, k // 32), generator=generator, dtype=torch.uint8) for size in (m, n)]
    chosen = [scale if used else None for scale, used in zip(scales, (left_scaled, right_scaled), strict=True)]
    matrices = _numbers(left, m * k, 1), _numbers(right, k * n, 2)
    same(scaled, (1,), *matrices, *chosen, torch.zeros(m, n), m, n, k, left, right, left_inner, right_inner)


def test_scales_are_powers_of_two():
    """The smallest and the largest, and NaN."""
    m, n, k = 128, 64, 64
    ones = torch.ones(m * k).to(torch.float8_e4m3fn), torch.ones(k * n).to(torch.float8_e4m3fn)
    scale = torch.full((m, 2), 127, dtype=torch.uint8)
    scale[0], scale[1], scale[2, 1] = 0, 254, 255
    out = torch.zeros(m, n)
    launch(scaled, (1,), *ones, scale, None, out, m, n, k, "e4m3", "e4m3", True, True)
    assert out[0].tolist() == [64 * 2.0**-127] * n
    assert out[1].isinf().all()
    assert out[2].isnan().all()
    assert out[3:].eq(64).all()


@triton.jit
def streamed(q, k, v, out, length, scale, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    """Attention that never holds all scores: a block of keys after another, the sums put right as the maximum grows."""
    row, column, d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    queries = tl.load(q + row[:, None] * D + d[None, :], mask=row[:, None] < length, other=0.0)
    most = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    result = tl.zeros((M, D), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * M, length) if CAUSAL else length
    for start in range(0, end, N):
        place = start + column
        keys = tl.load(k + place[:, None] * D + d[None, :], mask=place[:, None] < length, other=0.0)
        values = tl.load(v + place[:, None] * D + d[None, :], mask=place[:, None] < length, other=0.0)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        seen = place[None, :] < length
        if CAUSAL:
            seen = seen & (place[None, :] <= row[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(most, tl.max(scores, axis=1))
        weights = tl.exp(scores - larger[:, None])
        shrink = tl.exp(most - larger)
        total = total * shrink + tl.sum(weights, axis=1)
        result = tl.dot(weights.to(values.dtype), values, result * shrink[:, None])
        most = larger
    tl.store(out + row[:, None] * D + d[None, :], result / total[:, None], mask=row[:, None] < length)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_streamed_attention(dtype, causal):
    q, k, v = torch.randn(3, 50, 32, generator=torch.Generator().manual_seed(5)).to(dtype)
    out = torch.zeros(50, 32)
    same(streamed, (4,), q, k, v, out, 50, 0.3, 16, 16, 32, causal)
    launch(streamed, (4,), q, k, v, out, 50, 0.3, 16, 16, 32, causal)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.float()[None] for x in (q, k, v)), is_causal=causal, scale=0.3
    )
    torch.testing.assert_close(out, expected[0], rtol=2e-3, atol=2e-3)


@triton.jit
def imprecise(a, b, out, N: tl.constexpr, LIMIT: tl.constexpr):
    lane = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    product = tl.dot(tl.load(a + lane), tl.load(b + lane), max_num_imprecise_acc=LIMIT)
    tl.store(out + lane, product)


@pytest.mark.parametrize("limit", [0, 16])
def test_imprecise_sums_change_nothing(limit):
    a, b, _, out = _matrices(torch.float8_e4m3fn, torch.float32, 32, 32, 32)
    same(imprecise, (1,), a, b, out, 32, limit)
