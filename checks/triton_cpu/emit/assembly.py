"""``tt.elementwise_inline_asm``: the few pieces of PTX whose meaning is known; any other is refused.

Triton's own conversions of its format e4b15 are exact. The approximations (``tanh.approx.f32`` and the like) are
computed exactly instead, so their last bits, for ``tanh`` the last dozen, differ from a GPU's.
"""

from __future__ import annotations

import hashlib
import re

from ..ir import Operation, Scalar
from .program import Program
from .registry import statement

#: Digests of what ``triton.language.extra.cuda.utils`` writes, spaces made equal.
_CONVERSIONS = {
    "96fc8e9368f6322c": "e4b15_to_f16({0})",
    "1e5ddac8c3b280ea": "f16_to_e4b15({0})",
    "fdefb6e9449b45bf": "f16_to_e4b15({0})",
}

#: On float32; the name of the instruction and its C expression.
_APPROXIMATIONS = {
    "tanh": "tanhf({0})",
    "ex2": "exp2f({0})",
    "lg2": "log2f({0})",
    "rcp": "(1 / {0})",
    "sqrt": "sqrtf({0})",
    "rsqrt": "(1 / sqrtf({0}))",
    "sin": "sinf({0})",
    "cos": "cosf({0})",
}
_APPROXIMATION = re.compile(r"(\w+)\.approx(?:\.ftz)?\.f32 \$0, ?\$1;")


@statement("tt.elementwise_inline_asm")
def known_assembly(program: Program, operation: Operation) -> None:
    """What a piece of PTX that is known computes, lane by lane."""
    text = " ".join(str(operation.attributes.get("asm_string", "")).split())
    expression = _meaning(text, operation)
    if expression is None:
        raise program.unsupported(operation, f'"{text[:60]}"')
    program.unit.headers.add("library.h")
    (operand,), (result,) = operation.operands, operation.results
    if result.shape is None:
        program.line(f"{program.storage(result)} = {expression.format(program.lane(operand))};")
        return
    with program.lanes(result.lanes):
        program.line(f"{program.storage(result)}[i] = {expression.format(program.lane(operand))};")


def _meaning(text: str, operation: Operation) -> str | None:
    """C expression of the only result, the only operand in braces; None if nothing is known."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if digest in _CONVERSIONS:
        return _CONVERSIONS[digest]
    match = _APPROXIMATION.fullmatch(text)
    kinds = [value.element for value in (*operation.operands, *operation.results)]
    return _APPROXIMATIONS.get(match[1]) if match and kinds == [Scalar("f32"), Scalar("f32")] else None
