"""``mrv2 trace count``: what each step gives the device to do, counted without a GPU, and compared with a record."""

from __future__ import annotations

import json as json_library
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON, Finding, RunVerdict, verdict_of
from mrv2.checks.report.json_files import VERSION, is_version, load_json
from mrv2.checks.timeline.step_counts import StepCounter, StepCounts, WorkKind, deviations
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations, write_whole
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding

from .environment import describe
from .shared import DebugOption, JsonOption, exit_code, guarded, output

_COLUMNS = {
    WorkKind.LAUNCH: "launches", WorkKind.GRAPH_LAUNCH: "graphs", WorkKind.UPLOAD: "uploads",
    WorkKind.DOWNLOAD: "downloads", WorkKind.DEVICE_COPY: "copies", WorkKind.EVENT: "events",
    WorkKind.STREAM_WAIT: "stream waits", WorkKind.HOST_WAIT: "host waits",
}  # fmt: skip
#: What a function gives the device to do before, between and after the steps that it names.
_OUTSIDE = "outside of steps"


def count(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="package.module:function, or a target.", show_default=False)
    ],
    expect: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A record; whatever differs from it fails.")
    ] = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Record the counts.")] = None,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Count launches, copies, bytes, events and waits of each step on the virtual device; they are the same each time.

    The steps of a target are a prefill, a decode, a mixed batch and a decode of two, in each way for which it has the
    knobs. A function says itself which step begins, active_runtime().step = number, of mrv2.checks.virtual.streams;
    one that does not is counted as a whole.
    """
    with guarded(debug):
        check_destinations({"--json": json, "--write": write}, (expect,))
        recorded = read_record(expect) if expect else None
        steps = _counted(program)
        findings = [] if recorded is None else compare(recorded, steps)
        verdict = verdict_of(findings) if steps or findings else RunVerdict.INCONCLUSIVE
        try:
            if write:
                record = {"schema": VERSION, "steps": {name: counts.as_json() for name, counts in steps.items()}}
                write_whole(write, json_library.dumps(record, indent=1) + "\n", "--write")
            if json:
                write_report(json, _as_report(program, steps, findings, verdict))
        finally:
            _print(output(), steps, findings, verdict, compared=recorded is not None)
        raise typer.Exit(exit_code(verdict))


def read_record(path: Path) -> Mapping[str, Mapping[str, JSON]]:
    """The counts of each step, by name, that ``--write`` recorded.

    Raises:
        CheckError: it is no such file.
    """
    content = load_json(path, "--expect")
    steps = content.get("steps") if isinstance(content, dict) and is_version(content.get("schema")) else None
    if not isinstance(steps, dict) or not all(isinstance(step, dict) for step in steps.values()):
        raise CheckError(
            f"--expect {path}",
            f'it must be a record of schema {VERSION}: {{"schema": {VERSION}, "steps": {{...}}}}',
            "counts can only be compared with counts",
            "a file that mrv2 trace count --write wrote",
        )
    return cast(Mapping[str, Mapping[str, JSON]], steps)


def compare(recorded: Mapping[str, Mapping[str, JSON]], steps: Mapping[str, StepCounts]) -> list[Finding]:
    """What differs from a record; a step that one of both lacks differs as a whole."""
    names = sorted({*recorded, *steps})
    return [
        finding for name in names for finding in deviations(name, recorded.get(name, {}), steps.get(name, StepCounts()))
    ]


def _counted(name: str) -> dict[str, StepCounts]:
    from mrv2.checks.virtual import virtual_device
    from mrv2.fuzz.counted_steps import count_steps, ways
    from mrv2.fuzz.targets.named import OWN_TARGETS

    from .targets import importable, is_target, resolve_program, resolve_target

    with importable(Path.cwd()):
        if name in OWN_TARGETS or is_target(f"PROGRAM {name!r}", name):
            target = resolve_target(name, "PROGRAM")
            return {step: counts for way in ways(target) for step, counts in count_steps(target, way).items()}
        program: Callable[[], object] = resolve_program(f"PROGRAM {name!r}", name)
        counter = StepCounter()
        with virtual_device(sink=counter):
            program()
    return {_OUTSIDE if step is None else f"step {step}": counts for step, counts in counter.steps.items()}


def _print(
    console: Console, steps: Mapping[str, StepCounts], findings: list[Finding], verdict: RunVerdict, *, compared: bool
) -> None:
    """A line for each step, what differs, and the verdict last."""
    width = max(map(len, steps), default=0)
    heads = [*_COLUMNS.values(), "bytes up", "bytes down"]
    screen.line(console, "  ".join(("step".ljust(width), *heads)))
    for name, counts in steps.items():
        up = counts.num_bytes[WorkKind.UPLOAD] + counts.read_in_place
        numbers = [*map(counts.total, _COLUMNS), up, counts.num_bytes[WorkKind.DOWNLOAD]]
        cells = (str(number).rjust(len(head)) for number, head in zip(numbers, heads, strict=True))
        screen.line(console, "  ".join((name.ljust(width), *cells)))
    screen.print_findings(console, [ReportedFinding(finding) for finding in findings])
    screen.line(console, f"{verdict.value.upper()}: {_told(steps, findings, compared=compared)}")


def _told(steps: Mapping[str, StepCounts], findings: list[Finding], *, compared: bool) -> str:
    if not steps and not findings:
        return "no step gave the device work, so nothing was counted"
    counted = f"{screen.count(len(steps), 'step')} counted"
    if steps.keys() == {_OUTSIDE}:
        counted = "counted as a whole, for the program names no step (--help says how it may)"
    found = f"{screen.count(len(findings), 'difference')} from the record" if compared else "compared with no record"
    return f"{counted}, {found}"


def _as_report(program: str, steps: Mapping[str, StepCounts], findings: list[Finding], verdict: RunVerdict) -> Report:
    return Report(
        "trace-count",
        describe(),
        verdict,
        findings=tuple(map(ReportedFinding, findings)),
        metrics={"program": program, "steps": {name: counts.as_json() for name, counts in steps.items()}},
    )
