"""Where the steps of a trace begin and end: by what the program named, or because the device repeats itself."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import CheckError
from .loading import Launches, Timeline
from .phases import STEP_NAMES
from .records import DeviceKind, DeviceWork, HostCall, HostRange, WaitFor, waits_for

#: Steps that a trace must hold to be recognised without names, and the share of what comes once that has to do so.
LEAST_STEPS, LIKENESS = 3, 0.75
#: How many names come once in each step, at least, as a share of the most names that are equally frequent.
SUPPORT = 1 / 3


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        number: from 0 on.
        name: of its range; empty if it has none.
        start: when the host began it.
        end: when the host had done it.
        until: when the host began the next one; of the last, ``end``.
    """

    number: int
    name: str
    start: int
    end: int
    until: int


@dataclass(frozen=True)
class Steps:
    """The steps of one host thread.

    Attributes:
        steps: by their begin.
        found_by: how they were found, for people.
        process: that runs them.
        thread: likewise.
    """

    steps: tuple[Step, ...]
    found_by: str
    process: int
    thread: int

    def index_at(self, time: int) -> int | None:
        """The step that the host was in, or had last begun, at a moment; None before the first and behind the last."""
        index = bisect_right(self.steps, time, key=lambda step: step.start) - 1
        return index if index >= 0 and time < self.steps[index].until else None


def find_steps(timeline: Timeline, launches: Launches, step_name: str | None = None) -> Steps:
    """The steps of a trace.

    Args:
        timeline: the trace.
        launches: of the same trace.
        step_name: a regular expression of the ranges that are steps; by default those that engines use.

    Raises:
        CheckError: no range has that name, or it is no expression.
    """
    if step_name is not None:
        return _named(timeline, step_name)
    for pattern in STEP_NAMES:
        ranges = [one for one in timeline.ranges if pattern.fullmatch(one.name)]
        if ranges:
            return _of_ranges(ranges)
    return _repeated(timeline, launches) or _whole(timeline)


def _named(timeline: Timeline, step_name: str) -> Steps:
    try:
        pattern = re.compile(step_name)
    except re.error as error:
        raise CheckError(
            f"--step-name {step_name!r}",
            f"it is a regular expression: {error}",
            "it has to match the names of ranges",
            "the name itself, with a backslash before what has a meaning, as in 'step\\(\\d+\\)'",
        ) from error
    ranges = [one for one in timeline.ranges if pattern.fullmatch(one.name)]
    if not ranges:
        names = [name for name, _ in Counter(one.name for one in timeline.ranges).most_common(6)]
        raise CheckError(
            f"--step-name {step_name!r}",
            "at least one range of the trace has that name, from its first to its last character",
            "steps are what everything else is counted by",
            f"one of those that the trace has: {', '.join(names) or 'none, so leave the option out'}",
        )
    return _of_ranges(ranges)


def _of_ranges(ranges: Sequence[HostRange]) -> Steps:
    """Steps of the thread that has most of them; a range within another of the same sort is part of it.

    Of two that overlap otherwise the first one ends where the second one begins.
    """
    (process, thread), _ = Counter((one.process, one.thread) for one in ranges).most_common(1)[0]
    outer: list[HostRange] = []
    for one in ranges:
        if (one.process, one.thread) == (process, thread) and (not outer or one.end > outer[-1].end):
            outer.append(one)
    untils = [*(one.start for one in outer[1:]), outer[-1].end]
    names = Counter(one.name for one in outer)
    shown = names.most_common(1)[0][0] if len(names) == 1 else f"{outer[0].name!r} to {outer[-1].name!r}"
    steps = tuple(
        Step(number, one.name, one.start, min(one.end, until), until)
        for number, (one, until) in enumerate(zip(outer, untils, strict=True))
    )
    return Steps(steps, f"ranges {shown}", process, thread)


def _repeated(timeline: Timeline, launches: Launches) -> Steps | None:
    """Steps by what the busiest device does once in each.

    Counting names instead of looking for a period bears steps that differ by a kernel or two.
    """
    work, calls = _launched(timeline, launches)
    for once in _once_in_each(work):
        idle = _idle_before(work)
        anchors = _anchors(work, once, idle)
        begins = None if anchors is None else _uploads_behind_downloads(work, anchors) or _waits(work, anchors, idle)
        if begins is None or any(calls[later].start <= calls[one].start for one, later in pairwise(begins)):
            continue
        starts, first = [calls[index].start for index in begins], calls[begins[0]]
        spans = [*pairwise(starts), (starts[-1], _end_of_last(timeline, first, calls[-1]))]
        steps = tuple(Step(number, "", start, end, end) for number, (start, end) in enumerate(spans))
        found_by = f"{len(once)} kernels and copies that the device does once in each"
        return Steps(steps, found_by, first.process, first.thread)
    return None


def _once_in_each(work: Sequence[DeviceWork]) -> Iterator[set[str]]:
    """Names that could come once in each step, the smallest number of steps first.

    Names of a layer are equally frequent, too, and may be more than those that come once; but not many times as many.
    """
    counted = Counter(one.name for one in work)
    names: dict[int, set[str]] = defaultdict(set)
    for name, count in counted.items():
        if count >= LEAST_STEPS:
            names[count].add(name)
    most = max(map(len, names.values()), default=0)
    yield from (names[count] for count in sorted(names) if len(names[count]) >= most * SUPPORT)


def _idle_before(work: Sequence[DeviceWork]) -> list[int]:
    """How long the device waited for each piece of its work."""
    found, done = [], work[0].start
    for one in work:
        found.append(max(one.start - done, 0))
        done = max(done, one.end)
    return found


def _anchors(work: Sequence[DeviceWork], once: set[str], idle: Sequence[int]) -> list[int] | None:
    """Where one of these names is: that for which the device waits longest, if the others come in turns with it."""
    waited: Counter[str] = Counter()
    places: dict[str, list[int]] = {name: [] for name in sorted(once)}
    for index, one in enumerate(work):
        if one.name in once:
            waited[one.name] += idle[index]
            places[one.name].append(index)
    candidates = sorted(places, key=lambda name: -waited[name])
    return next((places[name] for name in candidates if _in_turns(work, once, places[name])), None)


def _uploads_behind_downloads(work: Sequence[DeviceWork], anchors: Sequence[int]) -> list[int] | None:
    """Steps that begin with the upload of their inputs, the first one behind the results of the step before."""
    begins, downloaded = [], True
    for index, one in enumerate(work):
        if one.kind is DeviceKind.UPLOAD and downloaded:
            begins.append(index)
        if one.kind in (DeviceKind.UPLOAD, DeviceKind.DOWNLOAD):
            downloaded = one.kind is DeviceKind.DOWNLOAD
    return begins if len(begins) == len(anchors) else None


def _waits(work: Sequence[DeviceWork], anchors: Sequence[int], idle: Sequence[int]) -> list[int]:
    """Steps that begin where the device waits longest from one anchor to the next; the first with the same name."""
    later = [max(range(low + 1, high + 1), key=lambda index: idle[index]) for low, high in pairwise(anchors)]
    name = Counter(work[index].name for index in later).most_common(1)[0][0]
    before = (index for index in range(anchors[0], -1, -1) if work[index].name == name)
    return [next(before, 0), *later]


def _in_turns(work: Sequence[DeviceWork], once: set[str], anchors: Sequence[int]) -> bool:
    """Whether, from one anchor to the next, the names come once each, mostly."""
    spans = list(pairwise(anchors))
    single = sum(
        sum(number == 1 for number in Counter(one.name for one in work[begin:end] if one.name in once).values())
        for begin, end in spans
    )
    return single >= LIKENESS * len(once) * len(spans)


def _end_of_last(timeline: Timeline, first: HostCall, last: HostCall) -> int:
    """The end of the last call of the thread, up to the wait for the whole device with which a profiler stops."""
    thread = first.process, first.thread
    behind = [call for call in timeline.calls if (call.process, call.thread) == thread and call.start >= last.start]
    stops = (index for index, call in enumerate(behind) if waits_for(call.name) is WaitFor.DEVICE)
    return max(call.end for call in behind[: next(stops, len(behind))])


def _launched(timeline: Timeline, launches: Launches) -> tuple[list[DeviceWork], list[HostCall]]:
    """Work of the busiest device with the calls that launched it, from the thread that launched most."""
    pairs = [(work, call) for work in timeline.work if (call := launches.of(work)) is not None]
    if not pairs:
        return [], []
    (device, thread), _ = Counter((work.device, (call.process, call.thread)) for work, call in pairs).most_common(1)[0]
    mine = [pair for pair in pairs if pair[0].device == device and (pair[1].process, pair[1].thread) == thread]
    mine.sort(key=lambda pair: (pair[1].start, pair[0].start))
    return [work for work, _ in mine], [call for _, call in mine]


def _whole(timeline: Timeline) -> Steps:
    """The whole trace as one step, on the thread that has most calls or, without any, most ranges."""
    threads = Counter((call.process, call.thread) for call in timeline.calls)
    threads = threads or Counter((one.process, one.thread) for one in timeline.ranges)
    process, thread = threads.most_common(1)[0][0] if threads else (0, 0)
    rows = (timeline.work, timeline.calls, timeline.ranges)
    spans = [(min(one.start for one in row), max(one.end for one in row)) for row in rows if row]
    if not spans:
        return Steps((), "nothing: the trace has no device work and no ranges", process, thread)
    start, end = min(first for first, _ in spans), max(last for _, last in spans)
    return Steps((Step(0, "", start, end, end),), "no sign of steps, so the whole trace is one", process, thread)
