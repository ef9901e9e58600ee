"""Which findings of two runs are the same one: what a baseline accepts and ``mrv2 diff`` recognises."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..findings import Finding
from .plain import NOT_FINITE, as_text, plain


def identity(finding: Finding) -> str:
    """The fingerprint of a finding as reports and baselines write it: 16 hex digits.

    A finding with a place in the source is known by code, title and functions. One without (a wrong token, say)
    would be known by its title alone, and an accepted ``request r1: token 3 is wrong`` would accept every later fault
    that shows there; so it is known by its evidence too, but for real numbers, which are measured.
    """
    places = [f"{as_text(site.file)}:{as_text(site.function)}" for site in (*finding.where, *finding.other)]
    known_by = places or [json.dumps(_without_measurements(plain(finding.evidence)), sort_keys=True)]
    content = "\n".join([as_text(finding.code), title_of(finding), *known_by])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def spot(finding: Finding) -> tuple[object, ...]:
    """What a finding is to a reader: its fingerprint, and the innermost line of either side.

    Two lines of one function have one fingerprint, so that a baseline outlives an edit, but they are two mends.
    """
    return finding.fingerprint(), finding.where[:1], finding.other[:1]


def title_of(finding: Finding) -> str:
    """The title as reports show it; a target that reports its own findings may leave it out."""
    return as_text(finding.title) or "(without a title)"


def _without_measurements(value: Any) -> Any:
    """A plain value in which a real number is only present, with its value left out."""
    if isinstance(value, float) or value in NOT_FINITE:
        return "measured"
    if isinstance(value, dict):
        return {key: _without_measurements(item) for key, item in value.items()}
    return [_without_measurements(item) for item in value] if isinstance(value, list) else value
