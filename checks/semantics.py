"""The rules of CUDA and of torch's allocators, as tables.

They were measured on an H200 (driver 580, torch 2.11): each row says what the host may rely on, not what usually
happens. The virtual device follows them; a run on a GPU checks them against the hardware.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

#: Behind a kernel that does not end, 1,021 further calls return and the 1,022nd waits. Kernels, copies and whole graph
#: replays take an entry; event records and waits do not (5,000 of them passed).
LAUNCH_QUEUE_ENTRIES = 1021

#: The largest upload from pageable memory that returns without waiting when nothing else is staged.
PAGEABLE_STAGING_LIMIT = 2 << 20
#: Staging is one budget for all streams: with so many bytes staged (first number, inclusive), a piece of at most the
#: second number still goes without waiting. Beyond the last row every piece waits.
STAGING_STEPS: tuple[tuple[int, int], ...] = (
    (0, PAGEABLE_STAGING_LIMIT),
    (1 << 20, 1 << 20),
    (62 * (64 << 10), 64 << 10),  # 62 pieces of 64 KiB or 124 of 32 KiB passed
)

#: Streams of ``torch.cuda.Stream()`` come from a pool per priority; one more than this is the first one again.
STREAMS_PER_POOL = 32


class Direction(enum.Enum):
    """Which way a copy goes between host and device."""

    UPLOAD = "host to device"
    DOWNLOAD = "device to host"


class HostMemory(enum.Enum):
    """What the host side of a copy is."""

    PINNED = "pinned"
    PAGEABLE = "pageable"


class HostRead(enum.Enum):
    """When an upload reads its source."""

    LATER = "when the copy runs"
    AT_CALL = "before the call returns"


class Waits(enum.Enum):
    """Whether a call waits for the work on the current stream."""

    NEVER = "never"
    ALWAYS = "always"
    OVER_BUDGET = "when more is staged than fits; a wait that no program may rely on"


@dataclass(frozen=True)
class CopyRule:
    """What one kind of copy does.

    Attributes:
        waits: whether the call waits for the current stream.
        source: when the host side is read (uploads only).
        capturable: whether it may be captured into a graph.
        survives: whether a capture survives the refusal.
    """

    waits: Waits
    source: HostRead = HostRead.LATER
    capturable: bool = True
    survives: bool = True


_STAGED = CopyRule(Waits.OVER_BUDGET, HostRead.AT_CALL, capturable=False)
_BLOCKING_PAGEABLE = CopyRule(Waits.ALWAYS, HostRead.AT_CALL, capturable=False)
_BLOCKING_PINNED = CopyRule(Waits.ALWAYS, capturable=False, survives=False)

#: (direction, host memory, one transfer, non_blocking) -> rule. *One transfer*: the host side needs no gathering, see
#: ``one_transfer``. A gapped pinned source is gathered on the host at the call and then goes the pageable way; a
#: gapped pinned target makes the call wait. Neither warns.
COPIES: dict[tuple[Direction, HostMemory, bool, bool], CopyRule] = {
    (Direction.UPLOAD, HostMemory.PINNED, True, True): CopyRule(Waits.NEVER),
    (Direction.UPLOAD, HostMemory.PINNED, False, True): _STAGED,
    (Direction.UPLOAD, HostMemory.PINNED, True, False): _BLOCKING_PINNED,
    (Direction.UPLOAD, HostMemory.PINNED, False, False): _BLOCKING_PAGEABLE,
    (Direction.UPLOAD, HostMemory.PAGEABLE, True, True): _STAGED,
    (Direction.UPLOAD, HostMemory.PAGEABLE, False, True): _STAGED,
    (Direction.UPLOAD, HostMemory.PAGEABLE, True, False): _BLOCKING_PAGEABLE,
    (Direction.UPLOAD, HostMemory.PAGEABLE, False, False): _BLOCKING_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PINNED, True, True): CopyRule(Waits.NEVER),
    (Direction.DOWNLOAD, HostMemory.PINNED, False, True): _BLOCKING_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PINNED, True, False): _BLOCKING_PINNED,
    (Direction.DOWNLOAD, HostMemory.PINNED, False, False): _BLOCKING_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PAGEABLE, True, True): _BLOCKING_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PAGEABLE, False, True): _BLOCKING_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PAGEABLE, True, False): _BLOCKING_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PAGEABLE, False, False): _BLOCKING_PAGEABLE,
}


def one_transfer(*, contiguous: bool, dense: bool, same_layout: bool) -> bool:
    """Whether the host side of a copy is moved as it lies.

    Args:
        contiguous: the host side is row-major without gaps; then the device side may be anything, of any type.
        dense: the host side has no gaps in some order of its dimensions.
        same_layout: the device side has the same strides and type.
    """
    return contiguous or (dense and same_layout)


def staging_waits(staged: int, size: int) -> bool:
    """Whether an upload of ``size`` bytes waits while ``staged`` bytes are not yet on the device."""
    if staged + size > STAGING_STEPS[-1][0]:
        return True
    return size > next(piece for limit, piece in STAGING_STEPS if staged <= limit)


class CaptureFault(enum.Enum):
    """What a forbidden call does to a capture in progress."""

    SURVIVES = "raises, and the capture goes on"
    LOST = "raises, and the capture is lost"


#: Operators that wait for the device though their output shape is known; found by parking a kernel in front.
WAITING_OPERATORS = frozenset({"aten::histc", "aten::bincount"})
#: Operators that torch tags as depending on data, but which do not wait.
NOT_WAITING_OPERATORS = frozenset({"aten::nonzero_static", "aten::multinomial"})


def isin_waits(elements: int, tests: int) -> bool:
    """Whether ``torch.isin`` waits: it sorts, and so counts unique values, once there are many values to test for."""
    return tests >= int(10.0 * elements**0.145)
