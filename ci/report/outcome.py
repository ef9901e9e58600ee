"""What a run produced, with the baseline applied: the data that the renderers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrv2.checks.findings import Finding, RunVerdict, combine, verdict_of
from mrv2.checks.report.identity import identity

if TYPE_CHECKING:  # the contracts of stages import NumPy, and doctor must work without it
    from mrv2.ci.stages.base import StageResult


@dataclass(frozen=True)
class ReportedFinding:
    """A finding as a report shows it.

    Attributes:
        finding: what a detector found.
        stage: the stage that found it, if one did.
        accepted: the baseline's reason, if the finding is accepted there.
    """

    finding: Finding
    stage: str | None = None
    accepted: str | None = None


@dataclass(frozen=True)
class StageOutcome:
    """A stage that ended.

    Attributes:
        name: the stage's name.
        result: what the stage answered.
        seconds: how long it took.
        findings: the result's findings, with the baseline applied.
    """

    name: str
    result: StageResult
    seconds: float
    findings: tuple[ReportedFinding, ...]

    @property
    def verdict(self) -> RunVerdict:
        """The stage's verdict after accepted findings are set aside.

        A verdict that the findings do not explain (a stage that ran dry, say) is never improved by a baseline.
        """
        remaining = verdict_of(entry.finding for entry in self.findings if entry.accepted is None)
        if self.result.verdict is verdict_of(self.result.findings):
            return remaining
        return combine([self.result.verdict, remaining])


@dataclass(frozen=True)
class RunOutcome:
    """All stages of a run.

    Attributes:
        finished: stages that ended, in order.
        unfinished: names of selected stages that did not end, because the run was stopped.
        left_out: names of stages that were not selected.
        refusal: the finding for a target that would not start; the stage that asked it to is unfinished.
        unmatched: fingerprints of baseline entries that matched no finding.
    """

    finished: tuple[StageOutcome, ...]
    unfinished: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    refusal: ReportedFinding | None = None
    unmatched: tuple[str, ...] = ()

    @property
    def verdict(self) -> RunVerdict:
        """The verdict of the whole run; a run that was stopped is INCONCLUSIVE, whatever its stages found."""
        if self.unfinished:
            return RunVerdict.INCONCLUSIVE
        return combine(stage.verdict for stage in self.finished)

    @property
    def findings(self) -> tuple[ReportedFinding, ...]:
        """Findings of all stages, in order, and the refusal."""
        found = [entry for stage in self.finished for entry in stage.findings]
        return (*found, self.refusal) if self.refusal else tuple(found)


def judge(
    stage: str, findings: Iterable[Finding], reasons: Mapping[tuple[str, str], str]
) -> tuple[ReportedFinding, ...]:
    """Mark the findings that a baseline accepts.

    Args:
        stage: name of the stage that found them.
        findings: what it found.
        reasons: why a finding is accepted, by (fingerprint, code).
    """
    return tuple(
        ReportedFinding(finding, stage, reasons.get((identity(finding), finding.code))) for finding in findings
    )
