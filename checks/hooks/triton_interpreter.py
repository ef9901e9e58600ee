"""One launch in Triton's interpreter."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from triton.runtime import interpreter

from ..libraries import is_library, portable_path
from ..triton_cpu.launcher import language_lock
from .kernel_log import grid_index
from .triton_language import Function, interpreted_language
from .triton_tap import Tap


class KernelError(RuntimeError):
    """A program of a kernel failed; says which, and in which line of the kernel."""

    def __init__(self, error: Exception, program: tuple[int, ...]) -> None:
        lines = traceback.extract_tb(error.__traceback__)
        own = [line for line in lines if not is_library(line.filename)]
        place = f"{portable_path(own[-1].filename)}:{own[-1].lineno}" if own else "an unknown line"
        super().__init__(f"{type(error).__name__} in program {program} at {place}: {error}")


def interpret_programs(
    kernel: Function,
    arguments: Mapping[str, Any],
    grid: tuple[int, int, int],
    numbers: Iterable[int],
    tap: Tap | None,
) -> None:
    """Run the programs of a grid one after another.

    Args:
        kernel: rewritten for the interpreter, see ``triton_language.rewritten``.
        arguments: of all parameters, as the interpreter takes them.
        grid: extents.
        numbers: of the programs, in the order to run them; z is innermost.
        tap: takes every access, if given.

    Raises:
        KernelError: a program failed.
    """
    builder = interpreter.interpreter_builder
    with language_lock, interpreted_language(), contextlib.nullcontext() if tap is None else tap.attached():
        builder.set_grid_dim(*grid)
        for number in numbers:
            index = grid_index(number, grid)
            builder.set_grid_idx(*index)
            if tap is not None:
                tap.begin(number)
            try:
                kernel(**arguments)
            except Exception as error:
                raise KernelError(error, index) from error
