"""C that all kernels share: ``grid.c`` runs them, they call ``access.c``, ``conflicts.c`` looks at their records."""

from __future__ import annotations

import ctypes
import functools
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..events import ByteRange
from .build import shared_object


class Support:
    """Runs kernels; merges and sweeps their records.

    Records and kinds are the bytes of the C arrays, so nothing is converted: a ``Record`` each, and one byte for each
    site that says what it does to memory.

    Attributes:
        run_grid: runs a grid; takes the addresses of C's ``Kernel`` and ``Launch``, the arguments, three extents, and
            the address of the order or None.
        release: gives back what a launch allocated; takes the address of its structure.
    """

    def __init__(self) -> None:
        text = '#include "access.c"\n#include "grid.c"\n#include "conflicts.c"\n'
        library, _ = shared_object("what all kernels share", "support", lambda: (text, {}))
        self._merged = _function(library.merged, ctypes.c_int32, ctypes.c_void_p)
        self._disputed = _function(library.disputed, ctypes.c_void_p)
        self._touching = library.touching
        self._touching.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        self._touching.restype = ctypes.c_int64
        self.run_grid: Any = library.run_grid
        self.run_grid.argtypes = (*(ctypes.c_void_p,) * 2, ctypes.c_char_p, *(ctypes.c_int32,) * 3, ctypes.c_void_p)
        self.release: Any = library.release
        self.release.argtypes = (ctypes.c_void_p,)
        self.release.restype = None

    def merged(self, records: bytes, count: int, kinds: bytes, wanted: int) -> list[ByteRange]:
        """Sorted, disjoint byte ranges of records whose kind is in the bit set ``wanted``."""
        ranges = array("Q", bytes(16 * count))  # numpy's address of an array takes longer than the call
        found = 2 * _counted(self._merged(records, count, kinds, wanted, ranges.buffer_info()[0]))
        return [*zip(ranges[:found:2], ranges[1:found:2], strict=True)]

    def disputed(self, records: bytes, count: int, kinds: bytes) -> NDArray[np.uint64] | None:
        """Sorted, disjoint byte ranges, one a row, that programs touch without being allowed to: all, and no others.

        Nearly always there are none; then the answer is None, and no array is made.
        """
        if not _counted(self._disputed(records, count, kinds, None)):
            return None
        ranges = np.empty((count, 2), np.uint64)
        return ranges[: _counted(self._disputed(records, count, kinds, ranges.ctypes.data))]

    def touching(self, records: bytes, count: int, ranges: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Which records touch one of the ranges: their numbers, ascending."""
        numbers = np.empty(count, np.int64)
        ranges = np.ascontiguousarray(ranges)
        found = self._touching(records, count, ranges.ctypes.data, len(ranges), numbers.ctypes.data)
        return numbers[:found]


@functools.cache
def support() -> Support:
    """The functions of this process."""
    return Support()


def _function(function: Any, *rest: Any) -> Any:
    function.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p, *rest)
    function.restype = ctypes.c_int64
    return function


def _counted(count: int) -> int:
    if count < 0:
        raise MemoryError("no memory left to look at the accesses of a launch")
    return count
