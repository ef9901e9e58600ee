"""C types of lanes."""

from __future__ import annotations

from ..errors import Unsupported
from ..ir import Descriptor, Pointer, Scalar, Tensor, Type

#: A lane; a descriptor has none.
Element = Scalar | Pointer

_C_TYPES = {
    "i1": "uint8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "index": "int64_t",
    "f16": "_Float16", "bf16": "uint16_t", "f32": "float", "f64": "double",
}  # fmt: skip
_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64}

I1, F16 = Scalar("i1"), Scalar("f16")


def element_of(kind: Type) -> Element:
    """The type of one lane.

    Raises:
        Unsupported: a descriptor has no lanes.
    """
    if isinstance(kind, Descriptor):
        raise Unsupported("a tensor descriptor as a value")
    return kind.element if isinstance(kind, Tensor) else kind


def c_type(element: Element) -> str:
    """How C stores one lane.

    Raises:
        KeyError: a number type that nothing is known about.
    """
    if isinstance(element, Pointer):
        return "uint64_t"
    return "uint8_t" if element.name.startswith("f8") else _C_TYPES[element.name]


def bits(element: Element) -> int:
    """Width of the value of one lane: 1 for ``i1``, though a byte stores it."""
    if isinstance(element, Pointer):
        return 64
    return 8 if element.name.startswith("f8") else _BITS[element.name]


def size(element: Element) -> int:
    """Bytes of one lane in memory."""
    return max(1, bits(element) // 8)


def is_float(element: Element) -> bool:
    """Whether it is a floating-point number of any width."""
    return isinstance(element, Scalar) and (element.name.startswith("f") or element.name == "bf16")


def is_integer(element: Element) -> bool:
    """Whether it is an integer, ``i1`` among them."""
    return isinstance(element, Scalar) and not is_float(element)


def unsigned(element: Element) -> str:
    """The unsigned C type as wide as an integer or a float."""
    return f"uint{8 * size(element)}_t"


def as_unsigned(element: Element, lane: str) -> str:
    """An integer lane read as unsigned."""
    return f"(({unsigned(element)}){lane})"


def as_signed(element: Element, lane: str) -> str:
    """An integer lane read as signed: a set ``i1`` is -1."""
    return f"((int8_t)-{lane})" if element == I1 else lane


def pointee(element: Element) -> Element:
    """What a pointer's address holds.

    Raises:
        Unsupported: blocks, or nothing with lanes.
    """
    if not isinstance(element, Pointer) or not isinstance(element.pointee, Scalar | Pointer):
        raise Unsupported(f"memory of {element}")
    return element.pointee
