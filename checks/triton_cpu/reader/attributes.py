"""Attributes as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from ..ir import Attribute, Scalar, Tensor, Type
from .lexer import Cursor, Fault, Token, unquoted
from .numbers import float_from_bits, float_from_decimal, integer_from, numbers_from_bytes
from .types import starts_type, type_of

#: Words of enumerations, by attribute and the number that MLIR's generic form shows.
WORDS: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "atomic_rmw_op": dict(
            enumerate(("and", "or", "xor", "add", "fadd", "max", "min", "umax", "umin", "exch"), start=1)
        ),
        "sem": dict(enumerate(("relaxed", "acquire", "release", "acq_rel"), start=1)),
        "scope": dict(enumerate(("gpu", "cta", "sys"), start=1)),
        "kind": dict(enumerate(("add", "min", "max", "inc", "dec", "and", "or", "xor"), start=1)),
        "inputPrecision": dict(enumerate(("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"))),
        "rounding": dict(enumerate(("rtz", "rtne"))),
        "propagateNan": {0: "none", 0xFFFF: "all"},
        "padding": dict(enumerate(("zero", "nan"), start=1)),
        "cache": dict(enumerate(("none", "ca", "cg", "wb", "cs", "wt", "cv"), start=1)),
        "evict": dict(enumerate(("evict_normal", "evict_first", "evict_last"), start=1)),
        "a_elem_type": dict(enumerate(("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "bf16", "fp16"))),
        "b_elem_type": dict(enumerate(("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "bf16", "fp16"))),
        "addrSpace": {31: "all"},  # the front end orders all memory
        "predicate": dict(enumerate(("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"))),
    }
)

#: Of ``arith.cmpf``, whose attribute has the name of that of ``arith.cmpi``.
FLOAT_PREDICATES: Mapping[int, str] = MappingProxyType(
    dict(
        enumerate(
            (
                *("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord"),
                *("ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true"),
            )
        )
    )
)

#: Numbers of a dense constant before their type is known.
_Literal: TypeAlias = "Token | list[_Literal]"


def attribute_of(text: Cursor) -> Attribute:
    """Read the value of an attribute.

    Raises:
        Fault: its syntax is not known.
    """
    kind = text.next.kind
    if kind == "string":
        return text.string()
    if kind == "symbol":
        return symbol_of(text)
    if kind == "alias":
        return _dialect_attribute(text)
    if kind in ("integer", "float", "bits"):
        return _typed_number(text)
    if text.at("["):
        return tuple(text.list(lambda: attribute_of(text), "[", "]"))
    return type_of(text) if starts_type(text) else _word(text)


def dictionary_of(text: Cursor, start: str = "{", end: str = "}") -> dict[str, Attribute]:
    """Attributes in braces; a name without a value is true."""
    return dict(text.list(lambda: _entry(text), start, end))


def symbol_of(text: Cursor) -> str:
    """The name of a function."""
    name = text.take("symbol")[1:]
    return unquoted(name) if name.startswith('"') else name


def constant_of(text: Cursor) -> tuple[Attribute, Type]:
    """The value of ``arith.constant`` and its type: a number, or a tuple of numbers if the lanes differ."""
    if text.accept("dense"):
        return _dense(text)
    literal = _token(text)
    if literal.text in ("true", "false") and not text.at(":"):
        return literal.text == "true", Scalar("i1")
    text.expect(":")
    kind = type_of(text)
    return _number(literal, _scalar(kind)), kind


def _entry(text: Cursor) -> tuple[str, Attribute]:
    name = text.string() if text.next.kind == "string" else text.take("word")
    return name, attribute_of(text) if text.accept("=") else True


def _word(text: Cursor) -> Attribute:
    if text.accept("true") or text.accept("unit"):
        return True
    if text.accept("false"):
        return False
    if text.accept("array"):
        return _array(text)
    if text.accept("dense"):
        return _dense(text)[0]
    raise text.fault("as an attribute")


def _array(text: Cursor) -> Attribute:
    text.expect("<")
    kind = _scalar(type_of(text))
    if text.accept(">"):
        return ()
    text.expect(":")
    return tuple(text.list(lambda: _number(_token(text), kind), end=">"))


def _typed_number(text: Cursor) -> Attribute:
    token = _token(text)
    kind: Type = Scalar("i64" if token.kind == "integer" else "f64")
    return _number(token, _scalar(type_of(text) if text.accept(":") else kind))


def _dialect_attribute(text: Cursor) -> Attribute:
    """``#arith.fastmath<none>`` and the like: the words in the brackets, or else the last part of the name."""
    name = text.take("alias")
    if not text.accept("<"):
        return name.rsplit(".", 1)[-1].lstrip("#")
    words = text.list(lambda: _assignment(text), end=">")
    return words[0] if len(words) == 1 else tuple(words)


def _assignment(text: Cursor) -> str:
    word = text.take("word")
    return f"{word}={text.take('word')}" if text.accept("=") else word


# Numbers. Their type comes after them, so they are read first and understood later.


def _token(text: Cursor) -> Token:
    if text.next.kind not in ("integer", "float", "bits", "word", "string"):
        raise text.fault("where a number is due")
    text.position += 1
    return text.tokens[text.position - 1]


def _scalar(kind: Type) -> Scalar:
    if not isinstance(kind, Scalar):
        raise Fault(f"a number of type {kind}")
    return kind


def _number(token: Token, kind: Scalar) -> int | float:
    if token.text in ("true", "false") and kind.name == "i1":
        return token.text == "true"
    floating = "f" in kind.name
    if token.kind == "integer" and not floating:
        return integer_from(int(token.text), kind)
    if token.kind == "bits" and floating:
        return float_from_bits(int(token.text, 16), kind)
    if token.kind == "float" and floating:
        return float_from_decimal(token.text, kind)
    raise Fault(f"the number {token.text!r} of type {kind.name} in line {token.line} of the TTIR")


def _dense(text: Cursor) -> tuple[Attribute, Type]:
    """One number for all lanes, nested lists, or raw bytes."""
    text.expect("<")
    literal = [] if text.at(">") else _literal(text)
    text.expect(">", ":")
    kind = type_of(text)
    if not isinstance(kind, Tensor):
        raise text.fault(f"after a dense constant of type {kind}")
    element = _scalar(kind.element)
    if isinstance(literal, list):
        return _lanes(tuple(_nested(literal, element, kind.shape)), kind), kind
    if literal.kind == "string":
        return _lanes(_raw(literal, element), kind), kind
    return _number(literal, element), kind


def _literal(text: Cursor) -> _Literal:
    return text.list(lambda: _literal(text), "[", "]") if text.at("[") else _token(text)


def _lanes(lanes: tuple[int | float, ...], kind: Tensor) -> Attribute:
    if len(lanes) == 1:
        return lanes[0]
    if len(lanes) != kind.lanes:
        raise Fault(f"a dense constant of {len(lanes)} numbers for {kind.lanes} lanes")
    return lanes


def _raw(token: Token, element: Scalar) -> tuple[int | float, ...]:
    try:
        raw = bytes.fromhex(unquoted(token.text).removeprefix("0x"))
    except ValueError:
        raise Fault(f"the raw bytes {token.text[:40]} in line {token.line} of the TTIR") from None
    return numbers_from_bytes(raw, element)


def _nested(literal: _Literal, element: Scalar, shape: tuple[int, ...]) -> list[int | float]:
    if isinstance(literal, Token):
        if shape:
            raise Fault(f"the number {literal.text!r} where a list is due, in line {literal.line} of the TTIR")
        return [_number(literal, element)]
    if len(literal) != (shape[0] if shape else 1):
        raise Fault(f"a list of {len(literal)} items in a dense constant of shape {shape}")
    return [number for item in literal for number in _nested(item, element, shape[1:])]
