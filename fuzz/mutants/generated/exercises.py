"""What a runner is made to do so that each of its edges matters: workloads, with settings and circumstances.

Those that a target refuses, or in which it is not clean itself, are no part of its battery; the result says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON, Finding
from mrv2.fuzz.every_edge import CAPACITIES, WAYS, every_edge_requests
from mrv2.fuzz.grammars import in_turns
from mrv2.fuzz.programs import MODEL, number_virtual, random_workload
from mrv2.fuzz.targets.protocols import Feature, Knob, Runner, RunnerTarget
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver, Trace, Workload, WorkloadRequest, close
from mrv2.refrunner.api import Handle, SamplingParams, Step

VOCAB_SIZE = 256
#: Tokens of a prompt that takes more than a page of 4,096 bytes.
LONG = 1100
#: Settings of the reference runner that are no knobs, since they change what a scheduler has to know.
_FURTHER = ("memory_fraction",)
#: Beyond those of ``mrv2 fences refrunner``.
_WAYS: tuple[Mapping[str, Any], ...] = (
    {"speculation": "draft", "graph_mode": "full", "max_num_reqs": 3},
    {"speculation": "eagle", "graph_mode": "piecewise", "max_num_reqs": 3},
    {"graph_mode": "full", "memory_fraction": 1e-4},
)


_NO_KNOB = Knob((), "")


@dataclass(frozen=True)
class Exercise:
    """A workload and its circumstances.

    Attributes:
        name: says what is special about it.
        workload: what the runner does.
        foreign: the runner is made with a stream of its own current; in every second step, and where bookkeeping is
            looked at, another one is.
        watched: bookkeeping is looked at after each step, which lets the host wait for the device.
        breaks_off: so many steps are enqueued, then the runner is closed and dropped, and no result is taken.
        closed: whether it is closed.
        device: ``"cuda"``, a virtual one, or ``"cpu"``.
    """

    name: str
    workload: Workload
    foreign: bool = False
    watched: bool = False
    breaks_off: int | None = None
    closed: bool = True
    device: str = "cuda"


def exercises_for(target: RunnerTarget) -> list[Exercise]:
    """All that a target may be able to do, those that cost least first."""
    plain = _fitting(random_workload(VOCAB_SIZE, 1, 6), target)
    if "triton" in target.knobs.get("attention", _NO_KNOB).values:  # two launches a layer in the place of dozens
        plain = replace(plain, capacities={**plain.capacities, "attention": "triton"})
    first = Exercise("requests come and go", plain)
    ways, masks = [*_in_all_ways(target, plain)], [*_with_masks(target)]
    in_place = [way for way in ways if "in_place" in way.name]
    padded = [way for way in ways if "graph_mode=full" in way.name]
    pieces = [way for way in ways if "piecewise" in way.name]
    longest = _with_a_long_prompt(plain)
    return [
        first,
        Exercise("a long prompt behind short ones", longest),
        *ways,
        *masks,
        replace(first, name="another stream is current", foreign=True),
        replace(first, name="bookkeeping is watched", watched=True),
        *(
            replace(one, name=f"{name}another stream is current, bookkeeping is watched", foreign=True, watched=True)
            for name, one in [("", first), *((f"{way.name}, ", way) for way in padded[:1])]
        ),
        *_dropped([first, *in_place[:1], *pieces[:1], *masks[:1]]),
        *_on_the_cpu([first, *masks[-1:]]),
    ]


def _with_a_long_prompt(plain: Workload) -> Workload:
    """More to upload at once than a buffer made for the requests before it would hold."""
    draws = SamplingParams(max_tokens=2)
    requests = [WorkloadRequest(f"short{step}", (1, 2, 3), draws, arrival=step) for step in range(3)]
    requests += [WorkloadRequest("long", tuple(step % 250 for step in range(LONG)), draws, arrival=4)]
    sizes = {"max_num_reqs": 2, "max_num_batched_tokens": LONG, "max_model_len": LONG + 4}
    capacities = {**plain.capacities, **sizes, "num_kv_blocks": LONG // plain.capacities["block_size"] + 4}
    return replace(plain, requests=tuple(requests), capacities=capacities)


def _fitting(workload: Workload, target: RunnerTarget) -> Workload:
    """A workload without what a target cannot do."""
    requests = workload.requests
    if Feature.PREEMPTION not in target.features:
        requests = tuple(replace(request, preempt_after=()) for request in requests)
    if Feature.ABORT not in target.features:
        requests = tuple(replace(request, abort_after=None) for request in requests)
    if Feature.SEEDED_SAMPLING not in target.features:
        requests = tuple(
            replace(one, sampling=replace(one.sampling, temperature=0.0, seed=None)) for one in requests
        )  # fmt: skip
    return replace(workload, requests=requests)


def _in_all_ways(target: RunnerTarget, plain: Workload) -> Iterator[Exercise]:
    """The settings that order work in another way; of a target that does not know them, each value of its knobs."""
    further = _FURTHER if isinstance(target, ReferenceTarget) else ()
    known = {*target.knobs, *further, *(CAPACITIES.keys() - {"attention"})}
    # Attention in torch takes dozens of operations a layer, and orders nothing in another way.
    ways = [way for way in (*WAYS, *_WAYS) if {*way, "attention"} <= known and way != {"attention": "torch"}]
    for way in ways:
        workload = Workload(every_edge_requests(), {**CAPACITIES, **way}, VOCAB_SIZE, steps_in_flight=3)
        yield Exercise(_settings(way), workload)
    for name, knob in ({} if ways else target.knobs).items():
        for value in knob.values[1:]:
            settings = {**plain.capacities, name: value}
            yield Exercise(_settings({name: value}), replace(plain, capacities=settings))


def _settings(way: Mapping[str, Any]) -> str:
    usual = {name: value for name, value in CAPACITIES.items() if name != "attention"}
    return ", ".join(f"{name}={value}" for name, value in way.items() if usual.get(name) != value)


def _with_masks(target: RunnerTarget) -> Iterator[Exercise]:
    if Feature.GRAMMARS in target.features and find_spec("llguidance"):
        masks = {**CAPACITIES, "max_num_reqs": 2, "grammars": True}
        requests = in_turns().requests
        yield Exercise("grammars", Workload(requests, masks, VOCAB_SIZE, steps_in_flight=2))
        if "speculation" in target.knobs:
            drafts = Workload(requests, {**masks, "speculation": "ngram"}, VOCAB_SIZE, steps_in_flight=2)
            yield Exercise("grammars, speculation=ngram", drafts)


def _dropped(exercises: Sequence[Exercise]) -> Iterator[Exercise]:
    """The same, but that nobody takes the results, and the runner goes while its work is in flight."""
    for one in exercises:
        yield replace(one, name=f"{one.name}, closed in flight", breaks_off=4)
        yield replace(one, name=f"{one.name}, dropped in flight", breaks_off=4, closed=False)


def _on_the_cpu(exercises: Sequence[Exercise]) -> Iterator[Exercise]:
    """The same without a device, those that can."""
    for one in exercises:
        if not one.workload.capacities.keys() & {"graph_mode", *_FURTHER}:
            workload = replace(one.workload, capacities={**one.workload.capacities, "device": "cpu"})
            yield replace(one, name=f"{one.name}, on the CPU", workload=workload, device="cpu")


class ExerciseProgram:
    """An exercise as a program.

    Args:
        target: builds the runner.
        exercise: what it does.
        most_steps: after so many the runner is stopped, as one that does not come to its end.

    Attributes:
        trace: what the last call saw; None if the runner could not be built.
        over: whether the device was through with all of the runner's stream, when that had been closed.
    """

    def __init__(self, target: RunnerTarget, exercise: Exercise, most_steps: int | None = None) -> None:
        self._target = target
        self._exercise = exercise
        self._most_steps = most_steps
        self.trace: Trace | None = None
        self.over = False

    def __call__(self) -> dict[str, object]:
        """Tokens and log-probabilities of each request, what is broken, and the crash if there was one."""
        exercise, self.trace, self.over = self._exercise, None, False
        settings: dict[str, JSON] = {"model": MODEL, **exercise.workload.capacities, "device": exercise.device}
        others = torch.cuda.Stream() if exercise.foreign else None
        with _current(others):
            built = self._target.build(settings)
        runner = _Conditions(built, exercise, self._most_steps, others)
        trace = Driver(runner, exercise.workload, check_invariants=exercise.watched).run()
        self.trace = trace
        if exercise.closed:
            close(runner, trace)
            with _current(others):
                self.over = exercise.device == "cpu" or torch.cuda.current_stream().query()
        crash = trace.crash.error if trace.crash and exercise.breaks_off is None else None
        broken = [finding.title for _, finding in trace.broken]
        faults = [fault.error for fault in trace.faults]
        return {"results": trace.results, "crash": crash, "broken": broken, "faults": faults}


class _Conditions:
    """A runner under the conditions of an exercise.

    Args:
        others: stream that is current in every second step; the default one if there is none.
    """

    def __init__(
        self, runner: Runner, exercise: Exercise, most_steps: int | None, others: torch.cuda.Stream | None
    ) -> None:
        self._runner = runner
        self._exercise = exercise
        self._most_steps = most_steps
        self._others = others
        self._steps = 0

    def execute(self, step: Step) -> Handle:
        """See :class:`Runner`."""
        if self._steps == self._exercise.breaks_off:
            raise StepLimit("the exercise", "ends here", "nobody takes its results", "nothing to mend")
        if self._steps == self._most_steps:
            raise StepLimit(
                f"a runner that has made {self._steps} steps",
                "a workload must come to its end",
                "without the change it does in half as many steps, so it may go on for ever",
                "look for tokens that never arrive",
            )
        if self._exercise.device != "cpu":
            number_virtual(self._steps)
        self._steps += 1
        with _current(self._others if self._steps % 2 else None):
            return self._runner.execute(step)

    def invariants(self) -> list[Finding]:
        """See :class:`Runner`."""
        return self._runner.invariants()

    def close(self) -> None:
        """See :class:`Runner`."""
        self._runner.close()


class StepLimit(CheckError):
    """A workload is stopped."""


def _current(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[object]:
    """Scope in which a stream is current."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
