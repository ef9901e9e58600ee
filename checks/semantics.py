"""The rules of CUDA and of torch's allocators, as tables.

They were measured on an H200 (driver 580, torch 2.11): each row says what the host may rely on, not what usually
happens. The virtual device follows them; a run on a GPU checks them against the hardware.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
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


class InCapture(enum.Enum):
    """What a call does to the graph capture that it is made in."""

    CAPTURED = "becomes part of the graph, or does not concern it"
    REFUSED = "raises, and the capture goes on"
    FATAL = "raises, and the capture is lost"


@dataclass(frozen=True)
class CopyRule:
    """What one kind of copy does.

    Attributes:
        waits: whether the call waits for the current stream.
        source: when the host side is read (uploads only).
        in_capture: what it does in a capture.
    """

    waits: Waits
    source: HostRead = HostRead.LATER
    in_capture: InCapture = InCapture.CAPTURED


_STAGED = CopyRule(Waits.OVER_BUDGET, HostRead.AT_CALL, InCapture.REFUSED)
_THROUGH_PAGEABLE = CopyRule(Waits.ALWAYS, HostRead.AT_CALL, InCapture.REFUSED)
_BLOCKING = CopyRule(Waits.ALWAYS, HostRead.LATER, InCapture.FATAL)

#: (direction, host memory, one transfer, non_blocking) -> rule. *One transfer*: the host side needs no gathering, see
#: ``one_transfer``. A gapped pinned source is gathered on the host at the call and then goes the pageable way; a
#: gapped pinned target makes the call wait. Neither warns.
COPIES: dict[tuple[Direction, HostMemory, bool, bool], CopyRule] = {
    (Direction.UPLOAD, HostMemory.PINNED, True, True): CopyRule(Waits.NEVER),
    (Direction.UPLOAD, HostMemory.PINNED, False, True): _STAGED,
    (Direction.UPLOAD, HostMemory.PINNED, True, False): _BLOCKING,
    (Direction.UPLOAD, HostMemory.PINNED, False, False): _THROUGH_PAGEABLE,
    (Direction.UPLOAD, HostMemory.PAGEABLE, True, True): _STAGED,
    (Direction.UPLOAD, HostMemory.PAGEABLE, False, True): _STAGED,
    (Direction.UPLOAD, HostMemory.PAGEABLE, True, False): _THROUGH_PAGEABLE,
    (Direction.UPLOAD, HostMemory.PAGEABLE, False, False): _THROUGH_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PINNED, True, True): CopyRule(Waits.NEVER),
    (Direction.DOWNLOAD, HostMemory.PINNED, False, True): _THROUGH_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PINNED, True, False): _BLOCKING,
    (Direction.DOWNLOAD, HostMemory.PINNED, False, False): _THROUGH_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PAGEABLE, True, True): _THROUGH_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PAGEABLE, False, True): _THROUGH_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PAGEABLE, True, False): _THROUGH_PAGEABLE,
    (Direction.DOWNLOAD, HostMemory.PAGEABLE, False, False): _THROUGH_PAGEABLE,
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


class EventState(enum.Enum):
    """What an event stands for."""

    UNRECORDED = "nothing: it was never recorded"
    RECORDED = "its latest record, at the time of the call"
    CAPTURED = "a record in a capture, which is no moment of any stream"


@dataclass(frozen=True)
class EventRule:
    """What ``query``, ``synchronize`` and ``wait`` do with an event in one state.

    Attributes:
        orders: whether a wait holds anything back, and a query that says True orders what follows.
        raises: what they raise, if they do.
    """

    orders: bool
    raises: str | None = None


#: A wait binds to the latest record when it is *called*: a later record of the same event neither releases nor extends
#: it, and one that comes after a wait for an unrecorded event does not bind that wait. An event that was last recorded
#: in a capture stays unusable, also after replays, until it is recorded again outside.
EVENTS: dict[EventState, EventRule] = {
    EventState.UNRECORDED: EventRule(orders=False),
    EventState.RECORDED: EventRule(orders=True),
    EventState.CAPTURED: EventRule(orders=False, raises="CUDA error: invalid argument"),
}


class CaptureCall(enum.Enum):
    """Calls other than copies that a capture does not take."""

    WAIT = "a call that waits for the device or asks how far it is"
    OUTSIDE_EVENT = "a wait for an event that was recorded outside of the capture"
    HOST_INDEX = "indexing with a host tensor, which is uploaded from pageable memory"
    NEW_SEED = "manual_seed with another seed"
    REPLAY = "a replay of another graph"


#: What they do to the capture.
CAPTURE_CALLS: dict[CaptureCall, InCapture] = {
    CaptureCall.WAIT: InCapture.FATAL,
    CaptureCall.OUTSIDE_EVENT: InCapture.FATAL,
    CaptureCall.HOST_INDEX: InCapture.REFUSED,
    CaptureCall.NEW_SEED: InCapture.REFUSED,
    CaptureCall.REPLAY: InCapture.REFUSED,
}

#: Capture mode -> whether a wait in *another* thread is fatal, too. One for the whole device is fatal in every mode.
CAPTURE_MODES: dict[str, bool] = {"global": True, "thread_local": False, "relaxed": False}

#: Operators that wait for the device though their output shape is known. Found by parking a kernel in front of the
#: samples that torch tests its operators with. Those that read error codes, to raise them, do so of nothing as well.
WAITING_OPERATORS = frozenset({"aten::_linalg_check_errors", "aten::linalg_eig"})
#: Likewise, but not if they are given nothing to work on.
WAITING_ON_DATA = frozenset(
    {"aten::_linalg_eigh", "aten::_linalg_svd", "aten::cholesky", "aten::linalg_ldl_factor_ex",
     "aten::linalg_ldl_solve", "aten::linalg_pinv", "aten::linalg_matrix_exp"}
)  # fmt: skip
#: Likewise, of matrices that are not square: their permutation is made on the host.
WAITING_UNLESS_SQUARE = frozenset({"aten::linalg_lu", "aten::linalg_lu_factor_ex"})


def waits_inside(operator: str, shape: Sequence[int]) -> bool:
    """Whether an operator waits by its nature, given the shape of its first tensor."""
    if operator in WAITING_OPERATORS:
        return True
    if operator in WAITING_ON_DATA:
        return 0 not in shape
    return operator in WAITING_UNLESS_SQUARE and shape[-2] != shape[-1]


#: Operators that answer with a number or a truth that depends on data, which torch does not tag.
UNTAGGED_ANSWERS = frozenset({"aten::_nested_tensor_from_mask_left_aligned"})
#: Operators that read a number out of a 0-dim tensor inside, by their source, and the positions of such arguments.
NUMBER_ARGUMENTS: dict[str, tuple[int, ...]] = {
    "aten::linspace": (0, 1), "aten::logspace": (0, 1), "aten::masked_fill": (2,), "aten::masked_fill_": (2,),
    "aten::index_fill": (3,), "aten::index_fill_": (3,),
}  # fmt: skip
#: Operators that torch tags as depending on data, but which do not wait.
NOT_WAITING_OPERATORS = frozenset({"aten::nonzero_static", "aten::multinomial"})


def isin_waits(elements: int, tests: int) -> bool:
    """Whether ``torch.isin`` waits: it sorts, and so counts unique values, once there are many values to test for."""
    return tests >= int(10.0 * elements**0.145)
