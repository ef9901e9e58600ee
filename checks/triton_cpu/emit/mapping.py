"""``tt.map_elementwise``: a scalar function, branches and all, called for each lane, or for several lanes at once."""

from __future__ import annotations

from ..ir import Operation
from .program import Program
from .regions import arguments_of, call, set_values
from .registry import statement


@statement("tt.map_elementwise")
def map_elementwise(program: Program, operation: Operation) -> None:
    """``pack`` lanes at once: that many arguments in a row for each tensor, and as many results."""
    pack = operation.attributes.get("pack", 1)
    assert isinstance(pack, int)
    names = [program.storage(value) for value in arguments_of(operation)]
    results = [program.fresh(result.element) for result in operation.results for _ in range(pack)]
    with program.block(f"for (int32_t lane = 0; lane < {operation.operands[0].lanes}; lane += {pack})"):
        places = [f"(lane + {k})" if k else "lane" for k in range(pack)]
        set_values(program, names, [program.lane(value, k) for value in operation.operands for k in places])
        call(program, operation, results)
        targets = [f"{program.storage(result)}[{k}]" for result in operation.results for k in places]
        set_values(program, targets, results)
