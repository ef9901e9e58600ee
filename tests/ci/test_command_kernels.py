"""Kernels that a command runs on the CPU are compiled and watched."""

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from mrv2.checks.findings import RunVerdict
from mrv2.checks.report.baseline import Baseline
from mrv2.ci.command.execution import Execution
from mrv2.ci.command.kernels import compiled_kernels, with_findings
from mrv2.ci.command.progress import Display
from mrv2.ci.command.shared import notes
from mrv2.ci.stages.base import Budget, StageResult
from mrv2.fuzz.targets.reference import ReferenceTarget


@triton.jit
def fill(out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, lane, mask=lane < n)


class Fills:
    """A stage that launches one kernel over five elements."""

    name = "fills"

    def __init__(self, claimed: int, programs: int = 2) -> None:
        self.claimed, self.programs = claimed, programs

    def run(self, target, budget, progress):
        out = torch.zeros(5, dtype=torch.int32)
        fill[(self.programs,)](out, self.claimed, BLOCK=4)
        same = out.tolist() == list(range(5))
        return StageResult(RunVerdict.PASS if same else RunVerdict.FAIL, "filled")


def run(stage):
    execution = Execution(ReferenceTarget(), Budget(profile="quick"), Baseline())
    (outcome,) = execution.run([stage], [], Display(notes(), 1)).finished
    return outcome


def test_what_is_wrong_with_a_kernel_is_a_finding_of_the_stage_that_ran_it():
    outcome = run(Fills(claimed=8))
    assert outcome.verdict is RunVerdict.FAIL
    assert [entry.finding.code for entry in outcome.findings] == ["MRV212"]


def test_a_stage_whose_kernels_are_right_passes():
    outcome = run(Fills(claimed=5))
    assert outcome.verdict is RunVerdict.PASS
    assert outcome.findings == ()


def test_findings_never_improve_a_verdict():
    with compiled_kernels() as found:
        Fills(claimed=8).run(None, None, None)
    inconclusive = StageResult(RunVerdict.INCONCLUSIVE, "ran dry")
    assert with_findings(inconclusive, []) is inconclusive
    assert with_findings(inconclusive, found).verdict is RunVerdict.FAIL
    assert with_findings(StageResult(RunVerdict.PASS, ""), found).verdict is RunVerdict.FAIL


def test_where_triton_interprets_nothing_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    with compiled_kernels() as found:
        Fills(claimed=8).run(None, None, None)
    assert found == []
