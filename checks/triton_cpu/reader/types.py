"""Types as they are printed."""

from __future__ import annotations

from ..ir import Descriptor, Pointer, Scalar, Tensor, Type
from .lexer import Cursor

_SCALARS = {
    name: Scalar(name)
    for name in (
        *("i1", "i8", "i16", "i32", "i64", "index", "f16", "bf16", "f32", "f64"),
        *("f8E5M2", "f8E4M3FN", "f8E4M3FNUZ", "f8E5M2FNUZ", "f8E4M3B11FNUZ"),
    )
}

#: The address space of global memory, the only one that TTIR has.
_GLOBAL = 1


def starts_type(text: Cursor) -> bool:
    """Whether a type comes next."""
    token = text.next
    return token.kind == "sigil" or (token.kind == "word" and (token.text in _SCALARS or token.text == "tensor"))


def type_of(text: Cursor) -> Type:
    """Read a type."""
    if text.next.kind == "sigil":
        return _dialect_type(text)
    if text.at("tensor"):
        return _tensor(text)
    return _scalar(text)


def pointer_body(text: Cursor) -> Pointer:
    """What comes after ``!tt.ptr``; some operations print it without."""
    text.expect("<")
    pointee = type_of(text)
    if text.accept(",") and text.integer() != _GLOBAL:
        text.position -= 1
        raise text.fault("as an address space other than that of global memory")
    text.expect(">")
    return Pointer(pointee)


def descriptor_body(text: Cursor) -> Descriptor:
    """What comes after ``!tt.tensordesc``: until Triton 3.6 a tensor, later its shape and element type."""
    text.expect("<")
    block = _tensor(text) if text.at("tensor") else _shaped(text)
    text.expect(">")
    return Descriptor(block)


def types_of(text: Cursor) -> tuple[Type, ...]:
    """One type, or several in parentheses, as after an arrow."""
    if text.at("("):
        return tuple(text.list(lambda: type_of(text), "(", ")"))
    return (type_of(text),)


def _dialect_type(text: Cursor) -> Type:
    name = text.take("sigil")
    if name == "!tt.ptr":
        return pointer_body(text)
    if name == "!tt.tensordesc":
        return descriptor_body(text)
    text.position -= 1
    raise text.fault("as a type")


def _tensor(text: Cursor) -> Tensor:
    text.expect("tensor", "<")
    tensor = _shaped(text)
    text.expect(">")
    return tensor


def _shaped(text: Cursor) -> Tensor:
    extents = text.take("extents")[:-1].split("x") if text.next.kind == "extents" else []
    element = type_of(text)
    if not isinstance(element, Scalar | Pointer):
        raise text.fault("after a tensor of tensors")
    return Tensor(tuple(int(extent) for extent in extents), element)


def _scalar(text: Cursor) -> Scalar:
    scalar = _SCALARS.get(text.next.text)
    if scalar is None or text.next.kind != "word":
        raise text.fault("as a type")
    text.position += 1
    return scalar
