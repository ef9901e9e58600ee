"""``mrv2 explain``: what a finding code means."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from mrv2.checks.codes import CODES, RANGES, CodeInfo, range_of
from mrv2.checks.codes import explain as look_up
from mrv2.checks.findings import JSON
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report

from .environment import describe
from .shared import DebugOption, JsonOption, guarded, output


def explain(
    code: Annotated[str | None, typer.Argument(help="A finding code, e.g. MRV302.", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--list", help="List all codes.")] = False,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Explain a finding code: the rule, why it matters, what to do, an example."""
    if (code is None) != every:
        raise typer.BadParameter("give either a code or --list")
    with guarded(debug):
        chosen = tuple(CODES.values()) if code is None else (look_up(code),)
        check_destinations({"--json": json})
        if json:
            codes: list[JSON] = [_as_json(info) for info in chosen]
            write_report(json, Report("explain", describe(), None, metrics={"codes": codes}))
        if code is None:
            _print_list(output(), chosen)
        else:
            _print_one(output(), chosen[0])


def _print_list(console: Console, chosen: tuple[CodeInfo, ...]) -> None:
    """The ranges, then one line per code."""
    for name, meaning in RANGES.items():
        screen.line(console, f"{name}  {meaning}", "bold")
        for info in chosen:
            if info.code[:4] == name[:4]:
                screen.line(console, f"  {info.code}  {info.title} [{info.soundness.value}]")


def _print_one(console: Console, info: CodeInfo) -> None:
    """All there is to say about a code."""
    screen.line(console, f"{info.code} {info.title}", "bold")
    rows = (
        ("range", range_of(info.code)),
        ("stage", info.stage),
        ("trust", _TRUST[info.soundness.value]),
        ("rule", info.rule),
        ("why", info.why),
        ("remedy", info.remedy),
    )
    for label, text in rows:
        screen.line(console, f"  {label:<8} {text}")
    for label, code in (("before", info.example.before), ("after", info.example.after)):
        screen.line(console, f"  {label}:")
        for part in code.splitlines():
            screen.line(console, f"      {part}")


_TRUST = {
    "sound": "sound: every finding is a real violation",
    "may": "may: a finding can be a false alarm",
    "best effort": "best effort: violations that happened can be missed",
}


def _as_json(info: CodeInfo) -> dict[str, JSON]:
    """An entry of the registry as JSON."""
    return {
        "code": info.code,
        "title": info.title,
        "soundness": info.soundness.value,
        "rule": info.rule,
        "why": info.why,
        "remedy": info.remedy,
        "before": info.example.before,
        "after": info.example.after,
        "stage": info.stage,
    }
