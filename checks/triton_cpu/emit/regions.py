"""Calling the region of a reduction, a scan or a map: its arguments get values, its last operation yields some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..ir import Operation, Value
from .program import Program


@dataclass(frozen=True, slots=True)
class Axis:
    """A row-major tensor seen as ``outer`` × ``length`` × ``inner``, the axis of an operation in the middle."""

    outer: int
    length: int
    inner: int

    @classmethod
    def of(cls, shape: Sequence[int], axis: int) -> Axis:
        """The axis of that number."""
        inner = outer = 1
        for extent in shape[axis + 1 :]:
            inner *= extent
        for extent in shape[:axis]:
            outer *= extent
        return cls(outer, shape[axis], inner)

    def lane(self, outer: str, along: str, inner: str) -> str:
        """C expression of a lane's number."""
        return f"({outer} * {self.length} + {along}) * {self.inner} + {inner}"


def axis_of(operation: Operation) -> Axis:
    """Of a reduction, scan or gather: the axis of its first operand."""
    shape, axis = operation.operands[0].shape, operation.attributes["axis"]
    assert shape is not None and isinstance(axis, int)
    return Axis.of(shape, axis)


def arguments_of(operation: Operation) -> tuple[Value, ...]:
    """The arguments of its only region."""
    return operation.regions[0].blocks[0].arguments


@contextmanager
def counted(program: Program, name: str, count: int, first: int = 0) -> Iterator[None]:
    """A loop, or without one what it would do once."""
    once = first + 1 == count
    with program.block("" if once else f"for (int32_t {name} = {first}; {name} < {count}; {name}++)"):
        if once:
            program.line(f"const int32_t {name} = {first};")
        yield


def set_values(program: Program, names: Sequence[str], values: Sequence[str]) -> None:
    """Assigns C expressions to variables one after another."""
    for name, value in zip(names, values, strict=True):
        program.line(f"{name} = {value};")


def set_lanes(program: Program, names: Sequence[str], values: Sequence[Value], lane: str) -> None:
    """Assigns one lane of each tensor to a variable."""
    with program.block(""):
        program.line(f"const int32_t lane = {lane};")
        set_values(program, names, [program.lane(value, "lane") for value in values])


def call(program: Program, operation: Operation, results: Sequence[str]) -> None:
    """Writes the region of an operation, and assigns what it yields to C variables.

    The results may be variables that the region reads: no value is overwritten before all are known.
    """
    end = program.operations(operation.regions[0])
    assert end is not None
    yielded = [program.fresh(value.element) for value in end.operands]
    set_values(program, yielded, [program.lane(value) for value in end.operands])
    set_values(program, results, yielded)
