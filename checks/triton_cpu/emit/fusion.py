"""Which element-wise operations share a loop.

Expressions between two statements are collected and written as one loop for each number of lanes. A value that nothing
outside of its loop reads lives in a register; any other is stored as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import Operation, Value
from .registry import VIEWS
from .scratch import Uses


@dataclass(eq=False, slots=True)
class FusedLoop:
    """Expressions over one number of lanes, in an order in which each follows what it reads."""

    lanes: int
    operations: dict[Operation, None] = field(default_factory=dict)


class Pending:
    """Expressions that wait for their loop."""

    def __init__(self) -> None:
        self.loops: list[FusedLoop] = []
        self._loop_of: dict[Value, int] = {}

    def add(self, operation: Operation) -> None:
        """Puts a tensor expression into the first loop that may hold it."""
        (result,) = operation.results
        first = max((self._earliest(operand) for operand in operation.operands), default=0)
        number = next(
            (k for k in range(first, len(self.loops)) if self.loops[k].lanes == result.lanes), len(self.loops)
        )
        if number == len(self.loops):
            self.loops.append(FusedLoop(result.lanes))
        self.loops[number].operations[operation] = None
        self._loop_of[result] = number

    def take(self) -> list[FusedLoop]:
        """The loops, in order; none is left."""
        loops, self.loops, self._loop_of = self.loops, [], {}
        return loops

    def _earliest(self, value: Value, same_lane: bool = True) -> int:
        """Number of the first loop in which a value can be read."""
        if value in self._loop_of:
            return self._loop_of[value] + (0 if same_lane else 1)
        origin = value.origin
        if origin is None or origin.name not in VIEWS:
            return 0
        same_lane = same_lane and VIEWS[origin.name].keeps_lanes
        return max((self._earliest(operand, same_lane) for operand in origin.operands), default=0)


def escapes(value: Value, loop: FusedLoop, uses: Uses) -> bool:
    """Whether anything outside of its loop reads a value."""
    return any(_leaves(reader, loop, uses) for reader in uses.get(value, ()))


def _leaves(reader: Operation, loop: FusedLoop, uses: Uses) -> bool:
    if reader in loop.operations:
        return False
    if reader.name in VIEWS and VIEWS[reader.name].keeps_lanes:
        return any(escapes(result, loop, uses) for result in reader.results)
    return True
