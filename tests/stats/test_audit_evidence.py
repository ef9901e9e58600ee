"""The evidence layer within a whole audit."""

import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.ci.report.audit_json import findings_of
from mrv2.stats.audit import LEDGER, audit, settings
from mrv2.stats.errors import ArgumentError
from mrv2.stats.ledger import EvidenceLedger
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.report import screen

from .timed import timed


def evidence(tmp_path, **options):
    chosen = settings(layers=("evidence",), vocab_size=2048, ledger=tmp_path / "ledger.jsonl", **options)
    target, clock = timed(CleanSampler(), call=1e-3, draw=1e-3)
    return audit(target, chosen, clock=clock)


def test_a_second_night_adds_to_the_first(tmp_path):
    first = evidence(tmp_path, seconds=300.0)
    second = evidence(tmp_path, seconds=300.0)
    assert first.verdict is not RunVerdict.FAIL and second.verdict is not RunVerdict.FAIL
    draws = [[test.first.result.draws for test in report.audit.decision.tests] for report in (first, second)]
    assert draws[0] and all(more > less > 0 for less, more in zip(*draws, strict=True))
    assert any("draws of all nights together" in line for line in screen(second)) and not findings_of(second)
    ledger = EvidenceLedger(tmp_path / "ledger.jsonl")
    assert ledger.damaged() == 0 and len({portion.name for portion in ledger.portions()}) >= 2


def test_overnight_keeps_a_ledger_and_others_only_where_one_is_named():
    assert settings("overnight").ledger == LEDGER and settings("pr").ledger is None
    with pytest.raises(ArgumentError, match="ledger"):
        settings("pr", layers=("evidence",))
