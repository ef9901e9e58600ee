"""From the trace of a workload to findings, shared by the stages that drive a runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mrv2.checks.findings import JSON, Finding, Soundness, Verdict
from mrv2.fuzz.targets.protocols import Feature, Runner, RunnerTarget, SnapshotRunner
from mrv2.fuzz.workload import Trace, Workload

REMEDIES = {
    "query_start_loc": "check the prefix sums of Step.scheduled: order, first entry 0, last entry the number of tokens",
    "block_tables": "compare the staged block writes with the gather kernel: row, start and order",
    "seq_lens": "check num_computed_tokens of the row: reset when it is given to a request, advanced after each step",
    "positions": "check num_computed_tokens of the row, and the kernel that adds the lane to it",
    "slot_mapping": "check block id * block size + offset, and which block table row the kernel reads",
    "input_ids": "check where the newest token of the sequence comes from, above all after a resume",
    "request_ids": "run the requests of Step.scheduled in the order given",
}


def missing_features(target: RunnerTarget, needed: tuple[Feature, ...]) -> list[str]:
    """Names of the features that a stage needs and the target lacks."""
    return [feature.value for feature in needed if feature not in target.features]


def unexercised(trace: Trace, workload: Workload) -> list[str]:
    """What the workload was to exercise and did not; a stage with an entry here may not pass."""
    wanted = {"preempted": 2, "resumed": 2, "aborted": 1, "chunked": 1}
    counts = trace.counts
    missing = [f"{name} {counts[name]} of {count}" for name, count in wanted.items() if counts[name] < count]
    spoke = {name for name, result in trace.results.items() if result.token_ids}
    silent = [request.request_id for request in workload.requests if request.request_id not in spoke]
    return missing + [f"{name} generated nothing" for name in silent]


def unmoved(trace: Trace) -> list[str]:
    """What the rows of a workload were to go through and did not; only a runner with snapshots shows its rows."""
    moves = {"row used twice": trace.row_reuses, "resume in another row": trace.row_moves}
    return [f"no {what}" for what, count in moves.items() if count == 0]


def trace_coverage(trace: Trace) -> Mapping[str, JSON]:
    """What a trace exercised, for a report."""
    rows = {"rows used again": trace.row_reuses, "resumed in another row": trace.row_moves}
    return {"steps": len(trace.steps), **rows, **trace.counts}


def trace_findings(trace: Trace, runner: Runner) -> Iterator[Finding]:
    """Crash, first wrong input and broken invariants of a trace."""
    if trace.mismatch is not None:
        yield _mismatch_finding(trace, runner)
    if trace.crash is not None:
        yield Finding(
            code="MRV307",
            verdict=Verdict.VIOLATION,
            soundness=Soundness.SOUND,
            title=f"the runner failed: {trace.crash.error}",
            where=trace.crash.where,
            remedy="the steps obey the contract of refrunner/api.py; a runner must execute each of them",
            step=trace.crash.step,
        )
    for step, finding in trace.broken[:1]:
        yield Finding(
            code=finding.code,
            verdict=finding.verdict,
            soundness=finding.soundness,
            title=finding.title,
            where=finding.where,
            evidence={**finding.evidence, "broken in all": len(trace.broken)},
            remedy=finding.remedy,
            step=step,
        )


def _mismatch_finding(trace: Trace, runner: Runner) -> Finding:
    assert trace.mismatch is not None
    step, mismatch = trace.mismatch
    site = runner.producer(mismatch.field) if isinstance(runner, SnapshotRunner) else None
    return Finding(
        code="MRV304",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title=f"{mismatch.field} of request {mismatch.request_id} is wrong",
        where=(site,) if site else (),
        evidence={
            "field": mismatch.field,
            "request": mismatch.request_id,
            "index": mismatch.index,
            "expected": mismatch.expected,
            "observed": mismatch.observed,
            "event": _event(trace, step, mismatch.request_id),
        },
        remedy=REMEDIES[mismatch.field],
        step=step,
    )


def _event(trace: Trace, step: int, request_id: str) -> str:
    """What happened to a request last, up to a step: the usual suspect."""
    for index in range(step, -1, -1):
        for request in trace.steps[index].new:
            if request.request_id == request_id:
                kind = "resumed" if len(request.token_ids) > request.prompt_len else "added"
                return f"{kind} at step {index}"
    return "never added"
