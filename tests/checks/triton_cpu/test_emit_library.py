"""Functions called by name and pieces of PTX: against torch, for Triton's interpreter has neither."""

from __future__ import annotations

import inspect
import math
import re

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

from mrv2.checks.triton_cpu.compiler import find_compiler
from mrv2.checks.triton_cpu.emit import library
from mrv2.checks.triton_cpu.errors import Unsupported

from .differential import launch
from .numbers import floats, integers

N = 128


@triton.jit
def smooth(x, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    value = tl.load(x + lane)
    tl.store(out + lane, libdevice.tanh(value))
    tl.store(out + N + lane, libdevice.erf(value))
    tl.store(out + 2 * N + lane, libdevice.log1p(tl.abs(value)))
    tl.store(out + 3 * N + lane, libdevice.expm1(value))
    tl.store(out + 4 * N + lane, libdevice.pow(tl.abs(value), value))
    tl.store(out + 5 * N + lane, libdevice.atan2(value, value * value))
    tl.store(out + 6 * N + lane, libdevice.rsqrt(tl.abs(value)))
    tl.store(out + 7 * N + lane, libdevice.hypot(value, value + 1))
    tl.store(out + 8 * N + lane, libdevice.exp10(value))
    tl.store(out + 9 * N + lane, libdevice.normcdf(value))
    tl.store(out + 10 * N + lane, libdevice.sinpi(value))


def _smooth_in_torch(x: torch.Tensor) -> torch.Tensor:
    size, square = x.abs(), x * x
    results = [x.tanh(), x.erf(), size.log1p(), x.expm1(), size.pow(x), x.atan2(square), size.rsqrt(), x.hypot(x + 1)]
    results += [torch.pow(10.0, x), (1 + (x / 2**0.5).erf()) / 2, (x * torch.pi).sin()]
    return torch.cat(results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_smooth_functions_are_close(dtype):
    x = torch.randn(N, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    out = torch.zeros(11 * N, dtype=dtype)
    launch(smooth, (1,), x, out, N)
    torch.testing.assert_close(out, _smooth_in_torch(x.double()).to(dtype), rtol=1e-6, atol=1e-7)


@triton.jit
def exact(x, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    value = tl.load(x + lane)
    tl.store(out + lane, libdevice.rint(value))
    tl.store(out + N + lane, libdevice.trunc(value))
    tl.store(out + 2 * N + lane, libdevice.round(value))
    tl.store(out + 3 * N + lane, libdevice.fmod(value, value * 0 + 3))
    tl.store(out + 4 * N + lane, libdevice.copysign(value * value, value))
    tl.store(out + 5 * N + lane, libdevice.nextafter(value, value + 1))
    tl.store(out + 6 * N + lane, libdevice.isnan(value).to(value.dtype))
    tl.store(out + 7 * N + lane, libdevice.isinf(value).to(value.dtype))
    tl.store(out + 8 * N + lane, libdevice.signbit(value).to(value.dtype))
    tl.store(out + 9 * N + lane, libdevice.ceil(value) - libdevice.floor(value))


def _exact_in_torch(x: torch.Tensor) -> torch.Tensor:
    away = torch.where(x >= 0, 1, -1) * (x.abs() + 0.5).floor()
    round_half_away = torch.where((x.abs() - x.abs().floor()) == 0.5, away, x.round())
    return torch.cat([
        x.round(), x.trunc(), round_half_away, x.fmod(3), (x * x).copysign(x), torch.nextafter(x, x + 1),
        x.isnan().to(x.dtype), x.isinf().to(x.dtype), x.signbit().to(x.dtype), x.ceil() - x.floor(),
    ])  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exact_functions_are_exact(dtype):
    x = floats(dtype, N, 7)
    out = torch.zeros(10 * N, dtype=dtype)
    launch(exact, (1,), x, out, N)
    torch.testing.assert_close(out, _exact_in_torch(x), rtol=0, atol=0, equal_nan=True)


@triton.jit
def bitwise(x, y, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    a, b = tl.load(x + lane), tl.load(y + lane)
    tl.store(out + lane, libdevice.popc(a))
    tl.store(out + N + lane, libdevice.clz(a))
    tl.store(out + 2 * N + lane, libdevice.ffs(a))
    tl.store(out + 3 * N + lane, libdevice.brev(a))
    tl.store(out + 4 * N + lane, libdevice.mulhi(a, b))
    tl.store(out + 5 * N + lane, libdevice.byte_perm(a, b, b))
    tl.store(out + 6 * N + lane, libdevice.hadd(a, b))
    tl.store(out + 7 * N + lane, libdevice.sad(a, b, b.to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True))


def _signed(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _bitwise_in_python(a: int, b: int) -> list[int]:
    word, other = a % 2**32, b % 2**32
    octets = [(other << 32 | word) >> 8 * k & 255 for k in range(8)]
    picked = sum(octets[other >> 4 * k & 7] << 8 * k for k in range(4))
    return [
        word.bit_count(),
        32 - word.bit_length(),
        (word & -word).bit_length(),
        _signed(int(f"{word:032b}"[::-1], 2)),
        _signed(a * b >> 32),
        _signed(picked),
        a + b >> 1,
        _signed(abs(a - b) + b),
    ]


def test_functions_of_bits():
    x, y, out = integers(torch.int32, N, 1), integers(torch.int32, N, 2), torch.zeros(8 * N, dtype=torch.int32)
    launch(bitwise, (1,), x, y, out, N)
    expected = [_bitwise_in_python(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert out.view(8, N).t().tolist() == expected


@triton.jit
def saturated(x, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    value = tl.load(x + lane)
    tl.store(out + lane, libdevice.float2int_rn(value))
    tl.store(out + N + lane, libdevice.float2int_rz(value))
    tl.store(out + 2 * N + lane, libdevice.float2int_rd(value))
    tl.store(out + 3 * N + lane, libdevice.float2ll_rz(value))
    tl.store(out + 4 * N + lane, libdevice.float2int_ru(libdevice.saturatef(value)))


def test_conversions_saturate():
    x = torch.tensor([1.5, 2.5, -1.5, 1e30, -1e30, math.inf, -math.inf, math.nan])
    out = torch.zeros(40, dtype=torch.int64)
    launch(saturated, (1,), x, out, 8)
    most, least = 2**31 - 1, -(2**31)
    assert out.view(5, 8).tolist() == [
        [2, 2, -2, most, least, most, least, 0],
        [1, 2, -1, most, least, most, least, 0],
        [1, 2, -2, most, least, most, least, 0],
        [1, 2, -1, 2**63 - 1, -(2**63), 2**63 - 1, -(2**63), -(2**63)],
        [1, 1, 0, 1, 0, 1, 0, 0],
    ]


@triton.jit
def inverse_error(x, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(out + lane, libdevice.erfinv(tl.load(x + lane)))


def test_an_unknown_function_is_refused_by_name():
    with pytest.raises(Unsupported, match="__nv_erfinvf"):
        launch(inverse_error, (1,), torch.zeros(8), torch.zeros(8), 8)


def test_every_expression_has_as_many_braces_as_the_function_has_arguments():
    for name in ("fma", "fmaf", "normcdf", "normcdff", "erf", "erff", "fast_expf", "double2uint_ru", "jn", "ilogbf"):
        assert library._template(name) is not None, name
    for name in ("", "f", "erfinv", "double2half_rn", "float2int_xx", "exp3"):
        assert library._template(name) is None, name


_TYPES = {
    "fp32": "float", "fp64": "double", "int32": "int32_t", "uint32": "int32_t", "int64": "int64_t", "uint64": "int64_t",
}  # fmt: skip


def _signatures() -> dict[str, tuple[list[str], str]]:
    """Types of arguments and result of every function that Triton knows of libdevice."""
    text = inspect.getsource(cuda_libdevice)
    pattern = r'\((core\.dtype\([^{}]*?)\)\s*:\s*\("__nv_(\w+)",\s*core\.dtype\("(\w+)"\)'
    return {found[2]: (re.findall(r'dtype\("(\w+)"\)', found[1]), found[3]) for found in re.finditer(pattern, text)}


def test_every_known_function_is_valid_c(tmp_path):
    lines, refused = ['#include "library.h"'], []
    for name, (arguments, result) in _signatures().items():
        template = library._template(name)
        if template is None:
            refused.append(name)
            continue
        parameters = ", ".join(f"{_TYPES[kind]} a{k}" for k, kind in enumerate(arguments))
        value = template.format(*(f"a{k}" for k in range(len(arguments))))
        lines.append(f"{_TYPES[result]} f_{name}({parameters}) {{ return {value}; }}")
    find_compiler().build("\n".join([*lines, ""]), "libdevice", tmp_path / "library.so")
    assert len(lines) > 200
    assert all(re.search(r"_r[duz]$|inv|bessel|erfcx|rcp64h", name) for name in refused), refused


@triton.jit
def assembly(x, out, N: tl.constexpr, TEXT: tl.constexpr):
    lane = tl.arange(0, N)
    value = tl.inline_asm_elementwise(TEXT, "=f,f", [tl.load(x + lane)], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out + lane, value)


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("tanh.approx.f32 $0, $1;", torch.tanh),
        ("ex2.approx.ftz.f32 $0, $1;", torch.exp2),
        ("rcp.approx.f32 $0, $1;", torch.reciprocal),
    ],
)
def test_known_assembly(text, function):
    x, out = torch.linspace(0.5, 4, 16), torch.zeros(16)
    launch(assembly, (1,), x, out, 16, text)
    torch.testing.assert_close(out, function(x))


@pytest.mark.parametrize("text", ["mov.b32 $0, $1;", "tanh.approx.f32 $0, $1; add.f32 $0, $0, $1;"])
def test_other_assembly_is_refused(text):
    with pytest.raises(Unsupported, match="elementwise_inline_asm"):
        launch(assembly, (1,), torch.zeros(16), torch.zeros(16), 16, text)
