"""Stage "sampler audit": the exact layers of ``mrv2 audit`` on the target's sampler, in a few seconds.

Rows are narrow and nothing is sampled for long: masks and ids, random bits, filters at their thresholds, reported
log-probabilities. A part that the sampler does not show is named and not judged; ``mrv2 audit`` asks for the rest.
"""

from __future__ import annotations

from mrv2.checks.findings import RunVerdict
from mrv2.ci.report.audit_json import coverage_of, findings_of, metrics_of
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget, SamplerProvider
from mrv2.stats.audit import AuditReport, audit, settings
from mrv2.stats.layers import LayerTest

from .base import Budget, Progress, StageResult

LAYERS = ("contract", "noise", "filters", "logprobs")
WIDEST = 5003  # tokens: some blocks and a part


class SamplerAudit:
    """Audits the sampler of a target on its own.

    Args:
        vocab_size: of the model; rows are no wider than :data:`WIDEST`.
    """

    name = "sampler audit"

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = min(vocab_size, WIDEST)

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        """See :class:`mrv2.ci.stages.base.Stage`."""
        if Feature.SAMPLER not in target.features or not isinstance(target, SamplerProvider):
            reason = f"target {target.name} lacks the feature '{Feature.SAMPLER.value}'"
            return StageResult(RunVerdict.INCONCLUSIVE, reason)
        progress.start(0)
        chosen = settings(seed=budget.seed, vocab_size=self._vocab_size, layers=LAYERS)
        report = audit(target.sampler(), chosen, _Bar(progress))
        return StageResult(
            report.verdict, _summary(report), findings_of(report), metrics_of(report), coverage_of(report)
        )


class _Bar:
    """Progress of an audit as one of a stage."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def drawn(self, count: int) -> None:
        """Tests are counted, not draws."""

    def tested(self, test: LayerTest) -> None:
        self._progress.advance()


def _summary(report: AuditReport) -> str:
    asked = [result.layer for result in report.audit.results if not result.not_run]
    silent = [result.layer for result in report.audit.results if result.not_run]
    if report.causes:
        return f"{report.causes[0].kind}: {report.causes[0].detail}"
    told = f"{len(report.audit.decision.tests)} tests of {', '.join(asked) or 'nothing'}"
    return f"{told}; not shown by the sampler: {', '.join(silent)}" if silent else told
