"""Operations that only say which lane goes where: the shape of a tensor, never its values.

They are views: nothing is copied, and a lane of the result is a lane of the operand with another number.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Operation
from .layout import axes_of, steps
from .program import Program
from .registry import statement, view


@view("tt.broadcast")
def broadcast(program: Program, operation: Operation, index: str) -> str:
    """Each lane of an axis of extent 1 is many lanes of the result."""
    source, target = _shape(operation.operands[0].shape), _shape(operation.results[0].shape)
    strides = [0 if small != large else step for small, large, step in zip(source, target, steps(source), strict=True)]
    return program.lane(operation.operands[0], renumbered(index, target, strides))


@view("tt.trans")
def transpose(program: Program, operation: Operation, index: str) -> str:
    """Axis ``k`` of the result is axis ``order[k]`` of the operand."""
    source = steps(_shape(operation.operands[0].shape))
    strides = [source[axis] for axis in axes_of(operation)]
    return program.lane(operation.operands[0], renumbered(index, _shape(operation.results[0].shape), strides))


@view("tt.join")
def join(program: Program, operation: Operation, index: str) -> str:
    """Two tensors alternate along a new last axis."""
    even, odd = (program.lane(operand, f"({index} / 2)") for operand in operation.operands)
    return f"({index} % 2 ? {odd} : {even})"


@view("tt.cat")
def concatenate(program: Program, operation: Operation, index: str) -> str:
    """One after the other along the first axis, never reordered."""
    first, second = operation.operands
    later = program.lane(second, f"({index} - {first.lanes})")
    return f"({index} < {first.lanes} ? {program.lane(first, index)} : {later})"


@statement("tt.split")
def split(program: Program, operation: Operation) -> None:
    """The two lanes of the last axis become two tensors."""
    (operand,) = operation.operands
    for number, result in enumerate(operation.results):
        name = program.storage(result)
        if result.shape is None:
            program.line(f"{name} = {program.lane(operand, str(number))};")
            continue
        with program.lanes(result.lanes):
            program.line(f"{name}[i] = {program.lane(operand, f'(2 * i + {number})')};")


def renumbered(index: str, shape: Sequence[int], strides: Sequence[int]) -> str:
    """C expression: the number of the lane of an operand that is lane ``index`` of a result.

    Args:
        index: C expression without side effects.
        shape: of the result.
        strides: how far apart neighbours along each axis of the result are in the operand.
    """
    axes = _merged(shape, strides)
    step, terms = 1, []
    for number, (extent, stride) in reversed(list(enumerate(axes))):
        if stride:
            position = _remainder(index, step, extent if number else 0)
            terms.append(position if stride == 1 else f"{position} * {stride}")
        step *= extent
    return f"({' + '.join(reversed(terms))})" if terms else "0"


def _merged(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Axes as (extent, stride); neighbours that one stride steps through are one, those of extent 1 are none."""
    axes: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if axes and axes[-1][1] == stride * extent:
            axes[-1] = (axes[-1][0] * extent, stride)
        else:
            axes.append((extent, stride))
    return axes


def _remainder(index: str, step: int, extent: int) -> str:
    """Position along an axis; the outermost (extent 0) needs no remainder."""
    whole = f"{index} / {step}" if step > 1 else index
    return f"({whole}) % {extent}" if extent else f"({whole})"


def _shape(shape: tuple[int, ...] | None) -> tuple[int, ...]:
    assert shape is not None
    return shape
