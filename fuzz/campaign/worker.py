"""One worker of a campaign: calls Hypothesis round after round, and writes down what happens before it counts it."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

from mrv2.checks.findings import JSON
from mrv2.checks.virtual.replay import environment
from mrv2.checks.virtual.schedules import Schedule
from mrv2.checks.virtual.transcript import Note
from mrv2.fuzz.case import CaseOutcome, Failure, Refused, run_case
from mrv2.fuzz.machine import FuzzFailure, RunnerMachine
from mrv2.fuzz.script import Script, script_as_json
from mrv2.fuzz.shrink import Shrinker
from mrv2.fuzz.targets.protocols import RunnerTarget

from .corpus import corpus
from .coverage import meetings, traits
from .deaths import death_of, is_death
from .findings import FindingStore, FoundCase
from .observed import Observed, observe
from .options import Options
from .progress import ProgressLog

#: From each case that Hypothesis draws after the first ten it makes five that hardly differ, and climbing towards rare
#: states makes more of those; drawing is cheap beside running, so most rounds are over before that, and a few are long.
ROUNDS_TO_A_CLIMB, ROUNDS_A_CLIMB_IS_LONG = 20, 10
#: Cases between two lines of progress; a killed worker loses the count of so many, and no finding.
CASES_A_LINE = 10
FINDINGS, WORKERS, EXAMPLES, KILLED = "findings", "workers", "examples", "killed"
#: Signature of a case that did not end.
HANG = "hang"
_NOT_REPEATED = "not repeated: the same script went wrong once and not again"


def _climbs(number: int) -> bool:
    return number % ROUNDS_TO_A_CLIMB == ROUNDS_TO_A_CLIMB // 2


def _phases(number: int) -> list[Phase]:
    """What Hypothesis does in a round; not shrink: see ``mrv2.fuzz.shrink``.

    Only a climb reads the examples of rounds before: in a short round they would be all there is.
    """
    return [Phase.reuse, Phase.generate, Phase.target] if _climbs(number) else [Phase.generate]


def case_at_hand(folder: Path, number: int, process: int) -> Path:
    """Where a worker writes the script that it runs; its process is in the name, or one could be blamed for another's.

    Args:
        folder: of the campaign.
        number: of the worker.
        process: that it is; several of one number may be in a folder, of two drivers, or one whose driver was killed.
    """
    return folder / WORKERS / f"{number}-{process}.current.json"


class Stopped(KeyboardInterrupt):
    """The worker was told to stop, or whoever started it is gone."""


class Worker:
    """Fuzzes one target.

    Args:
        target: what is tested.
        options: of the campaign.
        folder: of the campaign.
        number: of this worker.
        parent: process without which it ends; by default the one that is its parent now.
    """

    def __init__(
        self, target: RunnerTarget, options: Options, folder: Path, number: int, parent: int | None = None
    ) -> None:
        self._target = target
        self._options = options
        self._folder = folder
        self._number = number
        self._store = FindingStore(folder / FINDINGS)
        self._killed = FindingStore(folder / KILLED)
        self._log = ProgressLog(folder / WORKERS, number)
        self._current = case_at_hand(folder, number, os.getpid())
        self._environment = environment()
        self._seen: set[str] = set()
        self._minimised: set[str] = set()
        self._stop = False
        self._cases = 0
        self._parent = os.getppid() if parent is None else parent
        self._examples = corpus(options.examples or str(folder / EXAMPLES))
        self._machine = self._make_machine()
        self._forget()

    def run(self) -> None:
        """Work until the cases are over, or until SIGINT or SIGTERM, after which the case at hand is the last.

        Raises:
            OSError: the file system refuses; what was counted before is on the disk.
        """
        left, number = self._options.cases, self._options.first_round
        with self._stoppable():
            try:
                while left is None or left > 0:
                    cases = self._options.cases_a_round * (ROUNDS_A_CLIMB_IS_LONG if _climbs(number) else 1)
                    cases = cases if left is None else min(left, cases)
                    self._round(number, cases)
                    left, number = None if left is None else left - cases, number + 1
            except Stopped:
                pass
            finally:
                self._current.unlink(missing_ok=True)  # first: what is raised below is no case's fault
                self._write_line()

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self._stop = True

        before = {kind: signal.signal(kind, stop) for kind in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def _round(self, number: int, cases: int) -> None:
        """One call of Hypothesis; at most one kind of failure is minimised in it."""
        for case in self._killed.all():
            if not case.minimised:
                self._try_again(case)
        found = self._store.all()
        self._minimised = {name for case in found if case.minimised for name in (case.signature, case.cause)}
        life = os.getpid() if self._options.cases is None else self._options.life or ""
        text = f"{self._options.seed}/{self._number}/{number}/{life}"
        machine = seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]))(self._machine)
        chosen = settings(
            max_examples=cases,
            stateful_step_count=self._options.rules,
            deadline=None,
            database=self._examples,
            suppress_health_check=list(HealthCheck),
            phases=_phases(number),
            report_multiple_bugs=False,
            print_blob=False,
            derandomize=False,
        )
        for case in found:
            if not case.minimised:
                self._minimise(case)
        try:
            run_state_machine_as_test(machine, settings=chosen)
        except FuzzFailure as failure:
            self._minimise(self._found(failure.script, failure.failures[0]))
        except Flaky:
            pass  # it was written down when it was first seen, and is tried once more in the next round
        self._count["rounds"] += 1
        gc.collect()  # devices are in cycles, and what a round leaves would add up

    def _minimise(self, case: FoundCase) -> None:
        """Make a finding as small as it gets; one that does not repeat stays as it is, and says so."""
        seen = Failure(case.signature, case.text, case.distance)

        def fails(script: Script) -> bool:
            """Whether it fails in the same way, or in one that is nearer to the cause.

            What was left out may be what a request needs; then the target is right to refuse it.
            """
            nonlocal seen
            if is_death(case.signature):
                return self._death(script) == case.signature
            with suppress(Refused):
                for failure in self._case(script).failures[:1]:
                    nearer = failure.distance < case.distance and not failure.refusal
                    seen = failure
                    return failure.signature == case.signature or nearer
            return False

        if not fails(case.script):
            text = case.text if case.text.startswith(_NOT_REPEATED) else f"{_NOT_REPEATED}: {case.text}"
            self._store.add(replace(case, text=text, minimised=True))
        else:
            script = Shrinker(fails, self._target.knobs).shrink(case.script)
            fails(script)
            small = replace(case, script=script, text=seen.text, cause=seen.signature, minimised=True)
            self._store.add(replace(small, observed=self._observed(small)))
        self._minimised |= {case.signature, seen.signature}

    def _observed(self, case: FoundCase) -> Observed | None:
        """What a case shows once more, for those who repeat it; None if it ends its process."""
        if is_death(case.cause):
            return None
        return observe(lambda note: self._case(case.script, note))[0]

    def _death(self, script: Script) -> str | None:
        """The signature of a case that ends its process, run in a copy of this one; None if it does not."""
        self._go_on_with(script)
        return death_of(lambda: run_case(self._target, script))

    def _try_again(self, case: FoundCase) -> None:
        """See whether a case in which somebody killed the process is what did it; tried once, whatever happens."""
        self._killed.add(replace(case, minimised=True))
        death = self._death(case.script)
        if death is not None:
            self._store.add(replace(case, signature=death, cause=death, text=f"{case.text}, and again"))

    def _go_on_with(self, script: Script) -> None:
        """Write down what is run next, in case it ends the process.

        Raises:
            Stopped: see ``run``.
        """
        if self._stop or os.getppid() != self._parent:
            raise Stopped
        content: dict[str, JSON] = {"case": self._cases + 1, **script_as_json(script)}
        self._current.write_text(json.dumps(content), encoding="utf-8")

    def _make_machine(self) -> type[RunnerMachine]:
        worker, options = self, self._options

        class Machine(RunnerMachine):
            runner_target = worker._target
            reference = options.target
            models = options.models
            features = options.features
            schedule_strategy: ClassVar[SearchStrategy[Schedule | None]] = options.schedules()

            def run(self, script: Script) -> CaseOutcome:
                return worker._case(script)

            def to_report(self, script: Script, outcome: CaseOutcome) -> tuple[Failure, ...]:
                return worker._judge(script, outcome)

        return Machine

    def _case(self, script: Script, note: Note | None = None) -> CaseOutcome:
        """Run a script; what is running is on the disk, in case it ends the process.

        Args:
            note: as of ``run_case``.

        Raises:
            Refused: the target refuses its settings.
            Stopped: see ``run``.
        """
        self._go_on_with(script)
        begin = time.process_time()
        try:
            outcome = run_case(self._target, script, note)
        except Refused:
            self._count["refused"] += 1
            raise
        finally:
            self._cases += 1
            self._case_seconds += time.process_time() - begin
        self._note(script, outcome)
        return outcome

    def _judge(self, script: Script, outcome: CaseOutcome) -> tuple[Failure, ...]:
        """Write down what went wrong first, which may be the cause of the rest; report it if it is not minimised."""
        first = outcome.failures[:1]
        fresh = tuple(failure for failure in first if failure.signature not in self._minimised)
        for failure in fresh:
            self._store.add(self._found(script, failure))
        self._hits.update(failure.signature for failure in first)
        return fresh

    def _found(self, script: Script, failure: Failure) -> FoundCase:
        return FoundCase(
            self._options.target, failure.signature, failure.text, script, script, failure.distance, failure.signature
        )

    def _note(self, script: Script, outcome: CaseOutcome) -> None:
        self._count["cases"] += 1
        self._count["steps"] += outcome.steps
        self._count["virtual_steps"] += outcome.steps if script.schedule is not None else 0
        self._count["tokens"] += outcome.tally.tokens
        self._count["near_ties"] += outcome.tally.near_ties
        self._traits.update(traits(script, self._target.knobs))
        self._states.update(outcome.counts)
        fresh = set(meetings(script, self._target.knobs)) - self._seen
        self._seen |= fresh
        self._fresh |= fresh
        if self._count["cases"] >= CASES_A_LINE:
            self._write_line()

    def _write_line(self) -> None:
        now = time.process_time()
        line: dict[str, JSON] = {
            **self._count,
            "case_seconds": self._case_seconds,
            "cpu_seconds": now - self._began,
            "time": time.time(),
            "environment": dict(self._environment),
            "meetings": sorted(self._fresh),
            "traits": dict(self._traits),
            "states": dict(self._states),
            "hits": dict(self._hits),
        }
        self._log.write(line)
        self._forget()

    def _forget(self) -> None:
        """Begin another line."""
        self._count: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._traits: Counter[str] = Counter()
        self._states: Counter[str] = Counter()
        self._fresh: set[str] = set()
        self._case_seconds = 0.0
        self._began = time.process_time()
