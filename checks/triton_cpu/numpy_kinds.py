"""The three kinds of numpy's inner loops that compiled kernels call: how each is tried out, and done in Python.

An inner loop gets the addresses of its arrays, its dimensions, and strides in bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Runs a loop on arrays, dimensions and strides.
Run: TypeAlias = Callable[[Sequence[int], Sequence[int], Sequence[int]], None]

UNARY = ("exp", "exp2", "log", "log2", "sin", "cos")
FOLDS = ("add", "fmax", "fmin")
PRODUCTS = ("matmul",)


def inputs(function: str) -> int:
    """How many arrays a loop reads."""
    return 1 if function in UNARY else 2


def agrees(run: Run, function: str, dtype: np.dtype[Any]) -> bool:
    """Whether a loop gives numpy's own bits for values of every size and sign."""
    tests = _unary_tests if function in UNARY else _fold_tests if function in FOLDS else _product_tests
    with np.errstate(all="ignore"):
        return all(
            found.tobytes() == expected.tobytes() for found, expected in tests(run, getattr(np, function), dtype)
        )


def in_python(function: str, dtype: np.dtype[Any]) -> Run:
    """A loop that calls numpy."""
    kind = _run_unary if function in UNARY else _run_fold if function in FOLDS else _run_product
    ufunc = getattr(np, function)

    def run(arrays: Sequence[int], dimensions: Sequence[int], strides: Sequence[int]) -> None:
        with np.errstate(all="ignore"):
            kind(ufunc, dtype, arrays, dimensions, strides)

    return run


def samples(dtype: np.dtype[Any]) -> NDArray[Any]:
    """About 1,000 numbers: from the smallest to the largest of both signs, and what is not a number."""
    limits = np.finfo(dtype)
    sizes = np.exp2(np.linspace(limits.minexp + 1, limits.maxexp - 1, 400))
    near = np.linspace(-20, 20, 201)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, limits.smallest_subnormal, limits.max])
    return np.concatenate([sizes, -sizes, near, edges]).astype(dtype)


_Pairs: TypeAlias = list[tuple[NDArray[Any], NDArray[Any]]]


def _unary_tests(run: Run, ufunc: Any, dtype: np.dtype[Any]) -> _Pairs:
    values = samples(dtype)
    found = np.empty_like(values)
    run((values.ctypes.data, found.ctypes.data), (len(values),), (values.itemsize, values.itemsize))
    return [(found, ufunc(values))]


def _fold_tests(run: Run, ufunc: Any, dtype: np.dtype[Any]) -> _Pairs:
    """Folds of 1 to 1,001 numbers, and one row with another."""
    values, width = np.sin(np.arange(1001)).astype(dtype), dtype.itemsize
    pairs = []
    for count in (1, 7, 8, 100, 129, 1000):
        found = values[:1].copy()
        run((found.ctypes.data, values[1:].ctypes.data, found.ctypes.data), (count,), (0, width, 0))
        pairs.append((found, np.asarray(ufunc.reduce(values[1 : 1 + count], initial=values[0]))))
    row, other = samples(dtype), samples(dtype)[::-1].copy()
    expected = ufunc(row, other)
    run((row.ctypes.data, other.ctypes.data, row.ctypes.data), (len(row),), (width, width, width))
    return [*pairs, (row, expected)]


def _product_tests(run: Run, ufunc: Any, dtype: np.dtype[Any]) -> _Pairs:
    """Two products of small matrices, the right ones row-major and then transposed in memory."""
    numbers = np.sin(np.arange(2 * 5 * 24 + 2 * 24 * 3)).astype(dtype)
    left, right = numbers[: 2 * 5 * 24].reshape(2, 5, 24), numbers[2 * 5 * 24 :].reshape(2, 24, 3)
    pairs = []
    for other in (right, right.transpose(0, 2, 1).copy().transpose(0, 2, 1)):
        found = np.empty((2, 5, 3), dtype)
        matrices = (left, other, found)
        strides = [matrix.strides[0] for matrix in matrices]
        strides += [stride for matrix in matrices for stride in matrix.strides[1:]]
        run([matrix.ctypes.data for matrix in matrices], (2, 5, 24, 3), strides)
        pairs.append((found, ufunc(left, other)))
    return pairs


def _run_unary(
    ufunc: Any, dtype: np.dtype[Any], arrays: Sequence[int], dimensions: Sequence[int], strides: Sequence[int]
) -> None:
    source, target = (_array(arrays[side], dtype, dimensions[:1], strides[side : side + 1]) for side in (0, 1))
    ufunc(source, out=target)


def _run_fold(
    ufunc: Any, dtype: np.dtype[Any], arrays: Sequence[int], dimensions: Sequence[int], strides: Sequence[int]
) -> None:
    left, right, out = (_array(arrays[side], dtype, dimensions[:1], strides[side : side + 1]) for side in range(3))
    if strides[0] == strides[2] == 0:
        out[:1] = ufunc.reduce(right, initial=left[0])
    else:
        ufunc(left, right, out=out)


def _run_product(
    ufunc: Any, dtype: np.dtype[Any], arrays: Sequence[int], dimensions: Sequence[int], strides: Sequence[int]
) -> None:
    stack, rows, inner, columns = dimensions[:4]
    shapes = ((stack, rows, inner), (stack, inner, columns), (stack, rows, columns))
    left, right, out = (
        _array(arrays[k], dtype, shapes[k], (strides[k], strides[3 + 2 * k], strides[4 + 2 * k])) for k in range(3)
    )
    ufunc(left, right, out=out)


def _array(address: int, dtype: np.dtype[Any], shape: Sequence[int], strides: Sequence[int]) -> NDArray[Any]:
    span = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + dtype.itemsize
    memory: Any = (ctypes.c_char * span).from_address(address)
    return np.ndarray(tuple(shape), dtype, memory, 0, tuple(strides))
