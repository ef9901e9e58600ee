"""An analysed trace as the ``metrics`` of a JSON report; the fields are explained in ``checks/timeline/README.md``."""

from __future__ import annotations

from mrv2.checks.findings import JSON
from mrv2.checks.timeline.analysis import Analysis, DeviceTimes, StepTimes
from mrv2.checks.timeline.places import Bubble, Group


def timeline_metrics(analysis: Analysis) -> dict[str, JSON]:
    """All that the analysis says; times in µs."""
    source = analysis.timeline.source
    return {
        "trace": {
            "file": analysis.timeline.path.name,
            "format": source.format,
            "cut": source.cut,
            "left_out": source.left_out,
            "there_twice": analysis.timeline.num_twice,
            "without_call": analysis.num_strays,
            "facts": dict(source.facts),
            "device_work": len(analysis.timeline.work),
            "runtime_calls": analysis.timeline.num_calls,
            "ranges": len(analysis.timeline.ranges),
            "operators_and_functions": analysis.timeline.num_frames,
        },
        "steps_found_by": analysis.steps.found_by,
        "parts_are_named": analysis.has_parts,
        "steps": [_step(one, analysis.begin) for one in analysis.times],
        "devices": [_device(one) for one in analysis.devices],
        "overlap": analysis.overlap(),
        "ahead_us": analysis.ahead_us(),
        "waits": [_group(one) for one in analysis.waits],
        "pageable_copies": [_group(one) for one in analysis.pageable],
        "bubble_threshold_us": analysis.bubble_us,
        "num_bubbles": analysis.num_bubbles,
        "bubbles": [_bubble(one, analysis.begin) for one in analysis.bubbles],
    }


def _step(times: StepTimes, begin: int) -> dict[str, JSON]:
    return {
        "number": times.step.number,
        "name": times.step.name,
        "begin_us": (times.step.start - begin) / 1000,
        "host_us": {part.value: time / 1000 for part, time in sorted(times.host.items())},
        "device_us": {part.value: time / 1000 for part, time in sorted(times.device.items())},
        "launches": times.launches,
        "graph_launches": times.graph_launches,
        "uploads": times.uploads,
        "upload_bytes": times.upload_bytes,
        "downloads": times.downloads,
        "bubble_us": times.bubble / 1000,
        "ahead_us": None if times.ahead is None else times.ahead / 1000,
        "overlap": times.overlap,
    }


def _device(times: DeviceTimes) -> dict[str, JSON]:
    window = max(times.window, 1)
    return {
        "device": times.device,
        "work": times.works,
        "window_us": times.window / 1000,
        "busy_share": times.busy / window,
        "idle_share_in_gaps_over_5us": times.idle_in_gaps / window,
    }


def _group(group: Group) -> dict[str, JSON]:
    return {
        "call": group.name,
        "what": group.what,
        "stack": list(group.stack),
        "count": group.count,
        "steps": group.steps,
        "total_us": group.total / 1000,
        "longest_us": group.longest / 1000,
        "bytes": group.num_bytes,
    }


def _bubble(bubble: Bubble, begin: int) -> dict[str, JSON]:
    return {
        "begin_us": (bubble.start - begin) / 1000,
        "length_us": bubble.length / 1000,
        "step": bubble.step,
        "before": bubble.before,
        "after": bubble.after,
        "meanwhile": [{"what": name, "share": share} for name, share in bubble.meanwhile],
    }
