"""``mrv2 fuzz``: draw requests and schedules until time is over, and keep what goes wrong in its smallest form."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from mrv2.checks.findings import JSON, Finding, RunVerdict, Soundness, Verdict
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding
from mrv2.ci.report.problem import InputError

from .environment import describe
from .shared import DebugOption, ExitCode, JsonOption, exit_code, guarded, notes, output

if TYPE_CHECKING:
    from mrv2.fuzz.campaign.driver import State
    from mrv2.fuzz.campaign.findings import FoundCase
    from mrv2.fuzz.campaign.options import Options
    from mrv2.fuzz.script import Script

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
#: Without a terminal: a line now and then, so that a log of CI shows that it is alive.
LINE_SECONDS = 30.0


def fuzz(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="refrunner, baseline_v1, or package.module:object.")
    ] = "refrunner",
    duration: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="How long: 90s, 10m, 8h.", show_default="60s")
    ] = None,
    cases: Annotated[
        int | None, typer.Option("--cases", min=1, metavar="N", help="Cases of each worker, instead of a time.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Processes at once.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of everything.")] = 0,
    db: Annotated[
        Path, typer.Option("--db", metavar="DIR", help="Folder of the campaign; one that exists is continued.")
    ] = Path(".mrv2-fuzz"),
    features: Annotated[
        str | None, typer.Option("--features", metavar="LIST", help="Only these, with commas between them, or none.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="TEXT", help="Only this: cpu, late, random, starve, ...")
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models", metavar="LIST", help="Models that the runner is tested with.", show_default="the target's own"
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="ADDRESS", help="Workers on a Ray cluster: local, or ray://host:port."),
    ] = None,
    examples: Annotated[
        str,
        typer.Option(
            "--examples",
            metavar="LIST",
            help="Folders and redis:// URLs where Hypothesis keeps examples, to be shared by campaigns; "
            "read-only: before one leaves it as it is.",
            show_default="in --db",
        ),
    ] = "",
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Fuzz a runner with requests that come, go and are preempted, in any order of its streams; fails on a finding.

    Ctrl-C ends it in order. Started again with the same --db, it goes on where it was.
    """
    with guarded(debug):
        check_destinations({"--json": json})
        options = replace(_options(target, seed, features, schedule, models, cases), examples=_examples(examples))
        seconds = None if cases is not None and duration is None else _seconds(duration or "60s")
        state, interrupted = _run(db, options, workers, seconds, cluster)
        verdict = _verdict(state)
        try:
            if json:
                write_report(json, _as_report(target, state, verdict))
        finally:
            _print(output(), db, state, verdict, interrupted)
        code = exit_code(verdict)
        raise typer.Exit(ExitCode.INTERRUPTED if interrupted and code is not ExitCode.FAIL else code)


def _options(
    target: str, seed: int, features: str | None, schedule: str | None, models: str | None, cases: int | None
) -> Options:
    """What the workers are told, checked.

    Raises:
        InputError, CheckError: an option means nothing.
    """
    from mrv2.fuzz.campaign.options import Options, check_features
    from mrv2.fuzz.targets.protocols import models_of
    from mrv2.refrunner.models.checkpoint import load_checkpoint

    from .targets import importable, resolve_target

    chosen = None if features is None else _names(features)
    with importable(Path.cwd()):
        tested = resolve_target(target, "TARGET")
        check_features(chosen, tested)
        names = models_of(tested) if models is None else tuple(models.split(","))
    for name in names:
        load_checkpoint(name)
    options = Options(target, seed, names, chosen, schedule, cases)
    options.schedules()
    return options


def _names(features: str) -> tuple[str, ...]:
    """The names of a list; "none" is a list of none."""
    names = tuple(name.strip() for name in features.split(","))
    return () if names == ("none",) else names


def _examples(text: str) -> str:
    """Checked here, where somebody reads the answer.

    Raises:
        CheckError: it names no place.
    """
    from mrv2.fuzz.campaign.corpus import corpus

    if text:
        corpus(text)
    return text


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise InputError(
            f"--time {text!r}",
            "a time is a number above zero, of seconds or with a unit: s, m or h",
            "the campaign ends then",
            "for example --time 90s, --time 8h",
        )
    return float(match[1]) * _UNITS[match[2]]


def _run(db: Path, options: Options, workers: int, seconds: float | None, cluster: str | None) -> tuple[State, bool]:
    """The campaign, and whether somebody stopped it.

    Raises:
        InputError: the folder cannot be written to.
        CheckError: it is another campaign's, or the campaign cannot go on.
    """
    from mrv2.fuzz.campaign.cluster import ClusterDriver
    from mrv2.fuzz.campaign.driver import CampaignDriver

    driver: CampaignDriver | ClusterDriver
    try:
        if cluster is None:
            driver = CampaignDriver(db, options, workers, lambda number: _command(db, number))
        else:
            driver = ClusterDriver(db, options, workers, _command, cluster)
    except OSError as error:
        raise InputError(
            f"--db {db}",
            f"it must be a folder that can be written to: {error.strerror}",
            "a finding is on the disk before it is counted",
            "another folder, or one that is yours",
        ) from error
    with _Dashboard(notes(), seconds) as dashboard:
        try:
            return driver.run(seconds, dashboard.show), False
        except KeyboardInterrupt:
            return driver.state(), True


def _command(db: Path, number: int) -> list[str]:
    return [sys.executable, "-m", "mrv2.ci.command.fuzz_worker", str(db), str(number)]


class _Dashboard:
    """Shows a campaign while it runs: live on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, seconds: float | None) -> None:
        self._console = console
        self._seconds = seconds
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._last = 0.0

    def __enter__(self) -> _Dashboard:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, state: State) -> None:
        """Show a state, if it is time to."""
        if self._live:
            self._live.update(Text("\n".join(_lines(state, self._seconds))), refresh=True)
        elif state.seconds - self._last >= LINE_SECONDS:
            self._last = state.seconds
            screen.line(self._console, "; ".join(_lines(state, self._seconds)))


def _lines(state: State, seconds: float | None) -> list[str]:
    """What there is so far, in a few lines."""
    progress = state.progress
    counts = progress.counts
    busy = max(progress.seconds["cpu_seconds"], 1e-9)
    of = f" of {seconds:.0f}" if seconds else ""
    since = f", last new {time.time() - progress.newest:.0f} s ago" if progress.newest else ""
    died = f", {state.deaths} died" if state.deaths else ""
    speed = f"{screen.count(round(counts['steps'] / busy), 'step')} a second and core"
    cases, steps = screen.count(counts["cases"], "case"), screen.count(counts["steps"], "step")
    damaged = screen.count(progress.damaged, "damaged line")
    return [
        f"{state.seconds:.0f}{of} s, {screen.count(state.workers or state.most_workers, 'worker')}{died}",
        f"{cases}, {steps}, {counts['virtual_steps']} on the virtual device; {speed}",
        f"{screen.count(len(progress.meetings), 'meeting')} of features, events and schedules{since}",
        screen.count(len(state.findings), "finding"),
        *([f"{damaged} in the folder of the workers, not counted"] if progress.damaged else []),
    ]


def _verdict(state: State) -> RunVerdict:
    """Nothing that did not run may pass."""
    if state.findings:
        return RunVerdict.FAIL
    return RunVerdict.PASS if state.progress.counts["steps"] else RunVerdict.INCONCLUSIVE


def _print(console: Console, db: Path, state: State, verdict: RunVerdict, interrupted: bool) -> None:
    """Findings with a test for each, then the sums; the verdict last."""
    for case in state.findings:
        size = size_of(case.script)
        how = size if case.minimised else f"{size}, not minimised yet"
        hits = state.progress.hits[case.signature]
        screen.line(console, f"{case.text}")
        screen.line(console, f"  {db / 'findings' / case.file_name}: {how}, seen in {screen.count(hits, 'case')}")
        for text in str(case.as_json()["test"]).splitlines():
            screen.line(console, f"    {text}")
    for case in state.killed:
        again = "tried again in a process of its own" if case.minimised else "not tried again yet"
        screen.line(console, f"{case.text}, {again}: {db / 'killed' / case.file_name}")
    for line in _lines(state, None):
        screen.line(console, line)
    refused = screen.count(state.progress.counts["refused"], "case")
    screen.line(console, f"{refused} refused by the target; {state.progress.overhead:.0%} of the time in the engine")
    stopped = ", stopped by Ctrl-C" if interrupted else ""
    screen.line(console, f"{verdict.value.upper()}: {screen.count(len(state.findings), 'finding')} in {db}{stopped}")


def _as_report(target: str, state: State, verdict: RunVerdict) -> Report:
    counts = state.progress.counts
    metrics: dict[str, JSON] = {
        "target": target,
        **{name: counts[name] for name in sorted(counts)},
        "meetings": len(state.progress.meetings),
        "damaged lines": state.progress.damaged,
        "killed in a case": len(state.killed),
        "engine overhead": round(state.progress.overhead, 4),
    }
    findings = tuple(ReportedFinding(as_finding(case)) for case in state.findings)
    return Report("fuzz", describe(), verdict, findings=findings, metrics=metrics)


def size_of(script: Script) -> str:
    """How much there is in a script, in words."""
    return f"{screen.count(script.num_events, 'event')}, {screen.count(script.num_deviations, 'deviation')}"


def as_finding(case: FoundCase) -> Finding:
    """A fuzzed case as reports have it."""
    return Finding(
        code="MRV311",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title="a fuzzed case went wrong",
        evidence={"what": case.text, "signature": case.signature, "events": case.script.num_events},
        remedy=f"mrv2 replay findings/{case.file_name}, or the test in that file",
        replay=case.file_name,
    )
