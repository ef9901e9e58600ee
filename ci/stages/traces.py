"""From the trace of a workload to findings, shared by the stages that drive a runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mrv2.checks.findings import JSON, Finding, Soundness, Verdict
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget
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
    return missing + silent(trace, workload)


def silent(trace: Trace, workload: Workload) -> list[str]:
    """Requests of which nothing can be judged."""
    spoke = {name for name, result in trace.results.items() if result.token_ids}
    names = [request.request_id for request in workload.requests]
    return [f"{name} generated nothing" for name in names if name not in spoke]


def unmoved(trace: Trace) -> list[str]:
    """What the rows of a workload were to go through and did not; only a runner with snapshots shows its rows."""
    moves = {"row used twice": trace.row_reuses, "resume in another row": trace.row_moves}
    return [f"no {what}" for what, count in moves.items() if count == 0]


def trace_coverage(trace: Trace) -> Mapping[str, JSON]:
    """What a trace exercised, for a report."""
    rows = {"rows used again": trace.row_reuses, "resumed in another row": trace.row_moves}
    return {"steps": len(trace.steps), **rows, **trace.counts}


def trace_findings(trace: Trace) -> Iterator[Finding]:
    """First wrong input, crash, other faults and broken invariants of a trace."""
    if trace.mismatch is not None:
        yield _mismatch_finding(trace)
    for crash in (*([trace.crash] if trace.crash else []), *trace.faults):
        yield Finding(
            code="MRV307",
            verdict=Verdict.VIOLATION,
            soundness=Soundness.SOUND,
            # The message may hold measured values, and a title is part of the identity of a finding.
            title=f"the runner failed with {crash.error.partition(':')[0]}",
            where=crash.where,
            evidence={"error": crash.error},
            remedy="the steps obey the contract of refrunner/api.py; a runner must execute each of them, and what it "
            "returns must have the form of fuzz/targets/protocols.py",
            step=crash.step if crash.step >= 0 else None,
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


def _mismatch_finding(trace: Trace) -> Finding:
    assert trace.mismatch is not None
    step, mismatch = trace.mismatch
    return Finding(
        code="MRV304",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title=f"{mismatch.field} of request {mismatch.request_id} is wrong",
        where=(trace.producer,) if trace.producer else (),
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
