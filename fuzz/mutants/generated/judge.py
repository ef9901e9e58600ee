"""The verdict on each mutant: killed, survived, equivalent, or not reached."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from mrv2.checks.sync.settings import Settings
from mrv2.checks.virtual.memory import POISON
from mrv2.checks.virtual.schedules import Schedule
from mrv2.fuzz.mutants.source import changed_package, package_folder, standing_aside
from mrv2.fuzz.targets.protocols import RunnerTarget

from .battery import FIRST, OTHER_POISON, SECOND, Drive, Kill, Known, kill_of, know, lines_reached
from .calls import Kind
from .exercises import Exercise, exercises_for
from .proof import Relation, copies_told_apart, relation_of, why_not_equivalent
from .sites import OrderingMutant

#: So many exercises are recorded with each poll answered with yes, too.
RECORDED_TWICE = 3


class Outcome(enum.Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    #: No exercise runs its place; it counts as a survivor.
    UNREACHED = "unreached"
    #: The change made no program: it says nothing, and does not count.
    INVALID = "invalid"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, and why.

    Attributes:
        mutant: the mutant.
        outcome: what became of it.
        kill: what killed it.
        reason: why it survived, or is equivalent.
        reached: exercises that run its place.
    """

    mutant: OrderingMutant
    outcome: Outcome
    kill: Kill | None
    reason: str
    reached: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """Whose mutants are judged.

    Attributes:
        package: name of the package whose source is changed.
        module: that defines the target.
        load: imports the target anew, and with it the package.
        settings: hot paths of it.
    """

    package: str
    module: str
    load: Callable[[], RunnerTarget]
    settings: Callable[[RunnerTarget], Settings]

    @contextmanager
    def changed(self, mutant: OrderingMutant | None = None) -> Iterator[None]:
        """Scope in which the package is imported with a change, or as it is; what was imported before is put aside."""
        changes = {} if mutant is None else {mutant.file: mutant.text}
        with ExitStack() as stack:
            if self._is_apart:
                stack.enter_context(standing_aside(self.module))
            stack.enter_context(changed_package(self.package, self.package, changes))
            yield

    @property
    def _is_apart(self) -> bool:
        """Whether the module of the target is neither in the package nor one of ours, which import it by name."""
        inside = f"{self.module}.".startswith(f"{self.package}.")
        return not inside and not self.module.startswith("mrv2.")


@dataclass
class Battery:
    """The exercises of a subject, with all that the original does in them.

    Attributes:
        known: exercises in which the original is clean.
        left_out: the others, with the reason.
    """

    subject: Subject
    known: list[Known] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    _relations: dict[int, Relation] = field(default_factory=dict)

    @classmethod
    def of(cls, subject: Subject, told: Callable[[str], None] = lambda _: None, most: int | None = None) -> Battery:
        """Run the original in each of its exercises.

        Args:
            told: is called with the name of each before it runs.
            most: take so many of them only.
        """
        battery = cls(subject)
        with subject.changed():
            exercises = exercises_for(subject.load())[:most]
        for exercise in exercises:
            told(exercise.name)
            found = battery._know(exercise)
            if isinstance(found, Known):
                battery.known.append(found)
            else:
                battery.left_out[exercise.name] = found
        return battery

    def _know(self, exercise: Exercise) -> Known | str:
        with self.subject.changed():
            with lines_reached(package_folder(self.subject.package)) as reached:
                target = self.subject.load()
                twice = len(self.known) < RECORDED_TWICE
                found = know(target, exercise, self.subject.settings(target), twice=twice)
            return (
                found
                if isinstance(found, str)
                else replace(found, reached=frozenset(reached.lines), entered=frozenset(reached.entered))
            )

    @property
    def files_entered(self) -> frozenset[str]:
        """Files of the package that are part of the target, as far as any exercise runs a function of them."""
        return frozenset(file for known in self.known for file in known.entered)

    def judge(self, mutant: OrderingMutant) -> Verdict:
        """The verdict on a mutant; ends at the first thing that kills it."""
        reached = [known for known in self.known if mutant.at_import or known.reaches(mutant.file, mutant.lines)]
        names = tuple(known.exercise.name for known in reached)
        if not reached:
            return Verdict(mutant, Outcome.UNREACHED, None, "no exercise runs this place", ())
        try:
            with self.subject.changed(mutant):
                outcome, kill, reason = _Trial(self, mutant, self.subject.load(), reached).verdict()
        except (ImportError, SyntaxError, NameError) as error:
            return Verdict(mutant, Outcome.INVALID, None, f"{type(error).__name__}: {error}", names)
        return Verdict(mutant, outcome, kill, reason, names)

    def original_is_clean(self, known: Known, schedule: Schedule, poison: int) -> bool:
        """Whether the original does the same under a schedule under which it did not run yet."""
        with self.subject.changed():
            target = self.subject.load()
            seen = known.drive(target, schedule, self.subject.settings(target), poison)
        return kill_of(known, seen, schedule) is None

    def relation(self, drive: Drive) -> Relation:
        """The happens-before relation of a run of the original, made once."""
        if id(drive) not in self._relations:
            self._relations[id(drive)] = relation_of(drive.records)
        return self._relations[id(drive)]


class _Trial:
    """All runs of one mutant.

    Args:
        battery: knows the original.
        mutant: the mutant.
        target: it, at work.
        reached: the exercises that run its place.
    """

    def __init__(
        self, battery: Battery, mutant: OrderingMutant, target: RunnerTarget, reached: Sequence[Known]
    ) -> None:
        self._battery = battery
        self._mutant = mutant
        self._target = target
        self._reached = reached
        self._settings = battery.subject.settings(target)
        self._missing: list[str] = []

    def verdict(self) -> tuple[Outcome, Kill | None, str]:
        """What becomes of the mutant, what kills it, and else why it lives."""
        suspicion: Kill | None = None
        for kill in self._kills():
            if kill.certain:
                return (Outcome.INVALID, None, kill.title) if kill.no_program else (Outcome.KILLED, kill, "")
            suspicion = suspicion or kill
        if suspicion is not None:
            return Outcome.KILLED, suspicion, ""
        on_device = [known for known in self._reached if known.exercise.device != "cpu"]
        if not on_device:
            return Outcome.SURVIVED, None, "it runs on the CPU only"
        names = ", ".join(known.exercise.name for known in on_device)
        if not self._missing:
            return Outcome.EQUIVALENT, None, f"every order of the original is kept, in: {names}"
        if self._mutant.kind is Kind.COPY:
            told = [self._copies_told_apart(known) for known in on_device]
            if not any(told):
                return (
                    Outcome.EQUIVALENT,
                    None,
                    f"neither buffer nor copy is written while both are in use, in: {names}",
                )
            return Outcome.SURVIVED, None, next(filter(None, told))
        return Outcome.SURVIVED, None, self._missing[0]

    def _copies_told_apart(self, known: Known) -> str | None:
        told = copies_told_apart(known.first.records, self._mutant.file, self._mutant.lines)
        return told and f"{known.exercise.name}: {told}"

    def _kills(self) -> Iterator[Kill]:
        """Whatever is wrong: first as late as possible, which finds races; further schedules if there is no proof."""
        yield from self._compared(FIRST)
        yield from self._compared(SECOND)
        if self._missing:
            for known in self._reached:
                yield from self._under_others(known)

    def _compared(self, schedule: Schedule) -> Iterator[Kill]:
        """Under a schedule under which the original was recorded; notes what the proof of equivalence lacks."""
        for known in self._reached:
            original = known.first if schedule == FIRST else known.second
            if original is None:
                continue
            seen = known.drive(self._target, schedule, self._settings, record=True)
            if (kill := kill_of(known, seen, schedule)) is not None:
                yield kill
            elif known.exercise.device != "cpu":
                missing = why_not_equivalent(self._battery.relation(original), relation_of(seen.records))
                self._missing += [f"{known.exercise.name}, {schedule}: {missing}"] if missing else []

    def _under_others(self, known: Known) -> Iterator[Kill]:
        poisons = [(schedule, POISON) for schedule in known.others]
        for schedule, poison in [*poisons, *([(SECOND, OTHER_POISON)] if poisons else ())]:
            seen = known.drive(self._target, schedule, self._settings, poison)
            kill = kill_of(known, seen, schedule)
            if kill is not None and self._battery.original_is_clean(known, schedule, poison):
                yield kill
