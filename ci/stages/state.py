"""Stage 3: dead memory stays dead. Pad the batch, poison what is dead, and nothing may change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mrv2.checks.findings import JSON, Finding, RunVerdict, Soundness, Verdict, verdict_of
from mrv2.fuzz.targets.protocols import POISON_KINDS, Feature, RunnerTarget
from mrv2.fuzz.workload import RequestResult, Trace, Workload, run_target
from mrv2.refrunner.oracle.oracle import Oracle

from .base import Budget, Progress, Silent, StageResult
from .runner_oracle import RunnerAgainstOracle, unfit
from .traces import missing_features, trace_coverage, trace_findings, unexercised, unmoved
from .workloads import quick_workload

NEEDED = (Feature.CHUNKED_PREFILL, Feature.PREEMPTION, Feature.ABORT, Feature.POISON, Feature.SNAPSHOT)
# Odd on purpose: most steps then have padding in both tokens and requests.
PAD_TO = 7
# Padding changes the shape of a matrix product and with it the rounding. A log-probability that moves by more than
# this, far above rounding and far below what a wrong key or value does, is judged by the oracle, and so is every token
# that changes. What moves by less is not worth another pass of the oracle: the stage before this one bounds it.
PADDING_TOLERANCE = 1e-3


class StateAndPoison:
    """Runs the quick workload three times: plain, padded, and padded with poison in everything that is dead.

    Dead are rows and KV blocks given back, KV blocks never handed out, and the lanes of padding. The two padded runs
    are otherwise the same, so tokens and log-probabilities must be equal bit for bit. Padding itself may change
    rounding and nothing else: where it changes more, the oracle says whether the padded run is wrong. After every step
    of the poisoned run the bookkeeping invariants must hold and every input must be what the step contract demands.
    """

    name = "state and poison"

    def __init__(self, model: str, vocab_size: int, oracle: Oracle) -> None:
        """Prepare.

        Args:
            model: reference of the checkpoint, as the target's configuration names it.
            vocab_size: of the model.
            oracle: float64 oracle of the same checkpoint.
        """
        self._model = model
        self._vocab_size = vocab_size
        self._oracle = oracle

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        """See :class:`Stage`."""
        missing = missing_features(target, NEEDED)
        config = self._oracle.model.config
        problem = unfit(config.vocab_size, config.max_position_embeddings)
        if missing or problem:
            reason = f"the target lacks: {', '.join(missing)}" if missing else str(problem)
            return StageResult(RunVerdict.INCONCLUSIVE, reason)
        context = config.max_position_embeddings
        workload = quick_workload(self._vocab_size, budget.seed + 1, budget.new_tokens, context)
        progress.start(4)
        plain = self._drive(target, workload, progress, pad_to=1)
        padded = self._drive(target, workload, progress, pad_to=PAD_TO)
        poisoned = self._drive(target, workload, progress, pad_to=PAD_TO, poison=True)
        findings = [finding for trace in (plain, padded, poisoned) for finding in trace_findings(trace)]
        findings += [*self._spoiled_by_padding(workload, plain, padded), *_differences(padded, poisoned)]
        progress.advance()
        return _result(workload, poisoned, findings)

    def _drive(
        self, target: RunnerTarget, workload: Workload, progress: Progress, *, pad_to: int, poison: bool = False
    ) -> Trace:
        config: dict[str, JSON] = {"model": self._model, "pad_to": pad_to, "poison": poison}
        trace = run_target(target, config, workload, check_invariants=poison)
        progress.advance()
        return trace

    def _spoiled_by_padding(self, workload: Workload, plain: Trace, padded: Trace) -> Iterator[Finding]:
        """One finding for each request that padding changes by more than rounding, and that is then wrong."""
        if plain.crash or padded.crash or plain.mismatch or padded.mismatch:
            return  # a wrong input says more than the output that it spoils
        moved = {name for name, result in plain.results.items() if _moved(result, padded.results[name])}
        suspects = replace(workload, requests=tuple(r for r in workload.requests if r.request_id in moved))
        judged = RunnerAgainstOracle(self._model, self._vocab_size, self._oracle).judge(suspects, padded, Silent())
        for finding in judged.findings:
            yield replace(
                finding,
                code="MRV305",
                title=f"request {finding.evidence['request']}: output changes when the batch is padded",
                remedy="something reads or writes what belongs to padding: mask its lanes, send their keys to the null "
                "block, and give its requests length 0",
            )


def _moved(plain: RequestResult, padded: RequestResult) -> bool:
    """Whether two results differ by more than padding explains without a closer look."""
    if plain.token_ids != padded.token_ids:
        return True
    pairs = zip(plain.logprobs, padded.logprobs, strict=True)
    return any(abs(left - right) > PADDING_TOLERANCE for left, right in pairs)


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
    missing = unexercised(trace, workload) + unmoved(trace) + _not_dead(trace)
    verdict = verdict_of(findings)
    steps = f"{len(trace.steps)} steps with poison, {trace.row_reuses} rows used again"
    summary = f"{steps}, outputs unchanged by padding or poison"
    if findings:
        summary = findings[0].title
    elif missing:
        verdict, summary = RunVerdict.INCONCLUSIVE, f"not exercised: {', '.join(missing)}"
    return StageResult(verdict, summary, tuple(findings), coverage=_coverage(trace))


def _not_dead(trace: Trace) -> list[str]:
    """What was to be padded or poisoned and was not: a target that ignores these settings would change nothing."""
    unpadded = [f"no step with padding {kind}" for kind, steps in trace.padded.items() if not steps]
    return unpadded + [f"no poison in {kind}" for kind in POISON_KINDS if not trace.poisoned.get(kind)]


def _coverage(trace: Trace) -> dict[str, JSON]:
    padded = {f"steps with padding {kind}": steps for kind, steps in trace.padded.items()}
    return {**trace_coverage(trace), **padded, "poisoned at once": dict(trace.poisoned)}
