"""Metamorphic relations of scripts: what may change no token is changed, the script runs again, and both are compared.

Each run is judged by the oracle on its own; a relation also holds where there is none, for a model too large for it,
say. See Chen, Cheung and Yiu (1998, "Metamorphic testing"). Those of workloads are in ``feature_sets.metamorphic``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from mrv2.checks.findings import JSON
from mrv2.checks.virtual.schedules import Schedule
from mrv2.fuzz.workload import RequestResult

from .script import Abort, Arrive, Event, Preempt, Script

#: Parts that a batch is split into.
PARTS = 3


@dataclass(frozen=True)
class Other:
    """A script that must give the same tokens.

    Attributes:
        script: the changed script.
        names: for each of its requests, which one it is in the script that was changed.
    """

    script: Script
    names: Mapping[str, str]


@dataclass(frozen=True)
class Relation:
    """A change that may change no tokens.

    Attributes:
        others: the changed scripts, which have each request once; none if there is nothing to change.
        rounds: whether matrix products or sums get another shape, and logits may round otherwise. Then near ties may
            fall the other way, and log-probabilities are not compared here: the oracle bounds them.
        knob: setting that the target must have; empty if any target will do.

    What is accepted by chance depends on which drafts a step has, and on the last bit of a logit. Those tokens are
    compared where neither changes, that is, where nothing rounds otherwise.
    """

    others: Callable[[Script], tuple[Other, ...]]
    rounds: bool = True
    knob: str = ""


def _arrivals(script: Script) -> list[Arrive]:
    return [event for event in script.events if isinstance(event, Arrive)]


def _same(script: Script, changed: Script) -> tuple[Other, ...]:
    """One other script with the same requests; none if it is no other."""
    names = {f"r{index}": f"r{index}" for index in range(len(_arrivals(script)))}
    return (Other(changed, names),) if changed != script else ()


def _set(name: str, value: JSON) -> Callable[[Script], tuple[Other, ...]]:
    return lambda script: _same(script, replace(script, settings={**script.settings, name: value}))


def _without(*names: str) -> Callable[[Script], tuple[Other, ...]]:
    """These settings as they are by default."""

    def others(script: Script) -> tuple[Other, ...]:
        rest = {key: value for key, value in script.settings.items() if key not in names}
        return _same(script, replace(script, settings=rest))

    return others


def _idle(script: Script) -> tuple[Other, ...]:
    """The device never behind, where it was."""
    if script.schedule is None:
        return ()
    return _same(script, replace(script, schedule=Schedule("early")))


def _poison(script: Script) -> tuple[Other, ...]:
    return _set("poison", not script.settings.get("poison", False))(script)


def _never_preempted(script: Script) -> tuple[Other, ...]:
    events = tuple(event for event in script.events if not isinstance(event, Preempt))
    return _same(script, replace(script, events=events))


def _backwards(script: Script) -> tuple[Other, ...]:
    """Who came last comes first. Requests that continue others have an order of their own."""
    arrivals = _arrivals(script)
    if any(event.continues is not None for event in arrivals) or len(arrivals) < 2:
        return ()
    left = list(arrivals)
    events = tuple(left.pop() if isinstance(event, Arrive) else event for event in script.events)
    names = {f"r{index}": f"r{len(arrivals) - 1 - index}" for index in range(len(arrivals))}
    return (Other(replace(script, events=events), names),)


def _split(script: Script) -> tuple[Other, ...]:
    """Every third request alone with its kind; the three together must give what the whole gave."""
    arrivals = _arrivals(script)
    if any(event.continues is not None for event in arrivals) or len(arrivals) < 2:
        return ()
    return tuple(_part(script, part) for part in range(min(PARTS, len(arrivals))))


def _part(script: Script, part: int) -> Other:
    """One part; whoever was preempted or aborted by number in the whole is not."""
    seen = 0
    events: list[Event] = []
    names: dict[str, str] = {}
    for event in script.events:
        if isinstance(event, Arrive):
            if seen % PARTS == part:
                names[f"r{len(names)}"] = f"r{seen}"
                events.append(event)
            seen += 1
        elif not isinstance(event, Abort | Preempt):
            events.append(event)
    return Other(replace(script, events=tuple(events)), names)


RELATIONS: Mapping[str, Relation] = MappingProxyType(
    {
        "backwards": Relation(_backwards),
        "never preempted": Relation(_never_preempted),
        "split in three": Relation(_split),
        "a request at a time": Relation(_set("max_num_reqs", 1)),
        "more padding": Relation(_set("pad_to", 8), knob="pad_to"),
        "no graphs": Relation(_without("graph_mode"), knob="graph_mode"),
        "no drafts": Relation(_without("speculation", "num_drafts", "verification"), knob="speculation"),
        "an idle device": Relation(_idle, rounds=False),
        "poison on for off": Relation(_poison, rounds=False, knob="poison"),
    }
)


def differences(
    base: Mapping[str, RequestResult], other: Mapping[str, RequestResult], relation: Relation, near_ties: int
) -> Iterator[str]:
    """What differs and may not, in words.

    Args:
        base: results of the script.
        other: of the changed one, under the names of the script.
        near_ties: in both runs: choices that rounding may decide.
    """
    for name, expected in base.items():
        observed = other.get(name, RequestResult((), (), None))
        length = _comparable(expected, observed)
        tokens = expected.token_ids[:length], observed.token_ids[:length]
        if tokens[0] != tokens[1]:
            if not (relation.rounds and near_ties):
                yield f"request {name}: tokens {tokens[1]} instead of {tokens[0]}"
        elif not relation.rounds and expected.logprobs[:length] != observed.logprobs[:length]:
            yield f"request {name}: log-probabilities {observed.logprobs} instead of {expected.logprobs}"


def _comparable(one: RequestResult, other: RequestResult) -> int | None:
    """How many tokens both must have; where one was aborted, those that both got."""
    if "abort" in (one.finish_reason, other.finish_reason):
        return min(len(one.token_ids), len(other.token_ids))
    return None


def possible(knobs: Sequence[str]) -> tuple[str, ...]:
    """Names of the relations for a target with these knobs."""
    return tuple(name for name, relation in RELATIONS.items() if not relation.knob or relation.knob in knobs)
