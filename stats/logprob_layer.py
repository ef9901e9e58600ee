"""The log-probability layer: values within a derived bound of float64, ranks, rows and positions. No error rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .distributions import recorded
from .layers import AuditPlan, LayerResult, LayerTest, Progress, exact_test, unasked_test
from .logprob import accuracy, error_bound, oracle_log_softmax, ranks, telltale_rows
from .targets import LogprobTarget, MemoryTarget, PromptLogprobTarget, RankTarget

Rows = NDArray[np.float32]

WARMTH = 0.7  # a temperature that tells whether it was applied
MEMORY = 3.0  # largest peak of memory, in sizes of the float32 logits: the result, one copy and some more
_TELLTALE = 12  # rows of a batch that must not be exchanged
_SHIFT = 64.0
_GRID = 2.0**-10  # logits that are multiples of it keep their differences when shifted


@dataclass(frozen=True)
class LogprobLayer:
    """Tests of reported log-probabilities.

    Attributes:
        batch: rows of each kind in a call.
    """

    batch: int = 4
    name: str = "logprobs"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`."""
        tests: list[LayerTest] = []
        for part, tested in self._parts(target, plan).items():
            if plan.wants(part):
                tests += [unasked_test(part, f"{part}: all of it", "value")] if plan.time.over() else tested()
        for test in tests:
            progress.tested(test)
        if not tests:
            return LayerResult(self.name, (), not_run="the target reports no log-probabilities")
        missing = [
            f"{what}: the target does not report them"
            for what, kind in (("ranks", RankTarget), ("log-probabilities of prompts", PromptLogprobTarget))
            if not isinstance(target, kind)
        ]
        coverage = (f"log-probabilities of all {plan.vocab_size:,} tokens of {len(KINDS)} kinds of rows",)
        return LayerResult(
            self.name,
            tuple(tests),
            coverage,
            (*missing, "errors below the bound of float32 arithmetic"),
            width=plan.vocab_size,
        )

    def _parts(self, target: object, plan: AuditPlan) -> dict[str, Callable[[], list[LayerTest]]]:
        """What is asked of this target, part by part, in order."""
        parts: dict[str, Callable[[], list[LayerTest]]] = {}
        if isinstance(target, LogprobTarget):
            parts = {kind: partial(self._kind_tests, target, kind, plan) for kind in KINDS}
            warm = partial(_normal_rows, self.batch, plan)
            parts["temperature"] = lambda: _value_tests(target, "temperature", warm(), WARMTH)
            parts["shift"] = lambda: [_shift_test(target, plan)]
            parts["exchange"] = lambda: [_exchange_test(target, plan)]
        if isinstance(target, RankTarget):
            parts["ranks"] = lambda: [_rank_test(target, plan)]
        if isinstance(target, PromptLogprobTarget):
            parts["prompt"] = lambda: [_prompt_test(target, plan)]
        if isinstance(target, MemoryTarget):
            parts["memory"] = lambda: _memory_test(target, plan)
        return parts

    def _kind_tests(self, target: LogprobTarget, kind: str, plan: AuditPlan) -> list[LayerTest]:
        generators = [plan.generator(f"{kind}/{place}") for place in range(self.batch)]
        rows = np.stack([KINDS[kind](plan.vocab_size, random) for random in generators])
        return _value_tests(target, kind, rows, 1.0)


# Rows


def _normal(vocab_size: int, random: np.random.Generator, spread: float = 3.0) -> Rows:
    return random.normal(0.0, spread, vocab_size).astype(np.float32)


def _flat(vocab_size: int, random: np.random.Generator) -> Rows:
    return np.full(vocab_size, random.normal(), np.float32)


def _head(vocab_size: int, random: np.random.Generator) -> Rows:
    row = _normal(vocab_size, random, 1.0)
    row[random.integers(vocab_size)] += 20.0
    return row


def _offset(vocab_size: int, random: np.random.Generator) -> Rows:
    return _normal(vocab_size, random) + np.float32(100.0)


def _ramp(vocab_size: int, random: np.random.Generator) -> Rows:
    return random.permutation(np.linspace(-50.0, 0.0, vocab_size)).astype(np.float32)


def _flat_tail(vocab_size: int, random: np.random.Generator) -> Rows:
    """A serial sum loses most where each block is half a unit in the last place of the sum (survey, section 4)."""
    row = np.full(vocab_size, -21.62 + random.normal(0.0, 0.05), np.float32)
    row[0] = 0.0
    return row


def _masked(vocab_size: int, random: np.random.Generator) -> Rows:
    row = _normal(vocab_size, random)
    row[random.random(vocab_size) < 0.5] = -np.inf
    row[random.integers(vocab_size)] = 1.0
    return row


def _model(vocab_size: int, random: np.random.Generator) -> Rows:
    """A recorded row, repeated where the vocabulary is larger: all of it, since the oracle reads the same tensor."""
    rows = recorded()
    return np.resize(rows[random.integers(len(rows))].logits, vocab_size)


KINDS = {
    "normal": _normal,
    "flat": _flat,
    "head": _head,
    "offset": _offset,
    "ramp": _ramp,
    "flat tail": _flat_tail,
    "masked": _masked,
    "model": _model,
}


def _normal_rows(count: int, plan: AuditPlan) -> Rows:
    return np.stack([_normal(plan.vocab_size, plan.generator(f"normal rows/{i}")) for i in range(count)])


# Tests


def _value_tests(target: LogprobTarget, kind: str, logits: Rows, temperature: float) -> list[LayerTest]:
    """Each value within its bound, and the sum of probabilities within the bound of its terms."""
    given = target.logprobs(logits, np.full(len(logits), temperature, np.float32))
    truth = _truth(target, logits, temperature)
    divided = target.processed_logprobs and temperature != 1.0
    bound = error_bound(truth, target.block, target.serial, divided)
    oracle = oracle_log_softmax(truth)
    found = accuracy(given, oracle, bound)
    evidence: dict[str, JSON] = {
        "largest error, nats": _finite(found.largest),
        "bound ratio": _finite(found.ratio),
        "row": found.row,
        "token": found.token,
        "possible for one side only": found.support,
    }
    if temperature != 1.0:
        evidence["matches the other convention"] = _matches_other(target, given, logits, temperature)
    wrong = int(found.ratio > 1.0 or found.support > 0)
    values = exact_test(kind, f"{kind}: every value within its bound", given.size, wrong, "value", evidence)
    total = np.exp(np.asarray(given, np.float64)).sum(axis=1)
    allowed = 1e-12 + (np.exp(oracle) * bound).sum(axis=1)
    off = np.abs(total - 1.0)
    sums: dict[str, JSON] = {"largest deviation": _finite(float(off.max())), "allowed": float(allowed[off.argmax()])}
    outside = int((~(off <= allowed)).sum())
    return [values, exact_test(kind, f"{kind}: probabilities sum to 1", len(logits), outside, "row", sums)]


def _truth(target: LogprobTarget, logits: Rows, temperature: float) -> NDArray[np.float64]:
    """What the softmax is to be taken of, in float64."""
    exact = logits.astype(np.float64)
    return exact / float(np.float32(temperature)) if target.processed_logprobs else exact


def _matches_other(target: LogprobTarget, given: Rows, logits: Rows, temperature: float) -> bool:
    """Whether the values are those before the temperature where those after it are promised, or the reverse."""
    exact = logits.astype(np.float64)
    other = exact if target.processed_logprobs else exact / float(np.float32(temperature))
    return bool(np.abs(given - oracle_log_softmax(other)).max() < 1e-3)


def _shift_test(target: LogprobTarget, plan: AuditPlan) -> LayerTest:
    """Logits plus a constant, without a rounding, are the same distribution."""
    logits = (np.round(_normal_rows(2, plan) / _GRID) * _GRID).astype(np.float32)
    ones = np.ones(len(logits), np.float32)
    difference = np.abs(target.logprobs(logits, ones) - target.logprobs(logits + np.float32(_SHIFT), ones))
    bound = 2.0 * error_bound(logits, target.block, target.serial)
    ratio = float((difference / bound).max())
    name = "a constant added to all logits changes nothing"
    return exact_test("shift", name, difference.size, int(not ratio <= 1.0), "value", {"bound ratio": _finite(ratio)})


def _exchange_test(target: LogprobTarget, plan: AuditPlan) -> LayerTest:
    """In a batch of rows that differ everywhere, each result is that of its row, and a single row gives the same."""
    logits = telltale_rows(_TELLTALE, plan.vocab_size, plan.generator("exchange"))
    given = np.asarray(target.logprobs(logits, np.ones(_TELLTALE, np.float32)), np.float64)
    oracle = oracle_log_softmax(logits)
    distance = np.abs(given[:, np.newaxis] - oracle[np.newaxis, :]).max(axis=2)
    source = distance.argmin(axis=1)
    wrong = np.flatnonzero((source != np.arange(_TELLTALE)) | ~(distance.min(axis=1) < 1.0))
    evidence: dict[str, JSON] = {"rows": wrong.tolist(), "have the values of rows": source[wrong].tolist()}
    return exact_test("exchange", "each row gets its own values", _TELLTALE, wrong.size, "row", evidence)


def _rank_test(target: RankTarget, plan: AuditPlan) -> LayerTest:
    """Ranks among rows with many ties, at and beside the largest, the least and random tokens."""
    random = plan.generator("ranks")
    logits = random.integers(-8, 9, (16, plan.vocab_size)).astype(np.float32)
    logits[8:] += random.normal(0.0, 0.2, (8, plan.vocab_size)).astype(np.float32)
    tokens = random.integers(0, plan.vocab_size, 16)
    tokens[::4], tokens[1::4] = logits[::4].argmax(axis=1), logits[1::4].argmin(axis=1)
    given, right = target.ranks(logits, tokens), ranks(logits, tokens)
    wrong = np.flatnonzero(given != right)
    evidence: dict[str, JSON] = {"given": given[wrong][:4].tolist(), "right": right[wrong][:4].tolist()}
    return exact_test("ranks", "ranks count the logits above", right.size, wrong.size, "rank", evidence)


def _prompt_test(target: PromptLogprobTarget, plan: AuditPlan) -> LayerTest:
    """Entry t is token t + 1 under the logits of position t: rows and tokens that differ everywhere tell."""
    random = plan.generator("prompt")
    logits = telltale_rows(_TELLTALE, plan.vocab_size, random)
    tokens = np.resize(random.permutation(plan.vocab_size), _TELLTALE).astype(np.int64)
    given = np.asarray(target.prompt_logprobs(logits, tokens), np.float64)
    oracle = oracle_log_softmax(logits)
    right = oracle[np.arange(_TELLTALE - 1), tokens[1:]]
    bound = error_bound(logits, plan.vocab_size, True)[np.arange(_TELLTALE - 1), tokens[1:]]
    wrong = np.flatnonzero(~(np.abs(given - right) <= bound))
    shift = _shift_of(given, oracle, tokens)
    evidence: dict[str, JSON] = {"positions": wrong.tolist(), "values belong to (row, token) moved by": shift}
    return exact_test("prompt", "each prompt token gets its own value", right.size, wrong.size, "token", evidence)


def _shift_of(given: NDArray[np.float64], oracle: NDArray[np.float64], tokens: NDArray[np.int64]) -> list[int] | None:
    """By how much rows and tokens are moved, if one small shift explains all values that it covers."""
    count = len(tokens)
    for row_shift in (0, -1, 1):
        for token_shift in (0, -1, 1):
            place = np.arange(1, count - 2)
            moved = oracle[place + row_shift, tokens[place + 1 + token_shift]]
            if (row_shift or token_shift) and np.abs(given[place] - moved).max() < 1e-3:
                return [row_shift, token_shift]
    return None


def _memory_test(target: MemoryTarget, plan: AuditPlan) -> list[LayerTest]:
    logits = _normal_rows(8, plan)
    peak = target.peak_bytes(logits, np.ones(len(logits), np.float32))
    if peak is None:
        return []
    sizes = peak / logits.nbytes
    evidence: dict[str, JSON] = {"sizes of the logits": sizes, "allowed": MEMORY}
    return [exact_test("memory", "peak memory of log-probabilities", 1, int(not sizes <= MEMORY), "call", evidence)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
