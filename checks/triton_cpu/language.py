"""The language of kernels as the compiler needs it, whatever Triton's interpreter has done to it.

The interpreter works by replacing functions of ``triton.language``; after a kernel that calls another one it leaves
some of them replaced, and then no kernel compiles any more. And with ``TRITON_INTERPRET`` set, ``triton.jit`` makes
functions that only the interpreter can run, those of the language's own library included. Here both are taken back for
as long as a kernel is compiled.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from ..hooks.patching import Patches
from .errors import Unsupported

_OWNERS = (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base, tl.condition, tl.dtype)
_REPLACERS = (interpreter.__name__, "mrv2.checks.hooks.triton_language")
_ABSENT, _LOST = object(), object()


def jit_function(function: JITFunction[Any] | InterpretedFunction[Any]) -> JITFunction[Any]:
    """The compilable form of a function decorated with ``triton.jit``, also if that was done for the interpreter."""
    if isinstance(function, JITFunction):
        return function
    found = _jit_functions.get(function)
    return _translated(function) if found is None else found


@contextlib.contextmanager
def compiled_language() -> Iterator[None]:
    """Within this scope kernels compile.

    Only one thread at a time may be in it or interpret a kernel: there is one language for all.

    Raises:
        Unsupported: the interpreter had replaced the language before this module was imported, and left it so.
    """
    patches = Patches()
    removed: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, current, original in _replaced():
            if original is _LOST:
                raise Unsupported(f"a kernel after Triton's interpreter, which left triton.language.{name} replaced")
            if original is _ABSENT:
                removed.append((owner, name, current))
                delattr(owner, name)
            else:
                patches.set(owner, name, original)
        for owner, functions in _library().items():
            patches.update(owner, functions)
        yield
    finally:
        patches.undo()
        for owner, name, current in removed:
            setattr(owner, name, current)


# What the interpreter replaces


def _of_interpreter(value: Any) -> bool:
    """Whether a value is what the interpreter puts in the place of something."""
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, functools.partial):
        value = value.func
    return value is print or (isinstance(value, types.FunctionType) and value.__module__ in _REPLACERS)


def _original(value: Any) -> Any:
    """What stood in the place of a replacement: most know it."""
    if not _of_interpreter(value):
        return value
    return (getattr(value, "__kwdefaults__", None) or {}).get("member", _LOST)


#: Attributes of the language as they were when this module was imported.
_originals: Mapping[int, Mapping[str, Any]] = {
    id(owner): {name: _original(value) for name, value in vars(owner).items()} for owner in _OWNERS
}


def _replaced() -> list[tuple[Any, str, Any, Any]]:
    """Owner, name, present and original value of each attribute that is replaced now."""
    return [
        (owner, name, value, _originals[id(owner)].get(name, _ABSENT))
        for owner in _OWNERS
        for name, value in vars(owner).items()
        if _of_interpreter(value)
    ]


# Functions made for the interpreter

_jit_functions: weakref.WeakKeyDictionary[InterpretedFunction[Any], JITFunction[Any]] = weakref.WeakKeyDictionary()


@functools.cache
def _library() -> Mapping[Any, Mapping[str, Any]]:
    """The language's own functions that were made for the interpreter, in their compilable form, by owner and name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("triton.language")]
    found: dict[Any, dict[str, Any]] = {}
    for owner in (*modules, tl.tensor):
        made = {name: _wrapped(value) for name, value in vars(owner).items()}
        functions = {name: JITFunction(each.fn, **each.kwargs) for name, each in made.items() if each is not None}
        if functions:
            found[owner] = functions
    return found


def _wrapped(value: Any) -> InterpretedFunction[Any] | None:
    """A function made for the interpreter, itself or, as a method of tensors, within another function."""
    cells = value.__closure__ or () if isinstance(value, types.FunctionType) else ()
    inner = (cell.cell_contents for cell in cells)
    return next((each for each in (value, *inner) if isinstance(each, InterpretedFunction)), None)


def _translated(function: InterpretedFunction[Any]) -> JITFunction[Any]:
    """A jit function of the same source, in which the names of other such functions mean their compilable form."""
    stock = function.fn
    names: dict[str, Any] = dict(stock.__globals__)
    cells = tuple(types.CellType() for _ in stock.__closure__ or ())
    made: JITFunction[Any] = JITFunction(_copied(stock, names, cells), **function.kwargs)
    _jit_functions[function] = made  # before its names are followed, one of which is its own
    for name in _names_in(stock.__code__) & names.keys():
        names[name] = _compilable(names[name])
    for cell, own in zip(cells, stock.__closure__ or (), strict=True):
        cell.cell_contents = _compilable(own.cell_contents)
    return made


def _copied(stock: types.FunctionType, names: dict[str, Any], cells: tuple[types.CellType, ...]) -> types.FunctionType:
    copy = types.FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, cells or None)
    functools.update_wrapper(copy, stock)
    vars(copy).pop("__wrapped__")  # it is no wrapper: what it refers to is its own
    copy.__kwdefaults__ = stock.__kwdefaults__
    return copy


def _names_in(code: types.CodeType) -> set[str]:
    """Names that code refers to, that of nested functions too."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _compilable(value: Any) -> Any:
    """What a kernel's name means to the compiler, if it means a function for the interpreter or a module with some."""
    if isinstance(value, InterpretedFunction):
        return jit_function(value)
    if isinstance(value, types.ModuleType) and not value.__name__.startswith("triton."):
        made = {name: item for name, item in vars(value).items() if isinstance(item, InterpretedFunction)}
        if made:
            copy = types.ModuleType(value.__name__)
            vars(copy).update(vars(value) | {name: jit_function(item) for name, item in made.items()})
            return copy
    return value
