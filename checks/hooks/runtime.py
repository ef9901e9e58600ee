"""What the hooks need of the device that they report to; of a real one they need what the host does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..events import ByteRange, EventSink, OperationKind, Space, Stack
from ..sync.waits import Cause, Certainty, WaitKind


class Block(Protocol):
    """An allocation that is tracked."""

    @property
    def id(self) -> int:
        """The sink's number."""
        ...

    @property
    def base(self) -> int:
        """First address."""
        ...

    @property
    def size(self) -> int:
        """In bytes."""
        ...

    @property
    def space(self) -> Space:
        """Device or pinned memory."""
        ...

    @property
    def label(self) -> str:
        """What it was allocated as, for people."""
        ...

    @property
    def stack(self) -> Stack:
        """Where it was allocated."""
        ...


class Pending(Protocol):
    """An operation on a stream."""

    @property
    def id(self) -> int:
        """The sink's number."""
        ...

    @property
    def stack(self) -> Stack:
        """Where the program asked for it."""
        ...

    @property
    def step(self) -> int | None:
        """Of the runner, if known."""
        ...


class Engine(Protocol):
    """How far the work has come; operations are numbered in the order of enqueuing."""

    @property
    def submitted(self) -> int:
        """How many operations have been enqueued."""
        ...

    def oldest(self) -> int:
        """Number of the oldest operation that is not over."""
        ...


class HostRuntime(Protocol):
    """The device as the host's threads and arrays need it. Every method may be called from any thread."""

    step: int | None
    active: bool
    wrap_array: Callable[[Any], Any] | None

    @property
    def sink(self) -> EventSink:
        """Judges or records."""
        ...

    @property
    def lock(self) -> Any:
        """A ``threading.RLock``, held during every call into the sink and while an operation runs."""
        ...

    def host_lane(self) -> int:
        """The lane of the calling thread."""
        ...

    def known_host_lane(self) -> int | None:
        """The lane of the calling thread if it has one."""
        ...

    def find_block(self, address: int) -> Block | None:
        """The block that an address lies in."""
        ...

    def host_access(self, ranges: Sequence[ByteRange], *, write: bool, name: str, certain: bool = True) -> None:
        """The calling thread touches memory, or perhaps only some of it, now; bytes that nobody tracks are dropped."""
        ...

    def enter_thread(self) -> contextlib.AbstractContextManager[Any]:
        """What a thread does everything within."""
        ...


class Runtime(HostRuntime, Protocol):
    """A device that runs what it is given."""

    sink: EventSink
    upload_guard: Callable[[Any, str], Callable[[], None]] | None
    wait_guard: Callable[[Cause], None] | None

    @property
    def running(self) -> Pending | None:
        """The operation that is being run."""
        ...

    @property
    def engine(self) -> Engine:
        """Where pending operations are."""
        ...

    def blocks(self) -> tuple[Any, Any]:
        """First and one-past-last addresses of all blocks, as sorted int64 arrays."""
        ...

    def packed_blocks(self) -> bytes:
        """First and one-past-last address of each block, sorted, as native 64-bit words."""
        ...

    def host_waits(
        self, kind: WaitKind, name: str, size: int | None = None, certainty: Certainty = Certainty.WAITED
    ) -> None:
        """The calling thread is about to wait, for a reason that a real device has as well."""
        ...

    def enqueue(
        self,
        name: str,
        kind: OperationKind,
        run: Callable[[], None] | None,
        reads: Sequence[ByteRange] = (),
        writes: Sequence[ByteRange] = (),
        *,
        open: bool = False,  # noqa: A002 - the contract's name
        blocks: Sequence[Any] = (),
    ) -> Any:
        """Put an operation on the current stream; it is closed when ``run`` has returned.

        ``blocks`` are those whose addresses it was given, though which bytes it touches is learnt later.
        """
        ...
