"""Calls of numpy's inner loops with any strides; launch.h has a macro for the usual case only."""

from __future__ import annotations

from collections.abc import Sequence

from .program import Program


def call_loop(
    program: Program, loop: str, arrays: Sequence[str], dimensions: Sequence[int], strides: Sequence[int]
) -> None:
    """Writes a call of one of numpy's inner loops.

    Args:
        program: the function being written.
        loop: its name, of ``Program.loop``.
        arrays: C pointers to the inputs and the output. If an input is the output and both have stride 0, then a loop
            of two inputs folds: it adds up in pairs, as ``numpy.add.reduce`` does.
        dimensions: lanes; of ``matmul`` also rows, inner extent, columns.
        strides: in bytes, one for each array; of ``matmul`` then those of rows and columns of each matrix.
    """
    pointers = ", ".join(f"(char *)({array})" for array in arrays)
    counts, steps = (", ".join(map(str, numbers)) for numbers in (dimensions, strides))
    program.line(
        f"launch->loops[{loop}].run((char *[]){{{pointers}}}, (const long[]){{{counts}}}, "
        f"(const long[]){{{steps}}}, launch->loops[{loop}].data);"
    )
