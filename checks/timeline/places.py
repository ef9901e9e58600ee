"""What deserves a look in a trace: waits of the host, copies of pageable memory, idle times of the device."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from ..semantics import PAGEABLE_STAGING_LIMIT
from .intervals import Innermost, Interval
from .loading import Launches, Timeline
from .moments import Moments, Thread
from .phases import Part
from .records import DeviceKind, DeviceWork, HostCall, waits_for
from .steps import Steps

#: Bubbles that are looked at closely, and calls whose stack is looked up.
MOST_BUBBLES, MOST_STACKS = 20, 500
#: What the host did in a bubble: so many of the largest shares, none smaller than a tenth.
MEANWHILE, SMALLEST_SHARE = 3, 0.1
PAGEABLE_UPLOAD, PAGEABLE_DOWNLOAD = "pageable upload", "pageable download"


class Occurrence(NamedTuple):
    """A call within a step: which, what it waits for or which way it copies, the step, bytes of a copy."""

    call: HostCall
    what: str
    step: int
    num_bytes: int


@dataclass(frozen=True)
class Group:
    """Calls of the same sort from the same place.

    Attributes:
        name: of the call.
        what: what it waits for, or which way it copies.
        stack: where, innermost first; empty if the trace does not tell.
        count: how often in all steps.
        steps: in how many of them.
        total: ns in these calls.
        longest: ns of the longest.
        num_bytes: of copies.
    """

    name: str
    what: str
    stack: tuple[str, ...]
    count: int
    steps: int
    total: int
    longest: int
    num_bytes: int


@dataclass(frozen=True)
class Bubble:
    """An idle time of the device.

    Attributes:
        start: when it began.
        length: ns.
        step: that the host was in when it began; None if it was in none.
        before: what ran last.
        after: what ran next.
        meanwhile: what the host's thread did, with its share of the time, the largest first.
    """

    start: int
    length: int
    step: int | None
    before: str
    after: str
    meanwhile: tuple[tuple[str, float], ...]


def waiting_calls(timeline: Timeline, launches: Launches) -> dict[HostCall, str]:
    """Calls that make the host wait, each with what it waits for.

    Beside those that do so by their nature: copies to pageable memory, and from it if they are larger than what a
    driver stages at most (``checks.semantics``).
    """
    waits = {call: str(what) for call in timeline.outer_calls if (what := waits_for(call.name)) is not None}
    for work in timeline.work:
        if work.pageable and (call := launches.of(work)) is not None:
            if work.kind is DeviceKind.DOWNLOAD:
                waits[call] = PAGEABLE_DOWNLOAD
            elif work.kind is DeviceKind.UPLOAD and work.num_bytes > PAGEABLE_STAGING_LIMIT:
                waits[call] = PAGEABLE_UPLOAD
    return waits


def find_waits(waits: Mapping[HostCall, str], steps: Steps) -> list[Occurrence]:
    """Waits of the host within steps, those that took longest first."""
    return _in_steps(((call, what, 0) for call, what in waits.items()), steps)


def find_pageable(timeline: Timeline, launches: Launches, steps: Steps) -> list[Occurrence]:
    """Copies of pageable memory within steps, likewise."""
    ways = {DeviceKind.UPLOAD: PAGEABLE_UPLOAD, DeviceKind.DOWNLOAD: PAGEABLE_DOWNLOAD}
    copies = (
        (call, ways[work.kind], work.num_bytes)
        for work in timeline.work
        if work.pageable and work.kind in ways and (call := launches.of(work)) is not None
    )
    return _in_steps(copies, steps)


def _in_steps(calls: Iterable[tuple[HostCall, str, int]], steps: Steps) -> list[Occurrence]:
    found = [
        Occurrence(call, what, step, size)
        for call, what, size in calls
        if call.process == steps.process and (step := steps.index_at(call.start)) is not None
    ]
    return sorted(found, key=lambda one: one.call.start - one.call.end)


def wanted_moments(
    occurrences: Sequence[Sequence[Occurrence]], idle: Sequence[Interval], steps: Steps
) -> Mapping[Thread, list[Interval]]:
    """When on which thread one has to look what ran."""
    wanted: dict[Thread, list[Interval]] = defaultdict(list)
    for one in chain.from_iterable(some[:MOST_STACKS] for some in occurrences):
        wanted[one.call.process, one.call.thread].append((one.call.start, one.call.end))
    wanted[steps.process, steps.thread] += idle[:MOST_BUBBLES]
    return wanted


def grouped(occurrences: Sequence[Occurrence], moments: Moments) -> tuple[Group, ...]:
    """By call, sort and stack, those that took longest first; stacks are looked up for the longest calls only."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[Occurrence]] = defaultdict(list)
    for index, one in enumerate(occurrences):
        call, stack = one.call, one.call.chain
        if not stack and index < MOST_STACKS:
            stack = moments.stack((call.process, call.thread), call.start, call.end)
        groups[call.name, one.what, stack].append(one)
    found = [_group(name, what, stack, members) for (name, what, stack), members in groups.items()]
    return tuple(sorted(found, key=lambda group: -group.total))


def _group(name: str, what: str, stack: tuple[str, ...], members: Sequence[Occurrence]) -> Group:
    times = [one.call.end - one.call.start for one in members]
    return Group(
        name=name,
        what=what,
        stack=stack,
        count=len(members),
        steps=len({one.step for one in members}),
        total=sum(times),
        longest=max(times),
        num_bytes=sum(one.num_bytes for one in members),
    )


def find_bubbles(
    idle: Sequence[Interval], work: Sequence[DeviceWork], steps: Steps, parts: Innermost[Part], moments: Moments
) -> Iterator[Bubble]:
    """The longest idle times, with what the host did in them.

    Args:
        idle: the longest first.
        work: of the device, by its begin.
    """
    starts = [one.start for one in work]
    ended = sorted(work, key=lambda one: one.end)
    ends = [one.end for one in ended]
    for start, end in idle[:MOST_BUBBLES]:
        after = work[bisect_left(starts, end)]
        before = ended[bisect_left(ends, start)]
        yield Bubble(
            start, end - start, steps.index_at(start), before.name, after.name,
            tuple(_meanwhile((start, end), parts, moments, (steps.process, steps.thread))),
        )  # fmt: skip


def _meanwhile(
    window: Interval, parts: Innermost[Part], moments: Moments, thread: Thread
) -> Iterator[tuple[str, float]]:
    """The parts of the step that the host was in, then the operators and functions, each with its share."""
    span = window[1] - window[0]
    by_part = sorted(parts.shares(window).items(), key=lambda one: -one[1])
    for part, time in by_part[:MEANWHILE]:
        if time >= SMALLEST_SHARE * span:
            yield (part or Part.OTHER).value, time / span
    for name, share in moments.shares(thread, window)[:MEANWHILE]:
        if share >= SMALLEST_SHARE:
            yield name, share
