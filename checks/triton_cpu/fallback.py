"""A launch of a kernel that cannot be compiled for the CPU: Triton's interpreter runs it, with the tap that checks."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from ..findings import Site
from ..hooks.byte_ranges import Addresses
from ..hooks.kernel_log import AccessKind, KernelLog
from ..hooks.triton_language import Function, interpreted_language, rewritten
from ..hooks.triton_launch import KernelError
from ..hooks.triton_tap import Tap
from .errors import Unsupported
from .launcher import language_lock
from .log import grid_index


class InterpretedKernel(UserWarning):
    """A kernel runs in Triton's interpreter, hundreds of times slower, because it cannot be compiled for the CPU."""


#: All addresses but the first page.
_ANYWHERE = (np.array([1 << 12]), np.array([(1 << 63) - 1]))

_noticed: weakref.WeakSet[Function] = weakref.WeakSet()


def notice(function: JITFunction, reason: Unsupported) -> None:
    """Say, once for each kernel of the process, that it is interpreted, and why."""
    if function.fn in _noticed:
        return
    _noticed.add(function.fn)
    said = f"kernel {function.__name__} runs in Triton's interpreter, which is slow and knows no poison: {reason}"
    warnings.warn(said, InterpretedKernel, stacklevel=5)


def interpret(
    function: JITFunction,
    values: Sequence[Any],
    grid: tuple[int, int, int],
    *,
    check: bool,
    order: Iterable[int] | None,
) -> KernelLog:
    """Run all programs of a grid in Triton's interpreter.

    Args:
        function: the kernel.
        values: of all parameters.
        grid: extents.
        check: whether accesses are logged. Whether they lie in memory is not checked: it cannot be told whether the
            kernel takes its pointers from the arguments.
        order: numbers of the programs in the order to run them; None for ascending.

    Returns:
        The accesses.

    Raises:
        KernelError: a program failed.
    """
    tap = Tap(_ANYWHERE, _unexpected) if check else None
    numbers = range(grid[0] * grid[1] * grid[2]) if order is None else order
    with language_lock, interpreted_language():
        arguments = {
            parameter.name: value if parameter.is_constexpr else interpreter._implicit_cvt(value)
            for parameter, value in zip(function.params, values, strict=True)
        }
        _run(rewritten(function.fn), arguments, grid, numbers, tap)
    return KernelLog() if tap is None else tap.log


def _run(
    kernel: Function, arguments: dict[str, Any], grid: tuple[int, int, int], numbers: Iterable[int], tap: Tap | None
) -> None:
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(*grid)
    with contextlib.nullcontext() if tap is None else tap.attached():
        for number in numbers:
            index = grid_index(number, grid)
            builder.set_grid_idx(*index)
            if tap is not None:
                tap.begin(number)
            try:
                kernel(**arguments)
            except Exception as error:
                raise KernelError(error, index) from error


def _unexpected(kind: AccessKind, site: Site, program: int, lanes: Addresses, size: int) -> None:
    raise ValueError(f"{kind.verb} at {site.file}:{site.line}, near address 0")
