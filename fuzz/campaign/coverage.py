"""What a case exercised: features, events and the schedule, and how they met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import product

from mrv2.fuzz.script import KINDS, Arrive, Script
from mrv2.fuzz.targets.protocols import Knob
from mrv2.refrunner.api import SamplingParams

#: Names of events that count; that there are steps says nothing.
EVENTS = tuple(name for name in KINDS if name != "advance")
SCHEDULES = ("cpu", "late", "early", "random", "pct", "starve")
#: Every request has these.
_EVERYWHERE = frozenset({"max_tokens", "seed"})

SAMPLING = tuple(item.name for item in fields(SamplingParams) if item.name not in _EVERYWHERE)


def features_of(script: Script, knobs: Mapping[str, Knob]) -> set[str]:
    """Sampling parameters that some request uses, and knobs that are turned."""
    turned = {name for name, knob in knobs.items() if script.settings.get(name, knob.values[0]) != knob.values[0]}
    for event in script.events:
        if isinstance(event, Arrive):
            turned |= {name for name in SAMPLING if getattr(event.sampling, name) != getattr(SamplingParams, name)}
            turned |= {"continues"} if event.continues is not None else set()
            turned |= {"updates"} if event.continues is not None and event.updates else set()
    return turned


def meetings(script: Script, knobs: Mapping[str, Knob]) -> Iterator[str]:
    """Each feature with each kind of event and the schedule, as ``"top_k preempt random"``."""
    kinds = {type(event) for event in script.events}
    events = [name for name in EVENTS if KINDS[name] in kinds]
    for feature, event in product(sorted(features_of(script, knobs)), events):
        yield f"{feature} {event} {schedule_of(script)}"


def traits(script: Script, knobs: Mapping[str, Knob]) -> Iterator[str]:
    """What a record counts the cases of: each feature, knobs with their values, kinds of events, the schedule, ..."""
    for name in sorted(features_of(script, knobs)):
        yield f"{name}={script.settings[name]}" if name in knobs else name
    kinds = {type(event) for event in script.events}
    yield from (name for name in KINDS if KINDS[name] in kinds)
    yield f"schedule {schedule_of(script)}"
    if script.num_deviations:
        yield "deviations"
    yield f"relation {script.relation}"
    yield f"model {script.model}"
    yield f"{script.steps_in_flight} steps in flight"


def schedule_of(script: Script) -> str:
    """The kind of its schedule."""
    return "cpu" if script.schedule is None else script.schedule.base.partition(":")[0]
