"""Stage 2: the runner's tokens and log-probabilities against the oracle's.

Two workloads: the quick one on the model of the run, and the edges (long, odd and extreme) always on the tiny one,
because they are about state, and weights do not matter to that. A target that knows grammars gets a third one, likewise
on the tiny model: random JSON schemas and other grammars, and requests without one beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from mrv2.checks.findings import JSON, Finding, RunVerdict, Soundness, Verdict, verdict_of
from mrv2.fuzz.feature_sets.judge import Chances
from mrv2.fuzz.grammars import grammar_workload
from mrv2.fuzz.programs import MODEL as TINY
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget
from mrv2.fuzz.workload import RequestResult, Trace, Workload, WorkloadRequest, run_target
from mrv2.refrunner.api import NewRequest
from mrv2.refrunner.models.checkpoint import Checkpoint, load_checkpoint
from mrv2.refrunner.models.tokenizer import load_tokenizer
from mrv2.refrunner.oracle.grammar import GrammarOracle
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle, ScoredToken
from mrv2.refrunner.oracle.rounding import Float32Twins, Judgement, TokenBound

from .base import Budget, Progress, StageResult
from .traces import missing_features, silent, trace_coverage, trace_findings, unexercised, unmoved
from .workloads import EDGE_LANES, LEAST_CONTEXT, edges_workload, quick_workload

#: Requests of the workload with grammars.
CONSTRAINED = 12
NEEDED = (
    Feature.CHUNKED_PREFILL,
    Feature.PREEMPTION,
    Feature.ABORT,
    Feature.SEEDED_SAMPLING,
    Feature.LOGPROBS,
)


@dataclass
class Judged:
    """Tallies over all requests.

    Attributes:
        tokens: how many were judged.
        equal: how many were the oracle's own.
        near_ties: how many were not the oracle's own, but within rounding of it.
        largest_error: of a log-probability.
        largest_ratio: of such an error to its bound.
        findings: tokens and log-probabilities that are wrong.
    """

    tokens: int = 0
    equal: int = 0
    near_ties: int = 0
    largest_error: float = 0.0
    largest_ratio: float = 0.0
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class _Drive:
    """One workload, what the target did with it, and all that is wrong with that."""

    workload: Workload
    trace: Trace
    judged: Judged
    findings: tuple[Finding, ...]


class RunnerAgainstOracle:
    """Drives the workloads and judges every token given the tokens before it.

    Judging on the runner's own prefix makes each token a test of its own: one near tie that falls the other way
    does not spoil the rest of the sequence.
    """

    name = "runner against oracle"

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
        if missing:
            return StageResult(RunVerdict.INCONCLUSIVE, f"the target lacks: {', '.join(missing)}")
        config = self._oracle.model.config
        problem = unfit(config.vocab_size, config.max_position_embeddings)
        if problem:
            return StageResult(RunVerdict.INCONCLUSIVE, problem)
        workload = quick_workload(self._vocab_size, budget.seed, budget.new_tokens, config.max_position_embeddings)
        tiny = load_checkpoint(TINY)
        edges = edges_workload(tiny.config.vocab_size, budget.seed)
        grammars = grammar_workload(budget.seed, CONSTRAINED) if knows_grammars(target) else None
        constrained = 0 if grammars is None else len(grammars.requests) + 1
        progress.start(len(workload.requests) + len(edges.requests) + 2 + constrained)
        quick = self._drive(target, workload, progress)
        judge = RunnerAgainstOracle(TINY, edges.vocab_size, tiny_oracle(tiny, with_grammars=grammars is not None))
        extreme = judge._drive(target, edges, progress)
        texts = None if grammars is None else judge._drive(target, grammars, progress)
        return _result(quick, extreme, texts, Feature.SNAPSHOT in target.features)

    def _drive(self, target: RunnerTarget, workload: Workload, progress: Progress) -> _Drive:
        trace = run_target(target, {"model": self._model}, workload)
        progress.advance()
        judged = self.judge(workload, trace, progress)
        return _Drive(workload, trace, judged, (*trace_findings(trace), *judged.findings))

    def judge(self, workload: Workload, trace: Trace, progress: Progress, chances: Chances | None = None) -> Judged:
        """Judge every token and log-probability of a trace; advances by one unit for each request.

        Args:
            chances: of drafts that were accepted by chance; tokens that were drawn so are judged by steps.
        """
        judged, twins = Judged(), Float32Twins(self._oracle.model)
        for request in workload.requests:
            result = trace.results.get(request.request_id)
            if result is not None and result.token_ids:
                asked = NewRequest(request.request_id, request.prompt, len(request.prompt), request.sampling)
                scored = self._oracle.score(asked, result.token_ids)
                drawn = chances if request.sampling.temperature > 0 else None
                _tally(judged, trace, request, result, scored, twins.bounds(asked, scored), drawn)
                if drawn is not None:
                    judged.findings += _by_chance(asked, result, drawn)
            progress.advance()
        return judged


def knows_grammars(target: RunnerTarget) -> bool:
    """Whether the target claims to, and the library that says what a grammar means is installed."""
    return Feature.GRAMMARS in target.features and find_spec("llguidance") is not None


def tiny_oracle(tiny: Checkpoint, *, with_grammars: bool) -> Oracle:
    """The oracle of the tiny model, whose tokens are bytes."""
    vocabulary = load_tokenizer(tiny).vocabulary()
    grammars = None
    if with_grammars:
        grammars = GrammarOracle(vocabulary.tokens, vocabulary.special, vocabulary.encode, tiny.config.vocab_size)
    return Oracle(LlamaOracle(tiny.config, tiny.tensors), grammars)


def unfit(vocab_size: int, context: int) -> str | None:
    """Why a model cannot show anything in the quick workload, if so."""
    if vocab_size < 2:
        return f"the model has a vocabulary of {vocab_size}: there is nothing to choose from"
    if context < LEAST_CONTEXT:
        return f"the model has {context} positions: chunks, preemptions and resumes need {LEAST_CONTEXT}"
    return None


def _tally(
    judged: Judged,
    trace: Trace,
    request: WorkloadRequest,
    result: RequestResult,
    scored: tuple[ScoredToken, ...],
    bounds: tuple[TokenBound, ...],
    chances: Chances | None,
) -> None:
    wrong: list[ScoredToken] = []
    inexact: list[tuple[ScoredToken, float, float]] = []
    for token, bound, logprob in zip(scored, bounds, result.logprobs, strict=True):
        # Without any rounding to blame, equal scores are a tie, and the lowest id wins it.
        wrong_tie = bound.judgement is Judgement.NEAR_TIE and bound.tie_gap == 0
        judged.tokens += 1
        judged.equal += bound.judgement is Judgement.EQUAL
        judged.near_ties += bound.judgement is Judgement.NEAR_TIE and not wrong_tie
        error = abs(logprob - token.logprob)
        judged.largest_error = max(judged.largest_error, error)
        judged.largest_ratio = max(judged.largest_ratio, error / bound.logprob_error)
        if chances is None and (wrong_tie or bound.judgement is Judgement.WRONG):
            wrong.append(token)
        # Written so that a NaN is inexact too.
        if not error <= bound.logprob_error:
            inexact.append((token, logprob, bound.logprob_error))
    if wrong:
        judged.findings.append(_token_finding(trace, request, wrong))
    if inexact:
        judged.findings.append(_logprob_finding(trace, request, inexact))


def _by_chance(asked: NewRequest, result: RequestResult, chances: Chances) -> Iterator[Finding]:
    """What steps with drafts emitted and should not have."""
    if chances.judge is None:
        return
    emissions = chances.emissions.get(asked.request_id, ())
    for text in chances.judge.judge(asked, result.token_ids, emissions, chances.way).failures:
        yield Finding(
            code="MRV302",
            verdict=Verdict.VIOLATION,
            soundness=Soundness.SOUND,
            title=text,
            evidence={"request": asked.request_id, "verification": chances.way},
            remedy="look at what each draft was drawn from, at the chance of its acceptance, and at what replaces it",
        )


def _token_finding(trace: Trace, request: WorkloadRequest, wrong: list[ScoredToken]) -> Finding:
    first = wrong[0]
    return Finding(
        code="MRV302",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title=f"request {request.request_id}: token {first.index} is not the oracle's",
        evidence={
            "request": request.request_id,
            "temperature": request.sampling.temperature,
            "position": first.position,
            "expected": first.choice,
            "observed": first.observed,
            "score gap": first.gap,
            "wrong tokens of this request": len(wrong),
            "life": list(_life(trace, request.request_id)),
        },
        remedy="look at the first wrong input of this request (MRV304), else at attention, logits rows and sampling",
        step=_step_of_draw(trace, request, first.index),
    )


def _logprob_finding(
    trace: Trace, request: WorkloadRequest, inexact: list[tuple[ScoredToken, float, float]]
) -> Finding:
    token, observed, bound = inexact[0]
    return Finding(
        code="MRV303",
        verdict=Verdict.VIOLATION,
        soundness=Soundness.SOUND,
        title=f"request {request.request_id}: log-probability of token {token.index} is outside its bound",
        evidence={
            "request": request.request_id,
            "position": token.position,
            "expected": token.logprob,
            "observed": observed,
            "bound": bound,
            "inexact log-probabilities of this request": len(inexact),
        },
        remedy="logprobs belong to the raw logits of the same row, before temperature; check the row, then the sum",
        step=_step_of_draw(trace, request, token.index),
    )


def _life(trace: Trace, request_id: str) -> Iterator[str]:
    """When a request entered, left and came back, in words."""
    for index, step in enumerate(trace.steps):
        for request in step.new:
            if request.request_id == request_id:
                word = "resumed" if len(request.token_ids) > request.prompt_len else "added"
                yield f"{word} at step {index}"
        if request_id in step.preempted:
            yield f"preempted at step {index}"


def _step_of_draw(trace: Trace, request: WorkloadRequest, index: int) -> int | None:
    """Step that drew the token number ``index`` of a request."""
    computed, total = 0, len(request.prompt)
    for number, step in enumerate(trace.steps):
        if any(new.request_id == request.request_id for new in step.new):
            computed = 0
        computed += step.scheduled.get(request.request_id, 0)
        if request.request_id in step.scheduled and computed == total:
            if total - len(request.prompt) == index:
                return number
            total += 1
    return None


def _result(quick: _Drive, edges: _Drive, texts: _Drive | None, snapshots: bool) -> StageResult:
    drives = [drive for drive in (quick, edges, texts) if drive is not None]
    findings = tuple(finding for drive in drives for finding in drive.findings)
    judged, missing = quick.judged, _missing(quick, edges, snapshots)
    verdict = verdict_of(findings)
    ratio = max(drive.judged.largest_ratio for drive in drives)
    grammars = "" if texts is None else f"; grammars: {texts.judged.equal} of {texts.judged.tokens}"
    summary = (
        f"{len(quick.workload.requests)} requests, {judged.equal} of {judged.tokens} tokens equal; edges on the {TINY} "
        f"model: {edges.judged.equal} of {edges.judged.tokens}{grammars}; logprob error at most {ratio:.2f} of its "
        "bound"
    )
    if findings:
        summary = findings[0].title
    elif missing:
        verdict, summary = RunVerdict.INCONCLUSIVE, missing
    coverage = {**trace_coverage(quick.trace), "edges": _edge_coverage(edges)}
    coverage["grammars"] = None if texts is None else trace_coverage(texts.trace)
    return StageResult(verdict, summary, findings, _metrics(judged, edges.judged), coverage)


def _missing(quick: _Drive, edges: _Drive, snapshots: bool) -> str | None:
    """Why equal tokens would not mean much, if so."""
    missing = unexercised(quick.trace, quick.workload) + (unmoved(quick.trace) if snapshots else [])
    missing += silent(edges.trace, edges.workload)
    if missing:
        return f"not exercised: {', '.join(missing)}"
    for judged in (quick.judged, edges.judged):
        if 2 * judged.near_ties > judged.tokens:
            return (
                f"{judged.near_ties} of {judged.tokens} tokens are near ties: this model cannot tell right from wrong"
            )
    return None


def _edge_coverage(edges: _Drive) -> dict[str, JSON]:
    capacities = edges.workload.capacities
    return {
        "model": TINY,
        "steps": len(edges.trace.steps),
        "longest prompt": max(len(request.prompt) for request in edges.workload.requests),
        "lanes of one step": EDGE_LANES,
        "block size": capacities["block_size"],
        "length limit": capacities["max_model_len"],
    }


def _metrics(judged: Judged, edges: Judged) -> Mapping[str, JSON]:
    return {
        "tokens": judged.tokens,
        "near ties": judged.near_ties,
        "largest logprob error": judged.largest_error,
        "largest logprob error over its bound": judged.largest_ratio,
        "tokens of the edges": edges.tokens,
        "near ties of the edges": edges.near_ties,
    }
