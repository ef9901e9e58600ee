"""``mrv2 trace``: what a recorded run shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mrv2.checks.findings import JSON, Finding, RunVerdict, verdict_of
from mrv2.checks.happens_before import HappensBefore, replay_trace
from mrv2.checks.libraries import portable
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding

from .environment import describe
from .shared import DebugOption, JsonOption, exit_code, guarded, output
from .trace_analyze import analyze
from .trace_count import count

trace = typer.Typer(help="Work on a recorded run, or count what its steps do.", no_args_is_help=True)
trace.command()(count)
trace.command()(analyze)


@trace.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace: JSON lines.", show_default=False)],
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Find the races of a recorded run; fails if there is one."""
    with guarded(debug):
        check_destinations({"--json": json}, (file,))
        judge = HappensBefore()
        counts = replay_trace(file, judge)
        findings = [portable(finding) for finding in judge.findings]
        verdict = verdict_of(findings) if counts["access"] else RunVerdict.INCONCLUSIVE
        try:
            if json:
                write_report(json, _as_report(findings, counts, verdict))
        finally:
            _print(output(), findings, counts, verdict)
        raise typer.Exit(exit_code(verdict))


def _print(console: Console, findings: list[Finding], counts: Counter[str], verdict: RunVerdict) -> None:
    """The findings, what was judged, and the verdict last."""
    screen.print_findings(console, [ReportedFinding(finding) for finding in findings])
    found = screen.count(len(findings), "finding") if counts["access"] else "no access, so nothing was checked"
    judged = [screen.count(counts[event], thing) for event, thing in _COUNTED.items()]
    screen.line(console, f"{verdict.value.upper()}: {found}; {', '.join(judged)}")


_COUNTED = {"operation": "operation", "sync": "synchronisation", "allocate": "block", "lane": "lane"}


def _as_report(findings: list[Finding], counts: Counter[str], verdict: RunVerdict) -> Report:
    metrics: dict[str, JSON] = {"events": dict(sorted(counts.items()))}
    return Report("trace-check", describe(), verdict, findings=tuple(map(ReportedFinding, findings)), metrics=metrics)
