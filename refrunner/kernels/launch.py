"""One Triton kernel, two ways to run it: compiled for tensors on a GPU, interpreted for tensors in host memory.

``@kernel`` makes an ordinary ``triton.JITFunction``, so kernels may call each other and Triton compiles them as
usual. Only a launch whose tensors live on the CPU takes the other road: Triton's own interpreter, entered for
that one launch. Triton's switch for it, ``TRITON_INTERPRET``, is read when a kernel is decorated and holds for the
whole process; this module needs no environment variable and restores what it patches after each launch. A tool that
teaches Triton itself to run on the CPU says so by an attribute of its ``JITFunction.run``; it gets these launches too.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

# Parameters of kernels whose value changes from step to step; all others are fixed when the runner is made.
PER_STEP = frozenset(
    {"num_requests", "count", "plane", "columns", "first", "place", "ahead", "offset", "num_parts", "part_blocks"}
)

Function = TypeVar("Function", bound=Callable[..., Any])

# The interpreter keeps the running program's grid index in one global builder and patches `triton.language`
# itself, so only one thread of a process may interpret at a time.
_interpreter_lock = threading.RLock()

# What `_patch_lang` looks for is modules among a function's globals. Library functions such as `tl.max` and
# `tl.philox` reach the language through `core`, so both are patched once, before the launch.
_LANGUAGE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})


class Kernel(JITFunction):  # type: ignore[misc]  # triton ships no type information
    """A Triton kernel that also runs on CPU tensors.

    Launched as ``kernel[grid](*args)``. On CUDA tensors this is ``JITFunction.run``: the launch is enqueued on the
    current stream. On CPU tensors the programs of the grid run one after another, before the call returns.
    """

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """Launch over ``grid``; where it runs follows from the first tensor argument."""
        if _on_cpu(args) and not getattr(JITFunction.run, "runs_on_cpu", False):
            return interpret(self, grid, args, kwargs)
        return super().run(*args, grid=grid, warmup=warmup, **kwargs)


def kernel(function: Function) -> Kernel:
    """Decorate a Triton function, kernel or device function alike.

    Triton compiles a kernel anew when an integer is 1 for the first time, or divisible by 16. For the size of a batch,
    which is another one in every step, that would be in the middle of a run, where loading a kernel waits for the whole
    device. So integers of the names in ``PER_STEP`` are taken as they come.
    """
    names = set(inspect.signature(function).parameters)
    return Kernel(function, do_not_specialize=sorted(names & PER_STEP))


def _on_cpu(args: tuple[Any, ...]) -> bool:
    return next((arg.device.type == "cpu" for arg in args if isinstance(arg, torch.Tensor)), False)


def interpret(function: JITFunction, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run a launch in Triton's interpreter, in the calling thread, and leave no patch behind."""
    with _interpreter_lock, _interpreted_calls():
        executor = interpreter.GridExecutor(_rewritten(function), function.arg_names, grid)
        executor(*args, **kwargs)


def _rewritten(function: JITFunction) -> Callable[..., Any]:
    """The Python function whose assignments keep Triton's types; cached by Triton per function."""
    rewritten: Callable[..., Any] = interpreter.InterpretedFunction(function.fn).rewrite()
    return rewritten


@contextmanager
def _interpreted_calls() -> Iterator[None]:
    """Let jit functions call each other on the host, as they do inside a compiled kernel.

    Outside this scope calling a jit function is an error that Triton raises; it stays one.
    """
    refuse = JITFunction.__call__
    language = interpreter._patch_lang(_LANGUAGE)
    JITFunction.__call__ = lambda self, *args, **kwargs: _rewritten(self)(*args, **kwargs)
    try:
        yield
    finally:
        JITFunction.__call__ = refuse
        language.restore()
