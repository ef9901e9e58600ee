"""numpy's own inner loops for ``exp``, ``log`` and the like, called from C.

Their last bits depend on the instructions of the machine and on numpy's version, so a compiled kernel agrees with the
interpreter only by running the very same code. numpy keeps the address of each loop in the ufunc object, whose layout
is part of its binary interface (``PyUFuncObject`` in ``ufuncobject.h``, unchanged from numpy 1 to 2); what is read
there is compared with what the object says of itself, and the loop with the function, before it is used. If anything
differs the loop is a function in Python that calls numpy.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The signature of an inner loop: arrays, number of lanes, strides in bytes, data of the loop.
_Inner = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_long),
    ctypes.POINTER(ctypes.c_long),
    ctypes.c_void_p,
)
_DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
FUNCTIONS = ("exp", "exp2", "log", "log2", "sin", "cos")


class Loop(ctypes.Structure):
    """``Loop`` of launch.h."""

    _fields_ = (("run", ctypes.c_void_p), ("data", ctypes.c_void_p))


class _UFunc(ctypes.Structure):
    """The first fields of ``PyUFuncObject`` after the header of a Python object."""

    _fields_ = (
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_char)),
    )


@functools.cache
def loop(function: str, element: str) -> Loop:
    """An inner loop of numpy.

    Args:
        function: one of ``FUNCTIONS``.
        element: ``"f32"`` or ``"f64"``.
    """
    found = _from_object(function, element)
    if found is not None and _agrees(found, function, element):
        return found
    return _through_python(function, element)


def _from_object(function: str, element: str) -> Loop | None:
    """The loop whose address the ufunc holds; None if its layout is not the one known."""
    ufunc, code = getattr(np, function), _DTYPES[element].char
    fields = _UFunc.from_address(id(ufunc) + object.__basicsize__)
    if (fields.nin, fields.nout, fields.nargs, fields.ntypes) != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes):
        return None
    if not fields.name or fields.name.decode() != function or not fields.functions or not fields.types:
        return None
    index = ufunc.types.index(f"{code}->{code}")
    number = _DTYPES[element].num
    if [ord(fields.types[2 * index + side]) for side in (0, 1)] != [number, number]:
        return None
    return Loop(fields.functions[index], fields.data[index] if fields.data else None)


def _agrees(found: Loop, function: str, element: str) -> bool:
    """Whether a loop gives numpy's own bits for values of every size and sign."""
    assert found.run is not None
    values = _samples(_DTYPES[element])
    results = np.empty_like(values)
    arrays = (ctypes.c_void_p * 2)(values.ctypes.data, results.ctypes.data)
    strides = (ctypes.c_long * 2)(values.itemsize, values.itemsize)
    with np.errstate(all="ignore"):
        _Inner(found.run)(arrays, ctypes.c_long(len(values)), strides, found.data)
        expected = getattr(np, function)(values)
    return bool(results.tobytes() == expected.tobytes())


def _samples(dtype: np.dtype[Any]) -> NDArray[Any]:
    """About 1,000 numbers: from the smallest to the largest of both signs, and what is not a number."""
    limits = np.finfo(dtype)
    sizes = np.exp2(np.linspace(limits.minexp + 1, limits.maxexp - 1, 400))
    near = np.linspace(-20, 20, 201)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, limits.smallest_subnormal, limits.max])
    return np.concatenate([sizes, -sizes, near, edges]).astype(dtype)


_callbacks: dict[tuple[str, str], Callable[..., None]] = {}


def _through_python(function: str, element: str) -> Loop:
    """A loop that calls numpy through Python; it lives as long as the process."""
    dtype, ufunc = _DTYPES[element], getattr(np, function)

    def run(arrays: Any, lanes: Any, strides: Any, data: Any) -> None:
        views = [
            np.ndarray((lanes[0],), dtype, _memory(arrays[side], lanes[0] * dtype.itemsize), 0, (strides[side],))
            for side in (0, 1)
        ]
        with np.errstate(all="ignore"):
            ufunc(views[0], out=views[1])

    callback = _callbacks[function, element] = _Inner(run)
    return Loop(ctypes.cast(callback, ctypes.c_void_p), None)


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)
