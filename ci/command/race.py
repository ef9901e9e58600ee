"""``mrv2 race``: run a program on the virtual device, in several orders, and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mrv2.checks.findings import JSON, Finding, RunVerdict, combine, verdict_of
from mrv2.checks.report.baseline import Baseline, read_baseline
from mrv2.checks.report.identity import identity, spot
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations, write_whole
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding

from .environment import describe
from .shared import DebugOption, JsonOption, exit_code, guarded, output

if TYPE_CHECKING:
    from mrv2.checks.virtual.replay import Replay
    from mrv2.checks.virtual.runs import Run
    from mrv2.checks.virtual.witness import Witness

SCHEDULES = "late,early,random:0,starve"


def race(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="package.module:function, or a target.", show_default=False)
    ],
    schedules: Annotated[
        str, typer.Option(metavar="LIST", help="When the device runs what; starve holds back each stream in turn.")
    ] = SCHEDULES,
    witness: Annotated[
        bool, typer.Option("--witness", help="Look for an order whose data are wrong; print it and a test for it.")
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="FILE", help="Write a run with a finding, for mrv2 replay."),
    ] = None,
    baseline: Annotated[Path | None, typer.Option(metavar="FILE", help="Findings that are accepted.")] = None,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Find races of a program that says device="cuda", without a GPU; fails on a race and on data that depend on it."""
    with guarded(debug):
        check_destinations({"--json": json, "--replay": replay}, (baseline,))
        accepted = read_baseline(baseline) if baseline else Baseline()
        runs, recorded, seen = _run(program, schedules, witness)
        findings = _each_once(runs)
        reported = tuple(
            ReportedFinding(one, None, accepted.reasons.get((identity(one), one.code))) for one in findings
        )
        verdict = _verdict(runs, [entry.finding for entry in reported if entry.accepted is None])
        from mrv2.checks.virtual.replay import replay_text

        try:
            if json:
                write_report(json, _as_report(program, runs, reported, verdict))
            if replay:
                write_whole(replay, replay_text(recorded), "--replay")
        finally:
            _print(output(), runs, reported, seen, verdict, accepted.unmatched(findings))
        raise typer.Exit(exit_code(verdict))


def _run(name: str, schedules: str, witness: bool) -> tuple[list[Run], Replay, tuple[Witness, str] | None]:
    """The runs, the one to be replayed (the first with a finding, else the first), and the witness if one is wanted."""
    from mrv2.checks.virtual.witness import as_test, find_witness

    from .programs import name_for_file, program_of_argument
    from .targets import importable

    with importable(Path.cwd()):
        program = program_of_argument(name)
        replays = _record(program, name_for_file(name, program), schedules)
        found = find_witness(program) if witness else None
        seen = None if found is None else (found, as_test(program, found))
    runs = [run for _, run in replays]
    recorded = next((replay for replay, run in replays if run.findings), replays[0][0])
    return runs, recorded, seen


def _record(program: Callable[[], object], named: Mapping[str, JSON], schedules: str) -> list[tuple[Replay, Run]]:
    """One run for each schedule; which streams there are to starve is known after the first."""
    from mrv2.checks.virtual.arguments import check_streams_named
    from mrv2.checks.virtual.replay import record_replay
    from mrv2.checks.virtual.schedules import expand

    first, *_ = expand(schedules, streams=1)
    replays = [record_replay(program, named, first)]
    others = expand(schedules, streams=replays[0][1].streams)[1:]
    replays += [record_replay(program, named, schedule) for schedule in others]
    for _, run in replays:
        check_streams_named(run.schedule, run.streams)
    return replays


def _each_once(runs: Sequence[Run]) -> tuple[Finding, ...]:
    """The findings of all runs; the same one of several schedules counts once."""
    return tuple({spot(finding): finding for run in reversed(runs) for finding in run.findings}.values())


def _verdict(runs: Sequence[Run], findings: Sequence[Finding]) -> RunVerdict:
    """Of findings that nobody accepted.

    A run that did not come to its end checked only a part; data that differ are wrong in one of the two, whichever race
    made them so, and no baseline accepts them.
    """
    parts = [verdict_of(findings)] if findings else []
    parts += [RunVerdict.INCONCLUSIVE for run in runs if run.error is not None]
    if _differing(runs):
        parts.append(RunVerdict.FAIL)
    return combine(parts or [RunVerdict.PASS])


def _differing(runs: Sequence[Run]) -> list[Run]:
    """Runs whose data or error are not those of the first."""
    return [run for run in runs[1:] if not run.same_outcome(runs[0])]


def _print(
    console: Console, runs: Sequence[Run], findings: Sequence[ReportedFinding], seen: tuple[Witness, str] | None,
    verdict: RunVerdict, unmatched: Sequence[str],
) -> None:  # fmt: skip
    """Findings, then data that depend on the schedule, then the witness; the verdict last."""
    screen.print_findings(console, findings)
    for fingerprint in unmatched:
        screen.line(console, f"warning: baseline entry {fingerprint} matched no finding; repaired? Then remove it")
    for run in _differing(runs):
        screen.line(console, f"schedule {run.schedule}: other data than in {runs[0].schedule}")
    for run in runs:
        if run.error is not None:
            screen.line(console, f"schedule {run.schedule}: the program did not come to its end: {run.ending}")
    if seen is not None:
        witness, test = seen
        screen.line(console, f"wrong data in schedule {witness.wrong.schedule}, found in {witness.runs} runs:")
        for text in (*witness.timeline.splitlines(), "a test for it:", *test.splitlines()):
            screen.line(console, text)
    ran = ", ".join(str(run.schedule) for run in runs)
    waiting = sum(entry.accepted is None for entry in findings)
    accepted = f", {len(findings) - waiting} accepted" if waiting < len(findings) else ""
    screen.line(console, f"{verdict.value.upper()}: {screen.count(waiting, 'finding')} in {ran}{accepted}")


def _as_report(program: str, runs: Sequence[Run], findings: tuple[ReportedFinding, ...], verdict: RunVerdict) -> Report:
    shown: list[JSON] = [
        {"schedule": str(run.schedule), "error": run.error, "findings": len(run.findings)} for run in runs
    ]
    differing: list[JSON] = [str(run.schedule) for run in _differing(runs)]
    metrics: dict[str, JSON] = {"program": program, "runs": shown, "other data in": differing}
    return Report("race", describe(), verdict, findings=findings, metrics=metrics)
