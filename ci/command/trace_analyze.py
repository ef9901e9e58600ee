"""``mrv2 trace analyze``: where the time of recorded steps goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import RunVerdict
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report

from .environment import describe
from .shared import DebugOption, ExitCode, JsonOption, guarded, output


def analyze(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A trace of torch.profiler (.json, .json.gz) or an Nsight Systems export.",
            show_default=False,
        ),
    ],
    bubble_us: Annotated[float, typer.Option(metavar="N", help="List idle times of the device over N µs.")] = 20.0,
    step_name: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Ranges that are steps; by default those that engines use.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Also write a page with a picture.")] = None,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Split the steps of a recorded run on host and device; list waits, copies of pageable memory, idle times.

    It measures and judges nothing: 0 if all could be read, 3 if the trace ends early, has many records without times,
    has no device in it, or does not say what launched its work.
    """  # fmt: skip
    with guarded(debug):
        check_destinations({"--json": json, "--html": html}, (file,))
        if not 0 <= bubble_us < float("inf"):
            raise CheckError(
                f"--bubble-us {bubble_us}",
                "it is a time of 0 µs or more",
                "idle times are compared with it",
                "for example --bubble-us 20",
            )
        from mrv2.checks.timeline.analysis import analyse
        from mrv2.ci.report.timeline_html import write_timeline_html
        from mrv2.ci.report.timeline_json import timeline_metrics
        from mrv2.ci.report.timeline_text import timeline_lines

        analysis = analyse(file, step_name, bubble_us)
        complete = analysis.is_complete
        verdict = None if complete else RunVerdict.INCONCLUSIVE
        try:
            if json:
                write_report(json, Report("trace-analyze", describe(), verdict, metrics=timeline_metrics(analysis)))
            if html:
                write_timeline_html(html, analysis)
        finally:
            console = output()
            for text in timeline_lines(analysis):
                screen.line(console, text)
        raise typer.Exit(ExitCode.PASS if complete else ExitCode.INCONCLUSIVE)
