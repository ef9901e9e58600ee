"""The Hypothesis state machine that writes scripts, and runs each one when it is complete.

    class TestMyRunner(RunnerMachine.TestCase): ...

Rules only note what happens; the whole script runs at the end, on a device of its own. So requests, settings and the
schedule are one drawn value, and one shrinker minimises them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from hypothesis import note, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.strategies import SearchStrategy

from mrv2.checks.findings import JSON
from mrv2.checks.virtual.schedules import Schedule
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget
from mrv2.fuzz.targets.reference import ReferenceTarget

from .case import CaseOutcome, Failure, Refused, model_facts, run_case
from .paste import as_test
from .relations import possible
from .script import MODEL, Abort, Admit, Advance, Arrive, Collect, Event, Preempt, Script, Skip
from .strategies import GRAMMARS, GROUPS, LONG_MODEL_LEN, LONG_PROMPT, LONGEST_PROMPT, arrivals, schedules, settings_of

Drawn = TypeVar("Drawn")
#: What every case may ask of a target, whatever is left out: blocks run out, and all that is told is judged.
NEEDED = (Feature.CHUNKED_PREFILL, Feature.PREEMPTION, Feature.ABORT, Feature.LOGPROBS)
#: Parameters of requests that are drawn only for targets that promise to serve them.
PROMISED: Mapping[str, Feature] = {
    "temperature": Feature.SEEDED_SAMPLING,
    "grammar": Feature.GRAMMARS,
    "updates": Feature.STREAMING_UPDATES,
}
#: States that are rarely reached: more of them is better, so Hypothesis climbs towards them.
RARE = (
    "row reuses", "row moves", "preempted", "prefixes found", "blocks copied", "empty steps", "chunked", "drafts",
    "drafts rejected", "rows reused at once", "edges of graphs", "host versions read", "updates",
)  # fmt: skip


class FuzzFailure(AssertionError):
    """A case went wrong.

    Attributes:
        script: what ran.
        failures: what was wrong.
    """

    def __init__(self, target_name: str, script: Script, failures: tuple[Failure, ...]) -> None:
        self.script = script
        self.failures = failures
        seen = "\n".join(f"  {failure.text}" for failure in failures[:5])
        more = f"\n  and {len(failures) - 5} more" if len(failures) > 5 else ""
        super().__init__(f"{target_name} went wrong:\n{seen}{more}\n\n{as_test(target_name, script, failures)}")


class RunnerMachine(RuleBasedStateMachine):
    """Draws requests, events, settings and a schedule for one target.

    Attributes:
        runner_target: what is tested; a subclass names another one.
        reference: how a test that is pasted names the target.
        models: that ``load_checkpoint`` knows, and the target too.
        schedule_strategy: when the device runs what.
        features: the knobs and the parameters of requests that may be used; None allows all.
    """

    runner_target: ClassVar[RunnerTarget] = ReferenceTarget()
    reference: ClassVar[str] = "refrunner"
    models: ClassVar[tuple[str, ...]] = (MODEL,)
    schedule_strategy: ClassVar[SearchStrategy[Schedule | None]] = schedules()
    features: ClassVar[tuple[str, ...] | None] = None
    _made: ClassVar[dict[object, Any]]

    def __init__(self) -> None:
        super().__init__()
        self._events: list[Event] = []
        self._begun: Script | None = None
        self._absent: frozenset[tuple[str, ...]] = frozenset()

    @initialize(
        settings=st.runner().flatmap(lambda machine: machine.settings()),
        steps_in_flight=st.sampled_from((2, 1, 3, 6)),
        schedule=st.runner().flatmap(lambda machine: machine.schedule_strategy),
        model=st.runner().flatmap(lambda machine: st.sampled_from(machine.models)),
        relation=st.runner().flatmap(lambda machine: machine.relations()),
        absent=st.runner().flatmap(lambda machine: machine.absences()),
    )
    def begin(
        self,
        settings: dict[str, JSON],
        steps_in_flight: int,
        schedule: Schedule | None,
        model: str,
        relation: str | None,
        absent: frozenset[tuple[str, ...]],
    ) -> None:
        """What the runner is built with, when the device runs what, and what no request asks for."""
        self._begun = Script((), settings, steps_in_flight, schedule, model, relation)
        self._absent = absent

    @classmethod
    def allows(cls, name: str) -> bool:
        """Whether a knob or a parameter of requests may be used."""
        served = name not in PROMISED or PROMISED[name] in cls.runner_target.features
        return served and (cls.features is None or name in cls.features)

    @classmethod
    def settings(cls) -> SearchStrategy[dict[str, JSON]]:
        """Capacities and knobs; enough blocks for the model with the most KV groups."""
        groups = max(len(model_facts(model)[1]) for model in cls.models)
        knobs = {
            name: knob
            for name, knob in cls.runner_target.knobs.items()
            if cls.allows(name) or (name == GRAMMARS and cls.allows("grammar"))
        }
        return cls._once("settings", lambda: settings_of(knobs, groups, cls.runner_target.knobs))

    @classmethod
    def relations(cls) -> SearchStrategy[str | None]:
        """Seldom one: each costs a second run, or three."""
        names = possible([name for name in cls.runner_target.knobs if cls.allows(name)])
        return st.sampled_from((*[None] * 5 * len(names), *names))

    @classmethod
    def absences(cls) -> SearchStrategy[frozenset[tuple[str, ...]]]:
        """Groups of parameters that no request of a case has: what all have hides what happens without it.

        See Groce et al. (2012, "Swarm testing").
        """
        return cls._once("absences", lambda: st.sets(st.sampled_from(GROUPS)).map(frozenset))

    def requests(self) -> SearchStrategy[Arrive]:
        """Requests for the smallest of the models' vocabularies, with grammars if the runner has memory for them.

        The grammars of ``strategies`` are for models with a token for each byte.
        """
        settings = self._begun.settings if self._begun else {}
        longest = LONG_PROMPT if settings.get("max_model_len") == LONG_MODEL_LEN else LONGEST_PROMPT
        return self._requests(self._absent, bool(settings.get(GRAMMARS)), longest)

    @classmethod
    def _requests(cls, absent: frozenset[tuple[str, ...]], grammars: bool, longest: int) -> SearchStrategy[Arrive]:
        tiny = all(model.startswith("tiny") for model in cls.models)
        vocab_size = min(model_facts(model)[0] for model in cls.models)
        left_out = {name for group in absent for name in group}

        def allows(name: str) -> bool:
            return name not in left_out and cls.allows(name)

        carried = grammars and tiny and cls.allows("grammar")
        return cls._once((absent, carried, longest), lambda: arrivals(vocab_size, allows, carried, longest))

    @classmethod
    def _once(cls, name: object, make: Callable[[], SearchStrategy[Drawn]]) -> SearchStrategy[Drawn]:
        """A strategy of this class, made once: making one takes longer than drawing from it."""
        if "_made" not in vars(cls):
            cls._made = {}
        if name not in cls._made:
            cls._made[name] = make()
        made: SearchStrategy[Drawn] = cls._made[name]
        return made

    @rule(request=st.runner().flatmap(lambda machine: machine.requests()))
    def arrive(self, request: Arrive) -> None:
        """A request arrives."""
        self._events.append(request)

    @rule(
        first=st.runner().flatmap(lambda machine: machine.requests()),
        steps=st.integers(1, 4),
        leaves=st.builds(lambda kind, which: kind(which), st.sampled_from((Preempt, Abort)), st.integers(0, 3)),
        second=st.runner().flatmap(lambda machine: machine.requests()),
    )
    def hand_over(self, first: Arrive, steps: int, leaves: Event, second: Arrive) -> None:
        """A request leaves in the middle of a long prompt, which is in flight in chunks, and another one gets its row.

        What these events are for seldom comes together by itself.
        """
        prompt = (first.prompt * LONGEST_PROMPT)[: LONGEST_PROMPT // 2 + len(first.prompt) // 2]
        self._events += [replace(first, prompt=prompt), Advance(steps), leaves, second]

    @precondition(lambda self: self._may_update())
    @rule(
        first=st.runner().flatmap(lambda machine: machine.requests()),
        second=st.runner().flatmap(lambda machine: machine.requests()),
        steps=st.integers(1, 4),
    )
    def grow(self, first: Arrive, second: Arrive, steps: int) -> None:
        """A request goes on as soon as it has ended, before anybody else gets its row: a streaming update."""
        number = sum(isinstance(event, Arrive) for event in self._events)
        self._events += [first, replace(second, continues=number, updates=True), Advance(steps)]

    def _may_update(self) -> bool:
        return all(map(self.allows, ("continues", "updates"))) and ("continues",) not in self._absent

    @precondition(lambda self: self._events)
    @rule(steps=st.integers(1, 4))
    def advance(self, steps: int) -> None:
        """Some steps."""
        self._events.append(Advance(steps))

    @precondition(lambda self: self._events)
    @rule(which=st.integers(0, 3))
    def preempt(self, which: int) -> None:
        """A running request is preempted."""
        self._events.append(Preempt(which))

    @precondition(lambda self: self._events)
    @rule(which=st.integers(0, 3))
    def abort(self, which: int) -> None:
        """A request is aborted."""
        self._events.append(Abort(which))

    @precondition(lambda self: self._events)
    @rule()
    def skip(self) -> None:
        """A step in which nothing happens."""
        self._events.append(Skip())

    @precondition(lambda self: self._events)
    @rule()
    def collect(self) -> None:
        """The host takes all outputs in flight."""
        self._events.append(Collect())

    @precondition(lambda self: self._events and Feature.EMPTY_ADMISSION in self.runner_target.features)
    @rule()
    def admit(self) -> None:
        """Who enters is told a step before it is computed."""
        self._events.append(Admit())

    def teardown(self) -> None:
        """Run the script.

        Raises:
            FuzzFailure: something went wrong.
        """
        if self._begun is None or not self._events:
            return
        script = replace(self._begun, events=tuple(self._events))
        try:
            outcome = self.run(script)
        except Refused as refusal:
            note(f"refused: {refusal}")
            return
        for name in RARE:
            target(float(outcome.counts[name]), label=name)
        failures = self.to_report(script, outcome)
        if failures:
            raise FuzzFailure(self.reference, script, failures)

    def run(self, script: Script) -> CaseOutcome:
        """Run a script; a campaign notes what it took.

        Raises:
            Refused: the target refuses its settings.
        """
        return run_case(self.runner_target, script)

    def to_report(self, script: Script, outcome: CaseOutcome) -> tuple[Failure, ...]:
        """The failures that are reported; a campaign leaves out those that it has reported before."""
        return outcome.failures


def machine_of(
    runner_target: RunnerTarget,
    reference: str,
    models: tuple[str, ...] = (MODEL,),
    base: type[RunnerMachine] = RunnerMachine,
) -> type[RunnerMachine]:
    """A machine for a target.

    Args:
        runner_target: what is tested.
        reference: its name on the command line.
        models: that it is tested with.
        base: what to derive from.
    """
    return type("Machine", (base,), {"runner_target": runner_target, "reference": reference, "models": models})
