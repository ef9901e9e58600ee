"""Constants, and the operations that only rename lanes: none of them is ever stored."""

from __future__ import annotations

import math
import struct

from ..ir import Operation, Scalar
from .program import Program
from .registry import statement, view
from .scalars import Element, bits, c_type, is_float


def literal(element: Element, number: bool | int | float) -> str:
    """A number as C constant of a lane's type."""
    if not is_float(element):
        width = bits(element)
        pattern = int(number) & ((1 << width) - 1)
        return f"(({c_type(element)}){pattern:#x}{'ull' if width == 64 else ''})"
    assert isinstance(element, Scalar)
    if element.name == "bf16":
        return f"(({c_type(element)}){_bf16_bits(float(number)):#x})"
    return f"(({c_type(element)}){_digits(float(number))})"


def _digits(number: float) -> str:
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    if math.isnan(number):
        return f"{sign}NOT_A_NUMBER"
    return f"{sign}INFINITE" if math.isinf(number) else number.hex()


def _bf16_bits(number: float) -> int:
    """The nearest bfloat16, ties to even."""
    (pattern,) = struct.unpack("<I", struct.pack("<f", number))
    if math.isnan(number):
        return int(pattern) >> 16
    return (int(pattern) + 0x7FFF + (int(pattern) >> 16 & 1)) >> 16


@view("arith.constant", keeps_lanes=True)
def constant(program: Program, operation: Operation, index: str) -> str:
    """A number, or a table of them."""
    (result,) = operation.results
    value = operation.attributes["value"]
    element = result.element
    if isinstance(element, Scalar) and element.name.startswith("f8"):
        raise program.unsupported(operation, f"of {element.name}")
    if isinstance(value, tuple):
        numbers = [literal(element, number) for number in value if isinstance(number, int | float)]
        return f"((const {c_type(element)}[]){{{', '.join(numbers)}}}[{index}])"
    if not isinstance(value, int | float):
        raise program.unsupported(operation, f"of {value!r}")
    return literal(element, value)


@view("ub.poison", keeps_lanes=True)
def poison(program: Program, operation: Operation, index: str) -> str:
    """What an inlined function would return on a way that does not end in a return; nothing uses it."""
    return literal(operation.results[0].element, 0)


@view("tt.splat")
def splat(program: Program, operation: Operation, index: str) -> str:
    """One scalar in each lane."""
    return program.lane(operation.operands[0])


@view("tt.make_range")
def make_range(program: Program, operation: Operation, index: str) -> str:
    """Consecutive numbers."""
    start = operation.attributes["start"]
    return f"((int32_t)({index} + {start}))" if start else f"((int32_t){index})"


@view("tt.expand_dims", "tt.reshape", keeps_lanes=True)
def same_lanes(program: Program, operation: Operation, index: str) -> str:
    """Another shape of the same lanes in the same order."""
    return program.lane(operation.operands[0], index)


@statement("tt.unsplat")
def unsplat(program: Program, operation: Operation) -> None:
    """The only lane of a tensor as scalar."""
    program.line(f"{program.storage(operation.results[0])} = {program.lane(operation.operands[0], '0')};")
