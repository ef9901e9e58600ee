"""Requests whose drafts are draws, judged step by step: accepted by chance, they change tokens, and formulas say how.

Given the tokens before a step and what its drafts were drawn from, what it emits is a function of the request's seed.
For a model that follows from the tokens, for a head from all steps of the run (``oracle.heads``). Where nobody can say
it (a model that is not ours) only what may never be drawn is a failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mrv2.checks.findings import JSON
from mrv2.fuzz.workload import Emission, Trace
from mrv2.refrunner.api import NewRequest
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.oracle.grammar import GrammarOracle
from mrv2.refrunner.oracle.heads import Run
from mrv2.refrunner.oracle.oracle import ScoredToken
from mrv2.refrunner.oracle.rounding import Float32Twins, Rounding, processed_gap
from mrv2.refrunner.oracle.sampling import error_gain, filtered, process
from mrv2.refrunner.oracle.speculation import Drafts, Emitted, SpeculativeOracle

EQUAL, BLOCK = "equal", "block"
HEAD = "eagle"
#: Relative error of a probability that is always granted, and how many times the measured one.
LEAST_ERROR, SAFETY = 1e-3, 16.0


def by_chance(settings: Mapping[str, JSON]) -> bool:
    """Whether a runner with these settings accepts drafts by chance, where a request has a temperature."""
    return settings.get("verification", EQUAL) != EQUAL


def is_head(settings: Mapping[str, JSON]) -> bool:
    """Whether a head on the target's states proposes."""
    return settings.get("speculation") == HEAD


def run_of(trace: Trace, settings: Mapping[str, JSON]) -> Run:
    """What a trace shows to who follows a head."""
    emitted = {(emission.step, name): emission.token_ids for name, each in trace.emissions.items() for emission in each}
    return Run(trace.steps, emitted, int(str(settings.get("block_size", RunnerConfig.block_size))))


@dataclass(frozen=True)
class Verdict:
    """What became of judging a request.

    Attributes:
        near_ties: steps that emitted something else, within rounding.
        failures: what is wrong, in words.
    """

    near_ties: int
    failures: tuple[str, ...]


class ChanceJudge:
    """Judges what steps with drafts that are draws emitted.

    Args:
        target: float64 model, with its twins.
        drafts: what they are drawn from.
        grammars: reads grammars, for requests that have one.
    """

    def __init__(self, target: Float32Twins, drafts: Drafts, grammars: GrammarOracle | None) -> None:
        self._target, self._drafts = target, drafts
        self._oracle = SpeculativeOracle(target.model, drafts, grammars)

    def judge(self, asked: NewRequest, tokens: Sequence[int], emissions: Sequence[Emission], way: str) -> Verdict:
        """Compare each step with the formulas, given the tokens that were emitted before it.

        Args:
            asked: the request.
            tokens: that it generated; steps in flight at its end may have emitted more.
            emissions: of its steps.
            way: of verification.
        """
        known, near_ties = list(asked.token_ids), 0
        end = len(known) + len(tokens)
        for emission in emissions:
            place = f"request {asked.request_id}, position {len(known)}"
            left = end - len(known)
            if left <= 0:
                break
            if self._is_undefined(asked, emission, left):
                known += emission.token_ids
                continue
            wanted = self._oracle.step(asked, known, emission.drafts, in_blocks=way == BLOCK)
            if emission.token_ids != wanted.token_ids:
                if not self._may_round(asked, known, wanted):
                    return Verdict(near_ties, (_difference(place, emission, wanted),))
                near_ties += 1
            known += emission.token_ids
        if known[len(asked.token_ids) : end] != list(tokens):
            return Verdict(near_ties, (f"request {asked.request_id}: its tokens are not those that its steps emitted",))
        return Verdict(near_ties, ())

    @staticmethod
    def _is_undefined(asked: NewRequest, emission: Emission, left: int) -> bool:
        """Behind its end a request with a grammar has no defined mask, and drafts there have a say in blocks."""
        return asked.sampling.grammar is not None and emission.drafts >= left

    def _may_round(self, asked: NewRequest, known: Sequence[int], wanted: Emitted) -> bool:
        """Whether float32 may have decided otherwise: of drafts, of acceptance, or of what a filter keeps."""
        if not wanted.margin >= LEAST_ERROR:  # no number is close, too
            return True
        tokens = [*known, *wanted.drafts]
        target, drawn_from = self._target.measure(tokens), self._drafts.bound(asked.request_id, known, wanted.drafts)
        gain, rows = error_gain(asked.sampling), slice(len(known) - 1, None)
        bound = float(target.logit_bounds[rows].max())
        temperature = float(np.float32(asked.sampling.temperature))
        error = gain * bound + drawn_from / temperature
        return wanted.margin < SAFETY * error or self._line_moves(asked, tokens, target, rows, gain * bound)

    def _line_moves(
        self, asked: NewRequest, tokens: Sequence[int], rounding: Rounding, rows: slice, slack: float
    ) -> bool:
        """Whether a filter may keep more or fewer tokens at one of these rows than the formulas say."""
        logits = rounding.exact.logits[rows].numpy().astype(np.float64)
        for place, row in enumerate(logits, start=rows.start + 1):
            kept = filtered(process(row, asked, tokens[:place]), asked.sampling, slack)
            if not np.array_equal(kept.surely, kept.possibly):
                return True
        return False


def _difference(place: str, emission: Emission, wanted: Emitted) -> str:
    return (
        f"{place}: token by token {emission.token_ids} come out of {emission.drafts} drafts, "
        f"not {wanted.token_ids} as the formulas have it (drafts {wanted.drafts})"
    )


def impossible(asked: NewRequest, scored: Sequence[ScoredToken], rounding: Rounding) -> Iterator[str]:
    """Tokens that no draw of the request can give, however its drafts were drawn.

    Args:
        scored: its tokens.
        rounding: of its sequence.
    """
    for token in scored:
        forbidden = token.logprob == -math.inf  # by its grammar
        if token.drawing is not None:
            bound = float(rounding.logit_bounds[token.position - 1])
            forbidden |= processed_gap(token.drawing, token.observed, asked.sampling, bound)[0] == math.inf
        if forbidden:
            place = f"request {asked.request_id}, position {token.position}"
            yield f"{place}: token {token.observed} is one that its parameters forbid"
