"""A launch of a kernel that cannot be compiled for the CPU: Triton's interpreter runs it, with the tap that checks."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from ..events import ByteRange
from ..hooks.kernel_log import KernelLog, StrayLanes
from ..hooks.masked_lanes import MaskedLanes
from ..hooks.triton_interpreter import interpret_programs
from ..hooks.triton_language import Function, rewritten
from ..hooks.triton_tap import Tap
from ..libraries import is_library
from .errors import Unsupported


class InterpretedKernel(UserWarning):
    """A kernel runs in Triton's interpreter, hundreds of times slower, because it cannot be compiled for the CPU."""


#: All addresses but the first page.
_ANYWHERE = (1 << 12, (1 << 63) - 1)

_noticed: weakref.WeakSet[Function] = weakref.WeakSet()


def notice(function: JITFunction, reason: Unsupported) -> None:
    """Say, once for each kernel of the process, that it is interpreted, and why."""
    if function.fn in _noticed:
        return
    _noticed.add(function.fn)
    said = f"kernel {function.__name__} runs in Triton's interpreter, which is slow: {reason}"
    warnings.warn(said, InterpretedKernel, stacklevel=_frames_of_libraries())


def _frames_of_libraries() -> int:
    """How many calls lie between the program's own line and the caller of this function."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def interpret(
    function: JITFunction,
    values: Sequence[Any],
    grid: tuple[int, int, int],
    *,
    check: bool,
    blocks: Sequence[ByteRange] | None,
    order: Iterable[int] | None,
    masked_lanes: MaskedLanes,
) -> tuple[KernelLog, list[StrayLanes]]:
    """Run all programs of a grid in Triton's interpreter.

    Args:
        function: the kernel.
        values: of all parameters.
        grid: extents.
        check: whether accesses are checked and logged.
        blocks: the memory that may be touched, sorted and disjoint; None if the kernel may touch anything.
        order: numbers of the programs in the order to run them; None for ascending.
        masked_lanes: what lanes hold that a load without ``other`` masks off.

    Returns:
        The accesses, and the lanes outside of the memory, which were left out.

    Raises:
        KernelError: a program failed.
    """
    strays: list[StrayLanes] = []
    bounds = np.array([_ANYWHERE] if blocks is None else blocks, dtype=np.int64).reshape(-1, 2)
    tap = Tap((bounds[:, 0], bounds[:, 1]), strays.append, masked_lanes) if check or masked_lanes != 0 else None
    numbers = range(grid[0] * grid[1] * grid[2]) if order is None else order
    arguments = {
        parameter.name: value if parameter.is_constexpr else interpreter._implicit_cvt(value)
        for parameter, value in zip(function.params, values, strict=True)
    }
    interpret_programs(rewritten(function.fn), arguments, grid, numbers, tap)
    return tap.log if check and tap is not None else KernelLog(), strays
