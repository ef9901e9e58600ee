"""What a set of verdicts comes to: the score, and what there is to know of each mutant, as JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mrv2.checks.findings import JSON

from .judge import Outcome, Verdict

#: Share of the mutants that are not equivalent which must be killed; what the issue asks for.
BAR = 0.95


def score_of(verdicts: Sequence[Verdict]) -> float | None:
    """Share of the mutants that are neither equivalent nor invalid which were killed; None if there are none."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    judged = counts[Outcome.KILLED] + counts[Outcome.SURVIVED] + counts[Outcome.UNREACHED]
    return counts[Outcome.KILLED] / judged if judged else None


def as_json(verdict: Verdict) -> dict[str, JSON]:
    """A verdict; the mutant is named by its place and what was done there, so that it can be made again."""
    mutant, kill = verdict.mutant, verdict.kill
    killed: dict[str, JSON] | None = None
    if kill is not None:
        killed = {
            "code": kill.code, "title": kill.title, "exercise": kill.exercise, "schedule": kill.schedule,
            "certain": kill.certain,
        }  # fmt: skip
    return {
        "file": mutant.file, "line": mutant.line, "kind": mutant.kind.value, "operator": mutant.operator,
        "number": mutant.number, "was": mutant.was, "outcome": verdict.outcome.value, "killed_by": killed,
        "reason": verdict.reason, "exercises": len(verdict.reached),
    }  # fmt: skip
