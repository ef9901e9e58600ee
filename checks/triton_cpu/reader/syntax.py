"""The custom syntax of an operation, described by a line of text.

A description is a sequence of words, each of which reads something:

| word | reads |
|---|---|
| ``%`` | an operand |
| ``%?`` | a comma and an operand, if a comma comes next |
| ``%*`` | operands with commas between, maybe none |
| ``[%*]`` | the same in brackets |
| ``@name`` | the attribute of this name, as a bare word, a string or a symbol |
| ``key=@name?`` | ``key = word``, if it comes next; its attribute |
| ``,key=@name?`` | the same after a comma |
| ``key<@name>?`` | ``key<words>``, if it comes next |
| ``key!`` | the word, if it comes next: the attribute of this name is true |
| ``{}`` | attributes in braces, if they come next |
| ``T``, ``T*``, ``(T*)``, ``->T*`` | a type; several; several in parentheses; results: one, or several in parentheses |
| ``:%*?``, ``:T*?`` | a colon and operands or types, if a colon comes next |
| ``{scaled}``, ``{scaled-types}`` | operands and types of ``tt.dot_scaled``: ``%a scale %s, %b scale %t, %c`` |
| ``<ptr>``, ``<desc>`` | a pointer or descriptor type without its name |
| anything else | itself |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..ir import Attribute, Type, Value
from .attributes import attribute_of, dictionary_of, symbol_of
from .lexer import Cursor
from .types import descriptor_body, pointer_body, type_of, types_of


@dataclass(slots=True)
class Parts:
    """What was read of an operation.

    Attributes:
        lookup: finds a value by its printed name.
        types: in the order of the text.
    """

    lookup: Callable[[str], Value]
    operands: list[Value] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)
    attributes: dict[str, Attribute] = field(default_factory=dict)


Step: TypeAlias = Callable[[Cursor, Parts], None]


def steps_of(description: str) -> tuple[Step, ...]:
    """What reads the syntax that a description describes."""
    return tuple(_step(word) for word in description.split())


def _step(word: str) -> Step:
    if word in _FIXED:
        return _FIXED[word]
    if word.startswith("@"):
        return _bare(word[1:])
    if word.endswith("!"):
        return _flag(word[:-1])
    if "=@" in word:
        key, name = word.rstrip("?").split("=@")
        return _keyed(key.lstrip(","), name, comma=key.startswith(","))
    if "<@" in word:
        key, name = word.rstrip(">?").split("<@")
        return _bracketed(key, name)
    return lambda text, parts: text.expect(word)


# Operands


def _operand(text: Cursor, parts: Parts) -> None:
    parts.operands.append(parts.lookup(text.take("value")))


def _optional_operand(text: Cursor, parts: Parts) -> None:
    if text.accept(","):
        _operand(text, parts)


def _operands(text: Cursor, parts: Parts) -> None:
    if text.next.kind == "value":
        text.list(lambda: _operand(text, parts))


def _operands_after_colon(text: Cursor, parts: Parts) -> None:
    if text.accept(":"):
        _operands(text, parts)


def _scaled_operands(text: Cursor, parts: Parts) -> None:
    scales, sizes = Parts(parts.lookup), []
    for _ in "ab":
        _operand(text, parts)
        sizes.append(int(text.accept("scale")))
        if sizes[-1]:
            _operand(text, scales)
        text.expect(",")
    _operand(text, parts)
    parts.operands += scales.operands
    parts.attributes["operandSegmentSizes"] = (1, 1, 1, *sizes)


def _bracketed_operands(text: Cursor, parts: Parts) -> None:
    text.list(lambda: _operand(text, parts), "[", "]")


# Types


def _type(text: Cursor, parts: Parts) -> None:
    parts.types.append(type_of(text))


def _types(text: Cursor, parts: Parts) -> None:
    text.list(lambda: _type(text, parts))


def _types_after_colon(text: Cursor, parts: Parts) -> None:
    if text.accept(":"):
        _types(text, parts)


def _scaled_types(text: Cursor, parts: Parts) -> None:
    first = text.list(lambda: type_of(text))
    text.expect("*")
    second = text.list(lambda: type_of(text))
    parts.types += [first[0], second[0], *first[1:], *second[1:]]


def _types_in_parentheses(text: Cursor, parts: Parts) -> None:
    text.list(lambda: _type(text, parts), "(", ")")


def _result_types(text: Cursor, parts: Parts) -> None:
    text.expect("->")
    parts.types.extend(types_of(text))


def _pointer(text: Cursor, parts: Parts) -> None:
    parts.types.append(pointer_body(text))


def _descriptor(text: Cursor, parts: Parts) -> None:
    parts.types.append(descriptor_body(text))


# Attributes


def _dictionary(text: Cursor, parts: Parts) -> None:
    if text.at("{"):
        parts.attributes.update(dictionary_of(text))


def word_of(text: Cursor) -> Attribute:
    """An attribute printed bare: a word of an enumeration, a string, or the name of a function."""
    kind = text.next.kind
    if kind == "string":
        return text.string()
    if kind == "symbol":
        return symbol_of(text)
    return text.take("word") if kind == "word" else attribute_of(text)


def _bare(name: str) -> Step:
    def read(text: Cursor, parts: Parts) -> None:
        parts.attributes[name] = word_of(text)

    return read


def _flag(name: str) -> Step:
    def read(text: Cursor, parts: Parts) -> None:
        if text.accept(name):
            parts.attributes[name] = True

    return read


def _keyed(key: str, name: str, *, comma: bool) -> Step:
    def read(text: Cursor, parts: Parts) -> None:
        if comma and not text.at(","):
            return
        text.position += comma
        if comma or text.at(key):
            text.expect(key, "=")
            parts.attributes[name] = word_of(text)

    return read


def _bracketed(key: str, name: str) -> Step:
    def read(text: Cursor, parts: Parts) -> None:
        if text.accept(key):
            words = text.list(lambda: text.take("word"), "<", ">")
            parts.attributes[name] = words[0] if len(words) == 1 else tuple(words)

    return read


_FIXED: Mapping[str, Step] = {
    "%": _operand,
    "%?": _optional_operand,
    "%*": _operands,
    "[%*]": _bracketed_operands,
    "T": _type,
    "T*": _types,
    "(T*)": _types_in_parentheses,
    "->T*": _result_types,
    "<ptr>": _pointer,
    "<desc>": _descriptor,
    ":%*?": _operands_after_colon,
    ":T*?": _types_after_colon,
    "{scaled}": _scaled_operands,
    "{scaled-types}": _scaled_types,
    "{}": _dictionary,
}
