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
from mrv2.checks.report.identity import identity
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, read_report, write_report
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
        not_checked: stages that came to a conclusion in A but not in B; what they would find now is not known.
        verdict: FAIL if anything is new; INCONCLUSIVE if B checked less than A or came to no conclusion.
    """

    new: tuple[ReportedFinding, ...]
    gone: tuple[ReportedFinding, ...]
    common: tuple[ReportedFinding, ...]
    not_checked: tuple[str, ...]
    verdict: RunVerdict


def diff(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The earlier report.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The later report.", show_default=False)],
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Compare two reports; fails if B has findings that A has not."""
    with guarded(debug):
        check_destinations({"--json": json}, (before, after))
        difference = compare(read_report(before), read_report(after))
        try:
            if json:
                write_report(json, _as_report(difference))
        finally:
            _print(output(), difference)
        raise typer.Exit(exit_code(difference.verdict))


def compare(before: Report, after: Report) -> Difference:
    """Compare the findings of two reports of one command.

    Raises:
        InputError: the reports are of different commands, or one of them judged nothing.
    """
    _require_comparable(before, after)
    new, common = _split(after.findings, before.findings)
    gone, _ = _split(before.findings, after.findings)
    not_checked = tuple(sorted(_checked(before) - _checked(after)))
    return Difference(new, gone, common, not_checked, _verdict(after, new, not_checked))


def _require_comparable(before: Report, after: Report) -> None:
    if before.command != after.command:
        raise InputError(
            f"reports of mrv2 {before.command} and mrv2 {after.command}",
            "both reports must come from the same command",
            "findings that the other command never looks for would all count as gone",
            "two reports of the same command",
        )
    for name, report in (("A", before), ("B", after)):
        if report.verdict is None:
            raise InputError(
                f"report {name}, of mrv2 {report.command}, without a verdict",
                "both reports must have a verdict",
                "what was never judged has no findings for that reason alone",
                f"reports of a command that judges, such as mrv2 verify, written with --json {name}.json",
            )


def _split(
    findings: Iterable[ReportedFinding], known: Iterable[ReportedFinding]
) -> tuple[tuple[ReportedFinding, ...], tuple[ReportedFinding, ...]]:
    """Split findings into those beyond what ``known`` has of the same fingerprint, and the others."""
    left = Counter(identity(entry.finding) for entry in known)
    beyond: list[ReportedFinding] = []
    within: list[ReportedFinding] = []
    for entry in findings:
        fingerprint = identity(entry.finding)
        (within if left[fingerprint] > 0 else beyond).append(entry)
        left[fingerprint] -= 1
    return tuple(beyond), tuple(within)


def _stages(report: Report) -> dict[str, RunVerdict]:
    """Verdicts of the stages that ended, by name."""
    stages = report.metrics.get("stages")
    return {name: RunVerdict(stage["verdict"]) for name, stage in stages.items()} if isinstance(stages, dict) else {}


def _checked(report: Report) -> set[str]:
    """Names of the stages that came to a conclusion: an inconclusive one ended, but did not check."""
    return {name for name, verdict in _stages(report).items() if verdict is not RunVerdict.INCONCLUSIVE}


def _verdict(after: Report, new: tuple[ReportedFinding, ...], not_checked: tuple[str, ...]) -> RunVerdict:
    """New findings fail, whatever else was not checked; without any, having checked less than A is no pass."""
    if new or _fails_without_a_finding(after):
        return RunVerdict.FAIL
    if not_checked or after.verdict is RunVerdict.INCONCLUSIVE:
        return RunVerdict.INCONCLUSIVE
    return RunVerdict.PASS


def _fails_without_a_finding(report: Report) -> bool:
    """Whether the run or a stage failed and no finding says why: as good as new, for nothing names what was known."""
    named = {entry.stage for entry in report.findings}
    failed = {name for name, verdict in _stages(report).items() if verdict is RunVerdict.FAIL}
    return bool(failed - named) or (report.verdict is RunVerdict.FAIL and not report.findings)


def _print(console: Console, difference: Difference) -> None:
    """New findings as ``verify`` shows them, the others one line each, the verdict last."""
    screen.print_findings(console, [ReportedFinding(entry.finding, entry.stage) for entry in difference.new])
    for label, entries in (("gone", difference.gone), ("common", difference.common)):
        for entry in entries:
            screen.line(console, f"{label}: {entry.finding.code} {entry.finding.title} ({identity(entry.finding)})")
    if difference.not_checked:
        screen.line(console, f"checked in A but not in B: {', '.join(difference.not_checked)}")
    counts = f"{len(difference.new)} new, {len(difference.gone)} gone, {len(difference.common)} common"
    screen.line(console, f"{difference.verdict.value.upper()}: {counts}")


def _as_report(difference: Difference) -> Report:
    """The comparison as a report: its findings are the new ones."""
    metrics: dict[str, JSON] = {
        "new": [identity(entry.finding) for entry in difference.new],
        "gone": [identity(entry.finding) for entry in difference.gone],
        "common": [identity(entry.finding) for entry in difference.common],
        "not_checked": list(difference.not_checked),
    }
    return Report("diff", describe(), difference.verdict, findings=difference.new, metrics=metrics)
