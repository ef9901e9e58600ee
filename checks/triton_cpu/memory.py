"""The memory that the arguments of a launch point into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from ..events import ByteRange
from .launcher import ANYWHERE, pack_blocks

#: What most arguments are; asked for first, so that a launch costs little.
_TENSORS: frozenset[Any] = frozenset((torch.Tensor, torch.nn.Parameter))
_NUMBERS: frozenset[Any] = frozenset((int, float, bool, type(None), str))


@dataclass(frozen=True)
class Argument:
    """The memory that a tensor argument points into: its whole storage."""

    name: str
    low: int
    high: int


class Memory:
    """The storages of the tensors among some arguments; a kernel may touch all of each.

    Args:
        names: of the parameters.
        values: of the parameters.

    Attributes:
        blocks: half-open ranges of addresses; None if the size of one cannot be told.
    """

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._named = (names, values)
        self.blocks: list[tuple[int, int]] | None = []
        for value in values:
            if value.__class__ in _NUMBERS:
                continue
            for pointer in (value,) if value.__class__ in _TENSORS else pointers(value):
                storage = storage_of(pointer)
                if storage is None:
                    self.blocks = None
                    return
                low = storage.data_ptr()
                self.blocks.append((low, low + storage.nbytes()))

    def packed(self) -> bytes:
        """The blocks as a launch takes them."""
        return ANYWHERE if self.blocks is None else pack_blocks(self.blocks)

    def merged(self) -> list[ByteRange] | None:
        """The blocks sorted, overlapping ones made one."""
        if self.blocks is None:
            return None
        return [(low, high) for low, high in np.frombuffer(self.packed(), np.uint64).reshape(-1, 2).tolist()]

    def arguments(self) -> list[Argument]:
        """The blocks by the names of the parameters."""
        found = []
        for name, value in zip(*self._named, strict=True):
            for pointer in pointers(value):
                storage = storage_of(pointer)
                if storage is not None:
                    found.append(Argument(name, storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        return found


def pointers(value: Any) -> Iterator[Any]:
    """The tensors in an argument, or what Triton takes for one."""
    if hasattr(value, "data_ptr"):
        yield value
    elif isinstance(value, TensorDescriptor):
        yield value.base
    elif isinstance(value, tuple):
        for element in value:
            yield from pointers(element)


def storage_of(pointer: Any) -> Any:
    """The storage behind what has an address; None if that is not known."""
    while isinstance(pointer, TensorWrapper):
        pointer = pointer.base
    return pointer.untyped_storage() if isinstance(pointer, torch.Tensor) else None


def on_cpu(args: Sequence[Any]) -> bool:
    """Whether none of these is a tensor elsewhere."""
    for value in args:
        if value.__class__ in _TENSORS:
            if not value.is_cpu:
                return False
        elif value.__class__ not in _NUMBERS and any(
            getattr(pointer, "device", _CPU).type != "cpu" for pointer in pointers(value)
        ):
            return False
    return True


def _is_on_cpu(pointer: Any) -> bool:
    return bool(getattr(pointer, "device", _CPU).type == "cpu")


_CPU = torch.device("cpu")
