"""Which findings are the same one: by their place, or without a place by what was observed."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from mrv2.checks.findings import Finding, Site, Soundness, Verdict
from mrv2.checks.report.identity import identity
from mrv2.checks.report.plain import plain

PLACED = Finding("MRV304", Verdict.VIOLATION, Soundness.SOUND, "positions differ", where=(Site("f.py", 1, "g"),))
TOKEN = Finding(
    "MRV302",
    Verdict.VIOLATION,
    Soundness.SOUND,
    "request r1: token 3 is wrong",
    evidence={"expected": 17, "observed": 42, "gap": 0.25, "life": ["added", 1.5]},
)


@pytest.mark.parametrize(
    "change",
    [
        {"where": (Site("f.py", 99, "g"),)},
        {"step": 7},
        {"evidence": {"observed": 5}},
        {"remedy": "other"},
        {"replay": "x.json"},
        {"allocation": (Site("f.py", 1, "h"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_finding_with_a_place_is_known_by_it(change: dict[str, Any]) -> None:
    assert identity(replace(PLACED, **change)) == identity(PLACED) == PLACED.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"code": "MRV303"},
        {"title": "other"},
        {"where": (Site("f.py", 1, "h"),)},
        {"where": ()},
        {"other": (Site("f.py", 1, "g"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_place_is_another_finding(change: dict[str, Any]) -> None:
    assert identity(replace(PLACED, **change)) != identity(PLACED)


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {**TOKEN.evidence, "observed": 43},
        {**TOKEN.evidence, "life": ["resumed", 1.5]},
        {**TOKEN.evidence, "more": 1},
        {**TOKEN.evidence, "gap": None},
    ],
)
def test_without_a_place_a_finding_is_known_by_what_was_observed(evidence: dict[str, Any]) -> None:
    """A later fault with the title of an accepted one must not be accepted with it."""
    assert identity(replace(TOKEN, evidence=evidence)) != identity(TOKEN)


@pytest.mark.parametrize("gap", [0.5, math.nan, -math.inf])
def test_measured_numbers_are_no_part_of_it(gap: float) -> None:
    finding = replace(TOKEN, evidence={**TOKEN.evidence, "gap": gap}, step=9)
    assert identity(finding) == identity(TOKEN)
    assert identity(replace(finding, evidence=json.loads(json.dumps(plain(finding.evidence))))) == identity(TOKEN)
