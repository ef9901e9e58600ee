"""Whether a campaign that is not told what to look for finds each of the planted faults, and how small it makes them.

    python -m mrv2.fuzz.mutants.score --out ci/results/planted_faults.json --commit HASH [--workers N] [--only NAME]...

Every fault gets a campaign with the default settings, one worker, in a process of its own, and is written down when it
is over, whichever others still run. Started again with the same file and commit, it goes on with the faults that are
not in it; those whose process failed are among them. Times are of the processor, compilers of kernels included, so that
a busy machine changes little; loading Python's modules is not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON
from mrv2.checks.virtual.replay import environment
from mrv2.checks.virtual.transcript import Note
from mrv2.fuzz.campaign.durable import write_durably
from mrv2.fuzz.campaign.findings import FindingStore, FoundCase
from mrv2.fuzz.campaign.options import Options
from mrv2.fuzz.campaign.worker import FINDINGS, Worker
from mrv2.fuzz.case import CaseOutcome, Failure
from mrv2.fuzz.paste import as_test
from mrv2.fuzz.script import Script
from mrv2.fuzz.targets.named import REFERENCE
from mrv2.fuzz.targets.protocols import models_of

from . import PLANTED, mutant
from .source import Mutation

CASES = 500
#: What the issue asks for: events and deviations of the median, and seconds.
MOST_EVENTS, MOST_DEVIATIONS, MOST_SECONDS = 8, 4, 60


def cpu_seconds() -> float:
    """Processor time of this process and of the compilers that it waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class FirstFinding(Worker):
    """A worker that ends when its first finding is as small as it gets.

    Attributes:
        cases: run until then, those of the shrinker included.
        cases_to_find: run until something was wrong; None before that.
        seconds_to_find: of the processor, likewise.
    """

    cases = 0
    cases_to_find: int | None = None
    seconds_to_find: float | None = None

    def _case(self, script: Script, note: Note | None = None) -> CaseOutcome:
        self.cases += 1
        return super()._case(script, note)

    def _judge(self, script: Script, outcome: CaseOutcome) -> tuple[Failure, ...]:
        if outcome.failures and self.cases_to_find is None:
            self.cases_to_find, self.seconds_to_find = self.cases, cpu_seconds()
        return super()._judge(script, outcome)

    def _minimise(self, case: FoundCase) -> None:
        super()._minimise(case)
        self._stop = True


def score(mutation: Mutation, cases: int) -> dict[str, JSON]:
    """What a campaign makes of a fault.

    Args:
        cases: after so many it gives up.
    """
    target_name, began = f"mrv2.fuzz.mutants:{mutation.name}", cpu_seconds()
    with mutant(mutation) as target, tempfile.TemporaryDirectory() as folder:
        worker = FirstFinding(target, Options(target_name, models=models_of(target), cases=cases), Path(folder), 0)
        worker.run()
        found = FindingStore(Path(folder) / FINDINGS).all()
        if not found or worker.seconds_to_find is None:
            return {"found": False, "cases": worker.cases, "cpu_seconds": round(cpu_seconds() - began, 1)}
        ended = cpu_seconds()
        case = next((case for case in found if case.minimised), found[0])
        return {
            "found": True,
            "cases_to_find": worker.cases_to_find,
            "cpu_seconds_to_find": round(worker.seconds_to_find - began, 1),
            "cpu_seconds_to_shrink": round(ended - worker.seconds_to_find, 1),
            "events": case.script.num_events,
            "steps_named": len(case.script.events) - case.script.num_events,
            "deviations": case.script.num_deviations,
            "schedule": None if case.script.schedule is None else str(case.script.schedule),
            "seen": case.text,
            "fails_with": not passes(as_test(target_name, case.script, ())),
            "passes_without": passes(as_test(REFERENCE, case.script, ())),
        }


def passes(code: str) -> bool:
    """Whether a pasted test passes; an error of another kind than a failed assertion is raised."""
    names: dict[str, Any] = {}
    exec(compile(code, "pasted test", "exec"), names)  # noqa: S102 - it is what somebody would paste, made by us
    try:
        names["test_replay"]()
    except AssertionError:
        return False
    return True


def summary(faults: Mapping[str, Mapping[str, Any]]) -> dict[str, JSON]:
    """Medians over the faults that were found, and what the issue demands of them."""
    found = [entry for entry in faults.values() if entry["found"]]

    def median(name: str) -> float | None:
        return statistics.median(entry[name] for entry in found) if found else None

    return {
        "faults": sum(map(len, PLANTED.values())),
        "tried": len(faults),
        "found": len(found),
        "median_cpu_seconds_to_find": median("cpu_seconds_to_find"),
        "median_events": median("events"),
        "median_deviations": median("deviations"),
        "tests_that_fail_with_and_pass_without": sum(
            entry["fails_with"] and entry["passes_without"] for entry in found
        ),
        "bars": {"seconds": MOST_SECONDS, "events": MOST_EVENTS, "deviations": MOST_DEVIATIONS},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Score what is not in the file yet; 0 if every fault of ``PLANTED`` was found."""
    options = _parser().parse_args(arguments)
    if options.one:
        print(json.dumps(score(_by_name()[options.one][1], options.cases)))
        return 0
    faults = _by_name()
    known = _known(options.out, options.commit)
    missing = [name for name in faults if name not in known and name in (options.only or faults)]
    for name, entry in _scores(missing, options.cases, options.workers):
        if entry is not None:
            part, mutation = faults[name]
            known[name] = {"part": part, "fault": mutation.doc, **entry}
            in_order = {fault: known[fault] for fault in faults if fault in known}
            _write(options.out, in_order, options.cases, options.commit)
        print(f"{name}: {'its process failed, so it is not in the file' if entry is None else entry}", flush=True)
    return 0 if set(known) == set(faults) and all(entry["found"] for entry in known.values()) else 1


def _known(path: Path, commit: str) -> dict[str, Any]:
    """The faults of a file that was begun before, at the same commit."""
    if not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content.get("commit") != commit:
        raise CheckError(
            f"{path}, of commit {content.get('commit')}",
            f"a score is of one commit, and {commit} is asked for",
            "a fault that was found by another fuzzer says nothing of this one",
            "another --out, or the same commit",
        )
    faults: dict[str, Any] = content["faults"]
    return faults


def _scores(names: Sequence[str], cases: int, workers: int) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Each fault with its score, in the order in which they are over; None if its process failed."""
    if workers == 1:  # one after another: nothing further is begun when somebody ends it
        yield from ((name, _in_a_process(name, cases)) for name in names)
        return
    with ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(_in_a_process, name, cases): name for name in names}
        for done in as_completed(running):
            yield running[done], done.result()


def _by_name() -> dict[str, tuple[str, Mutation]]:
    return {mutation.name: (part, mutation) for part, mutations in PLANTED.items() for mutation in mutations}


def _in_a_process(name: str, cases: int) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "mrv2.fuzz.mutants.score", "--one", name, "--cases", str(cases)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        return None
    entry: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return entry


def _write(path: Path, faults: dict[str, Any], cases: int, commit: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, JSON] = {
        "schema": 1,
        "what": "campaigns with the default settings against one planted fault each, not told which",
        "commit": commit,
        "cases_at_most": cases,
        "environment": dict(environment()),
        "summary": summary(faults),
        "faults": faults,
    }
    write_durably(path, content)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("planted_faults.json"))
    parser.add_argument("--commit", default="", help="of the tree that runs; it is written down")
    parser.add_argument("--cases", type=int, default=CASES, help="after so many a campaign gives up")
    parser.add_argument("--workers", type=int, default=1, help="campaigns at once, each of one process")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this fault; may be repeated")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
