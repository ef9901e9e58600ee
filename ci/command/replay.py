"""``mrv2 replay``: repeat a recorded run of the virtual device, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mrv2.checks.findings import JSON, RunVerdict, verdict_of
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding

from .environment import describe
from .replay_finding import is_finding, replay_finding
from .shared import DebugOption, JsonOption, exit_code, guarded, output

if TYPE_CHECKING:
    from mrv2.checks.virtual.replay import Replay
    from mrv2.checks.virtual.runs import Run


_NOT_REPEATED = (
    "no schedule repeats what the program reads of clocks, files or earlier runs, nor the order of host threads that "
    "nothing orders"
)


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A replay file, or a finding of mrv2 fuzz.", show_default=False)
    ],
    twice: Annotated[bool, typer.Option("--twice", help="Also run it twice here, and compare those two runs.")] = False,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Repeat a recorded run; fails unless every event is the same, and says where it is not.

    A finding of mrv2 fuzz is repeated by running its script: it passes if that goes wrong in the same way, and says
    whether tokens, findings and timeline are the same, and which versions are not.

    PASS is about the repetition alone: what the recorded run was found to do wrong is found again, and listed.
    One that ends by raising is INCONCLUSIVE: the file does not say how the recorded run ended.
    """
    with guarded(debug):
        from mrv2.checks.virtual.replay import read_replay

        check_destinations({"--json": json}, (file,))
        if is_finding(file):
            report, verdict = replay_finding(output(), file, 1 + twice)
            if json:
                write_report(json, report)
            raise typer.Exit(exit_code(verdict))
        recorded = read_replay(file)
        run, differences = _repeat(recorded, twice)
        verdict = _verdict(run, differences)
        try:
            if json:
                write_report(json, _as_report(recorded, run, differences, verdict))
        finally:
            _print(output(), recorded, run, differences, verdict)
        raise typer.Exit(exit_code(verdict))


def _verdict(run: Run, differences: Mapping[str, str]) -> RunVerdict:
    if differences:
        return RunVerdict.FAIL
    return RunVerdict.PASS if run.error is None else RunVerdict.INCONCLUSIVE


def _repeat(recorded: Replay, twice: bool) -> tuple[Run, dict[str, str]]:
    """The repetition, and what differs: the recorded run from this one, and this one from itself."""
    from mrv2.checks.virtual.replay import repeat, run_twice

    from .programs import program_of_file
    from .targets import importable

    differences: dict[str, str] = {}
    with importable(Path.cwd()):
        program = program_of_file(recorded.program)
        repetition = repeat(recorded, program)
        if repetition.difference is not None:
            differences["recorded run"] = str(repetition.difference)
        elif repetition.findings_differ:
            differences["recorded run"] = "every event is the same, but other findings were made of them"
        again = run_twice(program, recorded.schedule)[1] if twice else None
        if again is not None:
            differences["second run here"] = str(again)
    return repetition.run, differences


def _print(console: Console, recorded: Replay, run: Run, differences: Mapping[str, str], verdict: RunVerdict) -> None:
    """What ran, what it found, and whether it was the same; the verdict last."""
    screen.line(console, f"program   {_name(recorded)}")
    screen.line(console, f"schedule  {recorded.schedule}")
    screen.line(console, f"events    {recorded.events}, sha256 {recorded.sha256}")
    screen.print_findings(console, [ReportedFinding(finding) for finding in run.findings])
    for label, text in differences.items():
        screen.line(console, f"differs from the {label}: {text}")
    if differences:
        screen.line(console, _NOT_REPEATED)
    if run.error is not None:
        screen.line(console, f"the program did not come to its end, it raised {run.ending}")
    for name, (before, now) in _versions(recorded).items():
        screen.line(console, f"recorded with {name} {before}, repeated with {now}")
    same = "the same run, byte for byte" if run.error is None else "the same events, byte for byte"
    same = "another run" if differences else same
    screen.line(console, f"{verdict.value.upper()}: {same}; {_what_it_shows(run)}")


def _what_it_shows(run: Run) -> str:
    """The findings of the run, which the verdict is not about: the same bug shown again is what a replay is for."""
    if not run.findings:
        return "it has no findings"
    found = verdict_of(run.findings).value.upper()
    return f"what it shows is a {found}: {screen.count(len(run.findings), 'finding')} above"


def _name(recorded: Replay) -> str:
    return str(recorded.program.get("callable", recorded.program.get("target")))


def _versions(recorded: Replay) -> dict[str, tuple[str, str]]:
    """Versions that are not those of the recording."""
    from mrv2.checks.virtual.replay import environment

    now = environment()
    return {
        name: (before, now.get(name, "none"))
        for name, before in recorded.environment.items()
        if now.get(name) != before
    }


def _as_report(recorded: Replay, run: Run, differences: Mapping[str, str], verdict: RunVerdict) -> Report:
    """The repetition as a report: its verdict is about the repetition, its findings are those of the run."""
    metrics: dict[str, JSON] = {
        "program": dict(recorded.program),
        "schedule": str(recorded.schedule),
        "events": recorded.events,
        "sha256": recorded.sha256,
        "differences": dict(differences),
        "error": run.error,
    }
    findings = tuple(ReportedFinding(finding) for finding in run.findings)
    return Report("replay", describe(), verdict, findings=findings, metrics=metrics)
