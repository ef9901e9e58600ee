"""The JSON report: what every command writes with ``--json FILE``, and how it is read back.

The shape is ``schema/report-1.json``, which is shipped.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrv2.checks.findings import JSON, Finding, RunVerdict, Site, Soundness, Verdict
from mrv2.checks.report.identity import identity, title_of
from mrv2.checks.report.json_files import VERSION, is_version, load_json
from mrv2.checks.report.plain import as_text, plain, plain_object

from .destinations import write_whole
from .outcome import ReportedFinding, RunOutcome
from .problem import InputError


@dataclass(frozen=True)
class Report:
    """The content of one report; the fields are those of the schema.

    Attributes:
        command: the subcommand that ran.
        environment: see :func:`mrv2.ci.command.environment.describe`.
        verdict: the answer; ``None`` for a command that judges nothing.
        target: what was tested; ``None`` for a command that tests nothing.
        findings: broken rules, accepted ones included.
        metrics: numbers measured.
        coverage: what was exercised, and what was not.
    """

    command: str
    environment: Mapping[str, JSON]
    verdict: RunVerdict | None
    target: Mapping[str, JSON] | None = None
    findings: tuple[ReportedFinding, ...] = ()
    metrics: Mapping[str, JSON] = field(default_factory=dict)
    coverage: Mapping[str, JSON] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "schema": VERSION,
            "command": self.command,
            "target": plain(self.target),
            "environment": plain(self.environment),
            "verdict": self.verdict.value if self.verdict else None,
            "findings": [_finding_as_json(entry) for entry in self.findings],
            "metrics": plain_object(self.metrics),
            "coverage": plain_object(self.coverage),
        }


def run_metrics(outcome: RunOutcome) -> dict[str, JSON]:
    """``metrics`` of a run: one entry per finished stage, and what the baseline did."""
    stages: dict[str, JSON] = {
        stage.name: {
            "verdict": stage.verdict.value,
            "summary": as_text(stage.result.summary),
            "seconds": round(stage.seconds, 3),
            "metrics": plain_object(stage.result.metrics),
        }
        for stage in outcome.finished
    }
    accepted = sum(entry.accepted is not None for entry in outcome.findings)
    return {"stages": stages, "baseline": {"accepted": accepted, "unmatched": list(outcome.unmatched)}}


def run_coverage(outcome: RunOutcome) -> dict[str, JSON]:
    """``coverage`` of a run: which stages ran, which did not, and what each of those that ran exercised."""
    return {
        "stages": {
            "finished": [stage.name for stage in outcome.finished],
            "unfinished": list(outcome.unfinished),
            "left_out": list(outcome.left_out),
        },
        "by_stage": {stage.name: stage.result.coverage for stage in outcome.finished},
    }


def _finding_as_json(entry: ReportedFinding) -> dict[str, Any]:
    """A finding with all its fields, its fingerprint, its stage and the baseline's reason.

    A target reports broken invariants itself, so that even a title may be anything.
    """
    finding = entry.finding
    return {
        "code": finding.code,
        "verdict": finding.verdict.value,
        "soundness": finding.soundness.value,
        "title": title_of(finding),
        "where": _sites_as_json(finding.where),
        "other": _sites_as_json(finding.other),
        "allocation": _sites_as_json(finding.allocation),
        "evidence": plain_object(finding.evidence),
        "remedy": as_text(finding.remedy),
        "step": _whole(finding.step),
        "replay": None if finding.replay is None else as_text(finding.replay),
        "fingerprint": identity(finding),
        "stage": entry.stage,
        "accepted": entry.accepted,
    }


def _sites_as_json(sites: Iterable[Site]) -> list[dict[str, Any]]:
    return [
        {"file": as_text(site.file), "line": max(_whole(site.line) or 0, 0), "function": as_text(site.function)}
        for site in sites
    ]


def _whole(value: object) -> int | None:
    """A whole number, or None in the place of anything else."""
    number = plain(value)
    return number if type(number) is int else None


@functools.cache
def report_schema() -> Mapping[str, Any]:
    """The shipped JSON Schema (draft 2020-12) of a report."""
    source = importlib.resources.files(__package__).joinpath(f"schema/report-{VERSION}.json")
    return dict(json.loads(source.read_text(encoding="utf-8")))


def first_fault(content: object) -> str | None:
    """Where and how ``content`` breaks the schema, or ``None`` if it does not."""
    import jsonschema  # deferred: only a command that reads a report needs it

    validator = jsonschema.Draft202012Validator(report_schema())
    error = jsonschema.exceptions.best_match(validator.iter_errors(content))
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


def write_report(path: Path, report: Report) -> None:
    """Write a report, whole or not at all.

    Raises:
        InputError: the file system refuses; an existing file is unchanged.
    """
    write_whole(path, json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n")


def read_report(path: Path) -> Report:
    """Read a report that a command wrote.

    Raises:
        InputError: it cannot be read, is malformed, or has another schema version.
    """
    content = load_json(path, "report")
    version = content.get("schema") if isinstance(content, dict) else None
    if not is_version(version):
        raise InputError(
            f"report {path}",
            f"its schema version must be {VERSION}, and it is {str(version)[:40]}",
            "fields of another version may mean something else",
            "write the report again with this version of mrv2",
        )
    fault = first_fault(content)
    if fault is not None:
        raise InputError(
            f"report {path}",
            f"it must follow the shipped schema ({fault})",
            "a guess at what a malformed report means could hide a finding",
            "a file that an mrv2 command wrote with --json, unchanged",
        )
    return _report_from(content)


def _report_from(content: Mapping[str, Any]) -> Report:
    """The report of validated content."""
    verdict = content["verdict"]
    return Report(
        command=content["command"],
        environment=content["environment"],
        verdict=None if verdict is None else RunVerdict(verdict),
        target=content["target"],
        findings=tuple(_finding_from(entry) for entry in content["findings"]),
        metrics=content["metrics"],
        coverage=content["coverage"],
    )


def _finding_from(entry: Mapping[str, Any]) -> ReportedFinding:
    finding = Finding(
        code=entry["code"],
        verdict=Verdict(entry["verdict"]),
        soundness=Soundness(entry["soundness"]),
        title=entry["title"],
        where=_sites_from(entry["where"]),
        other=_sites_from(entry["other"]),
        allocation=_sites_from(entry["allocation"]),
        evidence=entry["evidence"],
        remedy=entry["remedy"],
        step=entry["step"],
        replay=entry["replay"],
    )
    return ReportedFinding(finding, entry["stage"], entry["accepted"])


def _sites_from(sites: Iterable[Mapping[str, Any]]) -> tuple[Site, ...]:
    return tuple(Site(site["file"], site["line"], site["function"]) for site in sites)
