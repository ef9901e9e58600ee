"""Triton's own interpreter, launched for one kernel, and what it lacks.

``interpret`` is the stock interpreter. Some legal kernels it cannot run, or runs wrong: it passes a float argument as
Python's float, which has no ``to``; it has no libdevice; it loses that a mask is one; it adds and multiplies the bit
patterns of bfloat16 as integers. ``completed`` fills these gaps, within a scope, and changes nothing else. A launch
that needs it is marked so in the results.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as libdevice_of_cuda
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle
from triton.runtime.jit import JITFunction

from mrv2.checks.hooks.patching import Patches
from mrv2.checks.hooks.triton_language import interpreted_language, rewritten


def _of_the_c_library(name: str) -> Callable[..., Any]:
    """A function of one number, as the C library computes it; float16 goes by way of float32."""
    library = ctypes.CDLL(None)
    by_type = {}
    for suffix, kind, dtype in (("f", ctypes.c_float, np.float32), ("", ctypes.c_double, np.float64)):
        function = library[name + suffix]
        function.restype, function.argtypes = kind, (kind,)
        by_type[np.dtype(dtype)] = np.vectorize(function, otypes=[dtype])
    return lambda x: by_type[x.dtype](x) if x.size else x


#: Each function of libdevice that a kernel of the test calls.
_LIBDEVICE: dict[str, Callable[..., Any]] = {
    "isnan": np.isnan,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    **{name: _of_the_c_library(name) for name in ("log1p", "round", "tanh")},
}


def interpret(kernel: JITFunction, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run a launch in the interpreter.

    Raises:
        interpreter.InterpreterError: it cannot run this kernel.
    """
    with interpreted_language(), np.errstate(all="ignore"):
        executor = interpreter.GridExecutor(rewritten(kernel.fn), kernel.arg_names, grid)
        executor.constexprs = [parameter.name for parameter in kernel.params if parameter.is_constexpr]
        executor(*args, **kwargs)


@contextlib.contextmanager
def completed(kernel: JITFunction) -> Iterator[None]:
    """Within this scope the interpreter lacks nothing, for one kernel and those that it calls."""
    patches, builder = Patches(), interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store
    try:
        patches.set(interpreter, "_implicit_cvt", _converting(interpreter._implicit_cvt))
        patches.set(builder, "create_masked_load", lambda at, mask, *rest: load(at, _as_mask(mask), *rest))
        patches.set(builder, "create_masked_store", lambda at, x, mask, *rest: store(at, x, _as_mask(mask), *rest))
        _compute_bfloat16(patches, builder)
        functions = {name: _lanewise(function) for name, function in _LIBDEVICE.items()}
        patches.update(libdevice, functions)
        patches.update(libdevice_of_cuda, functions)
        _name_anew(patches, kernel.fn.__globals__, functions)
        yield
    finally:
        patches.undo()


def _converting(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, float):
            return tl.tensor(TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)
        return stock(value)

    return convert


def _as_mask(mask: TensorHandle) -> TensorHandle:
    """Boolean lanes; a value of type i1 that numpy holds as an integer says it in its lowest bit."""
    data = mask.data
    if data.dtype == bool:
        return mask
    return TensorHandle((data & 1 if mask.dtype.scalar == tl.int1 else data).astype(bool), tl.int1)


def _compute_bfloat16(patches: Patches, builder: Any) -> None:
    """Operations on bfloat16: computed in float32, and rounded toward zero as the interpreter's casts do."""
    cast, dot, reduce = builder.cast_impl, builder.create_dot, interpreter.ReduceOps
    total, extreme = reduce.sum, reduce.min_max

    def widened(handle: TensorHandle) -> TensorHandle:
        return cast(handle, tl.float32) if handle.dtype.scalar == tl.bfloat16 else handle

    def cast_by_float32(handle: TensorHandle, kind: Any) -> TensorHandle:
        if kind.scalar == tl.bfloat16 and handle.dtype.scalar != tl.float32:
            handle = cast(handle, tl.float32)
        return cast(widened(handle), kind)

    def lanewise(stock: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
        def operation(*operands: Any) -> TensorHandle:
            *handles, function = operands
            result = stock(*map(widened, handles), function)
            if handles[0].dtype.scalar != tl.bfloat16 or result.data.dtype == bool:
                return result
            return cast(result, tl.bfloat16)

        return operation

    def folded(stock: Callable[..., Any]) -> Callable[..., Any]:
        def fold(reduction: Any, operand: Any, *rest: Any, **options: Any) -> Any:
            first = operand[0] if isinstance(operand, tuple) else operand
            if first.dtype.scalar != tl.bfloat16:
                return stock(reduction, operand, *rest, **options)
            results = reduction.generic_reduce(operand if isinstance(operand, tuple) else (operand,))
            return results[0] if len(results) == 1 else tuple(results)

        return fold

    patches.set(builder, "cast_impl", cast_by_float32)
    patches.set(builder, "create_dot", lambda a, b, *rest: dot(widened(a), widened(b), *rest))
    patches.set(builder, "binary_op", lanewise(builder.binary_op))
    patches.set(builder, "unary_op", lanewise(builder.unary_op))
    patches.update(reduce, {"sum": folded(total), "min_max": folded(extreme)})


def _lanewise(function: Callable[..., Any]) -> Callable[..., tl.tensor]:
    def call(*operands: tl.tensor) -> tl.tensor:
        first = operands[0]
        result = function(*(operand.handle.data for operand in operands))
        if result.dtype == bool:  # libdevice says it as int32
            kind = tl.int32
            result = result.astype(np.int32)
        else:
            kind = first.dtype.scalar
            result = result.astype(first.handle.data.dtype)
        shape = tl.block_type(kind, first.shape) if first.type.is_block() else kind
        return tl.tensor(TensorHandle(result, kind), shape)

    return call


class _Names:
    """A module's names as attributes, for ``Patches``."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names


def _name_anew(patches: Patches, names: dict[str, Any], functions: dict[str, Callable[..., Any]]) -> None:
    """Replace functions of libdevice in a module that imported them by name, and in those that it calls kernels of."""
    todo, seen = [names], set[int]()
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        found = {name: functions[value.__name__] for name, value in current.items() if _of_libdevice(value, functions)}
        if found:
            patches.update(_Names(current), found)
        todo += [value.fn.__globals__ for value in current.values() if isinstance(value, JITFunction)]


def _of_libdevice(value: Any, functions: dict[str, Callable[..., Any]]) -> bool:
    home = getattr(value, "__module__", "")
    return isinstance(home, str) and home.endswith("libdevice") and getattr(value, "__name__", "") in functions
