"""Findings and errors as plain lines: one wording for the command and for pytest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..findings import Finding, Site
from .identity import identity, title_of
from .plain import as_text, plain_object

_SITES = 3
#: Characters of one line of evidence, and lines of it.
_EVIDENCE = 400
_LINES = 8
_WHOLE = "(all of it in a JSON report)"
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
        *(("evidence", line) for line in _evidence(measured)),
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
    """The innermost frames of a stack; a last one takes the line that would say that it is left out."""
    if len(sites) == _SITES + 1:
        return [f"{site.file}:{site.line} in {site.function}" for site in sites]
    shown = [f"{site.file}:{site.line} in {site.function}" for site in sites[:_SITES]]
    return shown + ([f"... {count(len(sites) - _SITES, 'more frame')}"] if len(sites) > _SITES else [])


def _evidence(measured: Mapping[str, Any]) -> list[str]:
    """The measured values: plain ones together, then a line for each that has names inside, as the sides of a race."""
    plain = {key: value for key, value in measured.items() if not _has_names(value)}
    lines = [_fields(plain)] if plain else []
    for key, value in measured.items():
        if _has_names(value):
            lines += [f"{key}: {_inside(item)}" for item in (value if isinstance(value, list) else [value])]
    shown = [_cut(line) for line in lines[:_LINES]]
    return shown + ([f"... {count(len(lines) - _LINES, 'more line')} {_WHOLE}"] if len(lines) > _LINES else [])


def _has_names(value: Any) -> bool:
    """Whether it is an object of JSON, or a list of them, that says anything."""
    return bool(value) and (isinstance(value, Mapping) or (isinstance(value, list) and _all_objects(value)))


def _all_objects(values: list[Any]) -> bool:
    return all(isinstance(item, Mapping) for item in values)


def _fields(values: Mapping[str, Any]) -> str:
    """What is not known is left out."""
    return ", ".join(f"{key}={_inline(value)}" for key, value in values.items() if value is not None)


def _inside(value: Any) -> str:
    return _fields(value) if isinstance(value, Mapping) else _inline(value)


def _inline(value: Any) -> str:
    """A value within a line."""
    if isinstance(value, Mapping):
        return f"({_fields(value)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _EVIDENCE else f"{text[:_EVIDENCE]}... {_WHOLE}"
