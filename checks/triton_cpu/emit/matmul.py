"""``tt.dot``: matrix products by the very code that the interpreter multiplies with, numpy's inner loop and its BLAS.

No other order of additions would agree to the last bit. As there, ``input_precision`` and ``max_num_imprecise_acc``
change nothing: float32 is multiplied as float32, where a GPU may round to TF32 first. ``bf16`` is multiplied as
float32; the interpreter takes its bits for integers. Sums of products of bytes wrap; a GPU saturates them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Operation, Value
from .elementwise import narrowed, widened
from .layout import array_in_order, memory_order
from .numpy_calls import call_loop
from .program import Program
from .registry import statement
from .scalars import Element, c_type, is_float, size


@dataclass(frozen=True, slots=True)
class Matrix:
    """A stack of matrices in an array, strides in elements."""

    array: str
    stack: int
    row: int
    column: int


@statement("tt.dot")
def dot(program: Program, operation: Operation) -> None:
    """``a @ b + c`` for matrices, or for stacks of them."""
    a, b, c = operation.operands
    element = c.element
    left, right = (_operand(program, value, element) for value in (a, b))
    if is_float(element):
        product = multiply(program, left, right, extents_of(a, b), element)
    else:
        product = _multiply_integers(program, left, right, extents_of(a, b), element)
    add_accumulator(program, operation, product, c)


def extents_of(a: Value, b: Value) -> tuple[int, int, int, int]:
    """How many matrices, rows, inner extent, columns."""
    assert a.shape is not None and b.shape is not None
    *stack, rows, inner = a.shape
    return (stack[0] if stack else 1, rows, inner, b.shape[-1])


def multiply(
    program: Program, left: Matrix, right: Matrix, extents: tuple[int, int, int, int], element: Element
) -> str:
    """Writes a product of floats; returns the name of its array."""
    stack, rows, _, columns = extents
    product = program.fresh(element, stack * rows * columns)
    result = row_major(product, rows, columns)
    matrices, width = (left, right, result), size(element)
    strides = [matrix.stack * width for matrix in matrices]
    strides += [step * width for matrix in matrices for step in (matrix.row, matrix.column)]
    call_loop(program, program.loop("matmul", element), [matrix.array for matrix in matrices], extents, strides)
    return product


def add_accumulator(program: Program, operation: Operation, product: str, accumulator: Value) -> None:
    """Writes the sum of a product and the accumulator, which rounds once more."""
    (result,) = operation.results
    element = result.element
    with program.lanes(result.lanes):
        terms = f"{widened(element, f'{product}[i]')} + {widened(element, program.lane(accumulator))}"
        total = narrowed(program, element, f"({terms})") if is_float(element) else terms
        program.line(f"{program.storage(result)}[i] = {total};")


def row_major(array: str, rows: int, columns: int) -> Matrix:
    """Matrices one after another, each row after row."""
    return Matrix(array, rows * columns, columns, 1)


def _operand(program: Program, value: Value, element: Element) -> Matrix:
    """A transposed matrix that needs no conversion is read in place, as numpy does."""
    assert value.shape is not None
    *stack, rows, columns = range(len(value.shape))
    extent = value.shape[rows], value.shape[columns]
    if value.element != element:
        return row_major(_converted(program, value, element), *extent)
    order = memory_order(value)
    if is_float(element) and order == (*stack, columns, rows):
        return Matrix(array_in_order(program, value, order), extent[0] * extent[1], 1, extent[0])
    return row_major(program.array(value), *extent)


def _converted(program: Program, value: Value, element: Element) -> str:
    name = program.fresh(element, value.lanes)
    with program.lanes(value.lanes):
        lane = program.lane(value)
        if is_float(element):
            lane = narrowed(program, element, widened(value.element, lane))
        program.line(f"{name}[i] = {lane};")
    return name


def _multiply_integers(
    program: Program, left: Matrix, right: Matrix, extents: tuple[int, int, int, int], element: Element
) -> str:
    """Integers wrap around, so that their order does not matter."""
    stack, rows, inner, columns = extents
    product = program.fresh(element, stack * rows * columns)
    with program.lanes(stack * rows, "row"), program.lanes(columns, "column"):
        program.line(f"{c_type(element)} sum = 0;")
        with program.lanes(inner, "k"):
            a = f"{left.array}[row * {inner} + k]"
            b = f"{right.array}[(row / {rows} * {inner} + k) * {columns} + column]"
            program.line(f"sum += {a} * {b};")
        program.line(f"{product}[row * {columns} + column] = sum;")
    return product
