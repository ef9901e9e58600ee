"""``tt.dot_scaled``: products of matrices in the MX formats, each group of numbers along the inner axis with a scale.

As in the interpreter each number is multiplied by its scale in float32, and numpy multiplies the matrices. The numbers
themselves are exact, where the interpreter takes them for float16 on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Operation, Scalar, Value
from .elementwise import widened
from .matmul import Matrix, add_accumulator, multiply
from .program import Program
from .registry import statement

_F32 = Scalar("f32")
_FORMATS = frozenset({"e2m1", "e4m3", "e5m2", "bf16", "fp16"})


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two operands.

    Attributes:
        value: its numbers; of ``e2m1`` two in a byte.
        scale: one for each group; None if there is none.
        kind: format of the numbers.
        packed_inner: whether a byte holds neighbours along the inner axis, not along the other one.
        right: whether its inner axis is the last but one.
        half: whether the scales become float16.
    """

    value: Value
    scale: Value | None
    kind: str
    packed_inner: bool
    right: bool
    half: bool


@statement("tt.dot_scaled")
def dot_scaled(program: Program, operation: Operation) -> None:
    """``(a · scale) @ (b · scale) + c``."""
    left, right, c = _sides(program, operation)
    assert c.shape is not None and left.value.shape is not None
    *stack, rows, columns = c.shape
    inner = left.value.shape[-1] * (2 if left.kind == "e2m1" and left.packed_inner else 1)
    count = stack[0] if stack else 1
    # numpy leaves the axes as unpacking the bytes put them, unless a scale in another order decides
    left_turned = left.kind == "e2m1" and not left.packed_inner and left.scale is None
    right_turned = right.kind == "e2m1" and right.packed_inner
    one = _scaled(program, left, count, (rows, inner), left_turned)
    other = _scaled(program, right, count, (inner, columns), right_turned)
    product = multiply(program, one, other, (count, rows, inner, columns), _F32)
    add_accumulator(program, operation, product, c)


def _sides(program: Program, operation: Operation) -> tuple[Side, Side, Value]:
    a, b, c, *scales = operation.operands
    sizes, attributes = operation.attributes["operandSegmentSizes"], operation.attributes
    kinds = [str(attributes[f"{side}_elem_type"]) for side in "ab"]
    if not set(kinds) <= _FORMATS or c.element != _F32:
        raise program.unsupported(operation, f"of {kinds[0]} and {kinds[1]} into {c.element}")
    assert isinstance(sizes, tuple)
    waiting = list(scales)
    a_scale, b_scale = (waiting.pop(0) if size else None for size in sizes[3:5])
    half = "fp16" in kinds
    left = Side(a, a_scale, kinds[0], bool(attributes["lhs_k_pack"]), False, half)
    return left, Side(b, b_scale, kinds[1], bool(attributes["rhs_k_pack"]), True, half), c


def _scaled(program: Program, side: Side, count: int, extents: tuple[int, int], turned: bool) -> Matrix:
    """Writes the numbers of one side, scaled, as float32; ``turned`` column after column."""
    rows, columns = extents
    name = program.fresh(_F32, count * rows * columns)
    with program.lanes(count, "matrix"), program.lanes(rows, "row"), program.lanes(columns, "column"):
        program.line(f"const int32_t lane = {_lane(side, extents)};")
        number = _number(program, side)
        if side.scale is not None:
            program.line(f"const int32_t group = {_group(side, extents)};")
            number = f"{number} * {_scale(program, side.scale, side.half)}"
        place = f"column * {rows} + row" if turned else f"row * {columns} + column"
        program.line(f"{name}[matrix * {rows * columns} + {place}] = {number};")
    return Matrix(name, rows * columns, 1, rows) if turned else Matrix(name, rows * columns, columns, 1)


def _lane(side: Side, extents: tuple[int, int]) -> str:
    """Where the number at ``row``, ``column`` is, as C expression; two share a byte of ``e2m1``."""
    rows, columns = extents
    if side.kind != "e2m1":
        return f"(matrix * {rows} + row) * {columns} + column"
    if side.packed_inner == side.right:  # along the rows
        return f"(matrix * {rows // 2} + row / 2) * {columns} + column"
    return f"(matrix * {rows} + row) * {columns // 2} + column / 2"


def _number(program: Program, side: Side) -> str:
    lane = program.lane(side.value, "lane")
    if side.kind != "e2m1":
        return widened(side.value.element, lane)
    second = "row" if side.packed_inner == side.right else "column"
    return f"e2m1_to_f32((uint8_t){lane} >> {second} % 2 * 4)"


def _group(side: Side, extents: tuple[int, int]) -> str:
    """Which scale belongs to ``row``, ``column``; scales lie with the inner axis last on both sides."""
    assert side.scale is not None and side.scale.shape is not None
    groups = side.scale.shape[-1]
    outer, inner = ("column", "row") if side.right else ("row", "column")
    count, length = (extents[1], extents[0]) if side.right else extents
    return f"(matrix * {count} + {outer}) * {groups} + {inner} / {length // groups}"


def _scale(program: Program, scale: Value, half: bool) -> str:
    """A byte is a power of two (e8m0); a float of eight bits is what it is."""
    lane = program.lane(scale, "group")
    if scale.element == Scalar("i8"):
        return f"e8m0_to_f32({lane}, {int(half)})"
    return widened(scale.element, lane)
