"""Constants of each type from their printed form, exactly."""

from __future__ import annotations

import struct
from fractions import Fraction

from ..ir import Scalar
from .lexer import Fault

#: Bits of the significand after the point, and the exponent of the smallest normal number.
_PRECISION = {"f16": (10, -14), "bf16": (7, -126), "f32": (23, -126), "f64": (52, -1022)}
_WIDTH = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}
_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}


def bytes_of(kind: Scalar) -> int | None:
    """Bytes of a number in a dense constant that is printed as raw bytes; None if that form is not known for it."""
    return _BYTES.get(kind.name)


def integer_from(value: int, kind: Scalar) -> int:
    """A number that its type can hold, signed, as the printer writes it.

    Raises:
        Fault: it cannot.
    """
    width = _WIDTH.get(kind.name)
    if width is None or not -(1 << (width - 1)) <= value < (1 << width):
        raise Fault(f"the constant {value} of type {kind.name}")
    return bool(value) if width == 1 else value


def float_from_decimal(text: str, kind: Scalar) -> float:
    """The number of a type nearest to a decimal one, ties to even: rounded once, not by way of a double.

    Raises:
        Fault: not a floating-point type with known precision, or out of its range.
    """
    if kind.name not in _PRECISION:
        return _small_float(text, kind)
    bits, lowest = _PRECISION[kind.name]
    exact = Fraction(text)
    if exact == 0:
        return float(text)
    exponent = max(_exponent(abs(exact)), lowest)
    unit = Fraction(2) ** (exponent - bits)
    rounded = round(exact / unit) * unit
    if abs(rounded) >= Fraction(2) ** (2 - lowest):
        raise Fault(f"the constant {text}, which {kind.name} cannot hold")
    return float(rounded)


def float_from_bits(bits: int, kind: Scalar) -> float:
    """The number with these bits, which the printer writes for infinities, NaNs and what decimals do not show.

    Raises:
        Fault: they do not fit, or the type is not known here.
    """
    layouts = {"f16": ("<H", "<e"), "f32": ("<I", "<f"), "f64": ("<Q", "<d"), "bf16": ("<I", "<f")}
    if kind.name not in layouts or bits >> (8 * _BYTES[kind.name]):
        raise Fault(f"the constant {bits:#x} of type {kind.name}")
    raw, floating = layouts[kind.name]
    number: float = struct.unpack(floating, struct.pack(raw, bits << 16 if kind.name == "bf16" else bits))[0]
    return number


def numbers_from_bytes(raw: bytes, kind: Scalar) -> tuple[int | float, ...]:
    """Numbers from their bytes, lowest first.

    Raises:
        Fault: not a whole number of them.
    """
    size = bytes_of(kind)
    if size is None or len(raw) % size:
        raise Fault(f"a constant of {len(raw)} bytes of type {kind.name}")
    words = [raw[start : start + size] for start in range(0, len(raw), size)]
    if kind.name in _PRECISION:
        return tuple(float_from_bits(int.from_bytes(word, "little"), kind) for word in words)
    return tuple(int.from_bytes(word, "little", signed=True) for word in words)


def _small_float(text: str, kind: Scalar) -> float:
    """An 8-bit number: few decimals print those exactly, and only zero and powers of two occur in kernels."""
    if not kind.name.startswith("f8"):
        raise Fault(f"the constant {text} of type {kind.name}")
    return float(text)


def _exponent(number: Fraction) -> int:
    """The exponent e with 2^e <= number < 2^(e+1)."""
    guess = number.numerator.bit_length() - number.denominator.bit_length()
    return guess if Fraction(2) ** guess <= number else guess - 1
