"""Triton's own interpreter, launched for one kernel, and what it lacks.

``interpret`` is the stock interpreter. Some kernels it cannot run although they are legal: it passes a float argument
as Python's float, which has no ``to``; it has no libdevice; and it loses that a mask is one. ``completed`` fills these
gaps, within a scope, and changes nothing else. A launch that needs it is marked so in the results.
"""

from __future__ import annotations

import contextlib
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

#: numpy's name of each function of libdevice that a kernel of the test calls.
_LIBDEVICE: dict[str, Callable[..., Any]] = {
    "isnan": np.isnan,
    "log1p": np.log1p,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),  # halves away from zero
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
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
    """Within this scope the interpreter has float arguments, masks and libdevice, for one kernel and those it calls."""
    patches, builder = Patches(), interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store
    try:
        patches.set(interpreter, "_implicit_cvt", _converting(interpreter._implicit_cvt))
        patches.set(builder, "create_masked_load", lambda at, mask, *rest: load(at, _as_mask(mask), *rest))
        patches.set(builder, "create_masked_store", lambda at, x, mask, *rest: store(at, x, _as_mask(mask), *rest))
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
