"""Stage 3: dead memory stays dead. Poison it, and nothing may change."""

from __future__ import annotations

from collections.abc import Iterator

from mrv2.checks.findings import Finding, RunVerdict, Soundness, Verdict, verdict_of
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget
from mrv2.fuzz.workload import Driver, Trace, Workload

from .base import Budget, Progress, StageResult
from .traces import missing_features, trace_coverage, trace_findings, unexercised, unmoved
from .workloads import quick_workload

NEEDED = (Feature.CHUNKED_PREFILL, Feature.PREEMPTION, Feature.ABORT, Feature.POISON, Feature.SNAPSHOT)
# Odd on purpose: most steps then have padding in both tokens and requests.
PAD_TO = 7


class StateAndPoison:
    """Runs the quick workload with and without poison in freed rows, unused KV blocks and padding lanes.

    Both runs are otherwise the same, down to the padding, so tokens and log-probabilities must be equal bit for bit.
    After every step of the poisoned run the bookkeeping invariants must hold and every input must be what the step
    contract demands.
    """

    name = "state and poison"

    def __init__(self, model: str, vocab_size: int) -> None:
        """Prepare.

        Args:
            model: reference of the checkpoint, as the target's configuration names it.
            vocab_size: of the model.
        """
        self._model = model
        self._vocab_size = vocab_size

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        """See :class:`Stage`."""
        missing = missing_features(target, NEEDED)
        if missing:
            return StageResult(RunVerdict.INCONCLUSIVE, f"the target lacks: {', '.join(missing)}")
        workload = quick_workload(self._vocab_size, budget.seed + 1, budget.new_tokens)
        progress.start(2)
        clean, findings = self._drive(target, workload, poison=False)
        progress.advance()
        poisoned, more = self._drive(target, workload, poison=True)
        progress.advance()
        return _result(workload, poisoned, [*findings, *more, *_differences(clean, poisoned)])

    def _drive(self, target: RunnerTarget, workload: Workload, *, poison: bool) -> tuple[Trace, list[Finding]]:
        runner = target.build({"model": self._model, "pad_to": PAD_TO, "poison": poison, **workload.capacities})
        trace = Driver(runner, workload, check_invariants=poison).run()
        findings = list(trace_findings(trace, runner))
        runner.close()
        return trace, findings


def _differences(clean: Trace, poisoned: Trace) -> Iterator[Finding]:
    """The first difference of each request between the two runs."""
    for name, left in clean.results.items():
        right = poisoned.results.get(name)
        if right is None or clean.crash or poisoned.crash or left == right:
            continue
        pairs = zip(left.token_ids, left.logprobs, right.token_ids, right.logprobs, strict=False)
        index = next((i for i, (a, p, b, q) in enumerate(pairs) if (a, p) != (b, q)), len(left.token_ids))
        yield Finding(
            code="MRV305",
            verdict=Verdict.VIOLATION,
            soundness=Soundness.SOUND,
            title=f"request {name}: output changes when dead memory is poisoned",
            evidence={
                "request": name,
                "token": index,
                "without poison": list(left.token_ids[index : index + 1]),
                "with poison": list(right.token_ids[index : index + 1]),
            },
            remedy="something reads a freed row, an unused KV block or a padding lane; reset the state when a row is "
            "given out, and mask what is not yet written",
        )


def _result(workload: Workload, trace: Trace, findings: list[Finding]) -> StageResult:
    missing = unexercised(trace, workload) + unmoved(trace)
    verdict = verdict_of(findings)
    summary = f"{len(trace.steps)} steps with poison, {trace.row_reuses} rows used again, outputs unchanged"
    if findings:
        summary = findings[0].title
    elif missing:
        verdict, summary = RunVerdict.INCONCLUSIVE, f"not exercised: {', '.join(missing)}"
    return StageResult(verdict, summary, tuple(findings), coverage=trace_coverage(trace))
