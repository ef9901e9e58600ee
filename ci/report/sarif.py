"""SARIF 2.1.0, the format in which code-scanning services read findings (OASIS standard of 27 March 2020)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mrv2.checks.codes import CODES
from mrv2.checks.findings import Finding, Site, Verdict
from mrv2.checks.report.identity import identity, title_of
from mrv2.checks.report.plain import as_text, plain_object

from .outcome import ReportedFinding

VERSION = "2.1.0"
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Verdict.VIOLATION: "error", Verdict.SUSPECT: "warning"}

#: Turns the file of a site into a path from the root of the repository.
Locate = Callable[[str], str]


def sarif(findings: Sequence[ReportedFinding], version: str, locate: Locate) -> dict[str, Any]:
    """Findings as a SARIF log with one run.

    Args:
        findings: accepted ones too; they are written as suppressed.
        version: of mrv2.
        locate: gives the path of a file, from the root of the repository.
    """
    codes = sorted({entry.finding.code for entry in findings})
    rules = [_rule(code) for code in codes]
    driver = {"name": "mrv2", "version": version, "rules": rules}
    results = [_result(entry, codes, locate) for entry in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def _rule(code: str) -> dict[str, Any]:
    info = CODES[code]
    return {
        "id": code,
        "shortDescription": {"text": info.title},
        "fullDescription": {"text": f"{info.rule}. Why: {info.why}."},
        "help": {"text": f"{info.remedy}\n\nBefore:\n{info.example.before}\n\nAfter:\n{info.example.after}"},
    }


def _result(entry: ReportedFinding, codes: Sequence[str], locate: Locate) -> dict[str, Any]:
    finding = entry.finding
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVELS[finding.verdict],
        "message": {"text": f"{title_of(finding)}. Instead: {as_text(finding.remedy)}"},
        "locations": [_location(site, locate) for site in finding.where[:1]],
        "partialFingerprints": {"mrv2/v1": identity(finding)},
        "properties": {"soundness": finding.soundness.value, **plain_object(finding.evidence)},
    }
    related = _related(finding, locate)
    if related:
        result["relatedLocations"] = related
    if entry.accepted is not None:
        result["suppressions"] = [{"kind": "external", "justification": entry.accepted}]
    return result


def _related(finding: Finding, locate: Locate) -> list[dict[str, Any]]:
    """The rest of the stack, the other side, and the allocation, each with a word of what it is."""
    sides: Iterable[tuple[str, Sequence[Site]]] = (
        ("called from", finding.where[1:]),
        ("against", finding.other),
        ("allocated in", finding.allocation),
    )
    named = [(f"{word} {site.function}", site) for word, sites in sides for site in sites]
    return [
        {"id": number, "message": {"text": as_text(text)}, **_location(site, locate)}
        for number, (text, site) in enumerate(named)
    ]


def _location(site: Site, locate: Locate) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": as_text(locate(site.file))},
            "region": {"startLine": max(site.line, 1)},
        },
        "logicalLocations": [{"fullyQualifiedName": as_text(site.function), "kind": "function"}],
    }
