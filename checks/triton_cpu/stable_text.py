"""Texts that are the same in every process for equal constants, and different for others.

A kernel depends on more than its source and its arguments: on global variables, and on what it reads through modules,
classes and objects (``settings.WIDTH``). Triton's own key leaves the latter out, so they are looked for here, in the
kernel and all that it calls; what is read through Triton itself is told by its version.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
import triton.language as tl
from triton.runtime.jit import JITCallable

_ABSENT = object()
_CODE = (type, FunctionType, BuiltinFunctionType, JITCallable)
#: Modules that are as they are in every process.
_FIXED = ("triton", "math")
#: Functions of Python that reach what no text shows.
_UNSEEN = frozenset({"__import__", "eval", "exec", "globals", "input", "locals", "open", "vars"})


class Unstable(ValueError):
    """Something that the code depends on, and that another process could not recognise."""


def text_of(value: Any) -> str:
    """Of a compile-time constant.

    Raises:
        Unstable: it has no such text.
    """
    texts = _Texts()
    text = texts.text(value)
    return f"{text} {sorted(texts.found)}" if texts.found else text


def outer_values(function: JITCallable) -> list[str]:
    """What a function, and what it calls, finds outside of itself: names and texts.

    Raises:
        Unstable: something has no such text.
    """
    texts = _Texts()
    texts.follow(function)
    return sorted(texts.found)


class _Texts:
    """Texts of values; the functions among them are followed, each once."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._followed: set[int] = set()

    def text(self, value: Any) -> str:
        if isinstance(value, tl.constexpr):
            return self.text(value.value)
        if value is None or value.__class__ in (bool, int, str):
            return repr(value)
        if value.__class__ is float:
            return str(value.hex())
        if isinstance(value, JITCallable):
            self.follow(value)
            return f"function {value.fn.__code__.co_filename} {value.cache_key}"
        if isinstance(value, tl.dtype | torch.dtype):
            return f"{value.__class__.__name__} {value}"
        if isinstance(value, tuple):
            names = getattr(value, "_fields", "")
            return f"{value.__class__.__qualname__}{names}({', '.join(map(self.text, value))})"
        raise Unstable(f"a compile-time constant of type {type(value).__qualname__}")

    def follow(self, function: JITCallable) -> None:
        """Note all that a function reads from outside."""
        if id(function) in self._followed:
            return
        self._followed.add(id(function))
        for name, value in _outer(function):
            # Told by the file, as all code is: a module that is imported under two names is the same code.
            self._note(f"{function.fn.__code__.co_filename}, {function.fn.__qualname__}: {name}", value)

    def _note(self, name: str, value: Any) -> None:
        if getattr(value, "__triton_builtin__", False) or (isinstance(value, _CODE) and _is_fixed(value.__module__)):
            return
        if isinstance(value, JITCallable):
            self.follow(value)
        elif getattr(value, "__triton_aggregate__", False):
            for inner in value.hash_attrs:
                self._note(name, inner)
        elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            self.found.add(f"{name} = {value.__qualname__}{value._fields}")
        else:
            self.found.add(f"{name} = {self.text(value)}")


def _is_fixed(module: object) -> bool:
    return isinstance(module, str) and module.split(".")[0] in _FIXED


def _outer(function: JITCallable) -> Iterator[tuple[str, Any]]:
    """Names in a function's body that are bound outside of it, with the attributes that follow, and their values."""
    (definition,) = ast.parse(function.src).body
    assert isinstance(definition, ast.FunctionDef)
    code = function.fn.__code__
    own = {*code.co_varnames, *code.co_cellvars} - {*code.co_freevars}
    for statement in definition.body:
        for chain in _chains(statement):
            if chain[0] in own:
                continue
            value = _looked_up(function, chain[0])
            if value is _ABSENT:
                if chain[0] in _UNSEEN:
                    raise Unstable(f"what {chain[0]} finds")
                continue
            yield from _through(chain, value)


def _through(chain: list[str], value: Any) -> Iterator[tuple[str, Any]]:
    """The last value of a chain of attributes, unless Triton's version tells it."""
    for attribute in chain[1:]:
        if isinstance(value, ModuleType) and _is_fixed(value.__name__):
            return
        if isinstance(value, JITCallable | tl.constexpr) and not hasattr(value, attribute):
            break
        if isinstance(value, tl.constexpr) and attribute in ("value", "type"):
            break
        value = getattr(value, attribute, _ABSENT)
        if value is _ABSENT:
            raise Unstable(f"{'.'.join(chain)}, which is not there")
    if isinstance(value, ModuleType) and _is_fixed(value.__name__):
        return
    yield ".".join(chain), value


def _chains(node: ast.AST) -> Iterator[list[str]]:
    """Names, each with the attributes that are read of it."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        raise Unstable("a module that a function imports")
    parts: list[str] = []
    inner: ast.AST = node
    while isinstance(inner, ast.Attribute):
        parts.insert(0, inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        yield [inner.id, *parts]
        return
    for child in ast.iter_child_nodes(inner):
        if not (isinstance(inner, ast.AnnAssign) and child is inner.annotation):
            yield from _chains(child)


def _looked_up(function: JITCallable, name: str) -> Any:
    """What a name means outside of a function; absent if it is Python's own, or nothing yet."""
    fn = function.fn
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    if name in cells:
        try:
            return cells[name].cell_contents
        except ValueError:
            return _ABSENT
    found = fn.__globals__.get(name, _ABSENT)
    return _ABSENT if found is getattr(builtins, name, found) and hasattr(builtins, name) else found
