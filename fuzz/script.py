"""A case of the fuzzer as a value: what a runner is built with, what happens to it, and when the device runs what.

A script is short, and each part of it can be left out without breaking the rest: events name requests by a number that
is taken modulo those that are there. That is what lets one shrinker minimise requests and schedule together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeAlias

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON
from mrv2.checks.virtual.schedules import Schedule
from mrv2.refrunner.api import Grammar, SamplingParams

MODEL = "tiny"


@dataclass(frozen=True)
class Arrive:
    """A request arrives; the first one is called ``r0``.

    Attributes:
        prompt: token ids.
        sampling: its parameters.
        priority: the smaller, the sooner it is served; counts only with ``scheduling="priority"``.
        continues: number of an earlier request, modulo those there are: this one arrives when that has ended, and its
            prompt is all tokens of that one and then ``prompt``.
        updates: where it enters in the step in which that one leaves, the runner hears of one request that has grown, a
            streaming update, if it has the feature.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    continues: int | None = None
    updates: bool = False


@dataclass(frozen=True)
class Advance:
    """So many steps are scheduled and executed; with nothing to do, steps that compute nothing."""

    steps: int = 1


@dataclass(frozen=True)
class Skip:
    """A step that says nothing at all, although there may be work."""


@dataclass(frozen=True)
class Preempt:
    """A running request loses its row and its blocks, and comes back later; nothing happens if none runs.

    Attributes:
        which: number among the running requests, modulo how many there are.
    """

    which: int = 0


@dataclass(frozen=True)
class Abort:
    """A request ends now, wherever it is; nothing happens if none is left.

    Attributes:
        which: number among the unfinished requests, modulo how many there are.
    """

    which: int = 0


@dataclass(frozen=True)
class Collect:
    """The outputs of all steps in flight are taken now, earlier than needed."""


@dataclass(frozen=True)
class Admit:
    """The next step is told in two, if the runner has the feature.

    The first one has all that comes and goes, blocks among it, and computes nothing; the second one computes.
    """


Event: TypeAlias = Arrive | Advance | Skip | Preempt | Abort | Collect | Admit
KINDS: Mapping[str, type[Event]] = {
    "arrive": Arrive,
    "advance": Advance,
    "skip": Skip,
    "preempt": Preempt,
    "abort": Abort,
    "collect": Collect,
    "admit": Admit,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Script:
    """One case.

    Attributes:
        events: in their order; when they are over, the runner is driven until every request has ended.
        settings: what :meth:`~mrv2.fuzz.targets.protocols.RunnerTarget.build` gets, capacities and knobs.
        steps_in_flight: steps enqueued before the oldest output is taken.
        schedule: of the virtual device; None runs on the plain CPU, where inputs and invariants are looked at after
            each step.
        model: a model that ``load_checkpoint`` knows.
        relation: a name of ``relations.RELATIONS``: the script runs once more, changed, and must give the same tokens.
    """

    events: tuple[Event, ...]
    settings: Mapping[str, JSON] = field(default_factory=dict)
    steps_in_flight: int = 2
    schedule: Schedule | None = None
    model: str = MODEL
    relation: str | None = None

    @property
    def num_events(self) -> int:
        """Events that say something about requests: all but the steps."""
        return sum(not isinstance(event, Advance) for event in self.events)

    @property
    def num_deviations(self) -> int:
        """Where the device leaves the base of the schedule."""
        return len(self.schedule.deviations) if self.schedule else 0


def script_as_json(script: Script) -> dict[str, JSON]:
    """A script as JSON values."""
    return {
        "events": [_event_as_json(event) for event in script.events],
        "settings": dict(script.settings),
        "steps_in_flight": script.steps_in_flight,
        "schedule": None if script.schedule is None else str(script.schedule),
        "model": script.model,
        "relation": script.relation,
    }


def script_from_json(content: object) -> Script:
    """The inverse of ``script_as_json``; nothing that is read is executed.

    Raises:
        CheckError: it is no script.
    """
    try:
        values: dict[str, Any] = dict(content)  # type: ignore[call-overload]
        schedule, relation = values.pop("schedule"), values.pop("relation")
        script = Script(
            events=tuple(map(_event_from_json, values.pop("events"))),
            settings={str(name): _setting(value) for name, value in values.pop("settings").items()},
            steps_in_flight=_number(values.pop("steps_in_flight"), 1),
            schedule=None if schedule is None else Schedule.parse(schedule),
            model=_text(values.pop("model")),
            relation=None if relation is None else _text(relation),
        )
        if values:
            raise ValueError(f"it has no field {sorted(values)}")
        return script
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckError(
            "the script of a finding",
            f"it must have the fields of Script; reading it failed with {type(error).__name__}: {error}",
            "another script would be another run",
            "a file that mrv2 wrote, unchanged",
        ) from error


def _event_as_json(event: Event) -> dict[str, JSON]:
    content: dict[str, JSON] = {"event": _NAMES[type(event)]}
    for name, value in _given(event).items():
        content[name] = _sampling_as_json(value) if isinstance(value, SamplingParams) else value
    return content


def _sampling_as_json(sampling: SamplingParams) -> dict[str, JSON]:
    given = _given(sampling)
    return {**given, "grammar": vars(sampling.grammar)} if sampling.grammar else given


def _given(value: object) -> dict[str, Any]:
    """The fields of a dataclass that are not what they are by default."""
    return {
        item.name: getattr(value, item.name)
        for item in fields(value)  # type: ignore[arg-type]
        if getattr(value, item.name) != _default(item)
    }


def _default(item: Field[Any]) -> object:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _event_from_json(content: Mapping[str, Any]) -> Event:
    values = {name: _tuples(value) for name, value in content.items()}
    kind = KINDS[_text(values.pop("event"))]
    if kind is Arrive:
        values["sampling"] = _sampling_from_json(dict(content.get("sampling", {})))
        values["prompt"] = tuple(_number(token, 0) for token in values["prompt"])
    for name in ("priority", "continues", "which", "steps"):
        if values.get(name) is not None:
            values[name] = _number(values[name], 0)
    if not isinstance(values.get("updates", False), bool):
        raise ValueError(f"{values['updates']!r} is no truth value")
    return kind(**values)


def _sampling_from_json(content: dict[str, Any]) -> SamplingParams:
    values = {name: _tuples(value) for name, value in content.items()}
    if values.get("grammar") is not None:
        values["grammar"] = Grammar(**values["grammar"])
    return SamplingParams(**values)


def _tuples(value: Any) -> Any:
    """JSON knows lists only; events have tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _number(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r} is no whole number from {least} on")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _setting(value: Any) -> JSON:
    if not isinstance(value, str | int | float | bool | list | None):
        raise ValueError(f"{value!r} is no setting")
    setting: JSON = _tuples(value)
    return setting


def as_code(value: object) -> str:
    """A script, an event or a part of one as an expression of Python; what is as by default is left out."""
    if isinstance(value, Schedule):
        return f"Schedule.parse({str(value)!r})"
    if isinstance(value, Script | SamplingParams | Event):
        given = ", ".join(f"{name}={as_code(item)}" for name, item in _given(value).items())
        return f"{type(value).__name__}({given})"
    if isinstance(value, tuple) and any(isinstance(item, Event) for item in value):
        return f"({', '.join(map(as_code, value))},)"
    return repr(dict(value) if isinstance(value, Mapping) else value)
