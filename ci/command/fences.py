"""``mrv2 fences``: which synchronisations of a program are needed, and what breaks without each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mrv2.checks.findings import JSON, Finding, RunVerdict, Site, verdict_of
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding
from mrv2.ci.report.problem import InputError

from .environment import describe
from .shared import DebugOption, JsonOption, exit_code, guarded, output

if TYPE_CHECKING:
    from mrv2.checks.happens_before import Fence


def fences(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="refrunner, baseline_v1, package.module:object (a target) or :function (a program).",
            show_default=False,
        ),
    ],
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Say of each event, wait and synchronisation whether it is needed, removable or vacuous; fails on a race.

    Vacuous: it orders nothing that is not ordered already. Inherent: it is part of an operation, as the wait of
    tensor.item() is, and cannot go alone.
    """
    with guarded(debug):
        check_destinations({"--json": json})
        found, findings = _analyse(target)
        verdict = verdict_of(findings) if found else RunVerdict.INCONCLUSIVE
        try:
            if json:
                write_report(json, _as_report(target, found, findings, verdict))
        finally:
            _print(output(), found, findings, verdict)
        raise typer.Exit(exit_code(verdict))


def _analyse(target: str) -> tuple[list[Fence], tuple[Finding, ...]]:
    """The fences of one run of the target, and the races that it has as it is."""
    from mrv2.checks.virtual.removal import fences_of

    from .programs import every_edge_of_argument
    from .targets import importable

    with importable(Path.cwd()):
        run, found = fences_of(every_edge_of_argument(target))
    if run.error is not None:
        raise InputError(
            f"TARGET {target!r}",
            f"the program must come to its end; it raised {run.ending}",
            "which fences it needs is seen in a run that is complete",
            f"mend {_place(run.raised_at)}" if run.raised_at else "a program that returns, on the virtual device",
        )
    return found, run.findings


def _print(console: Console, found: Sequence[Fence], findings: Sequence[Finding], verdict: RunVerdict) -> None:
    """The table, the races of the run as it is, and how many lines of the table say what."""
    rows = dict.fromkeys(_row(found, fence) for fence in found)
    if found:
        headers = ("need", "synchronisation", "at", "times", "without it")
        screen.table(console, headers, rows)
    screen.print_findings(console, [ReportedFinding(finding) for finding in findings])
    counts = Counter(need for need, *_ in rows)
    words = ", ".join(f"{times} {need}" for need, times in counts.items()) or "no synchronisation, so nothing to judge"
    screen.line(console, f"{verdict.value.upper()}: {words}; {screen.count(len(findings), 'finding')} as it is")


def _row(found: Sequence[Fence], fence: Fence) -> tuple[str, ...]:
    """A line of the table: those at one place that differ only in who called there share it."""
    alike = [other for other in found if _key(other) == _key(fence)]
    times, effective = sum(other.times for other in alike), sum(other.effective for other in alike)
    shown = str(times) if effective == times else f"{times}, of which {effective} order"
    without = _key(fence)[3]
    if fence.never_true:
        shown, without = str(times), f"polled {screen.count(times, 'time')}, never true: orders nothing; {without}"
    return (*_key(fence)[:3], shown, without)


def _key(fence: Fence) -> tuple[str, ...]:
    asked = f"{fence.name}: {fence.kind.value}"
    return fence.need.value, asked, _place(fence.where), _without(fence), str(fence.never_true)


def _without(fence: Fence) -> str:
    """What happens if it goes."""
    if fence.witness is None:
        return _without_a_race(fence)
    race = f"{fence.witness.code} {fence.witness.title}"
    if not fence.redundant_with:
        return race
    return f"nothing; but {race} if {_places(fence.redundant_with)} goes too"


def _without_a_race(fence: Fence) -> str:
    """Why nothing happens, or why it cannot go."""
    from mrv2.checks.events import SyncKind
    from mrv2.checks.happens_before import Need

    if fence.need is Need.INHERENT:
        return f"it is part of the {'hand-over' if fence.kind is SyncKind.THREAD else 'operation'}: it cannot go alone"
    if fence.never_recorded:
        return "nothing: the event was never recorded before"
    if fence.need is not Need.VACUOUS or fence.never_true:
        return "nothing"
    if not fence.ordered_by:
        return "nothing: the stream or thread itself is in this order"
    return f"nothing: ordered already by {_places(fence.ordered_by)}"


def _places(stacks: Sequence[Sequence[Site]]) -> str:
    return ", ".join(dict.fromkeys(map(_place, stacks)))


def _place(where: Sequence[Site]) -> str:
    from mrv2.checks.libraries import portable_path

    return f"{portable_path(where[0].file)}:{where[0].line}" if where else "the end of the program"


def _as_report(target: str, found: Sequence[Fence], findings: Sequence[Finding], verdict: RunVerdict) -> Report:
    """The fences under ``metrics``, the races of the run as it is as findings."""
    fences: list[JSON] = [_as_json(fence) for fence in found]
    reported = tuple(ReportedFinding(finding) for finding in findings)
    metrics: dict[str, JSON] = {"program": target, "fences": fences}
    return Report("fences", describe(), verdict, findings=reported, metrics=metrics)


def _as_json(fence: Fence) -> dict[str, JSON]:
    return {
        "need": fence.need.value,
        "kind": fence.kind.value,
        "name": fence.name,
        "place": _place(fence.where),
        "function": fence.where[0].function if fence.where else None,
        "times": fence.times,
        "answered": fence.answered,
        "effective": fence.effective,
        "can_go": fence.can_go,
        "without_it": None if fence.witness is None else {"code": fence.witness.code, "title": fence.witness.title},
        "never_recorded": fence.never_recorded,
        "ordered_by": [_place(where) for where in fence.ordered_by],
        "redundant_with": [_place(where) for where in fence.redundant_with],
    }
