"""The language of Triton kernels, made to run on the host while one launch is interpreted.

Triton's interpreter works by replacing the functions of ``triton.language``, several hundred attributes, and finds them
by walking the modules at every launch and every nested call; after a nested call it leaves them replaced, so that no
kernel compiles any more. Here the walk is done once, its replacements are recorded and replayed for each launch, and
all of them are taken back afterwards, whatever happened. Nested functions run with what is there already.

Only one kernel of a process may be interpreted at a time, for the language is one for all threads. The device's lock,
which is held while an operation runs, sees to that; kernels that some other code interprets in another thread
meanwhile, on plain CPU tensors, are not held back by it.
"""

from __future__ import annotations

import ast
import contextlib
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import triton.compiler.code_generator  # noqa: F401  # keeps functions of the language; imported before they are replaced
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import FunctionRewriter, InterpretedFunction
from triton.runtime.jit import JITFunction

from .patching import Patches

Function: TypeAlias = Callable[..., Any]

#: What `_patch_lang` looks for is modules among a function's globals; library functions reach the language as `core`.
_EVERYTHING = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})


class _Rewriter(FunctionRewriter):  # type: ignore[misc]  # triton ships no type information
    """Triton's rewriting of a kernel, without running the kernel's source in its module.

    Only the code is taken from the rewritten source; globals, defaults and closure stay those of the kernel. What the
    rewriting refers to comes as a closure too, so no name appears in the module.
    """

    def _compile_and_exec(self, transformed_ast: ast.Module) -> Function:
        kernel = transformed_ast.body[0]
        assert isinstance(kernel, ast.FunctionDef)
        cells = {name: types.CellType(getattr(interpreter, name)) for name in _ADDED}
        cells.update(zip(self.fn.__code__.co_freevars, self.fn.__closure__ or (), strict=True))
        code = _code_of(kernel, self.filename, cells)
        closure = tuple(cells[name] for name in code.co_freevars)
        function = types.FunctionType(code, self.fn.__globals__, kernel.name, self.fn.__defaults__, closure)
        function.__kwdefaults__ = self.fn.__kwdefaults__
        return function


#: What rewritten code refers to, as far as the installed Triton has it.
_ADDED = [name for name in ("interpreter_semantic", "_InterpreterComparison") if hasattr(interpreter, name)]


def _code_of(kernel: ast.FunctionDef, filename: str, free: Iterable[str]) -> types.CodeType:
    """Compile a function in which some names are free variables."""
    kernel.decorator_list = []
    tree = ast.parse(f"def closure({', '.join(free)}): pass")
    outer = tree.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [kernel]
    module = compile(tree, filename, "exec")
    inner = next(item for item in module.co_consts if isinstance(item, types.CodeType))
    return next(item for item in inner.co_consts if isinstance(item, types.CodeType) and item.co_name == kernel.name)


_rewritten: weakref.WeakKeyDictionary[Function, Function] = weakref.WeakKeyDictionary()


def rewritten(function: Function) -> Function:
    """The Python function whose assignments keep Triton's types, for one that was decorated with ``triton.jit``."""
    found = _rewritten.get(function)
    if found is None:
        found = _rewritten[function] = _Rewriter(function).rewrite_ast()
    return found


class _Recorder(interpreter._LangPatchScope):  # type: ignore[misc]
    """Stands in for Triton's own scope while the language is patched for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = Patches()
        self.replacements: dict[Any, dict[str, Any]] = {}

    def set_attr(self, obj: Any, name: str, value: Any) -> None:
        self.replacements.setdefault(obj, {})[name] = value
        self.patches.set(obj, name, value)


def _record() -> dict[Any, dict[str, Any]]:
    """All that Triton replaces in the language, by owner and name."""
    stock = interpreter._LangPatchScope
    interpreter._LangPatchScope = _Recorder
    try:
        recorder = interpreter._patch_lang(_EVERYTHING)
    finally:
        interpreter._LangPatchScope = stock
    recorder.patches.undo()
    replacements: dict[Any, dict[str, Any]] = recorder.replacements
    replacements[tl.tensor]["__index__"] = _index
    return {**replacements, **_calls(), **_shortcuts()}


def _index(tensor: Any) -> int:
    """The number in a scalar tensor, whose data has one dimension; numpy refuses to convert that from 2.4 on."""
    return int(tensor.handle.data.item())


def _calls() -> dict[Any, dict[str, Any]]:
    """Let jit functions call each other, which outside of a kernel is an error that Triton raises."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return rewritten(self.fn)(*args, **kwargs)

    return {JITFunction: {"__call__": call}, InterpretedFunction: {"__call__": call}}


def _shortcuts() -> dict[Any, dict[str, Any]]:
    """Leave out what the interpreter computes in vain: overflow checks for assertions that are off, and a table."""
    builder, stock = interpreter.interpreter_builder, interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def numpy_type(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = stock(kind)
        return known[name]

    shortcuts: dict[Any, dict[str, Any]] = {interpreter: {"_get_np_dtype": numpy_type}}
    if not builder.options.debug:
        shortcuts[builder] = {"options": replace(builder.options, sanitize_overflow=False)}
    return shortcuts


_recorded: dict[bool, dict[Any, dict[str, Any]]] = {}


@contextlib.contextmanager
def interpreted_language() -> Iterator[None]:
    """Within this scope the language computes with numpy, and jit functions may be called."""
    # Triton itself may have left builtins replaced; then there are fewer to replace, and they stay as they are.
    clean = bool(tl.core.is_builtin(tl.core.load))
    if clean not in _recorded:
        _recorded[clean] = _record()
    patches = Patches()
    try:
        for owner, values in _recorded[clean].items():
            patches.update(owner, values)
        yield
    finally:
        patches.undo()
