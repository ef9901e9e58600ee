"""The fuzzer against compiled kernels: cases on this GPU, with streams parked where their schedules deviate.

Usage: python -m mrv2.ci.gpu.fuzzing FILE [--cases N] [--seed N] [--fault NAME] [--seconds N]

First comes one case that nobody drew: two plain requests, fresh memory filled with poison, and the stream parked so
often that whatever forgets to wait for it overtakes it. The others are drawn. FILE gets what was run and what was wrong
as JSON. With ``--fault`` the target is the reference runner with a planted fault: something must be wrong, the first
case that is so is the last, and the file says whether it was the directed one. The exit code is 0 if the outcome is the
one that must be, else 1.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import mrv2.fuzz.mutants as mutants
from mrv2.checks.findings import JSON
from mrv2.checks.virtual.schedules import Decision, Schedule
from mrv2.fuzz.campaign.coverage import traits
from mrv2.fuzz.campaign.durable import write_durably
from mrv2.fuzz.case import CaseOutcome, Failure, Refused
from mrv2.fuzz.machine import RunnerMachine
from mrv2.fuzz.on_gpu import run_case_on_gpu
from mrv2.fuzz.script import Advance, Arrive, Script, script_as_json
from mrv2.fuzz.targets.protocols import RunnerTarget
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import SamplingParams

from .results import environment

CASES, RULES, SECONDS = 60, 20, 300.0
MODELS = ("tiny", "tiny-sliding")
#: More are counted, not kept.
KEPT_FAILURES = 10
#: Where the directed case parks the stream that is current: so often, through all of its steps, that the device is
#: behind although the recorder slows the host down.
PARKED_AT = range(4, 1500, 3)
DIRECTED = Script(
    (
        Arrive((1, 2, 3, 4, 5), SamplingParams(max_tokens=6)),
        Advance(2),
        Arrive((9, 8, 7), SamplingParams(temperature=0.8, seed=3, max_tokens=6)),
    ),
    {
        "max_num_reqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "block_size": 8, "num_kv_blocks": 15,
        "attention": "triton", "poison": True,
    },
    3,
    Schedule("late", 0, tuple(Decision(moment, None) for moment in PARKED_AT)),
)  # fmt: skip


class Enough(Exception):
    """A fault was found, or time is over."""


class Session:
    """Runs cases and writes down what they showed.

    Args:
        target: what is tested.
        ends_at_failure: whether the first case that is wrong is the last.
        seconds: after which no further case begins.

    Attributes:
        counts: cases, steps, tokens, near ties, refused, parked streams, failures.
        traits: cases by what they had.
        failures: the first few, with their scripts.
    """

    def __init__(self, target: RunnerTarget, ends_at_failure: bool = False, seconds: float = math.inf) -> None:
        self._target = target
        self._ends_at_failure = ends_at_failure
        self._until = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.traits: Counter[str] = Counter()
        self.failures: list[dict[str, JSON]] = []

    def run(self, script: Script) -> CaseOutcome:
        """One case.

        Raises:
            Refused: the target refuses its settings.
            Enough: no further case is to run.
        """
        if time.monotonic() > self._until or (self._ends_at_failure and self.failures):
            raise Enough
        try:
            outcome, parked = run_case_on_gpu(self._target, script)
        except Refused:
            self.counts["refused"] += 1
            raise
        found = {"tokens": outcome.tally.tokens, "near ties": outcome.tally.near_ties, "steps": outcome.steps}
        self.counts.update({**found, "cases": 1, "streams parked": parked, "cases that failed": bool(outcome.failures)})
        self.traits.update(traits(script, self._target.knobs))
        wrong = outcome.failures[0].text[:100] if outcome.failures else "nothing wrong"
        print(
            f"case {self.counts['cases']}: {outcome.steps} steps, {parked} parked, {wrong}", file=sys.stderr, flush=True
        )
        for failure in outcome.failures[:1] if len(self.failures) < KEPT_FAILURES else ():
            self.failures.append({"what": failure.text, "script": script_as_json(script)})
        return outcome


def fuzz(session: Session, target: RunnerTarget, cases: int, number: int) -> None:
    """Draw cases, each on a virtual schedule whose deviations say where to park."""

    class Machine(RunnerMachine):
        runner_target = target
        models = MODELS

        def run(self, script: Script) -> CaseOutcome:
            return session.run(script)

        def to_report(self, script: Script, outcome: CaseOutcome) -> tuple[Failure, ...]:
            return ()  # none ends the session, and all are written down

    chosen = settings(
        max_examples=cases, stateful_step_count=RULES, deadline=None, database=None, derandomize=False,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate], print_blob=False,
    )  # fmt: skip
    with suppress(Enough):
        run_state_machine_as_test(seed(number)(Machine), settings=chosen)


@contextmanager
def _target_of(fault: str | None) -> Iterator[RunnerTarget]:
    """The reference runner; with a fault its changed copy, which Hypothesis would keep alive: it is taken back."""
    if fault is None:
        yield ReferenceTarget()
        return
    with closing(getattr(mutants, fault)) as target:
        yield target


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, and say whether it is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", help="name of a mutant, see mrv2.fuzz.mutants")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after so many no further case begins")
    options = parser.parse_args(arguments)
    with _target_of(options.fault) as target:
        session = Session(target, bool(options.fault), options.seconds)
        session.run(DIRECTED)
        directed: dict[str, JSON] = {
            "streams parked": session.counts["streams parked"],
            "wrong": bool(session.failures),
        }
        fuzz(session, target, options.cases, options.seed)
    right = bool(session.failures) == bool(options.fault)
    content: dict[str, JSON] = {
        "schema": 1,
        "what": "cases of the fuzzer on a GPU, with streams parked where their schedules deviate",
        "target": target.name,
        "seed": options.seed,
        "the case that nobody drew": directed,
        "environment": environment(),
        **session.counts,
        "cases with": dict(sorted(session.traits.items())),
        "failures": session.failures,
        "verdict": "pass" if right else "fail",
    }
    write_durably(options.file, content)
    print(json.dumps({name: value for name, value in content.items() if name != "cases with"}, indent=1)[:4000])
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
