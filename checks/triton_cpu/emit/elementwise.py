"""Arithmetic on numbers, as numpy does it: Triton's interpreter is numpy.

Each operation rounds once to its own type: ``f16`` and ``bf16`` are computed in float32 and rounded, which for one
operation gives the correctly rounded result. Integers wrap. What C leaves undefined is written out.
"""

from __future__ import annotations

from ..errors import Unsupported
from ..ir import Operation, Scalar
from .program import Program
from .registry import expression, statement
from .scalars import F16, Element, as_signed, as_unsigned, bits, c_type, is_float, size, unsigned


def widened(element: Element, lane: str) -> str:
    """A lane of a float as C computes with it: ``float`` or ``double``."""
    name = getattr(element, "name", "")
    if name == "bf16":
        return f"bf16_to_f32({lane})"
    if name.startswith("f8"):
        return f"float8_to_f32({name.upper()}, {lane})"
    return f"((float){lane})" if name == "f16" else lane


def narrowed(program: Program, element: Element, value: str) -> str:
    """A ``float`` or ``double`` rounded to a lane's type."""
    name = getattr(element, "name", "")
    if name == "bf16":
        return f"{'f32_to_bf16_truncated' if program.unit.options.truncate_bf16 else 'f32_to_bf16'}({value})"
    if name.startswith("f8"):
        raise Unsupported(f"arithmetic in {name}")
    return f"(({c_type(element)}){value})"


def _arithmetic(program: Program, operation: Operation, a: str, sign: str, b: str) -> str:
    element = operation.results[0].element
    if is_float(element):
        return narrowed(program, element, f"({widened(element, a)} {sign} {widened(element, b)})")
    mask = " & 1" if bits(element) == 1 else ""
    return f"(({c_type(element)})(({a} {sign} {b}){mask}))"


_SIGNS = {
    "arith.addi": "+", "arith.subi": "-", "arith.muli": "*", "arith.andi": "&", "arith.ori": "|", "arith.xori": "^",
    "arith.addf": "+", "arith.subf": "-", "arith.mulf": "*", "arith.divf": "/", "tt.precise_divf": "/",
    "tt.approx_divf": "/",
}  # fmt: skip


@expression("arith.addi", "arith.subi", "arith.muli", "arith.andi", "arith.ori", "arith.xori", cheap=True)
@expression("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "tt.precise_divf", "tt.approx_divf")
def binary(program: Program, operation: Operation, operands: list[str]) -> str:
    """An operator of C; approximate quotients are exact, as in the interpreter."""
    return _arithmetic(program, operation, operands[0], _SIGNS[operation.name], operands[1])


_DIVISIONS = {
    "arith.divsi": ("quotient", False), "arith.divui": ("quotient", True),
    "arith.remsi": ("remainder", False), "arith.remui": ("remainder", True),
}  # fmt: skip


@expression(*_DIVISIONS)
def division(program: Program, operation: Operation, operands: list[str]) -> str:
    """Quotients and remainders of integers; by zero they are zero."""
    element = operation.results[0].element
    function, is_unsigned = _DIVISIONS[operation.name]
    read = as_unsigned if is_unsigned else as_signed
    kind = unsigned(element) if is_unsigned else f"int{8 * size(element)}_t"
    a, b = (read(element, operand) for operand in operands)
    mask = " & 1" if bits(element) == 1 else ""
    return f"(({c_type(element)})({function}_{kind}({a}, {b}){mask}))"


@expression("arith.shli", "arith.shrui", "arith.shrsi", cheap=True)
def shift(program: Program, operation: Operation, operands: list[str]) -> str:
    """Shifts; by the width or more, nothing is left but the sign of a signed number."""
    element = operation.results[0].element
    value, count, width = operands[0], as_unsigned(element, operands[1]), bits(element)
    mask = " & 1" if width == 1 else ""
    if operation.name == "arith.shrsi":
        bounded = f"({count} < {width} ? {count} : {width - 1})"
        return f"(({c_type(element)})(({as_signed(element, value)} >> {bounded}){mask}))"
    sign = "<<" if operation.name == "arith.shli" else ">>"
    shifted = f"({as_unsigned(element, value)} {sign} {count}){mask}"
    return f"(({c_type(element)})({count} < {width} ? {shifted} : 0))"


_ORDER = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@expression("arith.cmpi", cheap=True)
def compare_integers(program: Program, operation: Operation, operands: list[str]) -> str:
    """Comparison of integers: ``eq``, ``ne``, and s or u with ``lt``, ``le``, ``gt``, ``ge``."""
    predicate = str(operation.attributes["predicate"])
    element = operation.operands[0].element
    read = as_signed if predicate[0] == "s" else as_unsigned
    sign = _ORDER[predicate if predicate in _ORDER else predicate[1:]]
    return f"((uint8_t)({read(element, operands[0])} {sign} {read(element, operands[1])}))"


#: The unordered predicates, as what they are the opposite of.
_OPPOSITE = {"ult": ">=", "ule": ">", "ugt": "<=", "uge": "<"}


@expression("arith.cmpf")
def compare_floats(program: Program, operation: Operation, operands: list[str]) -> str:
    """Comparison of floats: o and u say whether a NaN makes it false or true."""
    predicate = str(operation.attributes["predicate"])
    element = operation.operands[0].element
    a, b = (widened(element, operand) for operand in operands)
    if predicate in ("true", "false"):
        return str(int(predicate == "true"))
    if predicate in _OPPOSITE:
        return f"((uint8_t)!({a} {_OPPOSITE[predicate]} {b}))"
    special = {
        "ord": f"{a} == {a} && {b} == {b}",
        "uno": f"{a} != {a} || {b} != {b}",
        "one": f"{a} < {b} || {a} > {b}",
        "ueq": f"!({a} < {b} || {a} > {b})",
    }
    return f"((uint8_t)({special.get(predicate) or f'{a} {_ORDER[predicate[1:]]} {b}'}))"


@expression("arith.select", cheap=True)
def select(program: Program, operation: Operation, operands: list[str]) -> str:
    """A choice for each lane; both sides are computed."""
    return f"({operands[0]} ? {operands[1]} : {operands[2]})"


@expression("arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui", cheap=True)
def integer_extreme(program: Program, operation: Operation, operands: list[str]) -> str:
    """The greater or the smaller integer."""
    element = operation.results[0].element
    read = as_unsigned if operation.name.endswith("ui") else as_signed
    sign = ">" if "max" in operation.name else "<"
    a, b = operands
    return f"({read(element, a)} {sign} {read(element, b)} ? {a} : {b})"


@expression("arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf")
def float_extreme(program: Program, operation: Operation, operands: list[str]) -> str:
    """The greater or the smaller float."""
    return _on_floats(program, operation, operation.name.removeprefix("arith.").removesuffix("f"), operands)


def _on_floats(program: Program, operation: Operation, function: str, operands: list[str]) -> str:
    element = operation.results[0].element
    arguments = ", ".join(widened(element, operand) for operand in operands)
    return narrowed(program, element, f"{function}_{'f64' if size(element) == 8 else 'f32'}({arguments})")


@expression("tt.clampf")
def clamp(program: Program, operation: Operation, operands: list[str]) -> str:
    """The middle of three; ``propagateNan`` says whether a NaN stays or gives way to the lower bound."""
    propagates = operation.attributes["propagateNan"] == "all"
    greater, smaller = ("maximum", "minimum") if propagates else ("maxnum", "minnum")
    element = operation.results[0].element
    kind = "f64" if size(element) == 8 else "f32"
    value, low, high = (widened(element, operand) for operand in operands)
    return narrowed(program, element, f"{smaller}_{kind}({greater}_{kind}({value}, {low}), {high})")


_LIBM = {
    "math.sqrt": "sqrt", "tt.precise_sqrt": "sqrt", "math.absf": "fabs", "math.floor": "floor", "math.ceil": "ceil",
    "arith.remf": "fmod",
}  # fmt: skip


@expression(*_LIBM)
def exact(program: Program, operation: Operation, operands: list[str]) -> str:
    """Functions whose result is correctly rounded in any C library."""
    element = operation.results[0].element
    arguments = ", ".join(widened(element, operand) for operand in operands)
    suffix = "" if size(element) == 8 else "f"
    return narrowed(program, element, f"{_LIBM[operation.name]}{suffix}({arguments})")


@expression("math.fma")
def fused_multiply_add(program: Program, operation: Operation, operands: list[str]) -> str:
    """Rounded once; ``f16`` by way of float64, which is exact enough for its 11 bits, as in the interpreter."""
    element = operation.results[0].element
    wide = size(element) == 8 or element == F16
    arguments = ", ".join(widened(element, operand) for operand in operands)
    return narrowed(program, element, f"{'fma' if wide else 'fmaf'}({arguments})")


@expression("arith.negf")
def negate(program: Program, operation: Operation, operands: list[str]) -> str:
    """The sign flipped."""
    element = operation.results[0].element
    return narrowed(program, element, f"(-{widened(element, operands[0])})")


@expression("math.rsqrt")
def reciprocal_root(program: Program, operation: Operation, operands: list[str]) -> str:
    """1 / sqrt(x), both rounded, as in the interpreter; a GPU approximates it."""
    element = operation.results[0].element
    one, suffix = ("1.0", "") if size(element) == 8 else ("1.0f", "f")
    return narrowed(program, element, f"({one} / sqrt{suffix}({widened(element, operands[0])}))")


@expression("math.erf")
def error_function(program: Program, operation: Operation, operands: list[str]) -> str:
    """The error function, computed in float64 as in the interpreter."""
    element = operation.results[0].element
    return narrowed(program, element, f"erf((double){widened(element, operands[0])})")


@expression("math.absi")
def absolute(program: Program, operation: Operation, operands: list[str]) -> str:
    """The absolute value; the least number stays as it is."""
    element = operation.results[0].element
    value = as_signed(element, operands[0])
    mask = " & 1" if bits(element) == 1 else ""
    return f"(({c_type(element)})(({value} < 0 ? -{value} : {value}){mask}))"


@expression("tt.mulhiui")
def multiply_high(program: Program, operation: Operation, operands: list[str]) -> str:
    """The upper half of the product of unsigned integers."""
    element = operation.results[0].element
    wide = "unsigned __int128" if bits(element) == 64 else "uint64_t"
    a, b = (as_unsigned(element, operand) for operand in operands)
    return f"(({c_type(element)})((({wide}){a} * ({wide}){b}) >> {bits(element)}))"


_NUMPY = {
    "math.exp": "exp", "math.exp2": "exp2", "math.log": "log", "math.log2": "log2",
    "math.sin": "sin", "math.cos": "cos",
}  # fmt: skip


@statement(*_NUMPY)
def transcendental(program: Program, operation: Operation) -> None:
    """Functions that each library rounds in its own way: numpy's own loops are called, so that results agree."""
    (source,), (result,) = operation.operands, operation.results
    element = result.element
    if not isinstance(element, Scalar) or element.name not in ("f32", "f64"):
        raise program.unsupported(operation, f"on {element}")
    target = program.storage(result)
    address = target if result.shape is not None else f"&{target}"
    loop = program.loop(_NUMPY[operation.name], element)
    program.line(f"CALL_LOOP({loop}, {program.array(source)}, {address}, {result.lanes});")
