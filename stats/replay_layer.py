"""The replay layer: every draw recomputed from the bits that the sampler shows, and compared.

A defect that changes one draw in a thousand shows in a few thousand draws, where a test of the distribution would need
millions. What the bits themselves are worth is asked by the noise layer; here it is asked whether draws follow them:
scale and temperature, reduction over the vocabulary, keys, order of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .diagnosis import Case
from .distributions import AuditRow, flat, half_head, offset, recorded, zipf
from .gof import TestResult
from .layers import AuditPlan, LayerResult, LayerTest, Progress, unasked_test
from .replay import ExactScores, Mismatch, float32_guard, min_changed_share, min_replayed
from .targets import NoiseTarget, SamplerTarget, is_keyed

NARROW = 1000
TEMPERATURES = (0.7, 1.0, 1.3)
_ROUNDED_FAR = (0.3, 0.7, 1.3)  # bfloat16 moves them by 2.6, 1.1 and 2.4 parts in a thousand
_CELLS = 2**20  # scores computed at once
_HEADROOM = 32.0  # no winning noise of a vocabulary below 2**20 exceeds it in a million draws
_EXAMPLES = 5


@dataclass(frozen=True)
class Width:
    """Rows of one width.

    Attributes:
        name: of the part.
        vocab_size: tokens in a row; None for the plan's.
        draws: replayed.
        must_see: share of changed draws that must show.
    """

    name: str
    vocab_size: int | None
    draws: int
    must_see: float


@dataclass(frozen=True)
class ReplayResult(LayerResult):
    """What a replay found, with the draws that differ.

    Attributes:
        cases: their inputs, in order.
        replayed: draws compared.
    """

    cases: tuple[Case, ...] = ()
    replayed: int = 0


@dataclass(frozen=True)
class ReplayLayer:
    """Replays draws of rows of several shapes, mixed in every batch.

    Attributes:
        widths: how many draws of which width.
    """

    widths: Sequence[Width]
    name: str = "replay"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`."""
        if not isinstance(target, SamplerTarget) or not isinstance(target, NoiseTarget) or not is_keyed(target):
            missed = ("defects that change few draws: without the bits of the noise nothing can be replayed",)
            return LayerResult(self.name, (), (), missed, not_run="the target does not show the bits of its noise")
        tests: list[LayerTest] = []
        cases: list[Case] = []
        replayed = 0
        for width in self.widths:
            if plan.wants(width.name) and plan.time.over():
                tests.append(unasked_test(width.name, f"replay of {width.name}", "draw", width.draws))
                progress.tested(tests[-1])
            elif plan.wants(width.name):
                found = _replayed(target, width, plan, progress)
                cases += found.cases
                replayed += found.replayed
                tests.append(found.test)
                progress.tested(found.test)
        coverage = tuple(f"{w.draws * plan.scale:,} draws of {w.name} replayed" for w in self.widths)
        return ReplayResult(
            self.name, tuple(tests), coverage, cases=tuple(cases), replayed=replayed, width=plan.vocab_size
        )


@dataclass(frozen=True)
class _Found:
    test: LayerTest
    cases: Sequence[Case]
    replayed: int


def noise_scores(target: NoiseTarget) -> ExactScores:
    """What a draw is the argmax of, by the target's own bits and noise."""

    def scores(logits: NDArray[np.float32], temperature: float, seed: int, position: int) -> NDArray[np.float64]:
        key = np.array([seed], np.uint64), np.array([position], np.int64)
        noise = target.noise(target.words(*key, np.arange(logits.size)))
        scaled: NDArray[np.float64] = logits.astype(np.float64) / float(np.float32(temperature))
        return scaled + noise

    return scores


def rows_of(vocab_size: int) -> tuple[AuditRow, ...]:
    """The rows that are replayed; the first ones, at their own temperature, are changed most by a rounded one."""
    heads = [half_head(vocab_size, temperature) for temperature in _ROUNDED_FAR]
    return (*heads, zipf(vocab_size), flat(vocab_size), offset(vocab_size), *recorded(vocab_size))


def _replayed(target: SamplerTarget, width: Width, plan: AuditPlan, progress: Progress) -> _Found:
    vocab_size = width.vocab_size or plan.vocab_size
    rows, count = rows_of(vocab_size), width.draws * plan.scale
    random = plan.generator(f"{width.name} rows")
    choice, warmth = _mixture(rows, count, random)
    seeds, positions = plan.keys(width.name, count)
    table = np.stack([row.logits for row in rows])
    cases: list[Case] = []
    ambiguous = outside = done = 0
    for some in plan.time.calls(count, max(1, _CELLS // vocab_size)):
        batch = _Batch(table[choice[some]], warmth[some], seeds[some], positions[some])
        tokens = target.sample(batch.logits, batch.temperature, batch.seeds, batch.positions)
        outside += int(((tokens < 0) | (tokens >= vocab_size)).sum())
        wrong, close = batch.compare(np.clip(tokens, 0, vocab_size - 1), target)
        cases += wrong
        ambiguous += close
        done += len(tokens)
        progress.drawn(len(tokens))
    test = _test(width, plan, done, cases, ambiguous, outside)
    return _Found(replace(test, cut=done < count), cases, done)


def _mixture(
    rows: Sequence[AuditRow], count: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Row and temperature of each draw: half of them from the first rows at their own temperature."""
    own = len(_ROUNDED_FAR)
    first = random.random(count) < 0.5
    choice = np.where(first, random.integers(own, size=count), random.integers(own, len(rows), size=count))
    own_warmth = np.array([row.temperature for row in rows], np.float32)[choice]
    warmth = np.where(first, own_warmth, random.choice(np.array(TEMPERATURES, np.float32), count))
    return choice.astype(np.int64), warmth.astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Draws of one call: logits float32 [N, V], temperature float32 [N], seeds uint64 [N], positions int64 [N]."""

    logits: NDArray[np.float32]
    temperature: NDArray[np.float32]
    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]

    def compare(self, tokens: NDArray[np.int64], target: object) -> tuple[list[Case], int]:
        """Draws that differ from the replay beyond rounding, and how many differ within."""
        assert isinstance(target, NoiseTarget)
        vocab = np.arange(self.logits.shape[1])
        words = target.words(self.seeds[:, np.newaxis], self.positions[:, np.newaxis], vocab)
        noise = target.noise(words.ravel()).reshape(words.shape)
        scaled = self.logits.astype(np.float64) / self.temperature.astype(np.float64)[:, np.newaxis]
        scores, lanes = scaled + noise, np.arange(len(tokens))
        exact = scores.argmax(axis=1)
        gaps = scores[lanes, exact] - scores[lanes, tokens]
        largest = np.where(np.isfinite(scaled), np.abs(scaled), 0.0).max(axis=1) + _HEADROOM
        guards = np.array([float32_guard(value) for value in largest.tolist()])
        wrong = np.flatnonzero(~(gaps <= guards))
        cases = [self._case(lane, int(tokens[lane]), int(exact[lane]), scores[lane]) for lane in wrong.tolist()]
        return cases, int(((tokens != exact) & (gaps <= guards)).sum())

    def _case(self, lane: int, drawn: int, exact: int, scores: NDArray[np.float64]) -> Case:
        key = int(self.seeds[lane]), int(self.positions[lane])
        mismatch = Mismatch(*key, drawn, exact, float(scores[drawn]), float(scores[exact]))
        return Case(self.logits[lane], float(self.temperature[lane]), mismatch)


def _test(width: Width, plan: AuditPlan, count: int, cases: Sequence[Case], ambiguous: int, outside: int) -> LayerTest:
    examples: list[JSON] = [example(case) for case in cases[:_EXAMPLES]]
    evidence: dict[str, JSON] = {
        "replayed": count, "mismatches": len(cases), "within rounding": ambiguous, "outside": outside,
        "examples": examples,
    }  # fmt: skip
    result = TestResult(f"replay of {width.name}", float(len(cases)), float(not cases), count, int(count > 0))
    needed = min_replayed(width.must_see, plan.false_pass_rate)
    could_see = min_changed_share(count, plan.false_pass_rate)
    return LayerTest(width.name, result, True, "share of changed draws", width.must_see, could_see, needed, evidence)


def _logits_again(case: Case) -> str:
    """How to make the row of a case again."""
    rows = rows_of(case.logits.size)
    place = next(place for place, row in enumerate(rows) if np.array_equal(row.logits, case.logits))
    return f"mrv2.stats.replay_layer.rows_of({case.logits.size})[{place}].logits"


def example(case: Case) -> dict[str, JSON]:
    """A draw that differs, for a report."""
    mismatch = case.mismatch
    return {
        "vocab_size": case.logits.size,
        "logits": _logits_again(case),
        "temperature": round(case.temperature, 6),
        "seed": mismatch.seed,
        "position": mismatch.position,
        "drawn": mismatch.drawn,
        "exact": mismatch.exact,
        "drawn_score": mismatch.drawn_score if np.isfinite(mismatch.drawn_score) else None,
        "exact_score": mismatch.exact_score,
    }
