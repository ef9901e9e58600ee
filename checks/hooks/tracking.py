"""The base of tracked arrays: whom they tell, and how to find and to strip them."""

from __future__ import annotations

import contextlib
import numbers
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..events import ByteRange
from .assignments import born, taken_over, used
from .byte_ranges import array_ranges
from .runtime import HostRuntime


class _Quiet(threading.local):
    depth = 0


_quiet = _Quiet()


@contextlib.contextmanager
def untold() -> Iterator[None]:
    """Nothing that the calling thread does with tracked arrays is told: numpy only looks at them."""
    _quiet.depth += 1
    try:
        yield
    finally:
        _quiet.depth -= 1


class Tracked(np.ndarray[Any, np.dtype[Any]]):
    """An array that tells a device of accesses to its memory; views of it do so too."""

    _runtime: HostRuntime | None = None

    def __array_finalize__(self, source: Any) -> None:
        self._runtime = getattr(source, "_runtime", None)
        born(self)

    def __del__(self) -> None:
        if taken_over(self):
            self.tell_all("numpy subscript")

    def tell(self, ranges: Sequence[ByteRange], name: str, *, write: bool, certain: bool = True) -> None:
        """Tell an access that is about to happen; one that is not certain touches some of the bytes."""
        used(self)
        runtime = self._runtime
        if runtime is not None and runtime.active and ranges and not _quiet.depth:
            runtime.host_access(ranges, write=write, name=name, certain=certain)

    def tell_all(self, name: str, *, write: bool = False) -> None:
        """Tell an access to the whole array."""
        self.tell(array_ranges(plain(self)), name, write=write)

    def again(self, array: Any) -> Any:
        """An array as a tracked one if it lies in the memory of this one, else as it is."""
        if not isinstance(array, np.ndarray) or not np.may_share_memory(array, plain(self)):
            return array
        tracked = array.view(type(self))
        tracked._runtime = self._runtime
        return tracked


def plain(value: Any) -> Any:
    """A value without tracked arrays: the same memory as a plain array; lists, tuples and dictionaries are searched."""
    if isinstance(value, Tracked):
        return np.ndarray.view(value, np.ndarray)
    if isinstance(value, (list, tuple)) and _may_hold_arrays(value):
        items = [plain(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def untensored(value: Any) -> Any:
    """A host tensor as the array over its memory, tracked if that is; anything else as it is."""
    return value.numpy() if hasattr(value, "data_ptr") else value


def tracked_in(value: Any) -> Iterator[Tracked]:
    """The tracked arrays in an argument."""
    if isinstance(value, Tracked):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value if _may_hold_arrays(value) else ():
            yield from tracked_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tracked_in(item)


def _may_hold_arrays(value: Sequence[Any]) -> bool:
    """Whether it is worth looking into a sequence: lists of numbers are long, and begin with a number."""
    return len(value) > 0 and (len(value) < 16 or not isinstance(value[0], numbers.Number))
