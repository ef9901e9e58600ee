"""What ``mrv2 verify`` does: find target and model, run the stages, report."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console

from mrv2.checks.findings import JSON
from mrv2.checks.report.baseline import Baseline, read_baseline
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, run_coverage, run_metrics, write_report
from mrv2.ci.report.outcome import RunOutcome
from mrv2.ci.report.problem import InputError
from mrv2.ci.stages import catalog
from mrv2.ci.stages.base import Budget, Stage
from mrv2.fuzz.targets.protocols import RunnerTarget

from .environment import describe
from .execution import Execution
from .models import ChosenModel, choose_model
from .progress import Display
from .shared import exit_code, notes, output
from .targets import importable, resolve_target

DEVICES = ("virtual", "cuda")
PROFILES: Mapping[str, Budget] = {"quick": Budget(profile="quick")}


@dataclass(frozen=True)
class Settings:
    """The options of ``mrv2 verify``."""

    target: str
    model: str | None
    profile: str
    seed: int
    stages: tuple[str, ...]
    device: str
    baseline: Path | None
    strict: bool
    json: Path | None
    debug: bool


def run(settings: Settings) -> None:
    """Verify and report. Cheap checks of the input come before the model is loaded.

    Raises:
        InputError: the input cannot be used.
        typer.Exit: with the exit code of the verdict.
        KeyboardInterrupt: on Ctrl-C, after what was finished has been reported.
    """
    named = (settings.baseline, None if settings.model is None else Path(settings.model))
    check_destinations({"--json": settings.json}, named)
    baseline = read_baseline(settings.baseline) if settings.baseline else Baseline()
    budget = _budget(settings)
    _check_device(settings.device)
    with importable(Path.cwd()):
        target = resolve_target(settings.target)
        model = choose_model(settings.model)
        out = output()
        screen.line(out, model.line)
        screen.line(out, f"target: {settings.target}")
        known = catalog.stages_for(target, model.reference, model.checkpoint, settings.device)
        stages, left_out = _select(known, settings.stages)
        execution = Execution(target, budget, baseline, settings.debug)
        outcome = execution.run(stages, left_out, Display(notes(), len(stages)))
    _report(out, settings, target, model, outcome)
    _leave(execution.stopped, outcome, settings.strict)


def _budget(settings: Settings) -> Budget:
    """The work of a profile, from the given seed."""
    if settings.profile not in PROFILES:
        raise InputError(
            f"--profile {settings.profile!r}",
            "the profile must be a known one",
            "it decides how much work each stage does",
            f"one of: {', '.join(PROFILES)}",
        )
    return replace(PROFILES[settings.profile], seed=settings.seed)


def _check_device(device: str) -> None:
    """Refuse a device that is none, or not there."""
    if device not in DEVICES:
        raise InputError(
            f"--device {device!r}",
            f"it must be one of {', '.join(DEVICES)}",
            "it says where races and waits are looked for",
            DEVICES[0],
        )
    if device == "cuda":
        from mrv2.checks.cuda.sync_trap import require_cuda

        require_cuda("mrv2 verify --device cuda")


def _select(stages: Sequence[Stage], names: Sequence[str]) -> tuple[list[Stage], list[str]]:
    """The stages to run, in their own order, and the names of the others."""
    known = [stage.name for stage in stages]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
            raise InputError(
                f"--stage {name!r}",
                "the stage must exist",
                "a run in which nothing is selected checks nothing",
                f"{hint}the stages are: {', '.join(known)}",
            )
    chosen = [stage for stage in stages if not names or stage.name in names]
    return chosen, [name for name in known if names and name not in names]


def _report(out: Console, settings: Settings, target: RunnerTarget, model: ChosenModel, outcome: RunOutcome) -> None:
    """Write the JSON first, since printing can fail (a closed pipe), and print whether or not that could be done."""
    try:
        if settings.json:
            write_report(settings.json, _as_report(settings, target, model, outcome))
    finally:
        screen.print_run(out, outcome)


def _as_report(settings: Settings, target: RunnerTarget, model: ChosenModel, outcome: RunOutcome) -> Report:
    features: list[JSON] = [*sorted(feature.value for feature in target.features)]
    about: dict[str, JSON] = {
        "name": target.name,
        "reference": settings.target,
        "features": features,
        "model": model.as_json(),
    }
    return Report(
        command="verify",
        environment=describe(),
        verdict=outcome.verdict,
        target=about,
        findings=outcome.findings,
        metrics={
            **run_metrics(outcome),
            "profile": settings.profile,
            "seed": settings.seed,
            "device": settings.device,
        },
        coverage=run_coverage(outcome),
    )


def _leave(stopped: BaseException | None, outcome: RunOutcome, strict: bool) -> None:
    """Raise what ended the run, or exit by its verdict."""
    if stopped is not None:
        raise stopped
    raise typer.Exit(exit_code(outcome.verdict, strict))
