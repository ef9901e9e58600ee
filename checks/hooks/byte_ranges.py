"""Which bytes an array touches, or a selection of its elements."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..events import ByteRange

Addresses: TypeAlias = NDArray[np.int64]
Array: TypeAlias = NDArray[Any]


def array_ranges(array: Array) -> list[ByteRange]:
    """Sorted, disjoint byte ranges of an array, exact for any strides."""
    if array.size == 0:
        return []
    address = array.ctypes.data
    if array.flags.c_contiguous:
        return [(address, address + array.nbytes)]
    steps = []
    for size, stride in zip(array.shape, array.strides, strict=True):
        address += min(0, stride * (size - 1))
        if size > 1 and stride != 0:
            steps.append((abs(stride), size))
    steps.sort()
    run = array.itemsize
    while steps and steps[0][0] <= run:
        stride, size = steps.pop(0)
        run += stride * (size - 1)
    starts = np.array([address], dtype=np.int64)
    for stride, size in steps:
        starts = (starts[:, None] + stride * np.arange(size, dtype=np.int64)).ravel()
    return _pairs(*merged_lanes(starts, run))


def element_addresses(array: Array, dimensions: int | None = None) -> Addresses:
    """The address of each element, in the shape of the array; or of each piece along its first dimensions."""
    shape = array.shape[:dimensions]
    addresses = np.full(shape, array.ctypes.data, dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(shape, array.strides, strict=False)):
        addresses += (stride * np.arange(size, dtype=np.int64)).reshape([-1] + [1] * (len(shape) - axis - 1))
    return addresses


def lane_ranges(addresses: Addresses, size: int) -> list[ByteRange]:
    """Sorted, disjoint byte ranges of elements of equal size at these addresses."""
    return _pairs(*merged_lanes(np.ravel(addresses), size)) if addresses.size else []


def selected_ranges(array: Array, key: Any) -> list[ByteRange]:
    """Sorted, disjoint byte ranges of ``array[key]`` for a key with index or boolean arrays."""
    if array.size == 0:
        return []
    pieces = key if isinstance(key, tuple) else np.asarray(key)
    # One array selects whole pieces along the first dimensions; several may select along any.
    dimensions = array.ndim if isinstance(pieces, tuple) else (pieces.ndim if pieces.dtype == bool else 1)
    chosen = np.ravel(element_addresses(array, dimensions)[pieces])
    if dimensions == array.ndim:
        return lane_ranges(chosen, array.itemsize)
    piece = array[(0,) * dimensions]
    offsets = [(low - piece.ctypes.data, high - low) for low, high in array_ranges(piece)]
    found = [lane_ranges(chosen + offset, size) for offset, size in offsets]
    return merged_ranges(sorted(pair for pairs in found for pair in pairs))


def merged_ranges(ranges: list[ByteRange]) -> list[ByteRange]:
    """Sorted ranges, with those that touch or overlap made one."""
    merged: list[ByteRange] = []
    for low, high in ranges:
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def merged_intervals(lows: Addresses, highs: Addresses) -> tuple[Addresses, Addresses]:
    """Intervals, sorted, with those that touch or overlap made one."""
    order = np.argsort(lows, kind="stable")
    lows, highs = lows[order], np.maximum.accumulate(highs[order])
    first = np.flatnonzero(np.concatenate(([True], lows[1:] > highs[:-1])))
    last = np.concatenate((first[1:], [len(lows)])) - 1
    return lows[first], highs[last]


def merged_lanes(lanes: Addresses, size: int) -> tuple[Addresses, Addresses]:
    """Byte ranges of lanes of equal size."""
    if len(lanes) > 1 and not (lanes[1:] >= lanes[:-1]).all():
        lanes = np.sort(lanes)
    first = np.flatnonzero(np.concatenate(([True], lanes[1:] > lanes[:-1] + size)))
    last = np.concatenate((first[1:], [len(lanes)])) - 1
    return lanes[first], lanes[last] + size


def _pairs(lows: Addresses, highs: Addresses) -> list[ByteRange]:
    return list(zip(lows.tolist(), highs.tolist(), strict=True))
