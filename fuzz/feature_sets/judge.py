"""Everything that requests were told, compared with the oracle: tokens, log-probabilities, ranks, likeliest tokens.

Each answer is judged given the answers before it, so one near tie that falls the other way spoils nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON
from mrv2.fuzz.feature_sets.chance import ChanceJudge, by_chance, impossible, is_head, run_of
from mrv2.fuzz.targets.protocols import DraftingTarget, RunnerTarget
from mrv2.fuzz.workload import Emission, Trace, Workload, WorkloadRequest
from mrv2.refrunner.api import NewRequest, TokenLogprobs
from mrv2.refrunner.models.checkpoint import Checkpoint, load_checkpoint
from mrv2.refrunner.models.self_drafts import load_draft
from mrv2.refrunner.models.tokenizer import load_tokenizer
from mrv2.refrunner.oracle.grammar import GrammarOracle
from mrv2.refrunner.oracle.heads import HeadDrafts, HeadOracle
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle
from mrv2.refrunner.oracle.rounding import Float32Twins, Judgement, Rounding, bound_token, log_softmax_errors
from mrv2.refrunner.oracle.sampling import log_softmax
from mrv2.refrunner.oracle.speculation import ModelDrafts

#: Sequences whose rounding a judge remembers, each of them some hundred kilobytes for a tiny model.
KEPT_SEQUENCES = 64


@dataclass
class Tally:
    """What was judged.

    Attributes:
        tokens: drawn tokens.
        near_ties: those that are not the oracle's own, but within rounding of it.
        reports: reports on drawn tokens and on tokens of prompts.
        steps_by_chance: steps of requests whose drafts were accepted by chance, judged by formulas.
        largest_ratio: of an error of a log-probability to its bound.
        failures: what is wrong, in words.
    """

    tokens: int = 0
    near_ties: int = 0
    reports: int = 0
    steps_by_chance: int = 0
    largest_ratio: float = 0.0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    """What is reported of one distribution, float64 [V] each: the oracle's values, and how far float32 may be off.

    What a grammar forbids is minus infinity, with no error.
    """

    values: NDArray[np.float64]
    errors: NDArray[np.float64]


@dataclass(frozen=True)
class _Values:
    """What reports of a request are about: log-probabilities, or logits, and the rounding of its sequence."""

    rounding: Rounding
    logits: bool

    def row(self, position: int) -> _Row:
        """Those that the token at a position comes from."""
        logits: NDArray[np.float64] = self.rounding.exact.logits[position - 1].numpy()
        if self.logits:
            return _Row(logits, np.full(len(logits), float(self.rounding.logit_bounds[position - 1])))
        bound = float(self.rounding.logprob_bounds[position - 1])
        return _Row(log_softmax(logits), bound + log_softmax_errors(logits))

    def row_under(self, position: int, allowed: NDArray[np.bool_]) -> _Row:
        """Those that are left of it where only some tokens, bool [V], are allowed.

        The sum over a few of the logits may be off by as much as each of them.
        """
        logits: NDArray[np.float64] = self.rounding.exact.logits[position - 1].numpy()[allowed]
        bound = float(self.rounding.logit_bounds[position - 1])
        left = _Row(np.full(len(allowed), -np.inf), np.zeros(len(allowed)))
        left.values[allowed] = logits if self.logits else log_softmax(logits)
        left.errors[allowed] = bound if self.logits else 2 * bound + log_softmax_errors(logits)
        return left


@dataclass(frozen=True)
class Chances:
    """How a runner accepted drafts by chance.

    Attributes:
        way: of verification.
        emissions: what steps gave, by request.
        judge: knows what drafts were drawn from; None if nobody does.
    """

    way: str
    emissions: Mapping[str, Sequence[Emission]]
    judge: ChanceJudge | None


class Judge:
    """Compares what a trace holds with the oracle.

    Args:
        oracle: float64 oracle of the model that ran.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._twins = Float32Twins(oracle.model)
        # The same requests come back when a case is changed or made smaller, and nine passes of the model are most of
        # what judging one takes.
        self._measured = functools.lru_cache(KEPT_SEQUENCES)(self._twins.measure)

    def judge(
        self,
        workload: Workload,
        trace: Trace,
        reports: Mapping[str, Sequence[TokenLogprobs]],
        prompts: Mapping[str, Sequence[TokenLogprobs | None]],
        chances: Chances | None = None,
        *,
        logits: bool = False,
    ) -> Tally:
        """Judge every request that got an answer.

        Args:
            reports: on the drawn tokens, by request; those drawn after its end may follow.
            prompts: on the tokens of prompts, by request.
            chances: of drafts that were accepted by chance; None if each token is the one that comes without drafts.
            logits: what is reported as a log-probability is a logit (``RunnerConfig.logprobs_mode="raw_logits"``).
        """
        tally, whole = Tally(), whole_prompts(workload, trace)
        for request in workload.requests:
            result = trace.results.get(request.request_id)
            if result is None or not result.token_ids:
                continue
            prompt = whole[request.request_id]
            asked = NewRequest(request.request_id, prompt, len(prompt), request.sampling)
            rounding = self._measured((*prompt, *result.token_ids[:-1]))
            drawn = chances if request.sampling.temperature > 0 else None
            values = _Values(rounding, logits)
            self._tokens(tally, asked, values, result.token_ids, result.logprobs, drawn)
            self._reports(tally, asked, values, result.token_ids, reports.get(request.request_id, ()))
            self._prompt(tally, asked, values, prompts.get(request.request_id, ()))
        return tally

    def _tokens(
        self,
        tally: Tally,
        asked: NewRequest,
        values: _Values,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        chances: Chances | None,
    ) -> None:
        every, rounding = self._oracle.score(asked, tokens), values.rounding
        for scored, observed in zip(every, logprobs, strict=True):
            bound = bound_token(scored, asked.sampling, rounding, self._oracle.model.config.vocab_size)
            place = f"request {asked.request_id}, position {scored.position}"
            tally.tokens += 1
            if chances is None:
                tally.near_ties += bound.judgement is Judgement.NEAR_TIE
                if bound.judgement is Judgement.WRONG:
                    tally.failures.append(f"{place}: token {scored.observed} is not the oracle's {scored.choice}")
            if values.logits:
                error = float(rounding.logit_bounds[scored.position - 1])
                _compare(tally, f"{place}: logit", observed, scored.logits[1], error)
            else:
                _compare(tally, f"{place}: log-probability", observed, scored.logprob, bound.logprob_error)
        if chances is not None:
            tally.failures += impossible(asked, every, rounding)
            _judge_steps(tally, asked, tokens, chances)

    def _reports(
        self,
        tally: Tally,
        asked: NewRequest,
        values: _Values,
        tokens: Sequence[int],
        reports: Sequence[TokenLogprobs],
    ) -> None:
        sampling = asked.sampling
        wanted = sampling.logprobs is not None or bool(sampling.logprob_token_ids)
        if (len(reports) >= len(tokens)) != wanted:
            tally.failures.append(f"request {asked.request_id}: {len(reports)} reports on {len(tokens)} tokens")
        for index, (token, report) in enumerate(zip(tokens, reports, strict=False)):
            position = asked.prompt_len + index
            row = self._row(asked, values, position, tokens[:index])
            _compare_report(tally, asked, position, row, token, report, sampling.logprobs)

    def _row(self, asked: NewRequest, values: _Values, position: int, drawn: Sequence[int]) -> _Row:
        """What the token at a position is drawn from, the mask of its grammar included."""
        if asked.sampling.grammar is None:
            return values.row(position)
        free = np.zeros(self._oracle.model.config.vocab_size)
        return values.row_under(position, np.isfinite(self._oracle.masked(free, asked, (*asked.token_ids, *drawn))))

    def _prompt(
        self, tally: Tally, asked: NewRequest, values: _Values, reports: Sequence[TokenLogprobs | None]
    ) -> None:
        count = asked.sampling.prompt_logprobs
        if len(reports) != (0 if count is None else asked.prompt_len) or (reports and reports[0] is not None):
            tally.failures.append(f"request {asked.request_id}: {len(reports)} reports on its prompt")
        for position, report in enumerate(reports[1:], start=1):
            if report is None:
                tally.failures.append(f"request {asked.request_id}: no report on the prompt's token {position}")
                continue
            token = asked.token_ids[position]
            _compare_report(tally, asked, position, values.row(position), token, report, count)


def chances_of(target: RunnerTarget, model: str, settings: Mapping[str, JSON], trace: Trace) -> Chances | None:
    """How drafts were accepted in a trace of a target, if that was by chance.

    Args:
        settings: what the runner was built with.
    """
    if not by_chance(settings):
        return None
    draft = target.draft_model(settings) if isinstance(target, DraftingTarget) else None
    judge = _chance_judge(model, draft, settings, trace) if draft else None
    return Chances(str(settings["verification"]), trace.emissions, judge)


def _chance_judge(model: str, draft: str, settings: Mapping[str, JSON], trace: Trace) -> ChanceJudge:
    """The judge of a trace."""
    grammars = bool(settings.get("grammars"))
    if not is_head(settings):
        return chance_judge_of(model, draft, grammars)
    target, head, reader = _with_head(model, draft, grammars)
    return ChanceJudge(target, HeadDrafts(target, head, run_of(trace, settings)), reader)


def _judge_steps(tally: Tally, asked: NewRequest, tokens: Sequence[int], chances: Chances) -> None:
    if chances.judge is None:
        return
    verdict = chances.judge.judge(asked, tokens, chances.emissions.get(asked.request_id, ()), chances.way)
    tally.steps_by_chance += len(chances.emissions.get(asked.request_id, ()))
    tally.near_ties += verdict.near_ties
    tally.failures += verdict.failures


@functools.cache
def judge_of(model: str, grammars: bool = False) -> Judge:
    """The judge of a model that ``load_checkpoint`` knows, made once; with ``grammars`` it knows the model's texts."""
    checkpoint = load_checkpoint(model)
    reader = _reader(checkpoint) if grammars else None
    return Judge(Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors), reader))


@functools.cache
def chance_judge_of(model: str, draft_model: str, grammars: bool = False) -> ChanceJudge:
    """The judge of a model and of a whole one that proposes for it, see ``load_draft``, made once."""
    checkpoint = load_checkpoint(model)
    draft = _draft(draft_model, checkpoint, head=False)
    target, proposes = (LlamaOracle(each.config, each.tensors) for each in (checkpoint, draft))
    return ChanceJudge(Float32Twins(target), ModelDrafts(proposes), _reader(checkpoint) if grammars else None)


@functools.cache
def _with_head(model: str, head: str, grammars: bool) -> tuple[Float32Twins, Float32Twins, GrammarOracle | None]:
    """A model, a head on its states, and what reads grammars, made once."""
    checkpoint = load_checkpoint(model)
    draft = _draft(head, checkpoint, head=True)
    target = LlamaOracle(checkpoint.config, checkpoint.tensors)
    proposes = HeadOracle.of(target, draft.config, draft.tensors)
    return Float32Twins(target), Float32Twins(proposes), _reader(checkpoint) if grammars else None


def _draft(name: str, target: Checkpoint, *, head: bool) -> Checkpoint:
    draft = load_draft(name, target, head=head)
    assert draft is not None, "it has a name"
    return draft


def _reader(checkpoint: Checkpoint) -> GrammarOracle:
    words = load_tokenizer(checkpoint).vocabulary()
    return GrammarOracle(words.tokens, words.special, words.encode, checkpoint.config.vocab_size)


def whole_prompts(workload: Workload, trace: Trace) -> dict[str, tuple[int, ...]]:
    """Prompts, with all tokens of the request that they continue before their own."""
    whole: dict[str, tuple[int, ...]] = {}
    for request in workload.requests:
        whole[request.request_id] = (*_before(request, whole, trace), *request.prompt)
    return whole


def _before(request: WorkloadRequest, whole: Mapping[str, tuple[int, ...]], trace: Trace) -> tuple[int, ...]:
    earlier = request.continues
    if earlier is None:
        return ()
    result = trace.results.get(earlier)
    return (*whole[earlier], *(result.token_ids if result else ()))


def _compare(tally: Tally, what: str, observed: float, expected: float, bound: float) -> None:
    if observed == expected:  # minus infinity, too, is no distance from itself
        return
    error = abs(observed - expected)
    tally.largest_ratio = max(tally.largest_ratio, float(error / bound))
    if not error <= bound:  # so that a NaN fails, too
        tally.failures.append(f"{what} {observed} is not the oracle's {expected} within {bound}")


def _compare_report(
    tally: Tally, asked: NewRequest, position: int, row: _Row, token: int, report: TokenLogprobs, count: int | None
) -> None:
    tally.reports += 1
    place = f"request {asked.request_id}, position {position}"
    malformed = _malformed(report, len(row.values), len(asked.sampling.logprob_token_ids))
    if malformed:
        tally.failures.append(f"{place}: {malformed}")
        return
    pairs = [(token, report.value), *zip(report.token_ids, report.values, strict=True)]
    pairs += zip(asked.sampling.logprob_token_ids, report.fixed, strict=True)
    for other, value in pairs:
        _compare(tally, f"{place}: reported value of token {other},", value, row.values[other], row.errors[other])
    faults = (*_rank_faults(row, token, report.rank), *_choice_faults(row, report, count))
    tally.failures += [f"{place}: {fault}" for fault in faults]


def _malformed(report: TokenLogprobs, vocab_size: int, num_fixed: int) -> str:
    """What keeps a report from being looked at; empty if nothing does. A target may have made anything of it."""
    try:
        whole = (report.rank, *report.token_ids)
        real = (report.value, *report.values, *report.fixed)
        counts = len(report.values), len(report.fixed)
    except (AttributeError, TypeError) as error:
        return f"{report!r:.80} is no report: {error}"
    if not all(isinstance(number, Integral) for number in whole) or not all(isinstance(value, Real) for value in real):
        return f"a report has whole numbers for ranks and tokens and real ones for values, and this one {report!r:.120}"
    outside = [token for token in whole[1:] if not 0 <= token < vocab_size]
    if outside:
        return f"token {outside[0]} is reported, and there are {vocab_size}"
    if counts != (len(whole) - 1, num_fixed):
        return f"the report has {counts[0]} and {counts[1]} values of {len(whole) - 1} and {num_fixed} tokens"
    return ""


def _rank_faults(row: _Row, token: int, rank: int) -> Iterator[str]:
    """A token whose distance is within the errors may count as larger or not; that an impossible one came is told."""
    if row.values[token] == -np.inf:
        return
    distance, slack = row.values - row.values[token], row.errors + row.errors[token]
    least, most = int((distance > slack).sum()), int((distance >= -slack).sum()) - 1
    if not least <= rank - 1 <= most:
        yield f"rank {rank} of token {token} is not in {least + 1}..{most + 1}"


def _choice_faults(row: _Row, report: TokenLogprobs, count: int | None) -> Iterator[str]:
    """The likeliest tokens: as many as asked for, in order, and none left out."""
    size = len(row.values)
    if count == -1:
        if report.token_ids != tuple(range(size)):
            yield "the whole vocabulary is not reported in order"
        return
    if len(set(report.token_ids)) != min(count or 0, size) or len(report.token_ids) != min(count or 0, size):
        yield f"{len(report.token_ids)} likeliest tokens are reported where {count} are asked for"
    if list(report.values) != sorted(report.values, reverse=True):
        yield f"the likeliest tokens are not in order: {report.values}"
    chosen = list(report.token_ids)
    if chosen:
        others = np.delete(row.values - row.errors, chosen).max(initial=-np.inf)
        if others > (row.values + row.errors)[chosen].min():
            yield f"a likelier token than one of {report.token_ids} is left out"
    impossible = [token for token in chosen if row.values[token] == -np.inf]
    if impossible != np.flatnonzero(row.values == -np.inf)[: len(impossible)].tolist():
        yield f"of impossible tokens those of the lowest ids come first, and not {impossible}"
