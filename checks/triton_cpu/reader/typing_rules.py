"""How the types that an operation prints determine those of its operands and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..ir import Descriptor, Pointer, Scalar, Tensor, Type, Value
from .lexer import Fault

#: Types of the operands, as many as are known, and of the results.
Signature: TypeAlias = tuple[Sequence[Type], Sequence[Type]]
TypingRule: TypeAlias = Callable[[Sequence[Type], Sequence[Value]], Signature]

BOOL = Scalar("i1")


def like(shaped: Type, element: Scalar | Pointer) -> Type:
    """A type with the shape of one and the element type of another."""
    return Tensor(shaped.shape, element) if isinstance(shaped, Tensor) else element


def pointee(pointers: Type) -> Type:
    """What a load from pointers gives.

    Raises:
        Fault: they are not pointers.
    """
    element = pointers.element if isinstance(pointers, Tensor) else pointers
    if not isinstance(element, Pointer):
        raise Fault(f"an access by {pointers}, which is not a pointer")
    target = element.pointee
    if not isinstance(pointers, Tensor):
        return target
    if not isinstance(target, Scalar | Pointer):
        raise Fault(f"an access by {pointers}")
    return Tensor(pointers.shape, target)


def same(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a, %b : T``: all of one type, the result too."""
    return [types[0]] * len(operands), types


def same_without_result(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a : T``: all of one type, no result."""
    return [types[0]] * len(operands), ()


def first_to_rest(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a, %b : T -> U``: operands of the first type, one result of each further one."""
    return [types[0]] * len(operands), types[1:]


def functional(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a, %b : (T, U) -> V``: one type for each operand, then those of the results."""
    return types[: len(operands)], types[len(operands) :]


def no_results(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a, %b : T, U``: one type for each operand; no results."""
    return types, ()


def result_only(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``: T``: no operands, one result."""
    return (), types


def compare(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a, %b : T``: the result has a truth value for each lane."""
    return [types[0]] * 2, [like(types[0], BOOL)]


def select(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%c, %a, %b : T`` of scalars, or ``: C, T`` if the condition is a tensor."""
    condition = types[0] if len(types) == 2 else BOOL
    return [condition, types[-1], types[-1]], [types[-1]]


def pointer_sum(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%pointer, %offset : P, I``."""
    return types, types[:1]


def split(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a : T -> U``: two results of one type."""
    return types[:1], [types[1]] * 2


def unsplat(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a : T``: the only element of a tensor."""
    if not isinstance(types[0], Tensor):
        raise Fault(f"an element of {types[0]}")
    return types, [types[0].element]


def load(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%pointer, %mask, %other : P``."""
    value = pointee(types[0])
    return [types[0], like(types[0], BOOL), value][: len(operands)], [value]


def store(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%pointer, %value, %mask : P``."""
    return [types[0], pointee(types[0]), like(types[0], BOOL)][: len(operands)], ()


def assertion(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%condition, "message" : T``."""
    return types, ()


def assumption(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%condition : i1``."""
    return types, ()


def condition_first(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``(%condition) %a, %b : T, U``."""
    return [BOOL, *types], ()


def histogram(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%values, %mask : T -> U``."""
    return [types[0], like(types[0], BOOL)][: len(operands)], types[1:]


def dot(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a, %b, %c : A * B -> C``."""
    return types, types[2:]


def dot_scaled(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%a scale %s, %b scale %t, %c : A, S * B, T -> C``; the types come as A, B, S, T, C."""
    a, b, *scales, c = types
    return [a, b, c, *scales], [c]


# Block pointers and descriptors. Shapes, strides and offsets have fixed types that are not printed.


def make_block_pointer(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%base, [shape], [strides], [offsets] : <tensor>``."""
    block = pointee(types[0])
    if not isinstance(block, Tensor):
        raise Fault(f"a block pointer of type {types[0]}")
    rank = len(block.shape)
    extents, offsets = [Scalar("i64")] * (2 * rank), [Scalar("i32")] * rank
    return [Pointer(block.element), *extents, *offsets], types


def advance(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%pointer, [offsets] : <tensor>``."""
    return [types[0], *[Scalar("i32")] * (len(operands) - 1)], types


def make_descriptor(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%base, [shape], [strides] : <element>, <block>``."""
    base, descriptor = types
    if not isinstance(descriptor, Descriptor):
        raise Fault(f"a descriptor of type {descriptor}")
    rank = len(descriptor.block.shape)
    return [base, *[Scalar("i32")] * rank, *[Scalar("i64")] * rank], [descriptor]


def descriptor_load(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%descriptor[offsets] : D -> T``."""
    return [types[0], *[Scalar("i32")] * (len(operands) - 1)], types[1:]


def descriptor_store(types: Sequence[Type], operands: Sequence[Value]) -> Signature:
    """``%descriptor[offsets], %value : D, T``; the value comes second in the generic form."""
    return [*types, *[Scalar("i32")] * (len(operands) - 2)], ()
