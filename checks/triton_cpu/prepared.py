"""What is known about each kernel in this process: how it takes its arguments, and the variants built so far."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from triton.runtime.jit import JITFunction

from .errors import CompileError, NoCompiler, NotRunnable, Unsupported, without_frames
from .launcher import CompiledKernel, compiled, read
from .locks import ForkSafeLock
from .variants import Binder, Call, Variant

_ABSENT = object()
#: Builds of one variant that may fail for a reason outside of the kernel: a full disk, a compiler that was killed.
_ATTEMPTS = 3


class Prepared:
    """One kernel.

    Attributes:
        binder: how it takes its arguments.
        constexprs: names of the parameters that are compile-time constants.
    """

    def __init__(self, function: JITFunction) -> None:
        self.binder = Binder(function)
        self.constexprs = frozenset(parameter.name for parameter in function.params if parameter.is_constexpr)
        self._built: dict[tuple[Any, ...], CompiledKernel | Unsupported] = {}
        self._confined: dict[tuple[Any, ...], bool] = {}
        self._types: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}
        self._prevented: dict[tuple[Any, ...], NotRunnable | None] = {}
        self._failures: dict[tuple[Any, ...], tuple[str, int]] = {}
        self._lock = ForkSafeLock()

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Take the arguments of a launch.

        Raises:
            TypeError: an argument is missing, given twice, or of a type that Triton does not take.
            KeyError: a keyword is neither a parameter nor an option.
            RuntimeError: a global variable has changed since the kernel was compiled, as Triton says it.
        """
        used = self.binder.function.used_global_vals
        if used:
            _check_globals(used)
        return self.binder.bind(args, kwargs)

    def kernel(self, call: Call, *, audit: bool) -> CompiledKernel:
        """The variant that a launch needs, built at its first use.

        Raises:
            Unsupported: it cannot be compiled for the CPU.
        """
        key = (audit, *call.key)
        found = self._built.get(key)
        if found is None or (isinstance(found, CompileError | NoCompiler) and self._may_retry(key)):
            found = self._build(key, call, audit)
        if isinstance(found, Unsupported):
            raise found.with_traceback(None)
        return found

    def confined(self, call: Call) -> bool:
        """Whether all that a variant touches is reached through its arguments; no, if its code cannot be read."""
        return self.confinement(call)()

    def confinement(self, call: Call) -> Callable[[], bool]:
        """The same question, to be asked later or never; holds none of the arguments."""
        if call.key not in self._types:
            variant = self.binder.variant(call)
            self._types[call.key] = (variant.signature, variant.constants, variant.options)
        return functools.partial(self._is_confined, call.key)

    def _is_confined(self, key: tuple[Any, ...]) -> bool:
        found, function = self._confined.get(key), self.binder.alive()
        if found is None and function is not None:
            found = self._confined[key] = _is_confined(Variant(function, *self._types[key]))
        return bool(found)

    def check_interpretable(self, call: Call, error: Unsupported | None = None) -> None:
        """Refuse a variant that the interpreter cannot run.

        Args:
            call: of the launch.
            error: why it is not compiled; None if nobody asked for that.

        Raises:
            NotRunnable: it cannot.
        """
        if call.key not in self._prevented:
            from .interpretable import what_prevents  # only for kernels that are not compiled

            self._prevented[call.key] = what_prevents(self.binder.variant(call))
        found = self._prevented[call.key]
        if found is not None:
            raise found.only_interpreted() if error is None else found.because(error)

    def _may_retry(self, key: tuple[Any, ...]) -> bool:
        """Whether a build that failed may succeed now: another compiler is named, or it failed only a few times."""
        named, failures = self._failures[key]
        return named != _compiler_named() or failures < _ATTEMPTS

    def _build(self, key: tuple[Any, ...], call: Call, audit: bool) -> CompiledKernel | Unsupported:
        with self._lock:
            found = self._built.get(key)
            if found is None or (isinstance(found, CompileError | NoCompiler) and self._may_retry(key)):
                found = self._built[key] = self._attempt(key, call, audit)
            return found

    def _attempt(self, key: tuple[Any, ...], call: Call, audit: bool) -> CompiledKernel | Unsupported:
        try:
            return compiled(self.binder.variant(call), audit=audit)
        except Unsupported as error:
            named, failures = self._failures.get(key, ("", 0))
            now = _compiler_named()
            self._failures[key] = (now, failures + 1 if now == named else 1)
            return without_frames(error)


def _compiler_named() -> str:
    """What decides which compiler is found."""
    return "\0".join(os.environ.get(name, "") for name in ("CC", "PATH"))


def _is_confined(variant: Variant) -> bool:
    from .effects import Effects, effects_of  # only for kernels that cannot be compiled

    try:
        return effects_of(read(variant)).elsewhere == Effects()
    except Unsupported:
        return False


def _check_globals(used: Mapping[tuple[str, int], tuple[Any, dict[str, Any]]]) -> None:
    for (name, _), (value, owner) in used.items():
        now = owner.get(name, _ABSENT)
        if now is not value and now != value:
            raise RuntimeError(
                f"Global variable {name} has changed since we compiled this kernel, from {value} to {now}"
            )


_prepared: dict[int, Prepared] = {}


def prepared(function: JITFunction) -> Prepared:
    """The one of a kernel. A dictionary of the kernels themselves would hash their sources at each launch."""
    found = _prepared.get(id(function))
    if found is None or found.binder.alive() is not function:
        found = _prepared[id(function)] = Prepared(function)
        weakref.finalize(function, _prepared.pop, id(function), None)
    return found
