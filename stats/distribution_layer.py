"""The distribution layer: draws of audit rows against the distribution they must follow, and draws against each other.

Works for every sampler, knows nothing about its noise, and is the only layer that sees an error in the sampler's very
specification. It costs the most draws; the other layers exist because of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from mrv2.checks.findings import JSON

from .dependence import collision_test, independence_g_test
from .design import min_event_samples, min_num_samples
from .distributions import AuditRow
from .gof import GroupCount, TestResult, binomial_test, g_test
from .layers import (
    ESCALATE_BELOW,
    AuditPlan,
    LayerResult,
    LayerTest,
    Progress,
    RowDraws,
    call_size,
    designed_event,
    designed_excess,
    designed_test,
    exact_test,
    unasked_test,
    unless_cut,
)
from .order import index_trend_test
from .pooling import GROUPS, index_groups, rank_groups
from .saddlepoint import SumLaw
from .targets import CountingTarget, SamplerTarget
from .timing import Pace

CALL = 2**14  # most draws of one call of sample()
COUNTING_CALL = 2**18  # draws of one call of count()
SHARED_NOISE = 0.01  # share of pairs with shared noise that must show
LINKED = 0.1  # discrepancy of the table of pairs that must show
REPEATS = 0.5  # relative error of the number of repeated draws that must show
_EXAMPLES = 8
_REPEATED = 2**13  # the exact law of the repeats takes so many steps
_TABLE = 8  # ranges of ids on each side of the table of pairs
_SIGMAS = float(norm.isf(ESCALATE_BELOW / 2) + norm.isf(0.1))  # distance that a two-sided test sees nine times in ten


@dataclass(frozen=True, eq=False)
class RowPlan:
    """A row and the number of draws to take of it."""

    row: AuditRow
    draws: int


@dataclass(frozen=True, eq=False)
class DistributionLayer:
    """Tests of the distribution.

    Attributes:
        rows: what to draw from.
        pairs: pairs of draws of a flat row per way in which keys differ; 0 for none.
    """

    rows: Sequence[RowPlan]
    pairs: int
    name: str = "distribution"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`."""
        if not isinstance(target, SamplerTarget):
            return LayerResult(self.name, (), not_run="the target draws no tokens")
        tests: list[LayerTest] = []
        draws: dict[str, RowDraws] = {}
        for row_plan in self.rows:
            row, planned = row_plan.row, row_plan.draws * plan.scale
            if plan.wants(row.name) and plan.time.over():
                tests.append(row_not_drawn(row_plan, cut=True))
            elif plan.wants(row.name):
                counts = count_draws(target, row, planned, plan, progress)
                draws[row.name] = RowDraws(row.log_probabilities, counts[:-1])
                support, *others = row_tests(row, counts, plan)
                tests += [unless_cut(support, planned), *others]
        for relation in RELATIONS if self.pairs else ():
            if plan.wants(relation) and plan.time.over():
                name = f"keys that differ in {relation}"
                tests.append(unasked_test(relation, name, "pair", self.pairs * plan.scale, exact=False))
            elif plan.wants(relation):
                tests += pair_tests(target, relation, self.pairs * plan.scale, plan, progress)
        for test in tests:
            progress.tested(test)
        return LayerResult(
            self.name, tuple(tests), self._coverage(), self._gaps(tests), draws=draws, width=plan.vocab_size
        )

    def _coverage(self) -> tuple[str, ...]:
        rows = tuple(f"{plan.draws:,} draws of row {plan.row.name!r}" for plan in self.rows)
        return rows + tuple(f"{self.pairs:,} pairs of keys that differ in {r}" for r in RELATIONS if self.pairs)

    def _gaps(self, tests: Sequence[LayerTest]) -> tuple[str, ...]:
        missing = [] if self.pairs else ["noise shared between keys: no pairs were drawn"]
        gaps = [event.facts["gap"] for plan in self.rows for event in plan.row.events if "gap" in event.facts]
        deepest = max((float(str(gap)) for gap in gaps), default=0.0)
        missing.append(
            f"tokens more than {deepest:g} nats below the best" if gaps else "missing tails: no cliff was drawn"
        )
        return (*missing, *(test.missed() for test in tests if test.short))


def row_not_drawn(row_plan: RowPlan, cut: bool) -> LayerTest:
    """The test of a row for whose draws there was no time.

    Args:
        row_plan: what would have been drawn.
        cut: time was over; else it was clear before that there would not be enough.
    """
    name = row_plan.row.name
    told = f"{name}: no time for {row_plan.draws:,} draws"
    return replace(unasked_test(name, told, "draw", row_plan.draws, exact=False), cut=cut)


def draws_needed(row: AuditRow, plan: AuditPlan) -> int:
    """Draws that all tests of a row need for what they must see; a row may be left out if that is too many."""
    probabilities = np.exp(row.log_probabilities)
    expected = np.round(probabilities * 1e9).astype(np.int64)
    tests = row_tests(row, np.append(expected, 0), plan)
    return max((test.needed or 1 for test in tests), default=1)


def pairs_needed(plan: AuditPlan) -> int:
    """Pairs per relation that all tests of pairs need for what they must see."""
    rates, chance, ranges = (ESCALATE_BELOW, plan.false_pass_rate), 1.0 / plan.vocab_size, min(_TABLE, plan.vocab_size)
    agreement = min_event_samples(chance, chance + SHARED_NOISE * (1.0 - chance), *rates)
    return max(agreement, min_num_samples(LINKED, *rates, (ranges - 1) ** 2), _repeats_needed(plan.vocab_size))


def count_draws(
    target: SamplerTarget, row: AuditRow, draws: int, plan: AuditPlan, progress: Progress
) -> NDArray[np.int64]:
    """Draw from a row, with fresh keys.

    Args:
        target: draws; it counts as well if it can (:class:`~mrv2.stats.targets.CountingTarget`).
        row: logits and temperature.
        draws: how many.
        plan: gives the keys.
        progress: told of the draws.

    Returns:
        int64 [V + 1]; the last entry counts ids outside [0, V). Fewer draws than asked for if time is over.
    """
    total = np.zeros(row.logits.size + 1, np.int64)
    counting = isinstance(target, CountingTarget)
    pace, done = Pace(plan.time), 0
    for size in _portions(draws, COUNTING_CALL if counting else call_size(row.logits.size, CALL)):
        if done and plan.time.over():
            break
        # The keys of a portion do not depend on the calls that it is drawn in.
        count = _counter(target, row, size, plan, f"{row.name}/{done}")
        for part in pace.calls(size, size):
            total += count(part)
            progress.drawn(part.stop - part.start)
        done += size
    return total


def _counter(
    target: SamplerTarget, row: AuditRow, size: int, plan: AuditPlan, name: str
) -> Callable[[slice], NDArray[np.int64]]:
    """Counts a part of ``size`` draws, int64 [V + 1]."""
    if isinstance(target, CountingTarget):
        random = plan.generator(name)
        seed, first = int(random.integers(2**64, dtype=np.uint64)), int(random.integers(2**31 - size))
        counting = target
        return lambda part: counting.count(
            row.logits, row.temperature, seed, first + part.start, part.stop - part.start
        )
    seeds, positions = plan.keys(name, size)
    warmth = np.full(size, row.temperature, np.float32)
    return lambda part: count_tokens(
        target.sample(row.logits, warmth[part], seeds[part], positions[part]), row.logits.size
    )


def count_tokens(tokens: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    """Draws of each id, int64 [V + 1]; the last entry counts ids outside [0, V)."""
    inside = (tokens >= 0) & (tokens < vocab_size)
    return np.bincount(np.where(inside, tokens, vocab_size), minlength=vocab_size + 1).astype(np.int64)


def row_tests(row: AuditRow, counts: NDArray[np.int64], plan: AuditPlan) -> list[LayerTest]:
    """All tests of the draws of one row.

    Args:
        row: what was drawn from.
        counts: int64 [V + 1], as :func:`count_draws` gives them.
        plan: its rates.

    Returns:
        that only possible tokens were drawn; the row's events; and where the row says so, groups by rank and by id, the
        trend over the ids and the mean surprisal. An impossible draw is judged once and left out of the other tests.
    """
    log_p = row.log_probabilities
    possible = np.where(np.isneginf(log_p), 0, counts[:-1])
    impossible = int(counts.sum() - possible.sum())
    support = exact_test(
        row.name, f"{row.name}: only possible ids", int(counts.sum()), impossible, "draw", _impossible(counts, log_p)
    )
    tests = [support, *_event_tests(row, possible, plan)]
    if row.must_see is not None and possible.any():
        tests += _whole_row_tests(row, possible, log_p, plan)
    return tests


def _event_tests(row: AuditRow, counts: NDArray[np.int64], plan: AuditPlan) -> Iterator[LayerTest]:
    probabilities, draws = np.exp(row.log_probabilities), int(counts.sum())
    for event in row.events if draws else ():
        share = float(probabilities[event.tokens].sum())
        result = binomial_test(int(counts[event.tokens].sum()), draws, share, f"{row.name}: {event.name}")
        test = designed_event(row.name, result, share, event.must_see, f"the share of {event.name}", plan)
        yield replace(test, evidence={**event.facts, "probability": share})


def _whole_row_tests(
    row: AuditRow, counts: NDArray[np.int64], log_p: NDArray[np.float64], plan: AuditPlan
) -> Iterator[LayerTest]:
    draws, probabilities, must_see = int(counts.sum()), np.exp(log_p), row.must_see or 0.0
    for kind, make in (("rank", rank_groups), ("id", index_groups)):
        grouping = make(probabilities, draws)
        observed = np.bincount(grouping.labels, weights=counts, minlength=len(grouping.names) + 1).astype(np.int64)
        expected = grouping.expected(probabilities, draws)
        name = f"{row.name}: groups by {kind}"
        result = g_test(observed, expected * (draws / expected.sum()), name, (*grouping.names, "impossible ids"))
        yield designed_test(row.name, result, must_see, GROUPS - 1, plan)
    trend = index_trend_test(counts, log_p, f"{row.name}: trend over ids")
    yield designed_test(row.name, trend, row.must_see_trend, 1, plan)
    surprisal = surprisal_of_counts(counts, log_p, f"{row.name}: mean surprisal")
    if surprisal.degrees_of_freedom:
        yield designed_test(row.name, surprisal, must_see, 1, plan)


def surprisal_of_counts(counts: NDArray[np.int64], log_probabilities: NDArray[np.float64], name: str) -> TestResult:
    """:func:`mrv2.stats.gof.surprisal_test` for counted draws of one distribution.

    Args:
        counts: int64 [V], at least one draw, none of them impossible.
        log_probabilities: float64 [V].
        name: of the result.
    """
    draws = int(counts.sum())
    law = SumLaw.of_surprisal([(log_probabilities, draws)])
    drawn = counts > 0
    total = -float(counts[drawn] @ log_probabilities[drawn])
    mean, variance = law.moments()
    group = GroupCount("mean surprisal, nats", mean / draws, total / draws)
    if variance <= 1e-12 * draws:
        return TestResult(name, 0.0, 1.0, draws, 0, (group,))
    return TestResult(name, (total - mean) / math.sqrt(variance), law.two_sided(total), draws, 1, (group,))


# Pairs of keys. Each relation maps keys to their partners'.


def _next_position(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    return seeds, positions + 1


def _next_seed(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    return seeds + np.uint64(1), positions


def _seed_bit(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    bits = np.arange(seeds.size, dtype=np.uint64) % np.uint64(64)
    return seeds ^ (np.uint64(1) << bits), positions


def _traded(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """(seed + 1, position) against (seed, position + 1): a sampler that adds them draws one token for both."""
    return seeds - np.uint64(1), positions + 1


RELATIONS = {
    "positions": _next_position,
    "seeds": _next_seed,
    "one seed bit": _seed_bit,
    "seed and position traded": _traded,
}


def pair_tests(
    target: SamplerTarget, relation: str, pairs: int, plan: AuditPlan, progress: Progress
) -> list[LayerTest]:
    """Do draws of a flat row agree more often than independent ones, and are they independent?

    Both draws of a pair are rows of one call, next to each other, so that a sampler which takes the key of another row
    shows as well.

    Args:
        target: what draws.
        relation: a name in :data:`RELATIONS`.
        pairs: how many.
        plan: keys, vocabulary and rates.
        progress: told of the draws.
    """
    seeds, positions = plan.keys(relation, pairs)
    positions = np.minimum(positions, 2**31 - 2)
    partners = RELATIONS[relation](seeds, positions)
    both = [np.stack(part, axis=1).ravel() for part in zip((seeds, positions), partners, strict=True)]
    logits, tokens = np.zeros(plan.vocab_size, np.float32), []
    for pair in plan.time.calls(pairs, call_size(plan.vocab_size, CALL) // 2):
        call = slice(2 * pair.start, 2 * pair.stop)
        tokens.append(target.sample(logits, np.ones(both[0][call].size, np.float32), both[0][call], both[1][call]))
        progress.drawn(tokens[-1].size)
    drawn = np.concatenate(tokens).reshape(-1, 2)
    tests = [*_agreement(relation, drawn, plan), *_table(relation, drawn, plan), *_repeats(relation, drawn, plan)]
    return [replace(test, cut=len(drawn) < pairs) for test in tests]


def _agreement(relation: str, tokens: NDArray[np.int64], plan: AuditPlan) -> Iterator[LayerTest]:
    agree = int((tokens[:, 0] == tokens[:, 1]).sum())
    chance = 1.0 / plan.vocab_size
    result = binomial_test(agree, len(tokens), chance, f"agreement of keys that differ in {relation}")
    yield designed_excess(relation, result, chance, SHARED_NOISE, "pairs with shared noise", plan)


def _table(relation: str, tokens: NDArray[np.int64], plan: AuditPlan) -> Iterator[LayerTest]:
    ranges = min(_TABLE, plan.vocab_size)
    cells = np.clip(tokens * ranges // plan.vocab_size, 0, ranges - 1)
    table = np.bincount(cells[:, 0] * ranges + cells[:, 1], minlength=ranges**2).reshape(ranges, ranges)
    result = independence_g_test(table.astype(np.int64), f"independence of keys that differ in {relation}")
    yield designed_test(relation, result, LINKED, (ranges - 1) ** 2, plan)


def _repeats(relation: str, tokens: NDArray[np.int64], plan: AuditPlan) -> Iterator[LayerTest]:
    """First draws of the pairs, no more than there are tokens; a small vocabulary has nothing but repeats."""
    if plan.vocab_size < 2**10 or relation != "positions":
        return
    needed = _repeats_needed(plan.vocab_size)
    firsts = tokens[: min(max(_REPEATED, needed), plan.vocab_size), 0]
    result = collision_test(firsts, plan.vocab_size, "repeated draws of different keys")
    could_see = _SIGMAS / math.sqrt(max(result.groups[0].expected, 1e-9))
    yield LayerTest(relation, result, False, "relative error of the number of repeats", REPEATS, could_see, needed)


def _repeats_needed(vocab_size: int) -> int:
    """N draws repeat about ``N**2 / 2V`` times, with the spread of a Poisson law."""
    return math.ceil(math.sqrt(2.0 * vocab_size) * _SIGMAS / REPEATS)


def _portions(total: int, most: int) -> Iterator[int]:
    while total > 0:
        yield min(total, most)
        total -= most


def _impossible(counts: NDArray[np.int64], log_p: NDArray[np.float64]) -> dict[str, JSON]:
    drawn = np.flatnonzero(np.isneginf(log_p) & (counts[:-1] > 0))[:_EXAMPLES]
    return {"outside the vocabulary": int(counts[-1]), "masked ids drawn": drawn.tolist()}
