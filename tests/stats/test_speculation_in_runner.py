"""Joint tables of draft and token of a whole runner: draft model, head, n-grams. MRV2_LONG=1 draws for a verdict."""

import os

import numpy as np
import pytest

from mrv2.checks import triton_cpu
from mrv2.checks.findings import RunVerdict
from mrv2.fuzz.mutants import DISTRIBUTION, mutated_package
from mrv2.fuzz.targets.runner_speculation import RunnerSpeculation
from mrv2.stats.decision import run_audit
from mrv2.stats.errors import ArgumentError
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.speculative_layer import SpeculativeLayer
from mrv2.stats.strata import log_softmax

LONG = bool(os.environ.get("MRV2_LONG"))
ALL = [
    ("draft", "token", 3, 1), ("draft", "token", 3, 3), ("draft", "token", 3, 7), ("draft", "token", 16, 1),
    ("draft", "token", 16, 3), ("draft", "block", 3, 3), ("draft", "equal", 3, 3), ("eagle", "token", 3, 1),
    ("eagle", "token", 3, 7), ("eagle", "token", 16, 3), ("eagle", "block", 16, 3), ("eagle", "equal", 16, 1),
    ("ngram", "equal", 3, 1), ("ngram", "equal", 3, 3), ("ngram", "equal", 3, 7),
]  # fmt: skip
CASES = ALL if LONG else [("draft", "token", 3, 3), ("eagle", "token", 16, 1), ("ngram", "equal", 3, 3)]
FAULTS = {fault.name: fault for fault in DISTRIBUTION}


def audited(target, draws):
    return run_audit([SpeculativeLayer(draws, (target.case,))], target, AuditPlan(64, seed=3), Silent()).decision


@pytest.mark.parametrize(("proposer", "verification", "vocab_size", "num_drafts"), CASES)
def test_the_runner_passes_the_joint_tables(proposer, verification, vocab_size, num_drafts):
    with triton_cpu.enabled() as session:
        target = RunnerSpeculation(proposer, verification, vocab_size, num_drafts)
        decision = audited(target, (100_000 if vocab_size == 3 else 500_000) if LONG else 1024)
    assert decision.failed == () and session.findings == []
    assert len(decision.tests) >= 2
    assert not LONG or decision.verdict is RunVerdict.PASS, decision.could_have_missed


@pytest.mark.skipif(not LONG, reason="MRV2_LONG=1 runs it; test_rejection.py plants the same in the kernels alone")
@pytest.mark.parametrize(
    ("fault", "shown_by", "vocab_size", "draws"),
    # Of three tokens turned round only one is left to replace a draft, whatever the noise.
    [("recovery_from_the_target", "only possible outcomes", 3, 1024), ("shared_noise", "joint table", 16, 40_000)],
)
def test_a_planted_defect_fails(fault, shown_by, vocab_size, draws):
    with triton_cpu.enabled(), mutated_package(FAULTS[fault]) as package:
        target = RunnerSpeculation("draft", "token", vocab_size, 1, package)
        decision = audited(target, draws)
    assert decision.verdict is RunVerdict.FAIL
    assert f"{target.case.name}: draft 0, {shown_by}" in {test.first.name for test in decision.failed}


def test_the_draft_model_is_the_target_turned_round():
    with triton_cpu.enabled():
        case = RunnerSpeculation("draft", "token", 3, 3).case
    for place in range(3):
        turned = log_softmax(-case.target_logits[place], 1.0)
        assert np.abs(log_softmax(case.draft_logits[place], 1.0) - turned).max() < 1e-5
    differences = np.abs(np.diff(case.target_logits, axis=0)).max(axis=1)
    assert (differences > 0.1).all()  # a row at the wrong position is another one


def test_other_rows_are_refused():
    with triton_cpu.enabled():
        target = RunnerSpeculation("ngram", "equal", 3, 1)
        rows = target.case.target_logits + 1, target.case.draft_logits
        with pytest.raises(ArgumentError, match="what its models expect"):
            target.speculate(*rows, np.ones(1, np.float32), np.zeros(1, np.uint64), np.zeros(1, np.int64))
