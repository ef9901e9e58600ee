"""What the device did in some steps, from the events of its kernels and copies: a short run under torch.profiler."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from mrv2.checks.findings import JSON
from mrv2.checks.timeline.analysis import SHORT_GAP_NS, Analysis, analyse
from mrv2.checks.timeline.intervals import clipped, gaps, length, union

#: What is left out at both ends of a run: prefill, and the draining of what is under way.
FIRST_STEPS, LAST_STEPS = 3, 2


@dataclass(frozen=True)
class DeviceTime:
    """A stretch of steps in the middle of a run; the profiler has slowed the host down.

    Attributes:
        steps: that launched something.
        microseconds: from the first to the last work of theirs on the device.
        busy: during which a kernel or a copy ran.
        idle_in_gaps: in gaps over 5 µs with nothing running.
        longest_gap: of them.
        by_part: time of kernels and copies by the part of the step that launched them.
        launches: of kernels and graphs, by the host.
        uploads: copies to the device.
        upload_bytes: their bytes.
        downloads: copies to the host.
    """

    steps: int
    microseconds: float
    busy: float
    idle_in_gaps: float
    longest_gap: float
    by_part: dict[str, float]
    launches: int
    uploads: int
    upload_bytes: int
    downloads: int

    @property
    def idle_share(self) -> float:
        """Share of the time in gaps over 5 µs."""
        return self.idle_in_gaps / self.microseconds

    def as_json(self) -> dict[str, JSON]:
        """All of it, and a step's share of it, times in µs."""
        per_step: dict[str, JSON] = {
            "launches": self.launches / self.steps,
            "uploads": self.uploads / self.steps,
            "upload bytes": self.upload_bytes / self.steps,
            "downloads": self.downloads / self.steps,
            "busy": self.busy / self.steps,
            "idle in gaps over 5 us": self.idle_in_gaps / self.steps,
            **{part: time / self.steps for part, time in self.by_part.items()},
        }
        return {
            "steps": self.steps,
            "busy share": self.busy / self.microseconds,
            "idle share in gaps over 5 us": self.idle_share,
            "longest gap": self.longest_gap,
            "per step": per_step,
        }


def profiled(run: Callable[[], object]) -> DeviceTime | None:
    """Run steps under the profiler and read what the device did; None if it did nothing in whole steps."""
    return device_time(profiled_trace(run))


def profiled_trace(run: Callable[[], object]) -> Analysis:
    """Run steps under the profiler; what it saw, whose file is gone."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        return analyse(path)


def device_time(analysis: Analysis) -> DeviceTime | None:
    """The middle of a trace; None if no step in it has work on the device."""
    times = [one for one in analysis.times if one.launches and one.busy is not None]
    if len(times) > FIRST_STEPS + LAST_STEPS:
        times = times[FIRST_STEPS:-LAST_STEPS]
    spans = [one.busy for one in times if one.busy is not None]
    if not spans:
        return None
    window = spans[0][0], max(end for _, end in spans)
    device = analysis.devices[0].device
    busy = clipped(union((one.start, one.end) for one in analysis.timeline.work if one.device == device), window)
    idle = [end - start for start, end in gaps(busy, window) if end - start > SHORT_GAP_NS]
    by_part: Counter[str] = Counter()
    for one in times:
        by_part.update({part.value: time for part, time in one.device.items()})
    return DeviceTime(
        steps=len(times),
        microseconds=(window[1] - window[0]) / 1e3,
        busy=length(busy) / 1e3,
        idle_in_gaps=sum(idle) / 1e3,
        longest_gap=max(idle, default=0) / 1e3,
        by_part={part: time / 1e3 for part, time in by_part.items()},
        launches=sum(one.launches for one in times),
        uploads=sum(one.uploads for one in times),
        upload_bytes=sum(one.upload_bytes for one in times),
        downloads=sum(one.downloads for one in times),
    )
