"""``mrv2 replay`` of a finding of ``mrv2 fuzz``: its script runs again, here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mrv2.checks.findings import JSON, RunVerdict
from mrv2.ci.report import console as screen
from mrv2.ci.report.json_report import Report
from mrv2.ci.report.outcome import ReportedFinding

from .environment import describe
from .fuzz import as_finding

if TYPE_CHECKING:
    from mrv2.fuzz.campaign.findings import FoundCase
    from mrv2.fuzz.case import Failure
    from mrv2.fuzz.targets.protocols import RunnerTarget


def is_finding(path: Path) -> bool:
    """Whether a file says that it is a finding; one that cannot be read is none, and is refused by whoever reads it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "finding" in content


def replay_finding(console: Console, path: Path, times: int) -> tuple[Report, RunVerdict]:
    """Run the script of a finding again; PASS if it goes wrong in the same way, each time.

    Raises:
        CheckError: the file is none.
        InputError: the target cannot be found.
    """
    from mrv2.fuzz.campaign.findings import read_found_case

    from .targets import importable, resolve_target

    found = read_found_case(path)
    with importable(Path.cwd()):
        target = resolve_target(found.target)
        runs = [_failures(target, found) for _ in range(times)]
    same = all(failures and failures[0].signature == found.cause for failures in runs)
    verdict = RunVerdict.PASS if same else RunVerdict.FAIL
    _print(console, found, runs, verdict)
    metrics: dict[str, JSON] = {"target": found.target, "signature": found.signature, "seen": _seen(runs)}
    findings = (ReportedFinding(as_finding(found)),)
    return Report("replay", describe(), verdict, findings=findings, metrics=metrics), verdict


def _failures(target: RunnerTarget, found: FoundCase) -> tuple[Failure, ...]:
    """What goes wrong; a case that ended its process is run in a copy of this one."""
    from mrv2.fuzz.campaign.deaths import death_of, is_death
    from mrv2.fuzz.case import Failure, run_case

    if not is_death(found.cause):
        return run_case(target, found.script).failures
    death = death_of(lambda: run_case(target, found.script))
    return () if death is None else (Failure(death, f"the process died: {death}", 3),)


def _seen(runs: list[tuple[Failure, ...]]) -> list[JSON]:
    return [[failure.text for failure in failures] for failures in runs]


def _print(console: Console, found: FoundCase, runs: list[tuple[Failure, ...]], verdict: RunVerdict) -> None:
    """What ran, what it showed then and now; the verdict last."""
    from mrv2.checks.virtual.replay import environment

    script = found.script
    size = f"{screen.count(script.num_events, 'event')}, {screen.count(script.num_deviations, 'deviation')}"
    screen.line(console, f"target    {found.target}")
    screen.line(console, f"schedule  {script.schedule or 'none: the plain CPU'}; {size}")
    screen.line(console, f"then      {found.text}")
    for failures in runs:
        screen.line(console, f"now       {failures[0].text if failures else 'nothing is wrong'}")
    for name, now in environment().items():
        before = found.environment.get(name, "none")
        if before != now:
            screen.line(console, f"found with {name} {before}, repeated with {now}")
    same = "it goes wrong in the same way" if verdict is RunVerdict.PASS else "it does not go wrong in the same way"
    screen.line(console, f"{verdict.value.upper()}: {same}")
