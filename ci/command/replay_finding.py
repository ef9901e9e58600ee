"""``mrv2 replay`` of a finding of ``mrv2 fuzz``: its script runs again, here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mrv2.checks.findings import JSON, RunVerdict
from mrv2.ci.report import console as screen
from mrv2.ci.report.json_report import Report
from mrv2.ci.report.outcome import ReportedFinding

from .environment import describe
from .fuzz import as_finding, size_of

if TYPE_CHECKING:
    from mrv2.fuzz.campaign.findings import FoundCase
    from mrv2.fuzz.campaign.observed import Observed
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
    """Run the script of a finding again; PASS if it goes wrong in the same way, and each time here in the same one.

    Raises:
        CheckError: the file is none.
        InputError: the target cannot be found.
    """
    from mrv2.fuzz.campaign.findings import read_found_case

    from .targets import importable, resolve_target

    found = read_found_case(path)
    with importable(Path.cwd()):
        target = resolve_target(found.target, "the finding's target")
        runs = [_run(target, found) for _ in range(times)]
    same = all(failures and failures[0].signature == found.cause for failures, _ in runs)
    same &= all(observed == runs[0][1] for _, observed in runs)
    verdict = RunVerdict.PASS if same else RunVerdict.FAIL
    _print(console, found, runs, verdict)
    metrics: dict[str, JSON] = {
        "target": found.target,
        "signature": found.signature,
        "seen": [[failure.text for failure in failures] for failures, _ in runs],
        "repeated": dict(_compared(found, runs[0][1])),
    }
    findings = (ReportedFinding(as_finding(found)),)
    return Report("replay", describe(), verdict, findings=findings, metrics=metrics), verdict


#: What a run showed: what went wrong, and all that a repetition is compared by, if it came to its end.
Seen = tuple[tuple["Failure", ...], "Observed | None"]


def _run(target: RunnerTarget, found: FoundCase) -> Seen:
    """Once more; a case that ended its process is run in a copy of this one."""
    from mrv2.fuzz.campaign.deaths import death_of, is_death
    from mrv2.fuzz.campaign.observed import observe
    from mrv2.fuzz.case import Failure, run_case

    if not is_death(found.cause):
        observed, outcome = observe(lambda note: run_case(target, found.script, note))
        return outcome.failures, observed
    death = death_of(lambda: run_case(target, found.script))
    return (() if death is None else (Failure(death, f"the process died: {death}", 3),)), None


def _compared(found: FoundCase, now: Observed | None) -> Iterator[tuple[str, bool]]:
    """Each part of what was seen, and whether it is now what the finding says."""
    from mrv2.fuzz.campaign.observed import parts

    if found.observed is not None and now is not None:
        yield from parts(found.observed, now)


def _print(console: Console, found: FoundCase, runs: list[Seen], verdict: RunVerdict) -> None:
    """What ran, what it showed then and now; the verdict last."""
    from mrv2.checks.virtual.replay import environment

    script = found.script
    screen.line(console, f"target    {found.target}")
    screen.line(console, f"schedule  {script.schedule or 'none: the plain CPU'}; {size_of(script)}")
    screen.line(console, f"then      {found.text}")
    for failures, _ in runs:
        screen.line(console, f"now       {failures[0].text if failures else 'nothing is wrong'}")
    for part, same in _compared(found, runs[0][1]):
        screen.line(console, f"{'the same' if same else 'another':9} {part}")
    for name, now in environment().items():
        before = found.environment.get(name, "none")
        if before != now:
            screen.line(console, f"found with {name} {before}, repeated with {now}")
    screen.line(console, f"{verdict.value.upper()}: {_in_words(found, runs, verdict)}")


def _in_words(found: FoundCase, runs: list[Seen], verdict: RunVerdict) -> str:
    if any(observed != runs[0][1] for _, observed in runs):
        return "two runs here are not the same"
    if verdict is not RunVerdict.PASS:
        return "it does not go wrong in the same way"
    compared = [same for _, same in _compared(found, runs[0][1])]
    return "it goes wrong in the same way" + (", byte for byte" if compared and all(compared) else "")
