"""An analysed trace as text: what matters on the first screen, then every wait, copy and bubble that is known."""

from __future__ import annotations

from collections.abc import Iterator

from mrv2.checks.timeline.analysis import Analysis, DeviceTimes
from mrv2.checks.timeline.phases import Part
from mrv2.checks.timeline.places import Bubble, Group
from mrv2.checks.timeline.records import DeviceKind

#: Lines of the first screen, at most.
SCREEN = 24
#: Waits and bubbles that it shows.
FIRST = 2
#: Work whose call is not there, as a share of all: whoever begins to record in the middle of a run has a little.
STRAY_SHARE = 0.05
_NAME = 48


def timeline_lines(analysis: Analysis) -> list[str]:
    """The whole text; its first ``SCREEN`` lines are the summary, and are all there is if nothing else is known."""
    others = [_idle(device) for device in analysis.devices[1:]]
    details = [*others, *_waits(analysis), *_pageable(analysis), *_bubbles(analysis)]
    return [*summary_lines(analysis), *(("", *details) if details else ())]


def summary_lines(analysis: Analysis) -> list[str]:
    """The first screen."""
    timeline, steps = analysis.timeline, analysis.steps
    on_device = (*_counts(analysis), *_overlap(analysis), *_first_waits(analysis), *_first_bubbles(analysis))
    rank = f", rank {timeline.source.facts['rank']}" if "rank" in timeline.source.facts else ""
    platform = " of an AMD device" if timeline.is_amd else ""
    return [
        f"{timeline.source.format}{platform}{rank}; steps: {len(steps.steps)}, by {steps.found_by}",
        *_table(analysis),
        *_device(analysis),
        *(on_device if analysis.devices or timeline.calls else ()),
        *([f"warning: {'; '.join(warnings)}"] if (warnings := list(_warnings(analysis))) else []),
    ]


def _warnings(analysis: Analysis) -> Iterator[str]:
    """What the trace lacks."""
    timeline = analysis.timeline
    if timeline.source.cut:
        yield f"{timeline.source.cut}; what is said holds for what was read"
    if timeline.source.left_out:
        yield f"{timeline.source.left_out} records have no times, or end before they begin, and are left out"
    if timeline.num_twice:
        yield f"{timeline.num_twice} records are there once more, and count once"
    if analysis.num_strays > STRAY_SHARE * len(timeline.work):
        yield (
            f"the calls behind {analysis.num_strays} of {len(timeline.work)} kernels, copies and fills are not in the "
            "trace, so these belong to no step"
        )


def _table(analysis: Analysis) -> Iterator[str]:
    """Parts of a step on both sides, means in µs."""
    guessed = "" if analysis.has_parts else "; no part is named, so the device's are guessed by names of kernels"
    yield f"{'mean µs a step':22}{'host':>10}{'device':>10}{guessed}"
    for part in Part:
        host = analysis.mean_us(one.host.get(part, 0) for one in analysis.times)
        device = analysis.mean_us(one.device.get(part, 0) for one in analysis.times)
        if host or device:
            yield f"  {part.value:20}{host:10.1f}{device:10.1f}"
    host = analysis.mean_us(sum(one.host.values()) for one in analysis.times)
    device = analysis.mean_us(sum(one.device.values()) for one in analysis.times)
    yield f"  {'together':20}{host:10.1f}{device:10.1f}"


def _device(analysis: Analysis) -> Iterator[str]:
    """The device of the steps; others are below."""
    if not analysis.devices:
        yield "device: no kernel or copy in this trace, so nothing is known of it; was only the CPU recorded?"
        return
    of_all = f" of {len(analysis.devices)}" if len(analysis.devices) > 1 else ""
    bubble = analysis.mean_us(times.bubble for times in analysis.times)
    yield f"{_idle(analysis.devices[0], of_all)}; {bubble:.1f} µs a step"


def _idle(device: DeviceTimes, of_all: str = "") -> str:
    window = max(device.window, 1)
    return (
        f"device {device.device}{of_all}: idle {100 * (1 - device.busy / window):.1f} % of {window / 1e6:.2f} ms, "
        f"{100 * device.idle_in_gaps / window:.2f} % in gaps over 5 µs"
    )


def _counts(analysis: Analysis) -> Iterator[str]:
    times, count = analysis.times, max(len(analysis.times), 1)
    launches, graphs = sum(one.launches for one in times), sum(one.graph_launches for one in times)
    uploads, downloads = sum(one.uploads for one in times), sum(one.downloads for one in times)
    size = sum(one.upload_bytes for one in times)
    yield (
        f"a step: {launches / count:.1f} launches, {graphs / count:.1f} of them graphs; {uploads / count:.1f} uploads, "
        f"{size / count:.0f} bytes together; {downloads / count:.1f} downloads"
    )


def _overlap(analysis: Analysis) -> Iterator[str]:
    overlap, ahead = analysis.overlap(), analysis.ahead_us()
    if overlap is not None and ahead is not None:
        when = "after" if ahead < 0 else "before"
        yield (
            f"overlap: {100 * overlap:.0f} % of the host's time in a step; it begins {abs(ahead):.1f} µs {when} "
            "the device ends the step before (median)"
        )


def _first_waits(analysis: Analysis) -> Iterator[str]:
    if not analysis.waits:
        yield "waits of the host in steps: none recorded"
    for group in analysis.waits[:FIRST]:
        yield f"wait: {_group(group)}"
    if len(analysis.waits) > FIRST:
        yield f"  and {len(analysis.waits) - FIRST} more kinds or places, below"
    copies = sum(group.count for group in analysis.pageable)
    size = sum(group.num_bytes for group in analysis.pageable)
    ways = (DeviceKind.UPLOAD, DeviceKind.DOWNLOAD)
    unknown = any(work.pageable is None and work.kind in ways for work in analysis.timeline.work)
    told = f"{copies} in all steps, {size} bytes" if copies else "none" if not unknown else "the trace does not tell"
    yield f"copies of pageable memory: {told}"


def _first_bubbles(analysis: Analysis) -> Iterator[str]:
    yield f"bubbles over {analysis.bubble_us:g} µs: {analysis.num_bubbles}"
    for bubble in analysis.bubbles[:FIRST]:
        yield f"  {_bubble(bubble, analysis.begin)}"


def _waits(analysis: Analysis) -> Iterator[str]:
    if analysis.waits:
        yield "waits of the host, longest together first:"
    for group in analysis.waits:
        yield from _with_stack(group)


def _pageable(analysis: Analysis) -> Iterator[str]:
    if analysis.pageable:
        yield "copies of pageable memory:"
    for group in analysis.pageable:
        yield from _with_stack(group)


def _bubbles(analysis: Analysis) -> Iterator[str]:
    if analysis.bubbles:
        yield f"bubbles, the longest {len(analysis.bubbles)} of {analysis.num_bubbles}:"
    for bubble in analysis.bubbles:
        yield f"  {_bubble(bubble, analysis.begin)}"


def _with_stack(group: Group) -> Iterator[str]:
    yield f"  {_group(group, with_place=False)}"
    for name in group.stack:
        yield f"      {name}"


def _group(group: Group, *, with_place: bool = True) -> str:
    size = f", {group.num_bytes} bytes" if group.num_bytes else ""
    place = next((name for name in group.stack if ".py(" in name), group.stack[0] if group.stack else "")
    where = f"; {_short(place)}" if with_place and place else ""
    return (
        f"{group.count} x {group.name} ({group.what}) in {group.steps} steps{size}, "
        f"{group.total / 1000:.1f} µs together, longest {group.longest / 1000:.1f}{where}"
    )


def _bubble(bubble: Bubble, begin: int) -> str:
    shares = [(name in set(Part), f"{_short(name)} {100 * share:.0f} %") for name, share in bubble.meanwhile]
    kinds = (", ".join(text for is_part, text in shares if is_part is kind) for kind in (True, False))
    meanwhile = "; ".join(filter(None, kinds))
    step = "" if bubble.step is None else f", step {bubble.step}"
    return (
        f"{bubble.length / 1000:.1f} µs at {(bubble.start - begin) / 1e6:.3f} ms{step}, before {_short(bubble.after)}; "
        f"host: {meanwhile or 'nothing that was recorded'}"
    )


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
