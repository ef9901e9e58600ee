"""Arguments as the 8 bytes each that a compiled kernel takes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from triton.tools.tensor_descriptor import TensorDescriptor

from .errors import Unsupported

#: What ``struct`` calls each type, padded to 8 bytes.
_FORMATS = {
    "u1": "?7x", "i1": "?7x", "i8": "b7x", "i16": "h6x", "i32": "i4x", "i64": "q",
    "u8": "B7x", "u16": "H6x", "u32": "I4x", "u64": "Q", "fp16": "e6x", "bf16": "Q", "fp32": "f4x", "fp64": "d",
}  # fmt: skip
_FLOATS: dict[str, Any] = {"fp16": np.float16, "fp32": np.float32}
_WIDTHS = {f"{sign}{width}": width for sign in "iu" for width in (8, 16, 32)}
#: Whether a descriptor pads with NaN; and, since Triton 3.9, whether it rounds to TF32.
_FLAGS = 2 if "round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__ else 1


class Packer:
    """Packs the arguments of one variant.

    Args:
        kinds: types of what is passed at run time, in Triton's words.

    Raises:
        Unsupported: a type that cannot be passed by value.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._pack = struct.Struct("=" + "".join(map(_format, kinds))).pack
        self._converted = [
            (index, _CONVERTERS[kind[:4]]) for index, kind in enumerate(kinds) if kind[:4] in _CONVERTERS
        ]

    def pack(self, values: Sequence[Any]) -> bytes:
        """Addresses, numbers and tensor descriptors, 8 bytes for each parameter of the compiled function.

        Raises:
            OverflowError: a number is too large for its declared type.
            TypeError: a value is not of its declared type.
        """
        if self._converted:
            return self._pack_converted(values)
        try:
            return self._pack(*values)
        except (struct.error, OverflowError) as error:
            return self._pack_rounded(values, error)

    def _pack_converted(self, values: Sequence[Any]) -> bytes:
        """With values that are not numbers to ``struct``."""
        words: list[Any] = []
        converters = dict(self._converted)
        for index, value in enumerate(values):
            words += converters[index](value) if index in converters else (value,)
        return self._pack(*words)

    def _pack_rounded(self, values: Sequence[Any], error: Exception) -> bytes:
        """Floats beyond the largest become infinite, and integers lose their high bits, as in Triton's own launcher."""
        rounded = [_rounded(value, kind) for value, kind in zip(values, self._kinds, strict=True)]
        try:
            return self._pack(*rounded)
        except struct.error:
            refused = OverflowError if all(isinstance(value, int | float) for value in values) else TypeError
            raise refused(f"arguments of types {self._kinds}: {error}") from error


def _format(kind: str) -> str:
    if kind.startswith("*"):
        return "Q"
    if kind.startswith("tensordesc"):
        rank = _rank(kind)
        return "Q" + "q" * 2 * rank + "?7x" * _FLAGS + "i4x" * rank + "q" * rank
    if kind not in _FORMATS:
        raise Unsupported(f"an argument of type {kind}, passed by value,")
    return _FORMATS[kind]


def _rank(kind: str) -> int:
    """Of a type such as ``tensordesc<fp32[16, 32]>``."""
    shape = re.search(r"\[([\d, ]+)\]", kind)
    if shape is None:
        raise Unsupported(f"an argument of type {kind}")
    return shape[1].count(",") + 1


def _rounded(value: Any, kind: str) -> Any:
    """As C converts it; integers from 64 bits, so that -1 is refused for an unsigned type, as by Triton 3.9."""
    if kind in _WIDTHS and isinstance(value, int):
        return _wrapped(value, kind)
    if kind not in _FLOATS or not isinstance(value, int | float):
        return value
    with np.errstate(over="ignore"):
        return float(_FLOATS[kind](value))


def _wrapped(value: int, kind: str) -> int:
    width, signed = _WIDTHS[kind], kind[0] == "i"
    if not (-1 << 63 <= value < 1 << 63 if signed else 0 <= value < 1 << 64):
        return value
    low = value & (1 << width) - 1
    return low - (1 << width) if signed and low >> (width - 1) else low


def _bfloat16(value: Any) -> tuple[int]:
    """The upper half of a float32, rounded to nearest, ties to even."""
    with np.errstate(over="ignore"):
        bits = int(np.float32(value).view(np.uint32))
    if value != value:
        return (0x7FC0,)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF,)


def _descriptor(value: Any) -> tuple[int, ...]:
    """What Triton makes of it: base, shape, strides, flags; then shape and strides once more."""
    shape, strides = list(map(int, value.shape)), list(map(int, value.strides))
    flags = [value.padding == "nan", getattr(value, "round_f32_to_tf32", False)][:_FLAGS]
    return (value.base.data_ptr(), *shape, *strides, *flags, *shape, *strides)


#: By the first letters of a type.
_CONVERTERS: dict[str, Callable[[Any], tuple[int, ...]]] = {"bf16": _bfloat16, "tens": _descriptor}
