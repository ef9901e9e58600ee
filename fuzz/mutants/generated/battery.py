"""Runs exercises and says what is wrong with them: races, hidden waits, broken bookkeeping, other tokens."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from mrv2.checks.events import Space
from mrv2.checks.findings import Finding, Verdict
from mrv2.checks.happens_before import HappensBefore, Record, Recorder, Tee
from mrv2.checks.happens_before.records import Allocates, Frees
from mrv2.checks.libraries import portable
from mrv2.checks.sync.settings import Settings
from mrv2.checks.sync.virtual import install, staging_taken
from mrv2.checks.sync.watch import Watch
from mrv2.checks.virtual.memory import POISON
from mrv2.checks.virtual.runs import plain, run_program
from mrv2.checks.virtual.schedules import Schedule, expand
from mrv2.fuzz.targets.protocols import RunnerTarget

from .exercises import Exercise, ExerciseProgram

FIRST = Schedule("late")
#: In which each poll is answered with yes.
SECOND = Schedule("early")
OTHERS = "random:0,random:1,starve"
#: What fresh memory holds in one more run, where the others have ``POISON``: large, where that is negative.
OTHER_POISON = 0x7B
#: In the place of a code: a ring of which no slot is ever free again is in no disorder, it grows as long as it runs.
GROWTH = "growth"
#: Likewise of a ring that forgets its slots: the allocator has them back when their readers have passed, so with steps
#: in flight it has none to hand out, and asks the driver in every step.
CHURN = "churn"
#: Likewise of a runner whose work goes on when it was closed, where the original's is over.
OUTSTANDING = "outstanding"
MOST_GROWTH = 2
#: How far the device is behind is the schedule's choice; see ``fuzz.case``.
_FULL_QUEUE = "MRV108"
#: A runner that raises these was not changed in its order, but made no program at all.
_NO_PROGRAM = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError")


@dataclass(frozen=True)
class Drive:
    """One run of an exercise.

    Attributes:
        findings: races, waits, and whatever else the device found.
        outcome: tokens, log-probabilities, what is broken and the crash, as text.
        error: why the runner could not be built, or how it crashed.
        steps: that it made.
        streams: that it used, the default stream included.
        records: of the happens-before check, if they were asked for.
        over: whether the device was through when the runner had been closed.
    """

    findings: tuple[Finding, ...]
    outcome: str
    error: str | None
    steps: int
    streams: int = 1
    records: tuple[Record, ...] = field(default=(), repr=False)
    over: bool = True

    @functools.cached_property
    def pinned(self) -> int:
        """Bytes of pinned memory that were alive at once at most, as far as records tell."""
        blocks, alive, peak = self._pinned_blocks, 0, 0
        for record in self.records:
            if isinstance(record, Allocates | Frees):
                alive += blocks.get(record.block, 0) * (1 if isinstance(record, Allocates) else -1)
                peak = max(peak, alive)
        return peak

    @property
    def pinned_in_all(self) -> int:
        """Bytes of pinned memory that were allocated, likewise."""
        return sum(self._pinned_blocks.values())

    @functools.cached_property
    def _pinned_blocks(self) -> dict[int, int]:
        """Bytes of each block of pinned memory."""
        return {one.block: one.size for one in self.records if isinstance(one, Allocates) and one.space is Space.PINNED}


@dataclass(frozen=True)
class Kill:
    """Why a mutant is not the original.

    Attributes:
        code: of the finding: ``MRV307`` for a crash, ``MRV309`` for other tokens; or ``GROWTH``, ``CHURN`` or
            ``OUTSTANDING``, which are none.
        title: what was seen.
        exercise, schedule: where.
        certain: whether it is no mere suspicion.
        no_program: whether it failed as a text, and not as a runner.
    """

    code: str
    title: str
    exercise: str
    schedule: str
    certain: bool = True
    no_program: bool = False


def drive(
    target: RunnerTarget,
    exercise: Exercise,
    schedule: Schedule,
    settings: Settings,
    *,
    most_steps: int | None = None,
    poison: int = POISON,
    record: bool = False,
) -> Drive:
    """Run an exercise once.

    Args:
        settings: hot paths in which no wait may hide.
        most_steps: after so many it is stopped.
        poison: what fresh memory of the device holds.
        record: keep the records.
    """
    program = ExerciseProgram(target, exercise, most_steps)
    if exercise.device == "cpu":
        return _on_the_cpu(program)
    records: list[Record] = []
    judge = HappensBefore()
    sink = Tee(judge, Recorder(records.append)) if record else judge
    with Watch(settings) as watch:
        run = run_program(program, schedule, judge=sink, poison=poison, hooks=(install(watch), staging_taken))
    waits = [finding for finding in watch.findings if finding.code != _FULL_QUEUE]
    found = (*map(portable, judge.findings), *waits)
    return Drive(
        found, repr(run.data), run.error or _crash(program), _steps(program), run.streams, tuple(records), program.over
    )  # fmt: skip


def _on_the_cpu(program: ExerciseProgram) -> Drive:
    try:
        outcome = repr(plain(program()))
    except Exception as error:  # noqa: BLE001 - whatever a mutant raises is its outcome
        return Drive((), "", f"{type(error).__name__}: {error}", 0)
    return Drive((), outcome, _crash(program), _steps(program))


def _crash(program: ExerciseProgram) -> str | None:
    return program.trace.crash.error if program.trace and program.trace.crash else None


def _steps(program: ExerciseProgram) -> int:
    return len(program.trace.steps) if program.trace else 0


@dataclass(frozen=True)
class Known:
    """An exercise and what the original does in it.

    Attributes:
        exercise: the exercise.
        first: its run under ``FIRST``.
        second: its run under ``SECOND``, if it was recorded.
        others: further schedules; none on the CPU.
        reached: lines of the package that run, by file.
        entered: files of which a function runs.
    """

    exercise: Exercise
    first: Drive
    second: Drive | None
    others: tuple[Schedule, ...]
    reached: frozenset[tuple[str, int]] = field(default=frozenset(), repr=False)
    entered: frozenset[str] = field(default=frozenset(), repr=False)

    def reaches(self, file: str, lines: range) -> bool:
        """Whether it runs one of some lines."""
        return any((file, line) in self.reached for line in lines)

    def drive(
        self,
        target: RunnerTarget,
        schedule: Schedule,
        settings: Settings,
        poison: int = POISON,
        *,
        record: bool = False,
    ) -> Drive:
        """Run the same exercise again, with a bound on its steps."""
        most = 2 * self.first.steps + 2
        return drive(target, self.exercise, schedule, settings, most_steps=most, poison=poison, record=record)


def know(target: RunnerTarget, exercise: Exercise, settings: Settings, *, twice: bool) -> Known | str:
    """What the original does in an exercise; which lines it reaches is the caller's to know.

    Args:
        twice: record it under ``SECOND``, too.

    Returns:
        a text, if the original is not clean in it: then nothing that a mutant does there is the mutant's fault.
    """
    first = drive(target, exercise, FIRST, settings, record=True)
    if first.error and exercise.breaks_off is None:
        return first.error
    if first.findings:
        return f"{first.findings[0].code} {first.findings[0].title}"
    if exercise.device == "cpu":
        return Known(exercise, first, None, ())
    others = tuple(expand(OTHERS, streams=first.streams))
    if not twice:
        return Known(exercise, first, None, (SECOND, *others))
    second = drive(target, exercise, SECOND, settings, record=True)
    known = Known(exercise, first, second, others)
    killed = kill_of(known, second, SECOND)
    return known if killed is None else f"{killed.code} {killed.title}, in {killed.schedule}"


def kill_of(known: Known, seen: Drive, schedule: Schedule) -> Kill | None:
    """What is wrong with a run; a race that is certain before what follows from it."""
    where = known.exercise.name, str(schedule) if known.exercise.device != "cpu" else "as it comes"
    found = sorted(seen.findings, key=lambda finding: finding.verdict is not Verdict.VIOLATION)
    if found and found[0].verdict is Verdict.VIOLATION:
        return Kill(found[0].code, found[0].title, *where)
    if seen.outcome != known.first.outcome:
        if seen.error is not None:
            return Kill("MRV307", seen.error, *where, no_program=seen.error.startswith(_NO_PROGRAM))
        return Kill("MRV309", "tokens, log-probabilities or bookkeeping are not the original's", *where)
    if known.first.over and not seen.over:
        return Kill(OUTSTANDING, "the device still works for the runner when it has been closed", *where)
    original = (known.second if schedule == SECOND else None) or known.first
    if seen.pinned > MOST_GROWTH * original.pinned:
        told = f"{seen.pinned} bytes of pinned memory at once, where the original has {original.pinned}"
        return Kill(GROWTH, told, *where)
    if seen.pinned_in_all > MOST_GROWTH * original.pinned_in_all:
        told = f"{seen.pinned_in_all} bytes of pinned memory in all, where the original takes {original.pinned_in_all}"
        return Kill(CHURN, told, *where)
    return Kill(found[0].code, found[0].title, *where, certain=False) if found else None


@dataclass
class Reached:
    """What ran of a package.

    Attributes:
        lines: by file inside the package, those that run when it is imported among them.
        entered: files of which a function ran.
    """

    lines: set[tuple[str, int]] = field(default_factory=set)
    entered: set[str] = field(default_factory=set)


@contextmanager
def lines_reached(folder: Path) -> Iterator[Reached]:
    """Scope in which what runs of a package is noted."""
    reached, top = Reached(), f"{folder}/"

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(top):
            return None
        file = frame.f_code.co_filename.removeprefix(top)
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # neither a module nor the body of a class
            reached.entered.add(file)

        def ran(frame: FrameType, event: str, argument: Any) -> Any:
            reached.lines.add((file, frame.f_lineno))
            return ran

        return ran(frame, event, argument)

    before, before_in_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(called)
    threading.settrace(called)
    try:
        yield reached
    finally:
        sys.settrace(before)
        threading.settrace(before_in_threads)
