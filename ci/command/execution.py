"""Runs the stages of a verification one after the other, and decides what an exception in one of them means."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from mrv2.checks.codes import CODES, UnknownCodeError
from mrv2.checks.findings import RunVerdict
from mrv2.checks.report.baseline import Baseline
from mrv2.ci.report.outcome import ReportedFinding, RunOutcome, StageOutcome, judge
from mrv2.ci.stages.base import Budget, Stage, StageResult
from mrv2.fuzz.targets.protocols import RunnerTarget

from .crash import crash_finding, refusal_finding, refused_by, target_frames
from .kernels import compiled_kernels, with_findings
from .progress import Display


@dataclass
class Execution:
    """One run of a list of stages.

    Attributes:
        target: what is verified.
        budget: how much work each stage may do.
        baseline: accepted findings.
        debug: show the traceback of a crash of the target.
        stopped: after :meth:`run`, what ended it early: Ctrl-C, a refusal at startup, or an error of ours. It is kept
            and not raised, so that what was finished before can still be reported.
    """

    target: RunnerTarget
    budget: Budget
    baseline: Baseline
    debug: bool = False
    stopped: BaseException | None = None
    _finished: list[StageOutcome] = field(default_factory=list)
    _refusal: ReportedFinding | None = None

    def run(self, stages: Sequence[Stage], left_out: Sequence[str], display: Display) -> RunOutcome:
        """Run the stages until all have ended or one of them stops the run."""
        try:
            with display.live():
                for stage in stages:
                    self._run_one(stage, display)
        except BaseException as error:  # noqa: BLE001 - the caller raises it, after the report
            self.stopped = error
        found = tuple(entry.finding for stage in self._finished for entry in stage.findings)
        return RunOutcome(
            finished=tuple(self._finished),
            unfinished=tuple(stage.name for stage in stages[len(self._finished) :]),
            left_out=tuple(left_out),
            refusal=self._refusal,
            unmatched=self.baseline.unmatched(found),
        )

    def _run_one(self, stage: Stage, display: Display) -> None:
        """Run a stage and keep what it found.

        Raises:
            whatever stops the whole run; see :meth:`_explain`.
        """
        progress = display.start(stage.name)
        began = time.perf_counter()
        try:
            with compiled_kernels() as found:
                result = stage.run(self.target, self.budget, progress)
            result = with_findings(result, found)
        # SystemExit too: a target that calls sys.exit must not end the run as a success.
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a target raises anything
            result = self._explain(stage.name, error)
        seconds = time.perf_counter() - began
        _check_codes(result)
        findings = judge(stage.name, result.findings, self.baseline.reasons)
        outcome = StageOutcome(stage.name, result, seconds, findings)
        self._finished.append(outcome)
        display.end(stage.name, outcome.verdict.value, seconds)

    def _explain(self, stage: str, error: BaseException) -> StageResult:
        """The result of a stage in which the target crashed.

        The stage itself is INCONCLUSIVE, since its rest did not run; the finding makes it FAIL, and a baseline that
        accepts the finding does not make it PASS.

        Raises:
            the error itself, if the target refused to start or the fault is ours.
        """
        parts = refused_by(error, self.target)
        if parts:
            self._refusal = ReportedFinding(refusal_finding(parts), stage)
            raise error
        where = target_frames(error)
        if not where:
            raise error
        if self.debug:
            traceback.print_exception(error)
        finding = crash_finding(error, where)
        return StageResult(RunVerdict.INCONCLUSIVE, f"stopped by a crash of the target: {error!r:.200}", (finding,))


def _check_codes(result: StageResult) -> None:
    """Refuse codes that nobody can look up, wherever they come from: a target reports broken invariants itself.

    Raises:
        UnknownCodeError: a finding has such a code.
    """
    for finding in result.findings:
        if finding.code not in CODES:
            raise UnknownCodeError(finding.code, ())
