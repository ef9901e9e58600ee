"""What the race recorder asks of torch about the real device, in one place.

A test that has no device gives the recorder another backend: everything else of the front end is the same.
"""

from __future__ import annotations

import bisect
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import CheckError


class Backend(Protocol):
    """Where tensors lie, and which stream is current."""

    def current_stream(self) -> int:
        """The address of the calling thread's current stream; 0 is the default one."""
        ...

    def memory_of(self, tensor: Tensor) -> tuple[Any, int, int]:
        """What dies with the last user of a tensor's memory, and the memory's first address and size in bytes."""
        ...

    def base_of(self, tensor: Tensor) -> int:
        """The first address of a tensor's memory."""
        ...

    def stream_of_memory(self, address: int) -> int | None:
        """The stream that owns device memory which was there before the recorder saw it; None if nobody can tell."""
        ...

    def is_on_device(self, tensor: Tensor) -> bool:
        """Whether it is a tensor of the device."""
        ...

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether it is a host tensor in memory that the device can read in place."""
        ...

    def sleep(self, cycles: int) -> None:
        """Park the current stream for so many clock cycles of the device."""
        ...

    def synchronize(self) -> None:
        """Wait for the device; no doing of the program's."""
        ...


class Cuda:
    """One real device.

    Args:
        index: of the device.
    """

    #: Asked for each tensor of each operator: no call of Python.
    is_on_device = staticmethod(attrgetter("is_cuda"))

    def __init__(self, index: int) -> None:
        self._index = index
        self._segments: list[tuple[int, int, int]] = []

    def current_stream(self) -> int:
        """See :class:`Backend`."""
        return torch._C._cuda_getCurrentRawStream(self._index)

    def memory_of(self, tensor: Tensor) -> tuple[Any, int, int]:
        """See :class:`Backend`; the storage, which all views share.

        Raises:
            CheckError: it is on another device than the one that is recorded.
        """
        if tensor.get_device() not in (self._index, -1):
            raise CheckError(
                f"tensor on cuda:{tensor.get_device()}",
                f"all tensors of a recorded program are on cuda:{self._index}",
                "streams of two devices would be taken for each other, and races made up",
                "a program on one device, with that device current when the recorder is opened",
            )
        storage = tensor.untyped_storage()
        return storage, storage.data_ptr(), storage.nbytes()

    def base_of(self, tensor: Tensor) -> int:
        """See :class:`Backend`."""
        return tensor.untyped_storage().data_ptr()

    def stream_of_memory(self, address: int) -> int | None:
        """See :class:`Backend`; the caching allocator knows, each of whose segments belongs to one stream."""
        found = self._segment(address)
        if found is None:
            snapshot: Any = torch.cuda.memory_snapshot()
            here = [segment for segment in snapshot if segment["device"] == self._index]
            self._segments = sorted((item["address"], item["total_size"], item["stream"]) for item in here)
            found = self._segment(address)
        return found

    def _segment(self, address: int) -> int | None:
        index = bisect.bisect_right(self._segments, (address, 1 << 63, 0)) - 1
        if index >= 0:
            base, size, stream = self._segments[index]
            if address < base + size:
                return stream
        return None

    def is_pinned(self, tensor: Tensor) -> bool:
        """See :class:`Backend`."""
        return tensor.layout is torch.strided and not tensor.is_cuda and tensor.is_pinned()

    def sleep(self, cycles: int) -> None:
        """See :class:`Backend`."""
        torch.cuda._sleep(cycles)

    def synchronize(self) -> None:
        """See :class:`Backend`."""
        torch._C._cuda_synchronize()
