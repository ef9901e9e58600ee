"""Rejection sampling of the reference runner under the speculative layer; MRV2_LONG=1 draws enough for a verdict."""

import os

import pytest

from mrv2.checks import triton_cpu
from mrv2.checks.findings import RunVerdict
from mrv2.fuzz.targets.speculation import ReferenceSpeculation
from mrv2.stats.decision import run_audit
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.speculative import certain_case, reversed_case, speculation_cases
from mrv2.stats.speculative_layer import SpeculativeLayer

LONG = bool(os.environ.get("MRV2_LONG"))
CASES = speculation_cases() if LONG else (reversed_case(3, 3), certain_case(16, 1))


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_reference_passes_the_joint_tables(case, verification):
    layer = SpeculativeLayer(150_000 if LONG else 2500, (case,))
    with triton_cpu.enabled():
        decision = run_audit([layer], ReferenceSpeculation(verification), AuditPlan(64, seed=2), Silent()).decision
    assert decision.failed == () and len(decision.tests) >= 2
    if LONG:
        assert decision.verdict is RunVerdict.PASS, decision.could_have_missed
