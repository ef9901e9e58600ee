"""Which copies between the sides wait, by the table of measured rules, and what is said of those that do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..semantics import COPIES, PAGEABLE_STAGING_LIMIT, CopyRule, Direction, HostMemory, Waits, one_transfer
from ..sync.waits import Cause, Certainty, WaitKind
from ..virtual.layouts import intern_layout

#: A call that took longer than this, in nanoseconds, and should not have waited, met a full queue or full staging. It
#: is twice the time for which another thread can keep Python from going on.
LONG_NS = 10_000_000


#: Addresses that are remembered before all are forgotten.
_MAX_ADDRESSES = 1 << 14


class PinnedAddresses:
    """Where pinned memory begins, as far as it was asked before: to ask torch costs more than the rest of a copy.

    Attributes:
        known: such addresses; to be forgotten when memory goes back to the driver.
    """

    def __init__(self) -> None:
        self.known: set[int] = set()

    def holds(self, tensor: Tensor) -> bool:
        """Whether the memory of a host tensor is pinned."""
        address = tensor.data_ptr()
        if address in self.known:
            return True
        if not tensor.is_pinned():
            return False
        if len(self.known) >= _MAX_ADDRESSES:
            self.known.clear()
        self.known.add(address)
        return True


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, be it strided or sparse."""
    return isinstance(value, Tensor)


def bytes_of(tensor: Tensor) -> int:
    """The bytes of a tensor's data, of a sparse one those of its indices and values: it has no ``nbytes``."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes


def upload_cause(name: str, host: Tensor, device: Tensor, noticed: int, took_ns: int) -> Cause | None:
    """Of a copy to the device.

    Torch warns of one that blocks; so one that it did not warn of does not, and waits only for staging memory.

    Args:
        name: of the call.
        host: source.
        device: target.
        noticed: how often torch warned.
        took_ns: how long the host was in the call.
    """
    size = bytes_of(host)
    if noticed:
        return Cause(WaitKind.UPLOAD, name, size)
    if (size <= PAGEABLE_STAGING_LIMIT and took_ns <= LONG_NS) or not _is_strided(host, device):
        return None
    if _rule(Direction.UPLOAD, host, device).waits is not Waits.OVER_BUDGET:
        return None
    certainty = Certainty.WAITED if size > PAGEABLE_STAGING_LIMIT else Certainty.DEPENDS
    return Cause(WaitKind.UPLOAD, name, size, certainty)


def download_cause(name: str, host: Tensor, device: Tensor, noticed: int) -> Cause | None:
    """Of a copy into memory that the host has; torch warns of those that block, and not of those that wait anyway."""
    if noticed:
        return Cause(WaitKind.DOWNLOAD_INTO, name, bytes_of(host))
    if not _is_strided(host, device) or host.nbytes == 0 or (host.is_contiguous() and host.is_pinned()):
        return None
    waits = _rule(Direction.DOWNLOAD, host, device).waits
    return Cause(WaitKind.DOWNLOAD_INTO, name, host.nbytes) if waits is Waits.ALWAYS else None


def _is_strided(*tensors: Tensor) -> bool:
    """Whether the rules of copies, which go by strides, say anything of a copy between these."""
    return all(tensor.layout is torch.strided for tensor in tensors)


def _rule(direction: Direction, host: Tensor, device: Tensor) -> CopyRule:
    """The rule of a copy that does not block."""
    memory = HostMemory.PINNED if host.is_pinned() else HostMemory.PAGEABLE
    layout = intern_layout(host.shape, host.stride(), host.dtype)
    same = host.stride() == device.stride() and host.dtype is device.dtype and host.shape == device.shape
    whole = one_transfer(contiguous=layout.contiguous, dense=layout.dense, same_layout=same)
    return COPIES[direction, memory, whole, True]
