"""What the device did in some steps, from the events of its kernels and copies: a short run under torch.profiler."""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mrv2.refrunner.phases import Phase

#: A gap with nothing running is one from here on, in µs.
GAP = 5.0
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
LAUNCHES = ("LaunchKernel", "GraphLaunch")
UNNAMED = "no phase"
#: What is left out at both ends of a run: prefill, and the draining of what is under way.
FIRST_STEPS, LAST_STEPS = 3, 2


@dataclass(frozen=True)
class DeviceTime:
    """Totals of a stretch of steps, from the first to the last event on the device.

    Attributes:
        steps: of the stretch, those that launched something.
        microseconds: its length.
        busy: during which a kernel or a copy ran.
        idle_in_gaps: in gaps above ``GAP`` with nothing running.
        longest_gap: of them.
        gaps: how many.
        by_phase: time of kernels and copies by the phase that launched them; they may overlap.
        kernels: on the device, those inside of graphs too.
        launches: calls that launch a kernel or a graph.
        copies: by direction.
        copied_bytes: by direction.
        waits: calls in which the host waited for the device, by name.
    """

    steps: int
    microseconds: float
    busy: float
    idle_in_gaps: float
    longest_gap: float
    gaps: int
    by_phase: Mapping[str, float]
    kernels: int
    launches: int
    copies: Mapping[str, int]
    copied_bytes: Mapping[str, int]
    waits: Mapping[str, int]


def profiled(run: Callable[[], object]) -> DeviceTime:
    """Run steps under the profiler, which slows the host down, and read what the device did."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        return device_time(json.loads(path.read_text())["traceEvents"])


def device_time(events: Sequence[Mapping[str, Any]]) -> DeviceTime:
    """Totals of the events of a Chrome trace, without its first and last steps."""
    complete = [event for event in events if event.get("ph") == "X"]
    calls = sorted((event for event in complete if event.get("cat") in RUNTIME), key=_begin)
    steps = _steps(complete, calls)
    calls = [event for event in calls if steps[0][0] <= _begin(event) < steps[-1][1]] if steps else calls
    made_here = {_correlation(event) for event in calls}
    device = [event for event in complete if event.get("cat") in ON_DEVICE and _correlation(event) in made_here]
    device.sort(key=_begin)
    busy, gaps = _busy_and_gaps([(_begin(event), _end(event)) for event in device])
    copies = [event for event in device if event["cat"] == "gpu_memcpy"]
    copied: Counter[str] = Counter()
    for event in copies:
        copied[_direction(event)] += int(event.get("args", {}).get("bytes", 0))
    return DeviceTime(
        steps=len(steps),
        microseconds=busy + sum(gaps),
        busy=busy,
        idle_in_gaps=sum(gap for gap in gaps if gap > GAP),
        longest_gap=max(gaps, default=0.0),
        gaps=sum(gap > GAP for gap in gaps),
        by_phase=_by_phase(complete, calls, device),
        kernels=sum(event["cat"] == "kernel" for event in device),
        launches=sum(any(name in event["name"] for name in LAUNCHES) for event in calls),
        copies=Counter(map(_direction, copies)),
        copied_bytes=copied,
        waits=Counter(event["name"] for event in calls if "Synchronize" in event["name"]),
    )


def _begin(event: Mapping[str, Any]) -> float:
    return float(event["ts"])


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) + float(event["dur"])


def _correlation(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _steps(complete: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Begin and end of the steps in which something was launched, but for the first and last few; from the ranges."""
    launches = [_begin(event) for event in calls if any(name in event["name"] for name in LAUNCHES)]
    ranges = [
        (_begin(event), _end(event)) for event in complete if event["name"] == Phase.STEP.value and _is_range(event)
    ]
    found = [
        (begin, end) for begin, end in sorted(ranges) if bisect_right(launches, begin) < bisect_right(launches, end)
    ]
    return found[FIRST_STEPS:-LAST_STEPS] if len(found) > FIRST_STEPS + LAST_STEPS else found


def _is_range(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "user_annotation"


def _busy_and_gaps(intervals: Sequence[tuple[float, float]]) -> tuple[float, list[float]]:
    """How long something ran, and how long nothing did in between; intervals in order of their begin."""
    busy, gaps = 0.0, []
    until = intervals[0][0] if intervals else 0.0
    for begin, end in intervals:
        if begin > until:
            gaps.append(begin - until)
            until = begin
        if end > until:
            busy += end - until
            until = end
    return busy, gaps


def _direction(event: Mapping[str, Any]) -> str:
    name = str(event["name"])
    directions = {"HtoD": "upload", "DtoH": "download"}
    return next((words for mark, words in directions.items() if mark in name), "on the device")


def _by_phase(
    complete: Sequence[Mapping[str, Any]], runtime: Sequence[Mapping[str, Any]], device: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Device time by the innermost range of a phase in which the host made the call."""
    names = {which.value for which in Phase}
    ranges = [event for event in complete if event["name"] in names and _is_range(event)]
    edges = list(_innermost(ranges))
    begins = [begin for begin, _ in edges]
    phase_of: dict[Any, str] = {}
    for event in runtime:
        place = bisect_right(begins, _begin(event)) - 1
        phase_of[_correlation(event)] = edges[place][1] if place >= 0 else UNNAMED
    total: dict[str, float] = {}
    for event in device:
        name = phase_of.get(_correlation(event), UNNAMED)
        total[name] = total.get(name, 0.0) + float(event["dur"])
    return total


def _innermost(ranges: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, str]]:
    """From when on which range is the innermost one; ranges nest, and are of one thread."""
    stack: list[tuple[float, str]] = []
    for event in sorted(ranges, key=lambda one: (_begin(one), -_end(one))):
        begin, end = _begin(event), _end(event)
        while stack and stack[-1][0] <= begin:
            closed, _ = stack.pop()
            yield closed, stack[-1][1] if stack else UNNAMED
        stack.append((end, str(event["name"])))
        yield begin, str(event["name"])
    while stack:
        closed, _ = stack.pop()
        yield closed, stack[-1][1] if stack else UNNAMED
