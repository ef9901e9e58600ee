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


@pytest.mark.parametrize("name", ["", "file/ledger.jsonl"])
def test_a_ledger_that_cannot_be_used_is_refused_and_is_no_fault_of_the_sampler(tmp_path, name):
    (tmp_path / "file").write_text("")
    chosen = settings(layers=("evidence",), vocab_size=300, ledger=tmp_path / name)
    with pytest.raises(ArgumentError, match="evidence is added to a file"):
        audit(CleanSampler(), chosen)


def test_a_disk_that_fills_up_is_no_fault_of_the_sampler(tmp_path, monkeypatch):
    def full(self, line):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EvidenceLedger, "_write", full)
    chosen = settings(layers=("evidence",), seconds=300.0, vocab_size=300, ledger=tmp_path / "ledger.jsonl")
    target, clock = timed(CleanSampler(), call=1e-3, draw=1e-3)
    with pytest.raises(ArgumentError, match="No space left"):
        audit(target, chosen, clock=clock)
