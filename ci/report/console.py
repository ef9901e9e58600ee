"""The console: tables, findings and errors, for people.

On a terminal with colour; elsewhere (a pipe, a log, ``NO_COLOR``, a dumb terminal) plain ASCII of our own without
control sequences. Text that comes from a target or a model is shown with its control characters escaped.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mrv2.checks.findings import RunVerdict
from mrv2.checks.report.text import count as count  # the commands count things with it, too
from mrv2.checks.report.text import details, headline, printable

from .outcome import ReportedFinding, RunOutcome, StageOutcome
from .problem import FourParts

IN_FULL = 5
_PIPE_WIDTH = 120
_STYLE = {
    RunVerdict.PASS: "bold green",
    RunVerdict.SUSPICIOUS: "bold yellow",
    RunVerdict.INCONCLUSIVE: "bold yellow",
    RunVerdict.FAIL: "bold red",
}


def is_plain(stream: IO[str], environ: Mapping[str, str] | None = None) -> bool:
    """Whether to write plain ASCII: no terminal, a dumb one, or the user asks by ``NO_COLOR`` (no-color.org)."""
    environ = os.environ if environ is None else environ
    return not stream.isatty() or bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever began the command says what a closed pipe means; by itself the console would end the process.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def make_console(stream: IO[str]) -> Console:
    """A console on ``stream`` that interprets no markup, so that a ``[`` in a title stays one."""
    if not is_plain(stream):
        return _Console(file=stream, markup=False, highlight=False, emoji=False)
    width = os.environ.get("COLUMNS", "")
    return _Console(
        file=stream,
        force_terminal=False,
        color_system=None,
        no_color=True,
        markup=False,
        highlight=False,
        emoji=False,
        width=int(width) if width.isdigit() and int(width) > 0 else _PIPE_WIDTH,
    )


def safe(text: str, stream: IO[str]) -> str:
    """``text`` with control characters escaped, and whatever the stream's encoding lacks."""
    shown = printable(text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def line(console: Console, text: str, style: str = "") -> None:
    """One line, never wrapped, so that it can be searched for and pasted."""
    console.print(Text(safe(text, console.file), style=style), soft_wrap=True)


def table(console: Console, headers: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """A table; the last cell of a row may be long and is folded."""
    fancy = console.is_terminal and not console.no_color
    grid = Table(box=box.ROUNDED if fancy else box.ASCII, header_style="bold", safe_box=True)
    for header in headers:
        grid.add_column(header, overflow="fold", justify="right" if header == "seconds" else "left")
    for row in rows:
        grid.add_row(*(Text(safe(cell, console.file)) if isinstance(cell, str) else cell for cell in row))
    console.print(grid)


def print_problem(console: Console, parts: FourParts, kind: str = "error") -> None:
    """An error in four parts."""
    line(console, f"{kind}: {parts.subject}", "bold red")
    line(console, f"  rule     {parts.rule}")
    line(console, f"  why      {parts.reason}")
    line(console, f"  instead  {parts.remedy}")


def print_run(console: Console, outcome: RunOutcome) -> None:
    """The result of a run: a table of stages, the findings, what was not run, and the verdict as the last line."""
    if outcome.finished:
        table(console, ("stage", "verdict", "seconds", "summary"), (_stage_row(stage) for stage in outcome.finished))
    print_findings(console, [entry for stage in outcome.finished for entry in stage.findings])
    for title, names in (("not finished", outcome.unfinished), ("left out by --stage", outcome.left_out)):
        if names:
            line(console, f"{title}: {', '.join(names)}", "yellow")
    for fingerprint in outcome.unmatched:
        line(console, f"warning: baseline entry {fingerprint} matched no finding; repaired? Then remove it", "yellow")
    line(console, verdict_line(outcome), _STYLE[outcome.verdict])


def _stage_row(stage: StageOutcome) -> tuple[str | Text, ...]:
    """One row of the result table."""
    accepted = sum(entry.accepted is not None for entry in stage.findings)
    summary = stage.result.summary + (f" ({accepted} accepted by the baseline)" if accepted else "")
    verdict = Text(stage.verdict.value.upper(), style=_STYLE[stage.verdict])
    return stage.name, verdict, f"{stage.seconds:.1f}", summary


def verdict_line(outcome: RunOutcome) -> str:
    """The overall verdict and the stages it comes from, e.g. ``"FAIL: 2 findings; runner against oracle: fail"``."""
    verdict = outcome.verdict
    open_findings = sum(entry.accepted is None for entry in outcome.findings)
    parts = [f"{count(len(outcome.finished), 'stage')} ran"]
    if open_findings:
        parts = [count(open_findings, "finding")]
    if outcome.unfinished:
        parts.append(f"stopped before {', '.join(outcome.unfinished)} ended")
    elif not outcome.finished:
        parts = ["no stage ran, so nothing was checked"]
    parts += [f"{s.name}: {s.verdict.value}" for s in outcome.finished if s.verdict is not RunVerdict.PASS]
    return f"{verdict.value.upper()}: {'; '.join(parts)}"


def print_findings(console: Console, findings: Sequence[ReportedFinding]) -> None:
    """A few findings in full, the rest as counts, then the accepted ones, one line each."""
    waiting = _each_code_first([entry for entry in findings if entry.accepted is None])
    for entry in waiting[:IN_FULL]:
        print_finding(console, entry)
    rest = Counter((entry.finding.code, entry.stage or "-") for entry in waiting[IN_FULL:])
    if rest:
        counts = ", ".join(f"{times} x {code} ({stage})" for (code, stage), times in sorted(rest.items()))
        line(console, f"... and {sum(rest.values())} more: {counts}. --json FILE writes them all.")
    for entry in findings:
        if entry.accepted is not None:
            line(console, f"accepted: {entry.finding.code} {entry.finding.title} (reason: {entry.accepted})")


def _each_code_first(findings: Sequence[ReportedFinding]) -> list[ReportedFinding]:
    """One finding of each code, then the others: a fault that shows in many places must not hide its diagnosis."""
    firsts: list[ReportedFinding] = []
    others: list[ReportedFinding] = []
    seen: set[str] = set()
    for entry in findings:
        (others if entry.finding.code in seen else firsts).append(entry)
        seen.add(entry.finding.code)
    return firsts + others


def print_finding(console: Console, entry: ReportedFinding) -> None:
    """One finding: code, title, where, evidence, remedy."""
    style = "bold red" if entry.finding.verdict.value == "violation" else "bold yellow"
    line(console, headline(entry.finding), style)
    for label, text in details(entry.finding, entry.stage):
        line(console, f"  {label:<10} {text}")
