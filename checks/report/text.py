"""Findings and errors as plain lines: one wording for the command and for pytest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..findings import Finding, Site
from .identity import identity, title_of
from .plain import as_text, plain_object

_SITES = 3
_EVIDENCE = 400
#: Evidence that has a line of its own.
_EDGE = "missing_edge"


def headline(finding: Finding) -> str:
    """Code, title, and how sure it is."""
    return f"{finding.code} {title_of(finding)} [{finding.verdict.value}, {finding.soundness.value}]"


def details(finding: Finding, stage: str | None = None) -> list[tuple[str, str]]:
    """What stands below the headline, each with its label; empty ones are left out.

    Args:
        finding: the finding.
        stage: that found it, if one did.
    """
    measured = plain_object(finding.evidence)  # a target that reports its own findings may put anything there
    step = "" if finding.step is None else f"step {finding.step}"
    rows = [
        ("stage" if stage else "step", ", ".join(part for part in (stage or "", step) if part)),
        *(("place", place) for place in _places(finding.where)),
        *(("against", place) for place in _places(finding.other)),
        *(("allocated", place) for place in _places(finding.allocation)),
        ("missing", as_text(str(measured.pop(_EDGE, "")))),
        ("evidence", _listed(measured)),
        ("remedy", as_text(finding.remedy)),
        ("replay", as_text(finding.replay or "")),
        ("more", f"mrv2 explain {finding.code}; fingerprint {identity(finding)}"),
    ]
    return [(label, text) for label, text in rows if text]


def finding_lines(finding: Finding, stage: str | None = None) -> list[str]:
    """A finding: its headline, and the details below."""
    return [headline(finding), *(f"  {label:<10} {text}" for label, text in details(finding, stage))]


def printable(text: str) -> str:
    """``text`` with its control characters escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def count(number: int, thing: str) -> str:
    """A number of things, e.g. ``"1 stage"``, ``"2 stages"``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _places(sites: Sequence[Site]) -> list[str]:
    """The innermost frames of a stack."""
    shown = [f"{site.file}:{site.line} in {site.function}" for site in sites[:_SITES]]
    return shown + ([f"... {count(len(sites) - _SITES, 'more frame')}"] if len(sites) > _SITES else [])


def _listed(measured: Mapping[str, Any]) -> str:
    """The measured values on one line, cut where it gets long."""
    text = ", ".join(f"{key}={value}" for key, value in measured.items())
    return text if len(text) <= _EVIDENCE else f"{text[:_EVIDENCE]}... (all of it in a JSON report)"
