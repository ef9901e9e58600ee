"""Operations with a syntax of their own: structured control flow, branches, constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..ir import Operation, Scalar, Type, Value
from .attributes import constant_of, dictionary_of
from .operations import check_types, complete
from .types import type_of, types_of

if TYPE_CHECKING:
    from .functions import FunctionReader, Names

_BOOL, _INDEX = Scalar("i1"), Scalar("index")


def _constant(reader: FunctionReader, names: Names) -> Operation:
    """``arith.constant {attributes} value : type``."""
    text = reader.text
    hints = dictionary_of(text) if text.at("{") else {}
    value, kind = constant_of(text)
    return reader.finish(
        "arith.constant", names, [kind], attributes=complete("arith.constant", {**hints, "value": value})
    )


def _if(reader: FunctionReader, names: Names) -> Operation:
    """``scf.if %c -> (types) {…} else {…} {attributes}``."""
    text = reader.text
    condition = reader.value()
    check_types("scf.if", [condition], [_BOOL])
    types = types_of(text) if text.accept("->") else ()
    end = _implied_end(types)
    regions = [reader.region(end=end)]
    if text.accept("else"):
        regions.append(reader.region(end=end))
    return reader.finish("scf.if", names, types, [condition], reader.attributes("scf.if"), regions)


def _for(reader: FunctionReader, names: Names) -> Operation:
    """``scf.for %i = %low to %high step %step iter_args(%a = %b) -> (types) : type {…} {attributes}``."""
    text = reader.text
    unsigned = text.accept("unsigned")
    counter = text.take("value")
    text.expect("=")
    bounds = [reader.value()]
    for word in ("to", "step"):
        text.expect(word)
        bounds.append(reader.value())
    carried, initial, types = _carried(reader)
    kind = type_of(text) if text.accept(":") else _INDEX
    check_types("scf.for", [*bounds, *initial], [kind, kind, kind, *types])
    region = reader.region([(counter, kind), *zip(carried, types, strict=True)], _implied_end(types))
    attributes = {**reader.attributes("scf.for"), "unsignedCmp": unsigned}
    return reader.finish("scf.for", names, types, [*bounds, *initial], attributes, [region])


def _carried(reader: FunctionReader) -> tuple[Sequence[str], Sequence[Value], Sequence[Type]]:
    """``iter_args(%a = %b, …) -> (types)``: names within the loop, initial values, types."""
    if not reader.text.accept("iter_args"):
        return (), (), ()
    names, initial = _bindings(reader)
    reader.text.expect("->")
    return names, initial, types_of(reader.text)


def _bindings(reader: FunctionReader) -> tuple[Sequence[str], Sequence[Value]]:
    """``(%a = %b, …)``."""

    def binding() -> tuple[str, Value]:
        name = reader.text.take("value")
        reader.text.expect("=")
        return name, reader.value()

    pairs = reader.text.list(binding, "(", ")")
    return [name for name, _ in pairs], [value for _, value in pairs]


def _while(reader: FunctionReader, names: Names) -> Operation:
    """``scf.while (%a = %b) : (types) -> types {…} do {…} attributes {…}``."""
    text = reader.text
    carried, initial = _bindings(reader) if text.at("(") else ((), ())
    text.expect(":")
    before = text.list(lambda: type_of(text), "(", ")")
    text.expect("->")
    after = types_of(text)
    check_types("scf.while", initial, before)
    condition = reader.region(list(zip(carried, before, strict=True)))
    text.expect("do")
    body = reader.region()
    text.accept("attributes")
    return reader.finish("scf.while", names, after, initial, reader.attributes("scf.while"), [condition, body])


def _implied_end(types: Sequence[Type]) -> Operation | None:
    return None if types else Operation("scf.yield")


def _branch(reader: FunctionReader, names: Names) -> Operation:
    """``cf.br ^block(%a : type)``."""
    return reader.finish("cf.br", names, (), successors=[_successor(reader)])


def _conditional_branch(reader: FunctionReader, names: Names) -> Operation:
    """``cf.cond_br %c, ^then(%a : type), ^else``."""
    condition = reader.value()
    check_types("cf.cond_br", [condition], [_BOOL])
    reader.text.expect(",")
    then = _successor(reader)
    reader.text.expect(",")
    return reader.finish("cf.cond_br", names, (), [condition], successors=[then, _successor(reader)])


def _successor(reader: FunctionReader) -> tuple[str, tuple[Value, ...]]:
    text = reader.text
    label = text.take("label")[1:]
    if not text.accept("("):
        return label, ()
    values = text.list(reader.value)
    text.expect(":")
    check_types(f"a branch to {label}", values, text.list(lambda: type_of(text)))
    text.expect(")")
    return label, tuple(values)


#: Reads each, after its name.
SPECIAL: Mapping[str, Callable[[FunctionReader, Names], Operation]] = MappingProxyType(
    {
        "arith.constant": _constant,
        "scf.if": _if,
        "scf.for": _for,
        "scf.while": _while,
        "cf.br": _branch,
        "cf.cond_br": _conditional_branch,
    }
)
