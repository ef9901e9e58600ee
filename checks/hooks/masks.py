"""Masks that were computed from the memory that they are then used on: ``alias[alias > 0]``.

Which elements such a mask selects depends on values that the device may not have written yet, so it differs from
schedule to schedule, while findings must not. What is read through it is therefore told as *some* of the array, as it
is for the device's own operators that index; the comparison that made the mask has been told as a read of all of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..events import ByteRange
from .byte_ranges import Array, array_ranges

#: By id of a mask: the mask, and the bytes that each array it was computed from spans.
_masks: dict[int, tuple[weakref.ref[Any], list[ByteRange]]] = {}


def computed(result: Any, sources: Iterable[Array]) -> None:
    """Values were computed from tracked memory; remembered if they can be a mask, for as long as they live."""
    if isinstance(result, np.ndarray) and result.dtype == np.bool_:
        spans = [span for source in sources if (span := _span(source)) is not None]
        identity = id(result)
        if spans:
            _masks[identity] = weakref.ref(result, lambda _: _masks.pop(identity, None)), spans


def follows_from(key: Any, array: Array) -> bool:
    """Whether an index is a mask that was computed from memory of this very array."""
    reference, spans = _masks.get(id(key), (None, ()))
    span = _span(array)
    if reference is None or reference() is not key or span is None:
        return False
    return any(low <= span[0] and span[1] <= high for low, high in spans)


def _span(array: Array) -> ByteRange | None:
    ranges = array_ranges(array)
    return (ranges[0][0], ranges[-1][1]) if ranges else None
