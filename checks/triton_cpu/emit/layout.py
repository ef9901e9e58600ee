"""In which order numpy holds the elements of a tensor while the interpreter runs.

``tl.trans`` moves nothing there: it is the same memory with its strides exchanged. numpy then adds up a float sum, and
BLAS multiplies, in another order, so the last bits depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir import Operation, Scalar, Tensor, Value
from .program import Program
from .registry import EXPRESSIONS
from .scalars import element_of

#: Not numbers of bytes: for the order alone lanes will do.
Strides = tuple[int, ...]


def steps(shape: Sequence[int]) -> Strides:
    """By how much the number of a lane grows along each axis, row-major."""
    result = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        result[axis - 1] = result[axis] * shape[axis]
    return tuple(result)


def memory_order(value: Value) -> tuple[int, ...]:
    """The axes of a tensor from the one with the largest strides to the one with the smallest."""
    known: dict[Value, Strides] = {}
    waiting = [value]
    while waiting:
        last = waiting[-1]
        missing = [operand for operand in _followed(last) if operand not in known]
        waiting.extend(missing)
        if not missing:
            strides = _strides(waiting.pop(), known)
            known[last] = tuple(
                0 if extent == 1 else stride for extent, stride in zip(last.shape or (), strides, strict=True)
            )
    return _sorted_axes([known[value]])


def _followed(value: Value) -> list[Value]:
    """The operands whose strides decide about those of a tensor."""
    origin = value.origin
    if origin is None or not (origin.name in _VIEWS or _keeps_order(origin)):
        return []
    return [operand for operand in origin.operands if isinstance(operand.type, Tensor)]


def _keeps_order(operation: Operation) -> bool:
    """Whether it is one of numpy's element-wise functions; the interpreter's conversions of bits are not."""
    kinds = (element_of(value.type) for value in (*operation.operands, *operation.results))
    if operation.name not in EXPRESSIONS and not operation.name.startswith("math."):
        return False
    return not any(isinstance(kind, Scalar) and (kind.name == "bf16" or kind.name.startswith("f8")) for kind in kinds)


def _strides(value: Value, known: dict[Value, Strides]) -> Strides:
    operands, shape = _followed(value), value.shape or ()
    if not operands or value.origin is None:
        return steps(shape)
    rule = _VIEWS.get(value.origin.name)
    if rule is not None:
        return rule(value.origin, known[operands[0]])
    order = _sorted_axes([known[operand] for operand in operands])
    moved = steps([shape[axis] for axis in order])
    return tuple(moved[order.index(axis)] for axis in range(len(shape)))


def axes_of(operation: Operation) -> tuple[int, ...]:
    """Of ``tt.trans``: the axis of the operand that each axis of the result is."""
    order = operation.attributes["order"]
    assert isinstance(order, tuple)
    return tuple(axis for axis in order if isinstance(axis, int))


def _transposed(operation: Operation, strides: Strides) -> Strides:
    return tuple(strides[axis] for axis in axes_of(operation))


def _expanded(operation: Operation, strides: Strides) -> Strides:
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    return (*strides[:axis], 0, *strides[axis:])


def _broadcast(operation: Operation, strides: Strides) -> Strides:
    source, target = operation.operands[0].shape, operation.results[0].shape
    assert source is not None and target is not None
    return tuple(0 if small != large else stride for small, large, stride in zip(source, target, strides, strict=True))


_VIEWS: dict[str, Callable[[Operation, Strides], Strides]] = {
    "tt.trans": _transposed,
    "tt.expand_dims": _expanded,
    "tt.broadcast": _broadcast,
}


def _sorted_axes(strides: Sequence[Strides]) -> tuple[int, ...]:
    """The order in which numpy's iterator goes through arrays: an insertion sort that in doubt leaves axes alone."""
    order: list[int] = []  # the fastest first
    for axis in reversed(range(len(strides[0]))):
        place = len(order)
        for earlier in reversed(range(len(order))):
            pairs = [(array[order[earlier]], array[axis]) for array in strides]
            larger = [before > after for before, after in pairs if before and after]
            if larger and not all(larger):
                break
            if larger:
                place = earlier
        order.insert(place, axis)
    return tuple(reversed(order))


def array_in_order(program: Program, value: Value, order: Sequence[int]) -> str:
    """C name of an array that holds the lanes of a tensor as numpy does.

    Args:
        program: the function being written.
        value: a tensor.
        order: its axes from the outermost to the innermost in the array.
    """
    from .shape import renumbered

    if list(order) == sorted(order):
        return program.array(value)
    origin = value.origin
    if origin is not None and origin.name == "tt.trans":
        inner = axes_of(origin)
        return array_in_order(program, origin.operands[0], [inner[axis] for axis in order])
    assert value.shape is not None
    name = program.fresh(value.element, value.lanes)
    strides = steps(value.shape)
    place = renumbered("i", [value.shape[axis] for axis in order], [strides[axis] for axis in order])
    with program.lanes(value.lanes):
        program.line(f"const int32_t place = {place};")
        program.line(f"{name}[i] = {program.lane(value, 'place')};")
    return name
