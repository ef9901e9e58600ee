"""Which accesses of a kernel go where data tells them to.

The addresses and masks of most accesses follow from the arguments and the number of the program alone: they can be
known without the data. Those of a gather follow from indices in memory. A forward taint analysis tells them apart:
what is loaded is tainted, and so is what is computed from it; a loop or a branch that data decides taints everything.
"""

from __future__ import annotations

from collections.abc import Iterable

from .effects import ACCESSES, Flow
from .ir import Module, Operation, Value

#: Operations whose first operand decides what runs.
_BRANCHES = frozenset({"scf.if", "scf.condition", "cf.cond_br"})


class _Taint(Flow):
    """The roots of a value are memory, if it depends on what memory holds; else it has none."""

    def __post_init__(self) -> None:
        self.settle()

    def carrying(self, operation: Operation) -> Iterable[Value]:
        """See :class:`Flow`; a comparison passes on what it compares."""
        return operation.results

    def computed(self, operation: Operation) -> frozenset[Value | None]:
        """See :class:`Flow`; every operand counts, offsets and conditions too."""
        return self.of(operation.operands)


def guided_by_data(module: Module) -> tuple[bool, ...]:
    """For each argument of the kernel, whether which of its bytes are touched may depend on what memory holds.

    Args:
        module: as read; see :func:`~mrv2.checks.triton_cpu.effects.effects_of`.
    """
    arguments, taint = module.kernel.arguments, _Taint(module)
    operations = [operation for function in module.functions.values() for operation in function.body.walk()]
    if any(taint.of(_decisive(operation)) for operation in operations):
        return (True,) * len(arguments)
    flow = Flow(module)
    guided: set[object] = set()
    for operation in operations:
        if operation.name in ACCESSES and taint.of(_whereabouts(operation)):
            guided |= flow.of(operation.operands[:1])
    return tuple(argument in guided for argument in arguments)


def _decisive(operation: Operation) -> tuple[Value, ...]:
    """Operands that decide which operations run, or how often."""
    if operation.name == "scf.for":
        return operation.operands[:3]
    return operation.operands[:1] if operation.name in _BRANCHES else ()


def _whereabouts(operation: Operation) -> tuple[Value, ...]:
    """Operands that say which bytes are accessed: address and mask, not the value that is stored."""
    operands = operation.operands
    if operation.name == "tt.store":
        return (*operands[:1], *operands[2:])
    return operands[:2] if operation.name == "tt.load" else operands
