"""Findings as workflow commands, which GitHub shows beside the lines of a pull request."""

from __future__ import annotations

from collections.abc import Callable

from mrv2.checks.findings import Verdict
from mrv2.checks.report.identity import title_of
from mrv2.checks.report.plain import as_text

from .outcome import ReportedFinding

_COMMANDS = {Verdict.VIOLATION: "error", Verdict.SUSPECT: "warning"}


def workflow_command(entry: ReportedFinding, locate: Callable[[str], str]) -> str:
    """One line, e.g. ``::error file=a.py,line=3,title=MRV101::...``; an accepted finding is a notice.

    Args:
        entry: the finding.
        locate: gives the path of a file, from the root of the repository.
    """
    finding = entry.finding
    command = "notice" if entry.accepted is not None else _COMMANDS[finding.verdict]
    properties = {"title": finding.code}
    if finding.where:
        site = finding.where[0]
        properties = {"file": locate(site.file), "line": str(max(site.line, 1)), **properties}
    shown = ",".join(f"{name}={_escaped_property(value)}" for name, value in properties.items())
    reason = f". Accepted: {entry.accepted}" if entry.accepted is not None else ""
    return f"::{command} {shown}::{_escaped(f'{title_of(finding)}. Instead: {as_text(finding.remedy)}{reason}')}"


def _escaped(text: str) -> str:
    """What would end the command or start another one."""
    return as_text(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
