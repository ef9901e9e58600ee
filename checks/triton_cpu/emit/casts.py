"""Conversions between numbers, and between numbers and pointers."""

from __future__ import annotations

from ..ir import Operation, Pointer
from .elementwise import narrowed, widened
from .program import Program
from .registry import expression
from .scalars import as_signed, as_unsigned, bits, c_type, pointee, size


@expression("arith.extsi", "arith.extui", "arith.trunci", cheap=True)
def between_integers(program: Program, operation: Operation, operands: list[str]) -> str:
    """A wider or a narrower integer."""
    source, target = operation.operands[0].element, operation.results[0].element
    if bits(target) == 1:
        return f"((uint8_t)({operands[0]} & 1))"
    read = as_unsigned if operation.name.endswith("ui") else as_signed
    return f"(({c_type(target)}){read(source, operands[0])})"


@expression("arith.sitofp", "arith.uitofp")
def integer_to_float(program: Program, operation: Operation, operands: list[str]) -> str:
    """The nearest float; to ``f16`` and ``bf16`` by way of float32, as in the front end."""
    source, target = operation.operands[0].element, operation.results[0].element
    read = as_unsigned if operation.name == "arith.uitofp" else as_signed
    wide = "double" if size(target) == 8 else "float"
    return narrowed(program, target, f"(({wide}){read(source, operands[0])})")


@expression("arith.fptosi", "arith.fptoui")
def float_to_integer(program: Program, operation: Operation, operands: list[str]) -> str:
    """Rounds toward zero; ``numbers.h`` says what becomes of what does not fit."""
    source, target = operation.operands[0].element, operation.results[0].element
    value = f"(double){widened(source, operands[0])}"
    is_unsigned = operation.name == "arith.fptoui"
    if bits(target) == 64:
        return f"((int64_t)f64_to_{'uint64' if is_unsigned else 'int64'}({value}))"
    wide = "int64" if is_unsigned and bits(target) == 32 else "int32"
    mask = " & 1" if bits(target) == 1 else ""
    return f"(({c_type(target)})(f64_to_{wide}({value}){mask}))"


@expression("arith.extf", "arith.truncf")
def between_floats(program: Program, operation: Operation, operands: list[str]) -> str:
    """Another float format: exact if wider, else to nearest even."""
    source, target = operation.operands[0].element, operation.results[0].element
    value = widened(source, operands[0])
    if c_type(target) == "double":
        return f"((double){value})"
    if getattr(target, "name", "") == "bf16" and c_type(source) == "double":
        return narrowed(program, target, f"((float){value})")
    return narrowed(program, target, value)


@expression("tt.bitcast")
def same_bits(program: Program, operation: Operation, operands: list[str]) -> str:
    """The same bits under another name; a pointer to another type is the same address."""
    source, target = operation.operands[0].element, operation.results[0].element
    if c_type(source) == c_type(target):
        return operands[0]
    return f"(((union {{ {c_type(source)} from; {c_type(target)} to; }}){{{operands[0]}}}).to)"


@expression("tt.int_to_ptr", "tt.ptr_to_int", cheap=True)
def address(program: Program, operation: Operation, operands: list[str]) -> str:
    """An address as number, or a number as address."""
    target = operation.results[0].element
    if isinstance(target, Pointer):
        program.unit.from_memory = True
    return f"(({c_type(target)}){operands[0]})"


@expression("tt.addptr", cheap=True)
def offset(program: Program, operation: Operation, operands: list[str]) -> str:
    """An address some elements further; the offset is signed."""
    pointer, distance = operation.operands
    assert isinstance(pointer.element, Pointer)
    width = size(pointee(pointer.element))
    return f"({operands[0]} + (uint64_t)((int64_t){as_signed(distance.element, operands[1])} * {width}))"
