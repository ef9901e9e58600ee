"""How much fuel an iteration of a loop takes.

Fuel bounds how long a program that never ends runs, so an iteration over wide blocks takes more of it: without that, a
loop over blocks of 64 Ki lanes would run for minutes where a loop over scalars ends within a second.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Function, Operation, Region, Tensor
from .program import Program

#: Operations on single lanes that take about as long as an iteration of a loop over scalars takes at the very least.
#: Chosen so that no loop burns longer than some seconds, and that real ones stay far below their fuel.
_LANES = 2048

_LOOPS = ("scf.for", "scf.while")
#: Vector instructions multiply and add several numbers at once.
_PRODUCTS_AT_ONCE = 8


def weight(program: Program, loop: Operation) -> int:
    """Fuel of one iteration: 1, and more for wide blocks; loops inside of it take their own."""
    functions = program.unit.module.functions
    lanes = sum(_lanes(functions, region) for region in loop.regions)
    return 1 + lanes // _LANES


def _lanes(functions: Mapping[str, Function], region: Region) -> int:
    """Lanes that the operations of a region work on, those of nested loops left out."""
    found = 0
    for block in region.blocks:
        for operation in block.operations:
            found += _lanes_of(operation)
            if operation.name == "tt.call":
                found += _lanes(functions, functions[str(operation.attributes["callee"])].body)
            elif operation.name not in _LOOPS:
                found += sum(_lanes(functions, inner) for inner in operation.regions)
    return found


def _lanes_of(operation: Operation) -> int:
    values = (*operation.operands, *operation.results)
    widest = max((value.lanes for value in values if isinstance(value.type, Tensor)), default=0)
    if operation.name in ("tt.dot", "tt.dot_scaled"):
        inner = operation.operands[0].shape
        assert inner is not None
        return operation.results[0].lanes * inner[-1] // _PRODUCTS_AT_ONCE
    return widest
