"""The vocabulary between those who observe a program and those who judge it.

A frontend (the virtual device, or hooks on real CUDA) tells an :class:`EventSink` what happened; it never judges.
The happens-before core, a trace file, or both at once are sinks; none of them knows which frontend speaks. All
synchronisation is reduced to two verbs, *release* and *acquire*, on *lanes*.

A lane is anything whose operations happen one after another: a host thread, a stream, one branch of a graph replay.
An operation is ordered after the earlier ones of its lane, and after everything that its lane has acquired.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from .findings import Finding, Site

#: Innermost frame first: (file, line, function). Plain tuples, since one is taken for every operation.
Stack: TypeAlias = tuple[tuple[str, int, str], ...]
#: Half-open byte range [low, high) of addresses.
ByteRange: TypeAlias = tuple[int, int]


class LaneKind(enum.Enum):
    """What a lane is."""

    HOST = "host thread"
    STREAM = "stream"
    GRAPH = "graph branch"


class OperationKind(enum.Enum):
    """What an operation does; the rules name a race by the kinds of its two sides."""

    KERNEL = "kernel"
    COPY_TO_DEVICE = "host-to-device copy"
    COPY_TO_HOST = "device-to-host copy"
    COPY_ON_DEVICE = "device-to-device copy"
    HOST_ACCESS = "host access"
    FREE = "free"
    MARKER = "marker"


class Space(enum.Enum):
    """Where a block of memory lives."""

    DEVICE = "device memory"
    PINNED = "pinned host memory"


class SyncKind(enum.Enum):
    """A synchronisation that the program asked for, or that an operation implies."""

    WAIT_EVENT = "stream waits for event"
    EVENT_SYNCHRONIZE = "host waits for event"
    EVENT_QUERY = "host polls event"
    STREAM_SYNCHRONIZE = "host waits for stream"
    STREAM_QUERY = "host polls stream"
    DEVICE_SYNCHRONIZE = "host waits for device"
    IMPLICIT = "operation waits for stream"
    THREAD = "thread hand-over"


_MADE_AT = " (made at "


def made_at(name: str, place: str) -> str:
    """The name of a lane with the place where the program made it, e.g. ``"stream 1 (made at engine.py:12)"``."""
    return f"{name}{_MADE_AT}{place})" if place else name


def plain_name(lane: str) -> str:
    """The name of a lane without the place where it was made, e.g. ``"stream 1"``."""
    return lane.partition(_MADE_AT)[0]


class KernelRanges(list[ByteRange]):
    """The bytes that one launch of a kernel reads, or those that it writes, and which of its lines did.

    Sinks that do not ask for lines take it for the list that it is.

    Args:
        ranges: sorted, disjoint.
        lines: the lines of the kernel that so touched bytes within [low, high); none if that is no longer known.
    """

    __slots__ = ("lines",)

    def __init__(self, ranges: Iterable[ByteRange], lines: Callable[[int, int], Sequence[Site]]) -> None:
        super().__init__(ranges)
        self.lines = lines


class EventSink(Protocol):
    """Takes the events of one run, in an order that respects each lane's own order.

    Numbers returned are identities within the run. Every method is called with the frontend's lock held, so a sink
    needs none of its own, and each must cost O(1) in the number of pending operations.
    """

    def lane(self, kind: LaneKind, name: str) -> int:
        """A new lane that has acquired nothing."""
        ...

    def end_lane(self, lane: int) -> None:
        """No operation will follow on this lane (a thread ended, a replay's branch was joined)."""
        ...

    def operation(
        self,
        lane: int,
        kind: OperationKind,
        name: str,
        stack: Stack,
        *,
        issuer: int | None = None,
        step: int | None = None,
        open: bool = False,  # noqa: A002
    ) -> int:
        """The next operation of a lane.

        Args:
            lane: where it runs.
            kind: what it is.
            name: for people, e.g. ``"aten.add"`` or ``"triton:prepare_inputs"``.
            stack: where the program asked for it.
            issuer: host lane that enqueued it on a stream; all that this host did or acquired before happens before
                it, and what the host does afterwards is not ordered with it.
            step: index of the runner's step, if one is known.
            open: its accesses are learnt later, when it runs; ``close`` ends that.
        """
        ...

    def close(self, operation: int) -> None:
        """All accesses of an open operation have been told."""
        ...

    def access(
        self, operation: int, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True, protected: bool = False
    ) -> None:
        """The operation reads or writes these bytes.

        Args:
            operation: whose access it is.
            ranges: disjoint; ``KernelRanges`` if its lines are known.
            write: or else it reads.
            certain: it touches all of them for sure; a possible access makes a race SUSPECT, not a VIOLATION.
            protected: the host allocator keeps a dropped pinned block until this access is over.
        """
        ...

    def release(self, lane: int) -> int:
        """A token for everything that has happened on, or been acquired by, the lane so far."""
        ...

    def acquire(self, lane: int, token: int, *, sync: int | None = None) -> None:
        """Everything behind the token happens before what follows on the lane.

        Args:
            lane: the one that waits.
            token: from ``release``.
            sync: the synchronisation whose effect this is, if the program asked for one.
        """
        ...

    def sync(self, lane: int, kind: SyncKind, name: str, stack: Stack, *, step: int | None = None) -> int:
        """A synchronisation; its effects are the ``acquire`` calls that name it. One without any is vacuous."""
        ...

    def allocate(self, lane: int, base: int, size: int, space: Space, stack: Stack) -> int:
        """A block of memory comes to life. ``lane`` owns it: the stream of a device block, the host of a pinned one."""
        ...

    def free(self, block: int, lane: int, stack: Stack, *, after: Sequence[int] = ()) -> None:
        """The program dropped a block, and the allocator may hand its bytes out again at once.

        A device block may be reused by work enqueued on its owning stream from now on, so the free is a write to all
        of it, on that stream, issued by the host ``lane``, and ordered after all that ``after`` lanes have enqueued
        (``record_stream``). A pinned block may be reused by the host ``lane`` now, but for ``protected`` accesses and
        after all that ``after`` lanes have enqueued (those that the host allocator has seen copy it).
        """
        ...

    def report(self, finding: Finding) -> None:
        """A rule that a frontend itself saw broken (out of bounds, stale graph address, sync while capturing)."""
        ...
