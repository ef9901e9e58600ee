"""From a race to a run that goes wrong: a schedule with wrong data, in as few deviations as it takes.

A race is a race in every schedule, but data come out wrong in some only. What is right is what an idle device computes,
the run under ``early``: there each operation is over before the program goes on, as its author saw it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..findings import Finding
from .errors import VirtualDeviceError
from .explore import explore
from .runs import Program, Run, run_program
from .schedules import Decision, Schedule, expand
from .timeline import Story, render
from .transcript import Entry

#: Schedules that are tried after ``late`` and the starving ones, before all orders are explored.
GUESSES = "pct:0,pct:1,pct:2,pct:3,random:0,random:1,random:2,random:3"
EXPLORED = 64
_SHOWN = 300
#: Columns of a comment in a pasted test, which is indented by six.
_WIDTH = 94


@dataclass(frozen=True)
class Witness:
    """A run with wrong data.

    Attributes:
        reference: the run under ``early``.
        wrong: the run whose outcome differs, under the shrunk schedule.
        found_by: the schedule that went wrong first.
        runs: how many runs it took to find and shrink it.
        timeline: what happened to the memory of the race, one line per event.
    """

    reference: Run
    wrong: Run
    found_by: Schedule
    runs: int
    timeline: str


def find_witness(program: Program, *, explored: int = EXPLORED) -> Witness | None:
    """Look for a schedule whose data are wrong, and shrink it.

    Args:
        program: a callable whose runs depend on nothing but the schedule; see ``run_program``.
        explored: at most this many runs of the exhaustive exploration, which comes last.

    Returns:
        a witness, or None if nothing races or every schedule tried gives the right data.

    Raises:
        VirtualDeviceError: the program fails on an idle device too.
    """
    counted = _Counted(program)
    reference = run_program(counted, "early")
    if reference.error is not None:
        raise VirtualDeviceError(
            f"program {_name(program)}: {reference.error}",
            "it must come to its end on an idle device",
            "the data of that run are what the others are compared with",
            "a program that runs with device='cuda' and returns what it computed",
        )
    if not reference.findings:
        return None
    wrong = next((run for run in _runs(counted, reference, explored) if not run.same_outcome(reference)), None)
    if wrong is None:
        return None
    small = _shrink(counted, reference, wrong)
    entries: list[Entry] = []
    final = run_program(counted, small, note=entries.append)
    return Witness(reference, final, wrong.schedule, counted.calls, tell(entries, final.findings))


class _Counted:
    """A program that counts its calls."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.calls = 0

    def __call__(self) -> object:
        """Call it."""
        self.calls += 1
        return self._program()


def _runs(program: Program, reference: Run, explored: int) -> Iterator[Run]:
    """Runs under one schedule after the other, the simplest first."""
    for schedule in expand(f"late,starve,{GUESSES}", streams=reference.streams):
        yield run_program(program, schedule)
    yield from explore(program, explored).runs


def _shrink(program: Program, reference: Run, wrong: Run) -> Schedule:
    """The schedule of a wrong run, as the fewest deviations from ``late`` that are still wrong."""

    def fails(deviations: Sequence[Decision]) -> bool:
        return not run_program(program, Schedule("late", 0, tuple(deviations))).same_outcome(reference)

    if wrong.schedule.base == "late" and not wrong.schedule.deviations:
        return wrong.schedule
    # One rush of a stream stands for as many single steps as it has operations to run, so rushes are tried first.
    rushes = tuple(dict.fromkeys(replace(decision, rush=True) for decision in wrong.decisions))
    for decisions in (rushes, wrong.decisions):
        if fails(decisions):
            return Schedule("late", 0, minimise(decisions, fails))
    return wrong.schedule


def minimise(items: Sequence[Decision], fails: Callable[[Sequence[Decision]], bool]) -> tuple[Decision, ...]:
    """A part that still fails and of which no single item can be left out.

    Delta debugging (Zeller and Hildebrandt, 2002, "Simplifying and isolating failure-inducing input"), by complements.

    Args:
        items: together they fail.
        fails: whether a part does.
    """
    kept, pieces = list(items), 2
    while kept:
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                kept, pieces = rest, max(pieces - 1, 2)
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(kept))
    return tuple(kept)


def tell(entries: Sequence[Entry], findings: Sequence[Finding]) -> str:
    """The timeline of a run's first race."""
    races = [finding for finding in findings if "operations" in finding.evidence]
    return render(Story(entries).rows(races[0])) if races else ""


def as_test(program: Program, witness: Witness) -> str:
    """A test to paste into a file: it fails as long as the program can go wrong, and passes once it is repaired.

    Where it fails, it shows the first value that differs.

    Raises:
        VirtualDeviceError: the program cannot be imported by name.
    """
    module, name = _importable(program)
    schedule = str(witness.wrong.schedule)
    return f"""from {module} import {name}
from mrv2.checks.virtual.runs import run_program


def test_{name}_does_not_depend_on_the_schedule():
{_comment(witness)}
    run = run_program({name}, "{schedule}")
    assert run.difference(run_program({name}, "early")) == ""
    assert not run.findings
"""


def _comment(witness: Witness) -> str:
    """Both outcomes and the timeline, as lines of a comment that fit into a file."""
    right, wrong = (repr(run.error or run.data)[:_SHOWN] for run in (witness.reference, witness.wrong))
    texts = [f"An idle device gives {right}", f"and this schedule gave {wrong}:"]
    texts += [f"  {line}" for line in witness.timeline.splitlines()]
    return "\n".join(f"    # {line}" for text in texts for line in _wrapped(text))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="      ", replace_whitespace=False, drop_whitespace=True)


def _name(program: object) -> str:
    return str(getattr(program, "__qualname__", type(program).__qualname__))


def _importable(program: Program) -> tuple[str, str]:
    module, name = getattr(program, "__module__", "__main__"), _name(program)
    if module == "__main__" or not name.isidentifier() or isinstance(program, type):
        raise VirtualDeviceError(
            f"program {name}",
            "a test can only call a function at the top level of a module",
            "it has to import it by its name",
            "def program(): ... in a module of its own",
        )
    return module, name
