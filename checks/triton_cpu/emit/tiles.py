"""Which tensors of addresses grow by one lane each along the last dimension, so that a row may be accessed at once.

Modulo two to the width of each number the step is exact. Only the widening of an offset that wraps around can break it.
Steps and factors here are small and not negative, so that each wrap shortens the distance between the first and the
last address of a row; whoever compares that distance with what the step says has seen that there was none.
"""

from __future__ import annotations

from ..ir import Operation, Scalar, Tensor, Value
from .scalars import pointee, size

#: Greater steps are not followed; 2**20 lanes, the most that a tensor may have, times this stay below 2**63.
_LARGEST = 1 << 20


def is_dense(pointer: Value) -> bool:
    """Whether lanes side by side in the last dimension are neighbours in memory, if no offset wraps around."""
    return step(pointer) == size(pointee(pointer.element))


def step(value: Value) -> int | None:
    """By how much each lane exceeds the one before it in the last dimension; None if that is not known."""
    if not isinstance(value.type, Tensor):
        return 0
    origin = value.origin
    if origin is None:
        return None
    known = _step(origin)
    return known if known is not None and 0 <= known <= _LARGEST else None


def _step(operation: Operation) -> int | None:
    name, operands = operation.name, operation.operands
    if name in ("tt.splat", "arith.constant"):
        return 0 if name == "tt.splat" or not isinstance(operation.attributes["value"], tuple) else None
    if name == "tt.make_range":
        return 1
    if name == "tt.expand_dims":
        return 0 if _is_last(operation) else step(operands[0])
    if name == "tt.broadcast":
        shape = operands[0].shape
        return 0 if shape and shape[-1] == 1 else step(operands[0])
    if name in ("arith.extsi", "arith.extui", "tt.bitcast"):
        return step(operands[0])
    return _of_sum_or_product(operation)


def _is_last(operation: Operation) -> bool:
    shape = operation.results[0].shape
    assert shape is not None
    return operation.attributes["axis"] == len(shape) - 1


def _of_sum_or_product(operation: Operation) -> int | None:
    if operation.name not in ("arith.addi", "arith.muli", "tt.addptr"):
        return None
    first, second = (step(operand) for operand in operation.operands)
    if first is None or second is None:
        return None
    if operation.name == "arith.addi":
        return first + second
    if operation.name == "tt.addptr":
        return first + second * size(pointee(operation.operands[0].element))
    return _of_product(operation, first, second)


def _of_product(operation: Operation, first: int, second: int) -> int | None:
    if first == second == 0:
        return 0
    left, right = operation.operands
    factor, moving = (_constant(right), first) if second == 0 else (_constant(left), second)
    return factor * moving if factor is not None and (first == 0 or second == 0) else None


def _constant(value: Value) -> int | None:
    """The number that all lanes of a value are."""
    origin = value.origin
    if origin is None or not isinstance(value.element, Scalar):
        return None
    if origin.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
        return _constant(origin.operands[0])
    number = origin.attributes.get("value") if origin.name == "arith.constant" else None
    return number if isinstance(number, int) and 0 <= number <= _LARGEST else None
