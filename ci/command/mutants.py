"""``mrv2 mutants``: spoil a runner in all ways that its source offers, and say which of them the toolkit notices."""

from __future__ import annotations

import enum
import json as json_text
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mrv2.checks.findings import JSON, RunVerdict, combine
from mrv2.ci.report import console as screen
from mrv2.ci.report.destinations import check_destinations
from mrv2.ci.report.json_report import Report, write_report
from mrv2.ci.report.problem import InputError
from mrv2.fuzz.targets.named import OWN_TARGETS, REFERENCE

from .environment import describe
from .shared import DebugOption, JsonOption, exit_code, guarded, notes, output

#: Share of the mutants of order that are not equivalent which must be killed.
BAR = 0.95
_OWN_PACKAGES = dict.fromkeys(OWN_TARGETS, "mrv2.refrunner")
_LIVING = ("survived", "unreached")


class Part(enum.Enum):
    """What is spoiled."""

    ORDERING = "ordering"
    PLANTED = "planted"


@dataclass
class Judged:
    """What came out.

    Attributes:
        verdicts: on mutants of order, in the order of the source; None if none were asked for.
        exercises: workloads that they were run in.
        left_out: those in which the target is not clean itself, with the reason.
        not_entered: files with places to spoil of which no exercise runs a function.
        planted: what a campaign made of each planted fault; None if none were asked for.
    """

    verdicts: list[Mapping[str, Any]] | None = None
    exercises: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    not_entered: list[str] = field(default_factory=list)
    planted: dict[str, Any] | None = None

    @property
    def counts(self) -> Counter[str]:
        """How many mutants of order came to each end."""
        return Counter(entry["outcome"] for entry in self.verdicts or ())

    @property
    def score(self) -> float | None:
        """Share of those that count which were killed."""
        judged = sum(self.counts[outcome] for outcome in ("killed", *_LIVING))
        return self.counts["killed"] / judged if judged else None

    @property
    def verdict(self) -> RunVerdict:
        """PASS if enough was noticed; INCONCLUSIVE where there was nothing to spoil."""
        parts = []
        if self.verdicts is not None:
            score = self.score
            parts.append(RunVerdict.INCONCLUSIVE if score is None else _passed(score >= BAR))
        if self.planted is not None:
            parts.append(_passed(all(entry["found"] for entry in self.planted.values())))
        return combine(parts)


def _passed(holds: bool) -> RunVerdict:
    return RunVerdict.PASS if holds else RunVerdict.FAIL


def mutants(
    target: Annotated[
        str, typer.Argument(metavar="[TARGET]", help="refrunner, baseline_v1, or package.module:object.")
    ] = REFERENCE,
    only: Annotated[
        Part | None, typer.Option(help="Mutants of order, generated; or the planted faults of refrunner.")
    ] = None,
    package: Annotated[
        str | None, typer.Option(metavar="NAME", help="What is spoiled; by default the target's own package.")
    ] = None,
    site: Annotated[
        str | None, typer.Option(metavar="FILE:LINE", help="Only the mutants of this place, file or folder.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Mutants judged at once.")] = 1,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Spoil each edge between host, streams and memory of a runner, one at a time; fails if too few are noticed.

    Each event, wait, synchronisation, kept reference, ring, pinned allocation, choice of a stream and copy that is
    handed out is found in the source; the original is left alone. A mutant is killed, has survived, or is equivalent:
    then the happens-before check proves that it orders all that the original does.
    """
    with guarded(debug):
        check_destinations({"--json": json})
        judged = Judged()
        if only is not Part.PLANTED:
            _judge_order(judged, target, package or _package_of(target), site, workers)
        if only is Part.PLANTED or (only is None and target == REFERENCE and site is None):
            _judge_planted(judged, target)
        try:
            if json:
                write_report(json, _as_report(target, judged))
        finally:
            _print(output(), judged)
        raise typer.Exit(exit_code(judged.verdict))


def _package_of(target: str) -> str:
    """The package that a target lives in."""
    # Imported here, for it brings numpy, and the command is to start where numpy is broken.
    from .targets import module_of_target

    module = module_of_target(target)
    package = _OWN_PACKAGES.get(target, module.partition(".")[0])
    if package in ("mrv2", module):
        raise InputError(
            f"TARGET {target!r}",
            "the package of the runner must be known",
            "its files are what is spoiled, and an adapter may live elsewhere",
            "--package my_engine",
        )
    return package


def _judge_order(judged: Judged, target: str, package: str, site: str | None, workers: int) -> None:
    """Let a process of its own judge, and follow what it tells."""
    judged.verdicts, total = [], 0
    order = {"target": target, "package": package, "site": site, "workers": workers}
    for entry in _told(order):
        if "refused" in entry:
            raise InputError(**entry["refused"])
        if "exercise" in entry:
            screen.line(notes(), f"the original: {entry['exercise']} ...")
        elif "battery" in entry:
            judged.exercises, judged.left_out = entry["battery"]["exercises"], entry["battery"]["left_out"]
            judged.not_entered, total = entry["not_entered"], entry["mutants"]
            if site is not None and not entry["site_exists"]:
                raise _no_file(site, package)
        else:
            found = entry["verdict"]
            judged.verdicts.append(found)
            screen.line(notes(), f"[{len(judged.verdicts)}/{total}] {_name(found)}: {_why(found)}")
    judged.verdicts.sort(key=lambda entry: (entry["file"], entry["line"], entry["kind"], entry["operator"]))


def _no_file(site: str, package: str) -> InputError:
    return InputError(
        f"--site {site}",
        f"it must name a file or folder of the package {package}, perhaps with a line",
        "a misspelt place has no mutants, and says nothing of the one that was meant",
        "a path from inside the package or above it, for example engine.py:12",
    )


def _told(order: Mapping[str, JSON]) -> Iterator[dict[str, Any]]:
    """What the judging process tells.

    Raises:
        InputError: it cannot work.
    """
    command = [sys.executable, "-m", "mrv2.ci.command.mutants_worker"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        with process:
            try:
                process.stdin.write(f"{json_text.dumps(order)}\n")
                process.stdin.close()
                for line in process.stdout:
                    yield json_text.loads(line)
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            errors.seek(0)
            raise InputError(
                f"TARGET {order['target']!r}",
                f"its mutants must be judged to the end; {(errors.read().splitlines() or ['no word'])[-1]}",
                "what was not judged must not be taken as noticed",
                "a target that can be imported and built, and its package with --package",
            )


def _judge_planted(judged: Judged, target: str) -> None:
    """Let a campaign that is told nothing look for each of the planted faults."""
    from mrv2.fuzz.mutants.planted import PLANTED  # brings numpy, see ``_package_of``

    if target != REFERENCE:
        raise InputError(
            f"TARGET {target!r} with --only planted",
            f"faults are planted in {REFERENCE} only",
            "each is a change of one line that somebody chose",
            "--only ordering",
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "planted.json"
        command = [sys.executable, "-m", "mrv2.fuzz.mutants.score", "--out", str(file)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        scores = json_text.loads(file.read_text(encoding="utf-8"))["faults"] if file.exists() else {}
    # A fault whose process failed has no score, and was not found.
    faults = [mutation for part in PLANTED.values() for mutation in part]
    judged.planted = {
        fault.name: scores.get(fault.name, {"found": False, "cases": 0, "fault": fault.doc}) for fault in faults
    }


def _print(console: Console, judged: Judged) -> None:
    """Who lives and why, then the sums; the verdict last."""
    living = [entry for entry in judged.verdicts or () if entry["outcome"] != "killed"]
    if living:
        screen.table(console, ("mutant", "why"), [(_name(entry), _why(entry)) for entry in living])
    for name, reason in judged.left_out.items():
        screen.line(console, f"left out, since the original is not clean in it: {name}: {reason}")
    if judged.not_entered:
        screen.line(console, f"not part of the target, as far as the exercises go: {', '.join(judged.not_entered)}")
    for name, entry in (judged.planted or {}).items():
        if not entry["found"]:
            screen.line(
                console, f"planted fault not found in {screen.count(entry['cases'], 'case')}: {name}: {entry['fault']}"
            )
    screen.line(console, f"{judged.verdict.value.upper()}: {'; '.join(_sums(judged))}")


def _sums(judged: Judged) -> Iterator[str]:
    if judged.verdicts is not None:
        counts = ", ".join(f"{times} {outcome}" for outcome, times in sorted(judged.counts.items()))
        score = judged.score
        share = "nothing to kill" if score is None else f"{score:.1%} of those that are not equivalent killed"
        yield f"{screen.count(len(judged.verdicts), 'mutant')} of order: {counts or 'none'}; {share}"
    if judged.planted is not None:
        found = sum(bool(entry["found"]) for entry in judged.planted.values())
        yield f"{found} of {screen.count(len(judged.planted), 'planted fault')} found"


def _name(entry: Mapping[str, Any]) -> str:
    again = f" ({entry['number']})" if entry["number"] > 1 else ""
    return f"{entry['file']}:{entry['line']} {entry['kind']}: {entry['operator']}{again}"


def _why(entry: Mapping[str, Any]) -> str:
    kill = entry["killed_by"]
    if kill is None:
        return f"{entry['outcome']}: {entry['reason']}"
    return f"killed by {kill['code']} in {kill['exercise']}, {kill['schedule']}: {kill['title']}"


def _as_report(target: str, judged: Judged) -> Report:
    metrics: dict[str, JSON] = {"target": target, "bar": BAR}
    if judged.verdicts is not None:
        metrics["ordering"] = {"score": judged.score, **judged.counts, "mutants": list(judged.verdicts)}
    if judged.planted is not None:
        metrics["planted"] = judged.planted
    exercises: list[JSON] = [*judged.exercises]
    not_entered: list[JSON] = [*judged.not_entered]
    coverage: dict[str, JSON] = {
        "exercises": exercises, "left out": dict(judged.left_out), "not entered": not_entered,
    }  # fmt: skip
    return Report("mutants", describe(), judged.verdict, metrics=metrics, coverage=coverage)
