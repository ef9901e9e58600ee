"""What operators give: arithmetic and comparisons of tensors, arrays, numbers and texts."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .values import (
    ARRAY,
    NONE,
    NUMBER,
    TEXT,
    UNKNOWN,
    Device,
    Host,
    Items,
    Place,
    Sure,
    Tensor,
    Value,
    constant,
    elements,
    join,
    on_device,
    tensors,
    value,
)


def computed(operands: Iterable[Value]) -> Value | None:
    """What an operator gives: a tensor where its operands are; ``None`` if none of them is a tensor.

    A device tensor wins: torch refuses to mix sides but for numbers, so the other ones are scalars.
    """
    given = list(operands)
    found = [tensor for of in given for tensor in tensors(of)]
    if not found:
        return None
    ways = {(tensor.place, tensor.sure) for tensor in found}
    device = [sure for place, sure in ways if place is Place.DEVICE]
    if device:
        clean = any(on_device(of) is not None and on_device(of) is not Sure.POSSIBLE for of in given)
        places = frozenset({Tensor(Place.DEVICE, max(device) if clean else Sure.POSSIBLE)})
        host = {Tensor(Place.PAGEABLE, sure) for place, sure in ways if place in {Place.PINNED, Place.PAGEABLE}}
        return places if clean else places | host
    if any(place is Place.UNKNOWN for place, _ in ways):
        return value(Tensor(Place.UNKNOWN, Sure.POSSIBLE))
    return value(Tensor(Place.PAGEABLE, min(sure for _, sure in ways)))


def of_numbers(left: Value, right: Value) -> Value:
    """A number too, if neither side must be a tensor."""
    plain = all(any(isinstance(atom, Host | Items) for atom in of) for of in (left, right))
    return NUMBER if plain else UNKNOWN


def of_host(left: Value, right: Value) -> Value:
    """Arithmetic without a tensor."""
    for of in (left, right):
        if any(isinstance(atom, Items) for atom in of):
            return frozenset(Items(join(elements(left), elements(right))) for _ in (0,))
    if frozenset(Host(atom.kind) for atom in left | right if isinstance(atom, Host)) >= ARRAY:
        return ARRAY
    for of in (left, right):
        if any(isinstance(atom, Host) and atom.kind == "text" for atom in of):
            return TEXT
    if left and right and left | right <= NUMBER | {Host("number", True), Host("number", False)}:
        return NUMBER
    return UNKNOWN


def identity(operator: ast.cmpop, left: Value, right: Value) -> Value:
    """``x is None``, where that is known."""
    if right == NONE and left:
        wanted = isinstance(operator, ast.Is)
        if left == NONE:
            return constant(wanted)
    return NUMBER


def equality(wanted: bool, left: Value, right: Value) -> Value:
    """Texts that are known are compared: ``device.type == "cpu"``."""
    known = [{atom.constant if isinstance(atom, Host) else None for atom in _as_text(of)} for of in (left, right)]
    if any(len(texts) != 1 or not isinstance(next(iter(texts)), str) for texts in known):
        return ARRAY if any(getattr(atom, "kind", "") == "array" for atom in left | right) else NUMBER
    return constant((known[0] == known[1]) is wanted)


def _as_text(of: Value) -> Value:
    return frozenset(
        Host("text", "cpu" if atom.place is Place.PAGEABLE else "cuda") if isinstance(atom, Device) else atom
        for atom in of
    )
