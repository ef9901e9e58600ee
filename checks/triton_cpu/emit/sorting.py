"""``tt.histogram``. Sorting, ``topk`` and ``flip`` are made of other operations by Triton's own front end."""

from __future__ import annotations

from ..ir import Operation
from .program import Program
from .registry import statement


@statement("tt.histogram")
def histogram(program: Program, operation: Operation) -> None:
    """How often each number from zero to the number of bins occurs; others, and masked-off lanes, count nowhere.

    Triton 3.6's interpreter counts a number that equals the number of bins in the last one; a GPU does not.
    """
    numbers, *masks = operation.operands
    (result,) = operation.results
    name = program.storage(result)
    with program.lanes(result.lanes):
        program.line(f"{name}[i] = 0;")
    with program.lanes(numbers.lanes):
        program.line(f"const uint32_t number = {program.lane(numbers)};")
        counts = " && ".join([*(program.lane(mask) for mask in masks), f"number < {result.lanes}"])
        program.line(f"if ({counts}) {name}[number]++;")
