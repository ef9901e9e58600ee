"""``tt.fp_to_fp``: conversions from and to floats of eight bits, and those that round toward zero.

The rules are those of PTX, in ``float8.h``. Triton's interpreter agrees wherever nothing is rounded, subnormal,
infinite or not a number; elsewhere it is wrong: its carry does not reach the exponent, a large number keeps its
mantissa, a small one loses bits, NaN becomes a number. Between two formats of eight bits there is no rule.
"""

from __future__ import annotations

from ..ir import Operation, Scalar
from .casts import between_floats
from .elementwise import widened
from .program import Program
from .registry import expression
from .scalars import Element

#: Those of which runtime/float8.h knows the layout, under their names in upper case.
FORMATS = frozenset({"f8E5M2", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ"})


@expression("tt.fp_to_fp")
def between_formats(program: Program, operation: Operation, operands: list[str]) -> str:
    """Another float format; without ``rounding``, to nearest even."""
    source, target = operation.operands[0].element, operation.results[0].element
    toward_zero = operation.attributes.get("rounding") == "rtz"
    if is_float8(target):
        return _to_float8(program, operation, f"(double){widened(source, operands[0])}", toward_zero)
    if is_float8(source) or not toward_zero:
        return between_floats(program, operation, operands)
    if target not in (Scalar("f16"), Scalar("bf16")):
        raise program.unsupported(operation, f"to {target} toward zero")
    assert isinstance(target, Scalar)
    return f"f64_to_{target.name}_toward_zero((double){widened(source, operands[0])})"


def is_float8(element: Element) -> bool:
    """Whether it is a float of eight bits."""
    return isinstance(element, Scalar) and element.name.startswith("f8")


def _to_float8(program: Program, operation: Operation, value: str, toward_zero: bool) -> str:
    source, target = operation.operands[0].element, operation.results[0].element
    assert isinstance(target, Scalar)
    if is_float8(source) or target.name not in FORMATS:
        raise program.unsupported(operation, f"from {source} to {target}")
    if toward_zero and target.name != "f8E5M2":
        raise program.unsupported(operation, f"to {target.name} toward zero")
    return f"f64_to_float8({target.name.upper()}, {value}, {int(toward_zero)})"
