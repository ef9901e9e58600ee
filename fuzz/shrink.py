"""Makes a failing script smaller while it goes on failing in the same way.

Hypothesis shrinks the choices that a script was drawn from, and needs several hundred runs for that; where a run is a
fraction of a second it stops after five minutes with a large one. What is known of scripts saves most of those runs:
the plain CPU is four times as fast as the virtual device, events can be left out in blocks, and what a request asks for
can be forgotten at once. This is the delta debugging of Zeller and Hildebrandt (2002, "Simplifying and isolating
failure-inducing input"), with passes for each part of a script. It also works on what no strategy drew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from mrv2.checks.findings import JSON
from mrv2.fuzz.targets.protocols import Knob
from mrv2.refrunner.api import SamplingParams

from .script import MODEL, Abort, Admit, Advance, Arrive, Event, Preempt, Script, script_as_json

Item = TypeVar("Item")
#: Runs that one script may cost; what is left by then is small enough to read.
MOST_RUNS = 200


@dataclass
class Shrinker:
    """Shrinks one script.

    Attributes:
        fails: whether a script fails in the way that is of interest.
        knobs: of the target, whose first values are the defaults.
        runs: how many it took so far.
    """

    fails: Callable[[Script], bool]
    knobs: Mapping[str, Knob]
    runs: int = 0
    _known: dict[str, bool] = field(default_factory=dict)

    def shrink(self, script: Script) -> Script:
        """The smallest script that was found; itself one that fails.

        Args:
            script: fails.
        """
        before = None
        while before != script and self.runs < MOST_RUNS:
            before = script
            script = self._first(script, _schedules)
            script = self._without_events(script)
            for candidates in (_relations, self._settings, _requests, _steps):
                script = self._first(script, candidates)
            if script.schedule is not None and script.schedule.deviations:
                script = self._without_deviations(script)
        return script

    def _first(self, script: Script, candidates: Callable[[Script], Iterator[Script]]) -> Script:
        """Take simpler variants until none of them fails."""
        again = True
        while again:
            again = False
            for candidate in candidates(script):
                if self._still(candidate):
                    script, again = candidate, True
                    break
        return script

    def _still(self, script: Script) -> bool:
        key = json.dumps(script_as_json(script), sort_keys=True)
        if key not in self._known:
            if self.runs >= MOST_RUNS:
                return False
            self.runs += 1
            self._known[key] = self.fails(script)
        return self._known[key]

    def _without_events(self, script: Script) -> Script:
        """Leave out events, blocks of them first."""
        return replace(
            script, events=self._minimal(script.events, lambda rest: self._still(replace(script, events=rest)))
        )

    def _without_deviations(self, script: Script) -> Script:
        schedule = script.schedule
        assert schedule is not None

        def with_them(rest: tuple[Any, ...]) -> Script:
            return replace(script, schedule=replace(schedule, deviations=rest))

        return with_them(self._minimal(schedule.deviations, lambda rest: self._still(with_them(rest))))

    @staticmethod
    def _minimal(items: tuple[Item, ...], fails: Callable[[tuple[Item, ...]], bool]) -> tuple[Item, ...]:
        """Items none of which can be left out any more; blocks of half of them are tried first, then smaller ones."""
        size = max(len(items) // 2, 1)
        while True:
            start = 0
            while start < len(items):
                rest = items[:start] + items[start + size :]
                if fails(rest):
                    items = rest
                else:
                    start += size
            if size == 1:
                return items
            size //= 2

    def _settings(self, script: Script) -> Iterator[Script]:
        """Knobs as they are by default, one step in flight, the simplest model."""
        turned = {name: value for name, value in script.settings.items() if name in self.knobs}
        if len(turned) > 1:
            yield replace(script, settings=_omit(script.settings, turned))
        for name in turned:
            yield replace(script, settings=_omit(script.settings, (name,)))
        if script.steps_in_flight > 1:
            yield replace(script, steps_in_flight=script.steps_in_flight - 1)
        if script.model != MODEL:
            yield replace(script, model=MODEL)


def _omit(settings: Mapping[str, JSON], names: Sequence[str] | Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in settings.items() if name not in names}


def _relations(script: Script) -> Iterator[Script]:
    """One run instead of two."""
    if script.relation is not None:
        yield replace(script, relation=None)


def _schedules(script: Script) -> Iterator[Script]:
    """The plain CPU, then simpler bases."""
    schedule = script.schedule
    if schedule is None:
        return
    yield replace(script, schedule=None)
    if schedule.deviations:
        yield replace(script, schedule=replace(schedule, deviations=()))
    for base in ("late", "early"):
        if schedule.base in ("late", base):
            return
        yield replace(script, schedule=replace(schedule, base=base))


def _requests(script: Script) -> Iterator[Script]:
    """Requests that ask for less."""
    for index, event in enumerate(script.events):
        if isinstance(event, Arrive):
            for simpler in _simpler_arrivals(event):
                yield _with(script, index, simpler)


def _simpler_arrivals(event: Arrive) -> Iterator[Arrive]:
    plain = SamplingParams(max_tokens=event.sampling.max_tokens)
    if event.sampling != plain:
        yield replace(event, sampling=plain)
    for item in fields(SamplingParams):
        default = getattr(plain, item.name)
        # A draw without a seed is a fault of the caller, not of the runner: it would be another failure.
        kept = item.name == "max_tokens" or (item.name == "seed" and event.sampling.temperature > 0)
        if getattr(event.sampling, item.name) != default and not kept:
            yield replace(event, sampling=replace(event.sampling, **{item.name: default}))
    for length in _smaller(len(event.prompt), 1):
        yield replace(event, prompt=event.prompt[:length])
    for count in _smaller(event.sampling.max_tokens, 1):
        least = min(event.sampling.min_tokens, count)
        yield replace(event, sampling=replace(event.sampling, max_tokens=count, min_tokens=least))
    if event.continues is not None:
        yield replace(event, continues=None, updates=False)
    if event.updates:
        yield replace(event, updates=False)
    if event.priority:
        yield replace(event, priority=0)


def _smaller(value: int, least: int) -> Iterator[int]:
    """The least, half of it, one less."""
    yield from sorted({number for number in (least, value // 2, value - 1) if least <= number < value})


def _steps(script: Script) -> Iterator[Script]:
    """Fewer steps at once, each in one, and the first of those that can be named."""
    for index, event in enumerate(script.events):
        if isinstance(event, Advance) and event.steps > 1:
            yield _with(script, index, Advance(event.steps // 2))
        elif isinstance(event, Preempt | Abort) and event.which:
            yield _with(script, index, replace(event, which=0))
        elif isinstance(event, Admit):
            yield _with(script, index, Advance())


def _with(script: Script, index: int, event: Event) -> Script:
    return replace(script, events=(*script.events[:index], event, *script.events[index + 1 :]))
