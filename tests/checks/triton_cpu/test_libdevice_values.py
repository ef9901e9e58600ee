"""Values of the float32 functions called by name, against numpy and scipy in float64: two units in the last place."""

from __future__ import annotations

import ctypes

import numpy as np
from scipy import special

from mrv2.checks.triton_cpu.compiler import find_compiler
from mrv2.checks.triton_cpu.emit import library

#: Greatest distance to the value in float64, in units of the last place of float32; denormals are judged alike.
ULPS = 2
REFERENCE = {
    "acosf": np.arccos, "acoshf": np.arccosh, "asinf": np.arcsin, "asinhf": np.arcsinh, "atanf": np.arctan,
    "atanhf": np.arctanh, "cbrtf": np.cbrt, "coshf": np.cosh, "erff": special.erf, "erfcf": special.erfc,
    "exp2f": np.exp2, "expf": np.exp, "expm1f": np.expm1, "log10f": np.log10, "log1pf": np.log1p, "log2f": np.log2,
    "logf": np.log, "sinf": np.sin, "cosf": np.cos, "sinhf": np.sinh, "tanf": np.tan, "tanhf": np.tanh,
    "roundf": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "truncf": np.trunc, "rintf": np.rint,
}  # fmt: skip


def _inputs() -> np.ndarray:
    """Edges, and numbers of every size that functions take; float32."""
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-40, -1e-40, 1e-20, 3e38, np.inf, -np.inf, np.nan, 88.0, -104.0]
    numbers = np.random.default_rng(5).normal(size=240) * np.exp2(np.arange(240) % 12 - 6.0)
    return np.array([*edges, *numbers], np.float32)


def _library(folder) -> ctypes.CDLL:
    lines = ['#include "library.h"']
    for name in REFERENCE:
        value = library._template(name).format("x[i]")
        lines.append(
            f"void t_{name}(const float *x, float *y, int n) {{ for (int i = 0; i < n; i++) y[i] = {value}; }}"
        )
    find_compiler().build("\n".join([*lines, ""]), "values", folder / "values.so")
    return ctypes.CDLL(str(folder / "values.so"))


def _distance(got: np.ndarray, wanted: np.ndarray) -> float:
    """In units of the last place of float32; endless if one is a NaN or an infinity and the other is not the same."""
    rounded = wanted.astype(np.float32)
    same = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | np.isnan(got) & np.isnan(rounded)
    apart = np.abs(got.astype(np.float64) - wanted) / np.spacing(np.abs(rounded)).astype(np.float64)
    return float(np.max(np.where(same, 0.0, np.nan_to_num(apart, nan=np.inf))))


def test_values_are_within_the_bound(tmp_path):
    x, built = _inputs(), _library(tmp_path)
    distances = {}
    with np.errstate(all="ignore"):
        for name, function in REFERENCE.items():
            y = np.zeros_like(x)
            getattr(built, f"t_{name}")(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), len(x))
            distances[name] = _distance(y, function(x.astype(np.float64)))
    assert {name: apart for name, apart in distances.items() if apart > ULPS} == {}


def test_a_wrong_value_is_beyond_the_bound():
    wanted = np.array([1.0, 0.0, np.nan, np.inf])
    with np.errstate(all="ignore"):
        assert _distance(wanted.astype(np.float32), wanted) == 0
    for place, wrong in enumerate([1.0 + 2**-21, -1e-40, 0.0, 3e38]):
        got = wanted.astype(np.float32)
        got[place] = wrong
        with np.errstate(all="ignore"):
            assert _distance(got, wanted) > ULPS
