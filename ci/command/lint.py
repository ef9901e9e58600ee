"""``mrv2 lint``: the static search for hidden waits on hot paths."""

from __future__ import annotations

import enum
import json as json_module
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrv2.checks.findings import JSON, RunVerdict, combine, verdict_of
from mrv2.checks.report.baseline import Baseline, read_baseline
from mrv2.checks.report.identity import identity, title_of
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.github import workflow_command
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding
from mrv2.ci.report.sarif import sarif

from .environment import describe
from .shared import DebugOption, JsonOption, exit_code, guarded, notes, output

if TYPE_CHECKING:
    from mrv2.checks.lint import Result


#: Functions that are named one by one.
_SHOWN = 3


class Format(enum.Enum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def lint(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Files and folders to judge.", show_default=False)
    ],
    root: Annotated[
        list[str] | None,
        typer.Option(metavar="PKG.MOD:FUNCTION", help="A hot path besides those of pyproject; repeatable."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take every function as a hot path.")] = False,
    baseline: Annotated[Path | None, typer.Option(metavar="FILE", help="Findings that are accepted.")] = None,
    shown: Annotated[Format, typer.Option("--format", help="How findings are printed.")] = Format.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Let SUSPICIOUS fail too.")] = False,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Search source code for what makes the host wait on a hot path; nothing is imported or run."""
    with guarded(debug):
        from mrv2.checks.lint import lint as search

        check_destinations({"--json": json}, (*paths, baseline))
        accepted = read_baseline(baseline) if baseline else Baseline()
        began = time.perf_counter()
        result = search(paths, root or (), everything)
        report = _report(result, accepted, time.perf_counter() - began)
        try:
            if json:
                write_report(json, report)
        finally:
            _print(shown, result, report, accepted)
        assert report.verdict is not None
        raise typer.Exit(exit_code(report.verdict, strict))


def _report(result: Result, baseline: Baseline, seconds: float) -> Report:
    """The result with the baseline applied. What was not looked at is no pass."""
    found = [ReportedFinding(one, None, baseline.reasons.get((identity(one), one.code))) for one in result.findings]
    verdict = verdict_of(entry.finding for entry in found if entry.accepted is None)
    if result.broken or result.cut or not result.reached:
        verdict = combine([verdict, RunVerdict.INCONCLUSIVE])
    allowed = [ReportedFinding(finding, None, reason) for finding, reason in result.allowed]
    counts: dict[str, JSON] = dict(Counter(entry.finding.code for entry in found if entry.accepted is None))
    metrics: dict[str, JSON] = {
        "files": result.files,
        "context_files": result.context_files,
        "functions_reached": len(result.reached),
        "contexts": result.contexts,
        "seconds": round(seconds, 3),
        "findings": counts,
    }
    coverage: dict[str, JSON] = {
        "roots": list(result.roots),
        "reached": list(result.reached),
        "broken": dict(result.broken),
        "too_deep": list(result.cut),
    }
    return Report("lint", describe(), verdict, findings=(*found, *allowed), metrics=metrics, coverage=coverage)


def _print(shown: Format, result: Result, report: Report, baseline: Baseline) -> None:
    """Findings to standard output in the format asked for; what a machine does not read to standard error."""
    locate = _locator(result)
    if shown is Format.JSON:
        typer.echo(json_module.dumps(report.as_json(), indent=2, allow_nan=False))
    elif shown is Format.SARIF:
        typer.echo(json_module.dumps(sarif(report.findings, str(report.environment["mrv2"]), locate), indent=2))
    elif shown is Format.GITHUB:
        for entry in report.findings:
            typer.echo(workflow_command(entry, locate))
    else:
        for entry in report.findings:
            _print_finding(entry, locate)
    _print_end(shown, result, report, baseline)


def _locator(result: Result) -> Callable[[str], str]:
    """Paths from the current folder, where that holds the file."""

    def locate(file: str) -> str:
        path = result.places.get(file)
        return os.path.relpath(path) if path is not None else file

    return locate


def _print_finding(entry: ReportedFinding, locate: Callable[[str], str]) -> None:
    """A finding: place, code and title on a line that editors can follow; the way there; what to write instead."""
    finding, console = entry.finding, output()
    site = finding.where[0]
    if entry.accepted is not None:
        screen.line(console, f"accepted: {locate(site.file)}:{site.line}: {finding.code} ({entry.accepted})")
        return
    sure = finding.evidence.get("confidence")
    kind = f"{finding.verdict.value}, {sure}" if sure else finding.verdict.value
    screen.line(console, f"{locate(site.file)}:{site.line}: {finding.code} {title_of(finding)} [{kind}]")
    chain = finding.evidence.get("chain")
    if isinstance(chain, Sequence) and len(chain) > 1:
        screen.line(console, f"    way      {' > '.join(str(step).partition(':')[2] for step in chain)}")
    for other in finding.other:
        screen.line(console, f"    against  {locate(other.file)}:{other.line} in {other.function}")
    screen.line(console, f"    instead  {finding.remedy}  ({identity(finding)})")


def _print_end(shown: Format, result: Result, report: Report, baseline: Baseline) -> None:
    """What could not be judged, and the verdict as the last line."""
    console = output() if shown is Format.TEXT else notes()
    for file, reason in sorted(result.broken.items()):
        screen.line(console, f"not judged: {file}: {reason}", "yellow")
    if result.cut:
        shown_ones = ", ".join(result.cut[:_SHOWN])
        screen.line(
            console, f"not judged: {screen.count(len(result.cut), 'function')} too deep below a root: {shown_ones}"
        )
    for fingerprint in baseline.unmatched(tuple(entry.finding for entry in report.findings)):
        screen.line(console, f"warning: baseline entry {fingerprint} matched no finding; repaired? Then remove it")
    waiting = sum(entry.accepted is None for entry in report.findings)
    assert report.verdict is not None
    parts = ((len(result.roots), "root"), (len(result.reached), "function"), (result.files, "file"))
    looked = ", ".join(screen.count(number, thing) for number, thing in parts)
    screen.line(console, f"{report.verdict.value.upper()}: {screen.count(waiting, 'finding')}; looked at {looked}")
