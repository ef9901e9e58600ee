"""``mrv2 diff``: which findings of one report are new against another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mrv2.checks.findings import JSON, RunVerdict
from mrv2.ci.report import console as screen
from mrv2.ci.report.json_report import Report, check_destination, read_report, write_report
from mrv2.ci.report.outcome import ReportedFinding
from mrv2.ci.report.problem import InputError

from .environment import describe
from .shared import DebugOption, JsonOption, exit_code, guarded, output


@dataclass(frozen=True)
class Difference:
    """Findings compared by fingerprint; one that occurs three times in B and twice in A is new once.

    Attributes:
        new: in B and not in A.
        gone: in A and not in B.
        common: in both.
        not_run: stages that ended in A but not in B; what they would find now is not known.
        verdict: FAIL if anything is new; INCONCLUSIVE if B checked less than A or came to no conclusion.
    """

    new: tuple[ReportedFinding, ...]
    gone: tuple[ReportedFinding, ...]
    common: tuple[ReportedFinding, ...]
    not_run: tuple[str, ...]
    verdict: RunVerdict


def diff(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The earlier report.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The later report.", show_default=False)],
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Compare two reports; fails if B has findings that A has not."""
    with guarded(debug):
        if json:
            check_destination(json)
        difference = compare(read_report(before), read_report(after))
        if json:
            write_report(json, _as_report(difference))
        _print(output(), difference)
        raise typer.Exit(exit_code(difference.verdict))


def compare(before: Report, after: Report) -> Difference:
    """Compare the findings of two reports of one command.

    Raises:
        InputError: the reports are of different commands.
    """
    if before.command != after.command:
        raise InputError(
            f"reports of mrv2 {before.command} and mrv2 {after.command}",
            "both reports must come from the same command",
            "findings that the other command never looks for would all count as gone",
            "two reports of the same command",
        )
    new, common = _split(after.findings, before.findings)
    gone, _ = _split(before.findings, after.findings)
    not_run = tuple(sorted(_stages(before) - _stages(after)))
    return Difference(new, gone, common, not_run, _verdict(after, new, not_run))


def _split(
    findings: Iterable[ReportedFinding], known: Iterable[ReportedFinding]
) -> tuple[tuple[ReportedFinding, ...], tuple[ReportedFinding, ...]]:
    """Split findings into those beyond what ``known`` has of the same fingerprint, and the others."""
    left = Counter(entry.finding.fingerprint() for entry in known)
    beyond: list[ReportedFinding] = []
    within: list[ReportedFinding] = []
    for entry in findings:
        fingerprint = entry.finding.fingerprint()
        (within if left[fingerprint] > 0 else beyond).append(entry)
        left[fingerprint] -= 1
    return tuple(beyond), tuple(within)


def _stages(report: Report) -> set[str]:
    """Names of the stages that ended."""
    stages = report.metrics.get("stages")
    return set(stages) if isinstance(stages, dict) else set()


def _verdict(after: Report, new: tuple[ReportedFinding, ...], not_run: tuple[str, ...]) -> RunVerdict:
    """New findings fail; a failure without any finding is new too, since nothing names what was known before."""
    if new or (after.verdict is RunVerdict.FAIL and not after.findings):
        return RunVerdict.FAIL
    if not_run or after.verdict is RunVerdict.INCONCLUSIVE:
        return RunVerdict.INCONCLUSIVE
    return RunVerdict.PASS


def _print(console: Console, difference: Difference) -> None:
    """New findings as ``verify`` shows them, the others one line each, the verdict last."""
    screen.print_findings(console, [ReportedFinding(entry.finding, entry.stage) for entry in difference.new])
    for label, entries in (("gone", difference.gone), ("common", difference.common)):
        for entry in entries:
            screen.line(console, f"{label}: {entry.finding.code} {entry.finding.title} ({entry.finding.fingerprint()})")
    if difference.not_run:
        screen.line(console, f"ended in A but not in B: {', '.join(difference.not_run)}")
    counts = f"{len(difference.new)} new, {len(difference.gone)} gone, {len(difference.common)} common"
    screen.line(console, f"{difference.verdict.value.upper()}: {counts}")


def _as_report(difference: Difference) -> Report:
    """The comparison as a report: its findings are the new ones."""
    metrics: dict[str, JSON] = {
        "new": [entry.finding.fingerprint() for entry in difference.new],
        "gone": [entry.finding.fingerprint() for entry in difference.gone],
        "common": [entry.finding.fingerprint() for entry in difference.common],
        "not_run": list(difference.not_run),
    }
    return Report("diff", describe(), difference.verdict, findings=difference.new, metrics=metrics)
