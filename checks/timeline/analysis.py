"""Where the time of recorded steps goes: on the host by parts, on the device, and where one waits for the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from .intervals import Innermost, Interval, clipped, gaps, length, union
from .loading import Launches, Timeline, load
from .moments import Moments
from .phases import COPIES, Part, part_of_kernel, part_of_range
from .places import Bubble, Group, find_bubbles, find_pageable, find_waits, grouped, waiting_calls, wanted_moments
from .records import DeviceKind, DeviceWork, HostCall, launches_graph
from .records import launches as is_launch
from .steps import Step, Steps, find_steps

#: Idle time in shorter gaps is what lies between any two kernels, and no bubble (DESIGN, section 6).
SHORT_GAP_NS = 5_000
DEFAULT_BUBBLE_US = 20.0
#: Records without times, as a share of the others, that a profiler's faults leave in a trace that is as good as whole.
LEFT_OUT_SHARE = 0.01


@dataclass(frozen=True)
class StepTimes:
    """What one step took; times in ns.

    Attributes:
        step: which.
        host: by part, of its thread, from its begin to that of the next step.
        device: by part, sums over all streams.
        launches: of kernels and graphs.
        graph_launches: those of graphs among them.
        uploads: copies to the device.
        upload_bytes: their bytes.
        downloads: copies to the host.
        busy: moments at which the device worked for this step, from first to last.
        bubble: idle time of the device from its first work to the first of the next step.
        ahead: by how much the host began this step before the device was through with the one before; negative if it
            began later; None for the first, and where the device did nothing.
        overlap: share of the host's own time, without waits, in which the device worked on the step before; likewise.
    """

    step: Step
    host: dict[Part, int]
    device: dict[Part, int]
    launches: int
    graph_launches: int
    uploads: int
    upload_bytes: int
    downloads: int
    busy: Interval | None
    bubble: int
    ahead: int | None
    overlap: float | None


@dataclass(frozen=True)
class DeviceTimes:
    """How busy one device was while the steps ran.

    Attributes:
        device: its number.
        works: kernels, copies and fills.
        window: ns from the first to the last of them.
        busy: ns in which something ran.
        idle_in_gaps: ns of idle time in gaps over 5 µs.
    """

    device: int
    works: int
    window: int
    busy: int
    idle_in_gaps: int


@dataclass(frozen=True)
class Analysis:
    """All that is said of a trace.

    Attributes:
        timeline: the trace.
        steps: that were found.
        times: of each.
        devices: those that worked while the steps ran, the one the steps use first.
        waits: of the host, grouped by call and stack.
        pageable: copies of pageable memory, likewise.
        bubbles: idle times of the first device above the threshold, the longest first.
        num_bubbles: how many there are; ``bubbles`` has the longest only.
        bubble_us: the threshold.
        begin: of the trace.
        parts: of the steps' thread at every moment.
        launches: what launched what.
        num_strays: kernels, copies and fills whose call is not in the trace, and which belong to no step.
    """

    timeline: Timeline
    steps: Steps
    times: tuple[StepTimes, ...]
    devices: tuple[DeviceTimes, ...]
    waits: tuple[Group, ...]
    pageable: tuple[Group, ...]
    bubbles: tuple[Bubble, ...]
    num_bubbles: int
    bubble_us: float
    begin: int
    parts: Innermost[Part]
    launches: Launches
    num_strays: int

    def host_pieces(self, window: Interval) -> list[tuple[int, int, Part]]:
        """What the steps' thread did in a window: begin, end, part."""
        return [(start, end, part or Part.OTHER) for start, end, part in self.parts.pieces(window)]

    def device_pieces(self, window: Interval) -> dict[tuple[int, int], list[tuple[int, int, Part]]]:
        """What each stream, named by its device and number, did in a window."""
        found: dict[tuple[int, int], list[tuple[int, int, Part]]] = defaultdict(list)
        for work in self.timeline.work:
            if work.start < window[1] and work.end > window[0]:
                call = self.launches.of(work)
                part = part_of_kernel(work.name) if call is None else _part_of_work(work, call, self.parts)
                piece = max(work.start, window[0]), min(work.end, window[1]), part
                found[work.device, work.stream].append(piece)
        return found

    def mean_us(self, times: Iterable[int]) -> float:
        """The mean over all steps, in µs."""
        return sum(times) / max(len(self.times), 1) / 1000

    def overlap(self) -> float | None:
        """The mean share of the host's own time in which the device worked on the step before."""
        known = [one.overlap for one in self.times if one.overlap is not None]
        return fmean(known) if known else None

    def ahead_us(self) -> float | None:
        """The median of how far the host is ahead."""
        known = [one.ahead for one in self.times if one.ahead is not None]
        return median(known) / 1000 if known else None

    @property
    def is_complete(self) -> bool:
        """Whether all but a few records could be read, and something of the device belongs to a call of the host."""
        timeline = self.timeline
        count = len(timeline.work) + timeline.num_calls + len(timeline.ranges) + timeline.num_frames
        readable = timeline.source.cut is None and timeline.source.left_out <= LEFT_OUT_SHARE * count
        return readable and self.num_strays < len(timeline.work)

    @property
    def has_parts(self) -> bool:
        """Whether the trace names the parts of its steps."""
        return any(part_of_range(one.name) for one in self.timeline.ranges)


def analyse(path: Path, step_name: str | None = None, bubble_us: float = DEFAULT_BUBBLE_US) -> Analysis:
    """Read and judge one trace.

    Args:
        path: of torch.profiler's Chrome trace, packed or not, or of an Nsight Systems export.
        step_name: a regular expression of the ranges that are steps.
        bubble_us: idle times of the device above this are listed.

    Raises:
        CheckError: it cannot be read, or holds nothing.
    """
    timeline = load(path)
    launches = Launches(timeline)
    steps = find_steps(timeline, launches, step_name)
    of_step = _work_of_steps(timeline, launches, steps)
    device = _device_of(of_step)
    busy = union((one.start, one.end) for one in timeline.work if one.device == device)
    window = _window(of_step, device)
    waiting = waiting_calls(timeline, launches)
    parts = _parts(timeline, steps, waiting)
    times = _all_times(timeline, launches, steps, of_step, parts, busy, device)
    waits, pageable = find_waits(waiting, steps), find_pageable(timeline, launches, steps)
    idle = [] if window is None else gaps(busy, window)
    long = sorted((gap for gap in idle if gap[1] - gap[0] > bubble_us * 1000), key=lambda gap: gap[0] - gap[1])
    moments = Moments(timeline.source, wanted_moments((waits, pageable), long, steps))
    mine = [one for one in timeline.work if one.device == device]
    return Analysis(
        timeline=timeline,
        steps=steps,
        times=times,
        devices=_devices(timeline, window, device),
        waits=grouped(waits, moments),
        pageable=grouped(pageable, moments),
        bubbles=tuple(find_bubbles(long, mine, steps, parts, moments)),
        num_bubbles=len(long),
        bubble_us=bubble_us,
        begin=min(
            (one.start for rows in (timeline.work, timeline.calls, timeline.ranges) for one in rows[:1]), default=0
        ),
        parts=parts,
        launches=launches,
        num_strays=sum(launches.of(work) is None for work in timeline.work),
    )


def _work_of_steps(timeline: Timeline, launches: Launches, steps: Steps) -> list[list[tuple[DeviceWork, HostCall]]]:
    """What each step launched, in the order of its begin."""
    of_step: list[list[tuple[DeviceWork, HostCall]]] = [[] for _ in steps.steps]
    for work in timeline.work:
        call = launches.of(work)
        if call is not None and call.process == steps.process:
            index = steps.index_at(call.start)
            if index is not None:
                of_step[index].append((work, call))
    return of_step


def _device_of(of_step: Sequence[Sequence[tuple[DeviceWork, HostCall]]]) -> int | None:
    counted = Counter(work.device for pairs in of_step for work, _ in pairs)
    return counted.most_common(1)[0][0] if counted else None


def _window(of_step: Sequence[Sequence[tuple[DeviceWork, HostCall]]], device: int | None) -> Interval | None:
    """From the first to the last work of all steps."""
    mine = [work for pairs in of_step for work, _ in pairs if work.device == device]
    return (min(one.start for one in mine), max(one.end for one in mine)) if mine else None


def _parts(timeline: Timeline, steps: Steps, waiting: Mapping[HostCall, str]) -> Innermost[Part]:
    """The parts of the steps on their thread; a call that waits is a wait, in whatever part it is."""
    thread = steps.process, steps.thread
    ranges = [
        (one.start, one.end, part)
        for one in timeline.ranges
        if (one.process, one.thread) == thread and (part := part_of_range(one.name))
    ]
    mine = (call for call in timeline.calls if (call.process, call.thread) == thread)
    parts = ((call, _part_of_call(call, waits=call in waiting, named=bool(ranges))) for call in mine)
    calls = ((call.start, call.end, part) for call, part in parts if part is not None)
    return Innermost((*ranges, *calls))


def _part_of_call(call: HostCall, *, waits: bool, named: bool) -> Part | None:
    if waits:
        return Part.WAIT
    if named:
        return None
    return Part.LAUNCH_CALLS if is_launch(call.name) else Part.COPY_CALLS


def _all_times(
    timeline: Timeline, launches: Launches, steps: Steps, of_step: Sequence[Sequence[tuple[DeviceWork, HostCall]]],
    parts: Innermost[Part], busy: Sequence[Interval], device: int | None,
) -> tuple[StepTimes, ...]:  # fmt: skip
    calls = _calls_of_steps(timeline, steps)
    spans = [
        (min(work.start for work, _ in mine), max(work.end for work, _ in mine)) if mine else None
        for mine in ([pair for pair in pairs if pair[0].device == device] for pairs in of_step)
    ]
    following: list[int | None] = [None]
    for span in spans[:0:-1]:
        following.append(following[-1] if span is None else span[0])
    rows = zip(steps.steps, of_step, calls, [None, *spans], spans, reversed(following), strict=False)
    return tuple(
        _times(step, pairs, mine, parts, busy, before, span, later) for step, pairs, mine, before, span, later in rows
    )


def _times(
    step: Step, pairs: Sequence[tuple[DeviceWork, HostCall]], calls: Sequence[HostCall], parts: Innermost[Part],
    busy: Sequence[Interval], before: Interval | None, span: Interval | None, following: int | None,
) -> StepTimes:  # fmt: skip
    host = {part or Part.OTHER: time for part, time in parts.shares((step.start, step.until)).items()}
    device: dict[Part, int] = defaultdict(int)
    for work, call in pairs:
        device[_part_of_work(work, call, parts)] += work.end - work.start
    end = None if span is None else span[1] if following is None else following
    idle = 0 if span is None or end is None or end <= span[0] else length(gaps(busy, (span[0], end)))
    kinds = Counter(work.kind for work, _ in pairs)
    return StepTimes(
        step=step,
        host=host,
        device=dict(device),
        launches=sum(is_launch(call.name) for call in calls),
        graph_launches=sum(launches_graph(call.name) for call in calls),
        uploads=kinds[DeviceKind.UPLOAD],
        upload_bytes=sum(work.num_bytes for work, _ in pairs if work.kind is DeviceKind.UPLOAD),
        downloads=kinds[DeviceKind.DOWNLOAD],
        busy=span,
        bubble=idle,
        ahead=None if before is None else before[1] - step.start,
        overlap=None if before is None else _overlap(step, parts, clipped(busy, before)),
    )


def _part_of_work(work: DeviceWork, call: HostCall, parts: Innermost[Part]) -> Part:
    """By its kind, else by the range it was launched in, else by its name."""
    part = COPIES.get(work.kind) or parts.at(call.start)
    return part_of_kernel(work.name) if part in (None, Part.LAUNCH_CALLS, Part.COPY_CALLS) else part


def _overlap(step: Step, parts: Innermost[Part], busy: Sequence[Interval]) -> float | None:
    """Share of the host's own time in a step in which the device was busy with the step before."""
    own = step.end - step.start - parts.shares((step.start, step.end)).get(Part.WAIT, 0)
    both = sum(
        end - start - parts.shares((start, end)).get(Part.WAIT, 0)
        for start, end in clipped(busy, (step.start, step.end))
    )
    return both / own if own > 0 else None


def _calls_of_steps(timeline: Timeline, steps: Steps) -> list[list[HostCall]]:
    calls: list[list[HostCall]] = [[] for _ in steps.steps]
    for call in timeline.outer_calls:
        index = steps.index_at(call.start) if call.process == steps.process else None
        if index is not None:
            calls[index].append(call)
    return calls


def _devices(timeline: Timeline, window: Interval | None, first: int | None) -> tuple[DeviceTimes, ...]:
    """Every device that did something, over the window of the steps, or over its own if nothing belongs to a step."""
    by_device: dict[int, list[DeviceWork]] = defaultdict(list)
    for work in timeline.work:
        by_device[work.device].append(work)
    found = []
    for device, works in sorted(by_device.items(), key=lambda one: (one[0] != first, one[0])):
        span = window or (works[0].start, max(one.end for one in works))
        busy = clipped(union((one.start, one.end) for one in works), span)
        idle = sum(end - start for start, end in gaps(busy, span) if end - start > SHORT_GAP_NS)
        inside = sum(one.start < span[1] and one.end > span[0] for one in works)
        found.append(DeviceTimes(device, inside, span[1] - span[0], length(busy), idle))
    return tuple(found)
