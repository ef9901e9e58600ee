"""The recorded score of the reference runner: complete, above the bar, each survivor with a reason."""

import json
from collections import Counter
from pathlib import Path

import pytest

from mrv2.ci.command.mutants import BAR
from mrv2.ci.report.json_report import read_report
from mrv2.fuzz.mutants.generated.calls import Kind

RECORD = Path(__file__).parents[2] / "ci" / "results" / "mutants.json"
pytestmark = pytest.mark.skipif(not RECORD.exists(), reason=f"mrv2 mutants --json {RECORD.name} was not recorded yet")


def test_the_record_is_a_report_above_the_bar():
    report = json.loads(RECORD.read_text())
    read_report(RECORD)
    ordering = report["metrics"]["ordering"]
    outcomes = Counter(entry["outcome"] for entry in ordering["mutants"])
    counted = outcomes["killed"] + outcomes["survived"] + outcomes["unreached"]
    assert ordering["score"] == outcomes["killed"] / counted >= BAR
    assert report["environment"]["packages"]["torch"]
    assert {entry["kind"] for entry in ordering["mutants"]} == {kind.value for kind in Kind}


def test_whatever_lives_has_a_reason_and_whatever_died_a_cause():
    for entry in json.loads(RECORD.read_text())["metrics"]["ordering"]["mutants"]:
        assert entry["killed_by"] if entry["outcome"] == "killed" else entry["reason"], entry
