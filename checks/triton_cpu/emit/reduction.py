"""``tt.reduce``: any function of two elements, folded along an axis.

The order is the interpreter's, so that sums agree to the last bit. What ``tl.sum``, ``tl.max`` and ``tl.min`` say it
gives to numpy, and so do we: along the fastest axis numpy's own inner loop sums in pairs, along any other it adds one
row after another. Everything else is folded element by element, in the order of the axis. A GPU folds in a tree of its
own, which for float sums differs in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir import Operation, Scalar, Value
from .layout import array_in_order, memory_order, steps
from .numpy_calls import call_loop
from .program import Program
from .regions import Axis, arguments_of, axis_of, call, counted, set_lanes
from .registry import statement
from .scalars import Element, c_type, size
from .shape import renumbered

#: Functions of Triton's library that the interpreter hands to numpy, by the one operation of which they consist.
_BY_NUMPY = {"arith.addf": "add", "arith.maxnumf": "fmax", "arith.minnumf": "fmin"}
_LIBRARY = "triton/language/standard.py"


@statement("tt.reduce")
def reduce(program: Program, operation: Operation) -> None:
    """Folds tensors along an axis; what remains is smaller tensors, or scalars."""
    function = _numpy_function(operation)
    if function is None:
        _fold(program, operation)
    else:
        _fold_by_numpy(program, operation, function)


def _numpy_function(operation: Operation) -> str | None:
    body = operation.regions[0].blocks[0].operations
    known = operation.operands[0].element in (Scalar("f16"), Scalar("f32"), Scalar("f64"))
    return _BY_NUMPY.get(body[0].name) if len(body) == 2 and known and _from_library(_first(operation)) else None


def _from_library(operation: Operation) -> bool:
    """Whether it is written in Triton's library, not in a function of the user's that looks the same."""
    return bool(operation.location) and operation.location[0].file.endswith(_LIBRARY)


def _fold_by_numpy(program: Program, operation: Operation, function: str) -> None:
    """A sum begins with zero, a maximum with the first element."""
    (operand,) = operation.operands
    order = memory_order(operand)
    axis, kind = _axis_in(operation, order), c_type(operand.element)
    source = array_in_order(program, operand, order)
    target, finish = _target(program, operation, order)
    loop = program.loop(function, operand.element)
    first = 0 if function == "add" else 1
    with counted(program, "outer", axis.outer):
        program.line(f"{kind} *const row = {source} + outer * {axis.length * axis.inner};")
        program.line(f"{kind} *const fold = {target} + outer * {axis.inner};")
        with program.lanes(axis.inner, "k"):
            program.line(f"fold[k] = {'row[k]' if first else '0'};")
        _numpy_steps(program, loop, axis, first, size(operand.element))
    finish()


def _axis_in(operation: Operation, order: tuple[int, ...]) -> Axis:
    """The axis of a reduction in an array with its axes in another order."""
    shape, axis = operation.operands[0].shape, operation.attributes["axis"]
    assert shape is not None and isinstance(axis, int)
    return Axis.of([shape[place] for place in order], order.index(axis))


def _target(program: Program, operation: Operation, order: tuple[int, ...]) -> tuple[str, Callable[[], None]]:
    """An array for the result in an order of axes, and what then writes the result itself."""
    (result,), axis = operation.results, operation.attributes["axis"]
    left = [place for place in order if place != axis]
    if left == sorted(left) or result.shape is None:
        return program.array(result), lambda: None
    name, shape = program.fresh(result.element, result.lanes), [result.shape[sorted(left).index(k)] for k in left]
    strides = [steps(shape)[left.index(k)] for k in sorted(left)]

    def finish() -> None:
        with program.lanes(result.lanes):
            program.line(f"{program.storage(result)}[i] = {name}[{renumbered('i', result.shape or (), strides)}];")

    return name, finish


def _numpy_steps(program: Program, loop: str, axis: Axis, first: int, width: int) -> None:
    """Along the fastest axis one call folds all; else each call adds one row."""
    if axis.length == first:
        return
    if axis.inner == 1:
        call_loop(program, loop, ("fold", f"row + {first}", "fold"), (axis.length - first,), (0, width, 0))
        return
    with counted(program, "along", axis.length, first):
        row = f"row + along * {axis.inner}"
        call_loop(program, loop, ("fold", row, "fold"), (axis.inner,), (width, width, width))


def _fold(program: Program, operation: Operation) -> None:
    """Element by element, each the right operand of the function."""
    axis, arguments = axis_of(operation), arguments_of(operation)
    count = len(operation.operands)
    so_far, next_one = arguments[:count], arguments[count:]
    if _takes_any_of_equals(operation):
        so_far, next_one = next_one, so_far  # so that the first of equals stays
    names, others = ([program.storage(value) for value in values] for values in (so_far, next_one))
    watch = NanWatch(program, operation)
    with counted(program, "outer", axis.outer), counted(program, "inner", axis.inner):
        set_lanes(program, names, operation.operands, axis.lane("outer", "0", "inner"))
        watch.check(names)
        with counted(program, "along", axis.length, 1):
            set_lanes(program, others, operation.operands, axis.lane("outer", "along", "inner"))
            watch.check(others)
            call(program, operation, names)
        for result, name in zip(operation.results, names, strict=True):
            place = f"[outer * {axis.inner} + inner]" if result.shape is not None else ""
            program.line(f"{program.storage(result)}{place} = {name};")


#: What remains of ``_argmax_combine`` where a tie is not broken: a comparison and two choices.
_CHOICE = frozenset(
    {"arith.cmpf", "arith.cmpi", "arith.select", "arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui"}
)


def _takes_any_of_equals(operation: Operation) -> bool:
    """Whether it is the library's argmax or argmin that may return any of several equal elements."""
    *parts, _ = operation.regions[0].blocks[0].operations
    return (
        len(operation.operands) == 2
        and len(parts) == 3
        and {part.name for part in parts} <= _CHOICE
        and (_from_library(parts[0]))
    )


def _first(operation: Operation) -> Operation:
    return operation.regions[0].blocks[0].operations[0]


class NanWatch:
    """Reports each NaN that a reduction compares: its place decides the result, differently on every machine.

    Triton's interpreter skips NaNs in argmax and argmin; the function as it is written, folded in order or in a GPU's
    tree, does not. A function that compares an element with itself asks for NaNs, and has an answer to them.
    """

    def __init__(self, program: Program, operation: Operation) -> None:
        arguments, count = arguments_of(operation), len(operation.operands)
        places = {arguments.index(value) % count for value in _compared(operation) if value in arguments}
        self._program = program
        self._operands = [(place, operation.operands[place].element) for place in sorted(places)]
        self._site = program.site(operation) if places else -1

    def check(self, names: list[str]) -> None:
        """Writes the check of one element, given as C variables."""
        if self._operands:
            nan = " || ".join(_is_nan(names[place], element) for place, element in self._operands)
            self._program.line(f"if ({nan}) nan_seen(launch, {self._site});")


def _compared(operation: Operation) -> list[Value]:
    """Values that are compared with others, and never with themselves."""
    pairs = [part.operands for part in operation.regions[0].walk() if part.name == "arith.cmpf"]
    asked = {left for left, right in pairs if left is right}
    return [value for pair in pairs for value in pair if value not in asked]


def _is_nan(name: str, element: Element) -> str:
    return f"({name} & 0x7fff) > 0x7f80" if element == Scalar("bf16") else f"{name} != {name}"
