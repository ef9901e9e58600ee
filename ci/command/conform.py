"""``mrv2 conform``: tells a third party whether its adapter is fit to be fuzzed or audited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON, Finding, RunVerdict, Soundness, Verdict
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.outcome import ReportedFinding

from .environment import describe
from .shared import DebugOption, JsonOption, exit_code, guarded, output

if TYPE_CHECKING:
    from mrv2.fuzz.campaign.fitness import Lack
    from mrv2.fuzz.conformance import Check, Checked

conform = typer.Typer(help="Whether an adapter keeps what its protocol promises.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="TARGET", help="refrunner, baseline_v1, or package.module:object.")]


@conform.command()
def runner(target: Name, json: JsonOption = None, debug: DebugOption = False) -> None:
    """Check an adapter of a runner; fails with what to write instead, and says what a campaign lacks."""
    with guarded(debug):
        from mrv2.checks import triton_cpu
        from mrv2.fuzz.conformance import RUNNER_CHECKS

        from .targets import importable

        with importable(Path.cwd()), triton_cpu.enabled():
            found = _instance(target)
            _answer("conform runner", target, found, RUNNER_CHECKS, json, fuzzed=True)


@conform.command()
def sampler(target: Name, json: JsonOption = None, debug: DebugOption = False) -> None:
    """Check an adapter of a sampler, or the sampler of a runner; fails with what to write instead."""
    with guarded(debug):
        from mrv2.checks import triton_cpu
        from mrv2.fuzz.conformance import SAMPLER_CHECKS
        from mrv2.fuzz.targets.protocols import SamplerProvider

        from .targets import importable

        with importable(Path.cwd()), triton_cpu.enabled():
            found = _instance(target)
            found = found.sampler() if isinstance(found, SamplerProvider) else found
            _answer("conform sampler", target, found, SAMPLER_CHECKS, json)


def _instance(reference: str) -> object:
    from mrv2.fuzz.targets.named import OWN_TARGETS

    from .targets import resolve_object, resolve_target

    if reference in OWN_TARGETS:
        return resolve_target(reference, "TARGET")
    found = resolve_object(f"TARGET {reference!r}", reference)
    return found() if isinstance(found, type) else found


def _answer(
    command: str, name: str, target: object, checks: tuple[Check, ...], json: Path | None, *, fuzzed: bool = False
) -> None:
    """Run the checks and show them; the verdict last.

    Args:
        fuzzed: say also what ``mrv2 fuzz`` needs of the target and has not.

    Raises:
        Exit: with the code of the verdict.
    """
    from mrv2.fuzz.conformance import conform as run

    check_destinations({"--json": json})
    results = run(target, checks)
    faults = [fault for result in results for fault in result.faults or ()]
    verdict = RunVerdict.FAIL if faults else RunVerdict.PASS
    lacking = _lacks(target) if fuzzed and not results[0].faults else []
    try:
        if json:
            findings = tuple(ReportedFinding(_as_finding(fault)) for fault in faults)
            lacked: dict[str, JSON] = {"lacks": {lack.name: lack.costs for lack in lacking}} if fuzzed else {}
            write_report(json, Report(command, describe(), verdict, {"name": name}, findings, metrics=lacked))
    finally:
        _print(name, results, lacking, verdict, fuzzed=fuzzed)
    raise typer.Exit(exit_code(verdict))


def _print(
    name: str, results: Sequence[Checked], lacking: Sequence[Lack], verdict: RunVerdict, *, fuzzed: bool
) -> None:
    """What was checked, what is lacking, and the verdict last."""
    for result in results:
        _show(result)
    for lack in lacking:
        screen.line(output(), f"{'needed' if lack.needed else 'lacks':8}{lack.name}: {lack.costs}")
    unfit = [lack.name for lack in lacking if lack.needed]
    fitness = f"; not to be fuzzed without {', '.join(unfit)}" if unfit else "; fit to be fuzzed" if fuzzed else ""
    fitness = fitness if verdict is RunVerdict.PASS else ""
    count = sum(len(result.faults or ()) for result in results)
    screen.line(output(), f"{verdict.value.upper()}: {screen.count(count, 'fault')} of {name}{fitness}")


def _lacks(target: Any) -> list[Lack]:
    from mrv2.fuzz.campaign.fitness import lacks

    return list(lacks(target))


def _show(result: Checked) -> None:
    word = "not run" if result.faults is None else "broken" if result.faults else "kept"
    why = ", since something above is broken" if result.faults is None else ""
    screen.line(output(), f"{word:8}{result.name}{why}")
    for fault in result.faults or ():
        parts = {"": fault.subject, "rule": fault.rule, "why": fault.reason, "instead": fault.remedy}
        for label, text in parts.items():
            screen.line(output(), f"        {label:8}{text}")


def _as_finding(fault: CheckError) -> Finding:
    return Finding(
        code="MRV307",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title=f"the adapter breaks its contract: {fault.subject}"[:200],
        evidence={"rule": fault.rule, "why": fault.reason},
        remedy=fault.remedy,
    )
