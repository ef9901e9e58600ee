"""Stage "sampler distribution": are the target's tokens drawn as softmax(logits / temperature) says?

Draws at the edges of the ranges have one right answer each (:mod:`.sampler_edges`). Beside them, one set of draws on a
few rows of the model's own logits is judged three times, the strictest first; if all that is right, the edges count:

* contract: ids inside the vocabulary and the support; no error rate.
* replay: greedy draws against the argmax, a share of the others against the exact noise; no error rate, but a guard
  for rounding.
* distribution: G tests by rank (per temperature) and by token id, surprisal per temperature, agreement of pairs of keys
  that differ only in the seed or only in the position; 1e-6 for all of them together, by Holm's rule.

Each test declares the smallest error it must be able to see (:mod:`mrv2.stats.battery`). If the draws do not suffice
for it, the answer is INCONCLUSIVE and never PASS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON, Finding, RunVerdict, verdict_of
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget, SamplerProvider
from mrv2.stats.battery import FALSE_FAIL_RATE, FALSE_PASS_RATE, Check, distribution_checks, finite, replay_check
from mrv2.stats.diagnosis import Case, Cause, distribution_cause, replay_cause, reuse_cause
from mrv2.stats.gof import GroupCount, TestResult
from mrv2.stats.multiplicity import holm
from mrv2.stats.plan import VARIATION, DrawPlan, plan_draws
from mrv2.stats.replay import ExactScores, ReplayResult, float32_guard, merge, replay
from mrv2.stats.sample import Sample
from mrv2.stats.strata import Stratum, log_softmax
from mrv2.stats.targets import SamplerTarget

from .base import Budget, Progress, StageResult
from .sampler_call import ask, violation
from .sampler_edges import EdgeResult, check_edges

TEMPERATURES = (0.7, 1.0, 1.3)
ROWS = 4
BATCH = 64
EXAMPLES = 5

_HEADROOM = 32.0  # no winning noise of a vocabulary below 2**20 exceeds it in a million draws


class SamplerDistribution:
    """Checks the sampler of a target on its own, without the model around it.

    Args:
        model_logits: the model's own logits, float32 [rows, V], finite or -inf; called once, when the stage runs. The
            rows with the highest entropy are used, because a row that always gives one token shows nothing.
        exact_scores: what each draw is the argmax of (see :func:`mrv2.stats.replay.gumbel_scores`), or None for a
            target with a random number generator of its own; the replay is left out then, and the summary says so.
    """

    name = "sampler distribution"

    def __init__(self, model_logits: Callable[[], NDArray[np.float32]], exact_scores: ExactScores | None) -> None:
        self._model_logits = model_logits
        self._exact_scores = exact_scores

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        """Draw, then judge; see the module. ``budget.distribution_draws`` counts every draw but those at the edges."""
        if Feature.SAMPLER not in target.features or not isinstance(target, SamplerProvider):
            return _inconclusive(f"target {target.name} lacks the feature '{Feature.SAMPLER.value}'")
        if budget.distribution_draws < 1:
            return _inconclusive("no draws: budget.distribution_draws is below 1")
        sampler: object = target.sampler()
        if not isinstance(sampler, SamplerTarget):
            return _failed([_no_sampler(target.name, sampler)], {"draws": 0})
        logits, problem = _open_rows(self._model_logits())
        if problem:
            return _inconclusive(problem)
        plan = plan_draws(budget.distribution_draws, len(logits), TEMPERATURES, budget.seed)
        progress.start(-(-plan.rows.size // BATCH) + 1)
        drawn = _draw(sampler, logits, plan, progress)
        edges = check_edges(sampler, logits, self._exact_scores, budget.seed)
        progress.advance()
        if isinstance(drawn, Finding):
            return _failed([drawn], {"draws": 0, **edges.metrics()})
        return self._judge(sampler.name, Sample(logits, plan, drawn), edges)

    def _judge(self, name: str, sample: Sample, edges: EdgeResult) -> StageResult:
        outside = _vocabulary_finding(name, sample) or _support_finding(name, sample)
        if outside is not None:
            return _failed([outside], {"draws": int(sample.tokens.size), **edges.metrics()})
        strata = sample.strata()
        checks = distribution_checks(sample, strata)
        wrong_distribution = _distribution_finding(name, strata, checks)
        replayed, wrong_replay = None, None
        if self._exact_scores is not None:
            replayed, cases = _replay(sample, self._exact_scores)
            checks.insert(0, replay_check(replayed))
            wrong_replay = _replay_finding(name, replayed, cases, self._exact_scores, wrong_distribution)
        findings = [f for f in (_greedy_finding(name, sample), wrong_replay, wrong_distribution) if f is not None]
        metrics = {**_metrics(sample, checks, replayed), **edges.metrics()}
        # Whoever is wrong everywhere is wrong at the edges too, which says nothing new; the metrics list them.
        findings = findings or list(edges.findings)
        return _failed(findings, metrics) if findings else _no_finding(sample, checks, metrics, replayed)


# Drawing


def _open_rows(logits: NDArray[np.float32]) -> tuple[NDArray[np.float32], str]:
    """The rows of highest entropy, in their own order, and what is wrong with the logits if something is."""
    if logits.ndim != 2 or logits.size == 0:
        return logits, f"model logits have shape {logits.shape}, [rows, V] is needed"
    if np.isnan(logits).any() or not np.isfinite(logits.max(axis=1)).all():
        return logits, "model logits contain NaN, +inf or a row of -inf, so there is no distribution to test"
    log_p = [log_softmax(row, 1.0) for row in logits]
    entropy = [-float(np.exp(row) @ np.where(np.isneginf(row), 0.0, row)) for row in log_p]
    chosen = np.sort(np.argsort(entropy, kind="stable")[-ROWS:])
    return np.ascontiguousarray(logits[chosen], dtype=np.float32), ""


def _draw(
    sampler: SamplerTarget, logits: NDArray[np.float32], plan: DrawPlan, progress: Progress
) -> NDArray[np.int64] | Finding:
    """Tokens of the whole plan, int64 [N], or a finding if the sampler does not answer as it must."""
    parts = []
    for start in range(0, plan.rows.size, BATCH):
        lanes = slice(start, start + BATCH)
        rows, keys = plan.rows[lanes], (plan.seeds[lanes], plan.positions[lanes])
        tokens = ask(sampler, logits[rows], plan.temperatures[lanes], *keys)
        if isinstance(tokens, Finding):
            return tokens
        parts.append(tokens)
        progress.advance()
    return np.concatenate(parts)


# Contract


def _vocabulary_finding(name: str, sample: Sample) -> Finding | None:
    vocab_size = sample.logits.shape[1]
    bad = np.flatnonzero((sample.tokens < 0) | (sample.tokens >= vocab_size))
    if not bad.size:
        return None
    one_past = bool((sample.tokens[bad] == vocab_size).all())
    return violation(
        "MRV403",
        f"{name} returned a token id outside the vocabulary",
        {
            "draws": int(sample.tokens.size),
            "outside": int(bad.size),
            "vocab_size": vocab_size,
            "likely_cause": "every such id is V itself, one past the end" if one_past else None,
            "examples": [_draw_evidence(sample, index) for index in bad[:EXAMPLES]],
        },
        "give padded lanes of the last block the score -inf, and start the search for the maximum at a valid id",
    )


def _support_finding(name: str, sample: Sample) -> Finding | None:
    impossible = np.flatnonzero(np.isneginf(sample.logits[sample.plan.rows, sample.tokens]))
    if not impossible.size:
        return None
    return violation(
        "MRV403",
        f"{name} drew a token of probability zero",
        {
            "draws": int(sample.tokens.size),
            "outside": int(impossible.size),
            "examples": [_draw_evidence(sample, index) for index in impossible[:EXAMPLES]],
        },
        "keep the logit -inf of a masked token through division and noise: its score must stay -inf",
    )


# Replay


def _greedy_finding(name: str, sample: Sample) -> Finding | None:
    exact = sample.logits.argmax(axis=1)[sample.plan.rows]
    wrong = sample.greedy[sample.tokens[sample.greedy] != exact[sample.greedy]]
    if not wrong.size:
        return None
    return violation(
        "MRV402",
        f"{name} at temperature 0 does not return the largest logit",
        {
            "draws": int(sample.greedy.size),
            "mismatches": int(wrong.size),
            "examples": [{**_draw_evidence(sample, index), "exact": int(exact[index])} for index in wrong[:EXAMPLES]],
        },
        "take the argmax of the untouched logits, the lowest id on a tie, with no noise and no division by 0",
    )


def _replay(sample: Sample, exact_scores: ExactScores) -> tuple[ReplayResult, list[Case]]:
    """Replay the planned share of the draws."""
    results: list[ReplayResult] = []
    cases: list[Case] = []
    for cell in sample.cells():
        lanes = cell.chosen[sample.plan.replayed[cell.chosen]]
        logits = sample.logits[cell.row]
        result = replay(
            sample.tokens[lanes],
            sample.plan.seeds[lanes],
            sample.plan.positions[lanes],
            partial(exact_scores, logits, cell.temperature),
            float32_guard(abs(float(logits.max())) / cell.temperature + _HEADROOM),
        )
        results.append(result)
        cases += [Case(logits, cell.temperature, mismatch) for mismatch in result.mismatches]
    return merge(results), cases


def _replay_finding(
    name: str, result: ReplayResult, cases: Sequence[Case], exact_scores: ExactScores, distribution: Finding | None
) -> Finding | None:
    if not cases:
        return None
    cause = replay_cause(cases, exact_scores, result.replayed)
    likely: JSON = cause.detail if cause else None
    if cause is None and distribution is not None:
        likely = distribution.evidence["likely_cause"]
    elif cause is None:
        likely = "the distribution itself shows no error: another noise, key or order of tokens than the contract's"
    return violation(
        "MRV402",
        f"{name} draws other tokens than the exact replay" + (f": {cause.kind}" if cause else ""),
        {
            "replayed": result.replayed,
            "mismatches": len(cases),
            "likely_cause": likely,
            "examples": [_mismatch_evidence(case) for case in cases[:EXAMPLES]],
        },
        cause.remedy if cause else "compare noise, scaled logit and score of the first example with the exact ones",
    )


# Distribution


def _distribution_finding(
    name: str, strata: Mapping[float, Sequence[Stratum]], checks: Sequence[Check]
) -> Finding | None:
    tested = [(check, check.result) for check in checks if check.result is not None]
    if not tested:
        return None
    failed = holm([result.p_value for _, result in tested], FALSE_FAIL_RATE)
    wrong = [pair for pair, fails in zip(tested, failed, strict=True) if fails]
    if not wrong:
        return None
    cause = distribution_cause(strata) or _reuse([check for check, _ in wrong])
    return violation(
        "MRV401",
        f"{name} does not draw from softmax(logits / temperature)" + (f": {cause.kind}" if cause else ""),
        {
            "false_fail_rate": FALSE_FAIL_RATE,
            "tests": len(tested),
            "likely_cause": cause.detail if cause else None,
            "failed": {check.name: {**check.metrics(), "groups": _worst_groups(result)} for check, result in wrong},
        },
        cause.remedy if cause else "look at the groups that stand out: the tail, a range of ids, one temperature",
    )


def _reuse(failed: Sequence[Check]) -> Cause | None:
    for what in VARIATION:
        for check in failed:
            if check.result and check.name.endswith(f"differ in {what}") and check.result.statistic > 0:
                return reuse_cause(check.result, what, check.idle_seed_bits)
    return None


def _worst_groups(result: TestResult) -> list[JSON]:
    def deviation(group: GroupCount) -> float:
        return abs(group.observed - group.expected) / math.sqrt(max(abs(group.expected), 1.0))

    worst = sorted(result.groups, key=deviation, reverse=True)[:EXAMPLES]
    return [{"group": g.name, "expected": round(g.expected, 3), "observed": finite(g.observed)} for g in worst]


# Evidence and result


def _no_sampler(name: str, found: object) -> Finding:
    title = f"target {name} gives no sampler: it has no sample() or no name"
    return violation("MRV403", title, {"found": f"{found!r:.80}"}, "return a mrv2.stats.targets.SamplerTarget")


def _draw_evidence(sample: Sample, index: int) -> dict[str, JSON]:
    return {
        "seed": int(sample.plan.seeds[index]),
        "position": int(sample.plan.positions[index]),
        "row": int(sample.plan.rows[index]),
        "temperature": round(float(sample.plan.temperatures[index]), 6),
        "drawn": int(sample.tokens[index]),
    }


def _mismatch_evidence(case: Case) -> dict[str, JSON]:
    return {
        "seed": case.mismatch.seed,
        "position": case.mismatch.position,
        "temperature": round(case.temperature, 6),
        "drawn": case.mismatch.drawn,
        "exact": case.mismatch.exact,
        "drawn_score": finite(case.mismatch.drawn_score),
        "exact_score": case.mismatch.exact_score,
    }


def _metrics(sample: Sample, checks: Sequence[Check], replayed: ReplayResult | None) -> dict[str, JSON]:
    return {
        "draws": int(sample.tokens.size),
        "greedy_draws": int(sample.greedy.size),
        "replayed": replayed.replayed if replayed else None,
        "replayed_within_guard": replayed.ambiguous if replayed else None,
        "rows": len(sample.logits),
        "vocab_size": sample.logits.shape[1],
        "false_fail_rate": FALSE_FAIL_RATE,
        "false_pass_rate": FALSE_PASS_RATE,
        "tests": {check.name: check.metrics() for check in checks},
    }


def _no_finding(
    sample: Sample, checks: Sequence[Check], metrics: Mapping[str, JSON], replayed: ReplayResult | None
) -> StageResult:
    """PASS if every test could have seen what it must, else INCONCLUSIVE."""
    short = [check for check in checks if check.short]
    if short or not checks:
        return StageResult(RunVerdict.INCONCLUSIVE, _shortage(sample, short), (), metrics, _coverage())
    how = f"{replayed.replayed} replayed exactly" if replayed else "not replayed (no exact scores of this target known)"
    worst = max(check.temperature_error for check in checks if check.temperature_error is not None)
    summary = f"{sample.tokens.size} draws, {how}, no deviation; a temperature off by {worst:.0%} would show"
    return StageResult(RunVerdict.PASS, summary, (), metrics, _coverage())


def _shortage(sample: Sample, short: Sequence[Check]) -> str:
    blind = [check.name for check in short if check.needed is None]
    if blind or not short:
        return f"{sample.tokens.size} draws of these rows can show nothing in: {', '.join(blind) or 'any test'}"
    ratios = [(check.needed or 0) / max(check.draws, 1) for check in short]
    worst = short[int(np.argmax(ratios))]
    return (
        f"too few draws: {worst.name} has {worst.draws} and needs {worst.needed}; "
        f"it could have missed errors up to {worst.could_see:.2f} and must see {worst.must_see:.2f}; "
        f"about {math.ceil(max(ratios) * sample.tokens.size)} draws in all would do"
    )


def _failed(findings: Sequence[Finding], metrics: Mapping[str, JSON]) -> StageResult:
    likely = next((f.evidence["likely_cause"] for f in findings if f.evidence.get("likely_cause")), None)
    summary = findings[0].title + (f" ({likely})" if likely else "")
    return StageResult(verdict_of(findings), summary, tuple(findings), metrics, _coverage())


def _coverage() -> dict[str, JSON]:
    return {"features": [Feature.SAMPLER.value]}


def _inconclusive(reason: str) -> StageResult:
    return StageResult(RunVerdict.INCONCLUSIVE, reason)
