"""numpy's inner loops, called through their addresses, give numpy's own bits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from mrv2.checks.triton_cpu import numpy_loops
from mrv2.checks.triton_cpu.numpy_kinds import FOLDS, PRODUCTS, UNARY, agrees, samples
from mrv2.checks.triton_cpu.numpy_loops import Loop, loop

UNARY_LOOPS = [(function, element) for function in UNARY for element in ("f32", "f64")]
ALL_LOOPS = UNARY_LOOPS + [(function, element) for function in FOLDS + PRODUCTS for element in ("f32", "f64")]
DTYPES = {"f32": np.float32, "f64": np.float64}


def call(found: Loop, values: np.ndarray) -> np.ndarray:
    """Run a loop as C does."""
    inner = ctypes.CFUNCTYPE(None, *(ctypes.c_void_p,) * 4)(found.run)
    results = np.empty_like(values)
    arrays = (ctypes.c_void_p * 2)(values.ctypes.data, results.ctypes.data)
    lanes, strides = ctypes.c_long(len(values)), (ctypes.c_long * 2)(*(values.itemsize,) * 2)
    inner(arrays, ctypes.byref(lanes), strides, found.data)
    return results


@pytest.mark.parametrize(("function", "element"), ALL_LOOPS)
def test_the_address_is_found_and_is_right(function, element):
    found = numpy_loops._from_object(function, element)
    assert found is not None, "this numpy's layout is unknown: everything would run through Python"
    assert loop(function, element).run == found.run


@pytest.mark.parametrize("count", [0, 1, 3, 17, 256])
@pytest.mark.parametrize(("function", "element"), UNARY_LOOPS)
def test_bits_are_numpys(function, element, count):
    values = samples(np.dtype(DTYPES[element]))[:count]
    with np.errstate(all="ignore"):
        expected = getattr(np, function)(values)
    assert call(loop(function, element), values).tobytes() == expected.tobytes()


@pytest.mark.parametrize(("function", "element"), UNARY_LOOPS)
def test_the_way_through_python_gives_the_same_bits(function, element):
    values = samples(np.dtype(DTYPES[element]))
    with np.errstate(all="ignore"):
        expected = getattr(np, function)(values)
    assert call(numpy_loops._through_python(function, element), values).tobytes() == expected.tobytes()


def test_a_wrong_loop_is_noticed():
    """The self-test can fail: another function's loop, and one whose last bit differs."""
    dtype = np.dtype(np.float32)

    def run(other):
        return lambda arrays, lanes, strides: numpy_loops._run(other, arrays, lanes, strides)

    assert agrees(run(loop("exp", "f32")), "exp", dtype)
    assert not agrees(run(loop("exp2", "f32")), "exp", dtype)

    def nearly(arrays, lanes, strides):
        numpy_loops._run(loop("exp", "f32"), arrays, lanes, strides)
        bits = (ctypes.c_uint32 * lanes[0]).from_address(arrays[1])
        bits[500] ^= 1

    assert not agrees(nearly, "exp", dtype)


OTHER = {"nin": 99, "ntypes": 99, "name": b"other", "functions": None}


@pytest.mark.parametrize("field", OTHER)
def test_an_unknown_layout_goes_through_python(monkeypatch, field):
    """A numpy whose objects look different is never followed by its pointers."""
    stock = numpy_loops._UFunc

    class Other(ctypes.Structure):
        """The same with one field that says something else."""

        _fields_ = stock._fields_

        @classmethod
        def from_address(cls, address):
            copy = stock.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(stock)))
            setattr(
                copy,
                field,
                type(getattr(copy, field))() if field in ("functions",) else {"name": b"other"}.get(field, 99),
            )
            return copy

    monkeypatch.setattr(numpy_loops, "_UFunc", Other)
    assert numpy_loops._from_object("exp", "f32") is None
    numpy_loops.loop.cache_clear()
    try:
        values = samples(np.dtype(np.float32))
        with np.errstate(all="ignore"):
            expected = np.exp(values)
        assert call(numpy_loops.loop("exp", "f32"), values).tobytes() == expected.tobytes()
    finally:
        numpy_loops.loop.cache_clear()
