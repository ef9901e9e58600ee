"""What a recorded timeline consists of, whichever profiler wrote it; all times are integer nanoseconds of its clock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias


class DeviceKind(StrEnum):
    """What a device did."""

    KERNEL = "kernel"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    COPY = "device copy"
    FILL = "fill"


class DeviceWork(NamedTuple):
    """A kernel, copy or fill.

    Attributes:
        start: when it began.
        end: when it was over.
        device: which GPU.
        stream: on which stream.
        kind: what it is.
        name: as the profiler wrote it.
        correlation: number of the call that launched it; 0 if it is not told.
        num_bytes: of a copy, 0 if it is not told or no size.
        pageable: whether the host's side of a copy is pageable memory; None if it is not told, or no copy.
        process: that launched it; None if it is not told.
    """

    start: int
    end: int
    device: int
    stream: int
    kind: DeviceKind
    name: str
    correlation: int
    num_bytes: int = 0
    pageable: bool | None = None
    process: int | None = None


class HostCall(NamedTuple):
    """A call of the runtime or the driver. ``chain`` is a call stack that the profiler took, innermost first."""

    start: int
    end: int
    process: int
    thread: int
    name: str
    correlation: int
    chain: tuple[str, ...] = ()


class HostRange(NamedTuple):
    """What a program named itself: ``record_function``, NVTX."""

    start: int
    end: int
    process: int
    thread: int
    name: str


class Frame(NamedTuple):
    """An operator or a Python function on a host thread."""

    start: int
    end: int
    process: int
    thread: int
    name: str


Record: TypeAlias = DeviceWork | HostCall | HostRange | Frame


class Source(Protocol):
    """A trace on disk, read from its beginning as often as it is asked."""

    @property
    def format(self) -> str:
        """What it is, for people."""
        ...

    @property
    def cut(self) -> str | None:
        """Where and why reading ended early, for people; None if it did not. Known after ``records`` has ended."""
        ...

    @property
    def left_out(self) -> int:
        """How many records have no time that counts, or end before they begin; known likewise."""
        ...

    @property
    def facts(self) -> dict[str, str]:
        """What it says of itself, such as its rank; known likewise."""
        ...

    def records(self) -> Iterator[Record]:
        """All records, in the order of the file, none kept."""
        ...

    def frames(self) -> Iterator[Frame]:
        """The frames among them, from a reading of their own."""
        ...


class WaitFor(StrEnum):
    """What a call of the runtime makes the host wait for."""

    STREAM = "stream"
    EVENT = "event"
    DEVICE = "device"
    COPY = "copy"
    FREE = "free"


_WAITS = (
    (re.compile(r"(cuda|hip|cu)Stream(Synchronize)"), WaitFor.STREAM),
    (re.compile(r"(cuda|hip|cu)EventSynchronize"), WaitFor.EVENT),
    (re.compile(r"((cuda|hip)DeviceSynchronize|cuCtxSynchronize)"), WaitFor.DEVICE),
    (re.compile(r"((cuda|hip)Memcpy(2D|3D|WithStream)?|cuMemcpy(HtoD|DtoH|DtoD)?(_v2)?)"), WaitFor.COPY),
    (re.compile(r"((cuda|hip)Free(Host)?|(cuda|hip)HostUnregister|cuMemFree(Host)?(_v2)?|hipHostFree)"), WaitFor.FREE),
)
#: A suffix of the variants with a default stream of their own, and of versions that Nsight appends.
_SUFFIX = re.compile(r"(_ptsz|_ptds|_spt|_v\d+)+$")
_LAUNCH = re.compile(r"(cuda|hip|cu)\w*(LaunchKernel|LaunchCooperativeKernel|GraphLaunch)\w*")
_GRAPH = re.compile(r"(cuda|hip|cu)GraphLaunch\w*")
_RUNTIME = re.compile(r"(cuda|hip|cu)[A-Z]\w+$")


def waits_for(call: str) -> WaitFor | None:
    """What a call waits for by its nature; None for one that only enqueues, or whose memory decides."""
    plain = _SUFFIX.sub("", call)
    return next((what for pattern, what in _WAITS if pattern.fullmatch(plain)), None)


def launches(call: str) -> bool:
    """Whether a call launches a kernel or a graph."""
    return _LAUNCH.fullmatch(call) is not None


def launches_graph(call: str) -> bool:
    """Whether a call launches a graph."""
    return _GRAPH.fullmatch(call) is not None


def is_runtime_call(name: str) -> bool:
    """Whether a name is that of a call of CUDA or HIP."""
    return _RUNTIME.match(name) is not None


def is_driver_call(name: str) -> bool:
    """Whether a name is that of a call of CUDA's driver, which the runtime makes, too."""
    return name.startswith("cu") and is_runtime_call(name) and not name.startswith("cuda")


def copy_kind(name: str) -> tuple[DeviceKind, bool | None]:
    """Which way a copy goes by its name, and whether the host's side is pageable, if the name tells."""
    plain = name.lower()
    to_device = any(way in plain for way in ("htod", "hosttodevice", "h2d", "host -> device"))
    to_host = any(way in plain for way in ("dtoh", "devicetohost", "d2h", "device -> host"))
    pageable = True if "pageable" in plain else False if "pinned" in plain else None
    if to_device:
        return DeviceKind.UPLOAD, pageable
    return (DeviceKind.DOWNLOAD, pageable) if to_host else (DeviceKind.COPY, None)


_MEMORY_CALL = re.compile(r"(cuda|hip|cu)Mem(cpy|set)\w*")


def moves_memory(call: str) -> bool:
    """Whether a call asks for a copy or a fill."""
    return _MEMORY_CALL.fullmatch(call) is not None
