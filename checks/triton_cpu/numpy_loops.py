"""numpy's own inner loops for ``exp``, sums, matrix products and the like, called from C.

Their last bits depend on the instructions of the machine and on numpy's version, so a compiled kernel agrees with the
interpreter only by running the very same code. numpy keeps the address of each loop in the ufunc object, whose layout
is part of its binary interface (``PyUFuncObject`` in ``ufuncobject.h``, unchanged from numpy 1 to 2); what is read
there is compared with what the object says of itself, and the loop with the function, before it is used. If anything
differs the loop is a function in Python that calls numpy.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .numpy_kinds import agrees, in_python, inputs

#: The signature of an inner loop: arrays, number of lanes, strides in bytes, data of the loop.
_Inner = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_long),
    ctypes.POINTER(ctypes.c_long),
    ctypes.c_void_p,
)
_DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}


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
        function: one of those that ``numpy_kinds`` names.
        element: ``"f16"``, ``"f32"`` or ``"f64"``.
    """
    found = _from_object(function, element)
    if found is not None and agrees(functools.partial(_run, found), function, _DTYPES[element]):
        return found
    return _through_python(function, element)


def _from_object(function: str, element: str) -> Loop | None:
    """The loop whose address the ufunc holds; None if its layout is not the one known."""
    ufunc, dtype = getattr(np, function), _DTYPES[element]
    fields = _UFunc.from_address(id(ufunc) + object.__basicsize__)
    if (fields.nin, fields.nout, fields.nargs, fields.ntypes) != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes):
        return None
    if not fields.name or fields.name.decode() != function or not fields.functions or not fields.types:
        return None
    index = ufunc.types.index(f"{dtype.char * inputs(function)}->{dtype.char}")
    sides = range(ufunc.nargs * index, ufunc.nargs * (index + 1))
    if any(ord(fields.types[side]) != dtype.num for side in sides):
        return None
    return Loop(fields.functions[index], fields.data[index] if fields.data else None)


def _run(found: Loop, arrays: Sequence[int], dimensions: Sequence[int], strides: Sequence[int]) -> None:
    assert found.run is not None
    pointers = (ctypes.c_void_p * len(arrays))(*arrays)
    counts, steps = (ctypes.c_long * len(dimensions))(*dimensions), (ctypes.c_long * len(strides))(*strides)
    _Inner(found.run)(pointers, counts, steps, found.data)


_callbacks: dict[tuple[str, str], Any] = {}


def _through_python(function: str, element: str) -> Loop:
    """A loop that calls numpy through Python; it lives as long as the process."""
    run = in_python(function, _DTYPES[element])
    callback = _callbacks[function, element] = _Inner(lambda arrays, lanes, strides, data: run(arrays, lanes, strides))
    return Loop(ctypes.cast(callback, ctypes.c_void_p), None)
