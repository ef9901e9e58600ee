"""A trace in memory: what the device did, calls that matter, ranges that the program named; no single operators.

Of a trace of hundreds of megabytes most are operators and Python functions. They are left in the file, which is read a
second time for those few that were running at moments in question (:mod:`.moments`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from ..errors import CheckError
from .kineto import KinetoSource
from .nsight import MAGIC, NsightSource
from .records import (
    DeviceWork,
    Frame,
    HostCall,
    HostRange,
    Source,
    is_driver_call,
    launches,
    moves_memory,
    waits_for,
)

T = TypeVar("T")


@dataclass
class Timeline:
    """What one trace holds; all lists by their begin.

    Attributes:
        path: of the file.
        source: reads it again.
        work: of all devices.
        calls: launches, copies and waits.
        outer_calls: those of them that are not within another one, as calls of the driver are in one of the runtime.
        ranges: that the program named.
        num_frames: operators and Python functions, which were not kept.
        num_calls: all calls of the runtime.
        num_twice: records that the file has once more, and that count once.
    """

    path: Path
    source: Source
    work: list[DeviceWork] = field(default_factory=list)
    calls: list[HostCall] = field(default_factory=list)
    ranges: list[HostRange] = field(default_factory=list)
    outer_calls: list[HostCall] = field(default_factory=list)
    num_frames: int = 0
    num_calls: int = 0
    num_twice: int = 0

    @property
    def is_amd(self) -> bool:
        """Whether its calls are those of HIP."""
        return any(call.name.startswith("hip") for call in self.calls[:100])


def load(path: Path) -> Timeline:
    """Read a trace once.

    Raises:
        CheckError: it cannot be read, is of no known format, is damaged, or holds nothing.
    """
    source = source_of(path)
    timeline, devices = Timeline(path, source), Counter[int]()
    for record in source.records():
        if isinstance(record, DeviceWork):
            timeline.work.append(record._replace(name=sys.intern(record.name)))
            devices[record.device] += 1
        elif isinstance(record, HostCall):
            timeline.num_calls += 1
            if launches(record.name) or moves_memory(record.name) or waits_for(record.name):
                timeline.calls.append(record._replace(name=sys.intern(record.name)))
        elif isinstance(record, HostRange):
            timeline.ranges.append(record._replace(name=sys.intern(record.name)))
        else:
            timeline.num_frames += isinstance(record, Frame)
    if not (timeline.work or timeline.calls or timeline.ranges or timeline.num_frames):
        raise CheckError(
            f"trace {path}",
            source.cut or "it holds no event with a time",
            "nothing can be said about what was not recorded",
            "a trace of a few steps, written by export_chrome_trace of torch.profiler.profile",
        )
    timeline.work.sort(key=_order)
    timeline.calls.sort()
    timeline.ranges.sort(key=lambda one: (one.start, -one.end, one))
    repeated = _drop_repeated(timeline.work), _drop_repeated(timeline.calls), _drop_repeated(timeline.ranges)
    timeline.num_twice = sum(repeated)
    timeline.outer_calls = list(_outer(timeline.calls))
    return timeline


def _outer(calls: Iterable[HostCall]) -> Iterator[HostCall]:
    """Of calls by their begin those that are not part of an earlier one of their thread."""
    around: dict[tuple[int, int], HostCall] = {}
    for call in sorted(calls, key=lambda one: (one.start, -one.end)):
        outer = around.get((call.process, call.thread))
        if outer is None or call.end > outer.end or not _is_part(call, outer):
            around[call.process, call.thread] = call
            yield call


def _is_part(inner: HostCall, outer: HostCall) -> bool:
    """Whether a call within another one does its work: it has its number, or is one of the driver in the runtime."""
    same = inner.correlation == outer.correlation != 0
    return same or (is_driver_call(inner.name) and not is_driver_call(outer.name))


def _order(work: DeviceWork) -> tuple[object, ...]:
    """None cannot be compared."""
    return (*work[:8], work.pageable is None, work.pageable or False, work.process is None, work.process or 0)


def _drop_repeated(rows: list[T]) -> int:
    """Remove what is in a sorted list once more, as files have it that were joined; how many there were."""
    before = len(rows)
    rows[:] = [one for one, _ in groupby(rows)]
    return before - len(rows)


def source_of(path: Path) -> Source:
    """What reads a file, by how it begins.

    Raises:
        CheckError: there is no such file, or it cannot be read twice.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CheckError(
            f"trace {path}",
            "it must be a file on a disk, and not a pipe or a device",
            "a trace is not kept in memory but read twice, and a pipe gives what it has once",
            "the file itself; .gz need not be unpacked",
        )
    try:
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except OSError as error:
        raise CheckError(
            f"trace {path}",
            f"the file must be readable: {error.strerror}",
            "there is nothing to analyse without it",
            "the path of an existing file",
        ) from error
    return NsightSource(path) if begin == MAGIC else KinetoSource(path)


class Launches:
    """Which call launched what.

    Args:
        timeline: a trace.

    Raises:
        CheckError: two processes have calls of one number, and the device's work does not say whose it is.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._calls: dict[int, dict[int, HostCall]] = {}
        for call in timeline.calls:
            # A call of the runtime and one of the driver within it have one number; the outer one begins first.
            if call.correlation:
                self._calls.setdefault(call.process, {}).setdefault(call.correlation, call)
        for work in timeline.work if len(self._calls) > 1 else ():
            if work.process is None and sum(work.correlation in calls for calls in self._calls.values()) > 1:
                raise _merged(timeline, sorted(self._calls))

    def of(self, work: DeviceWork) -> HostCall | None:
        """The call behind some work; None if the trace does not hold it."""
        for calls in self._calls.values() if work.process is None else (self._calls.get(work.process, {}),):
            if work.correlation in calls:
                return calls[work.correlation]
        return None


def _merged(timeline: Timeline, processes: list[int]) -> CheckError:
    return CheckError(
        f"trace {timeline.path}",
        f"it holds calls of the processes {', '.join(map(str, processes[:8]))} under the same numbers",
        "a number of a call is unique in one process only, so nobody can say which of them launched a kernel",
        "the trace of each rank in a file of its own, as torch.profiler writes it",
    )
