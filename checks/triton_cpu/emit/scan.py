"""``tt.scan``: the result of a reduction at every step of the way.

Element by element in the order of the axis, or against it, as in the interpreter: that is what ``numpy.cumsum`` does.
"""

from __future__ import annotations

from ..ir import Operation
from .program import Program
from .regions import arguments_of, axis_of, call, counted, set_lanes
from .registry import statement


@statement("tt.scan")
def scan(program: Program, operation: Operation) -> None:
    """Folds tensors along an axis, and keeps what each step gives."""
    axis, arguments = axis_of(operation), arguments_of(operation)
    names = [program.storage(value) for value in arguments]
    so_far, next_one = names[: len(names) // 2], names[len(names) // 2 :]
    step = f"{axis.length - 1} - step" if operation.attributes.get("reverse") else "step"
    with (
        counted(program, "outer", axis.outer),
        counted(program, "inner", axis.inner),
        counted(program, "step", axis.length),
    ):
        program.line(f"const int32_t place = {axis.lane('outer', f'({step})', 'inner')};")
        set_lanes(program, next_one, operation.operands, "place")
        with program.block("if (step == 0)"):
            for name, other in zip(so_far, next_one, strict=True):
                program.line(f"{name} = {other};")
        with program.block("else"):
            call(program, operation, so_far)
        for result, name in zip(operation.results, so_far, strict=True):
            program.line(f"{program.storage(result)}[place] = {name};")
