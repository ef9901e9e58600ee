"""How much an audit asks: which layers with which numbers of draws, cut to what the sampler's speed allows.

A profile names the draws that its tests need. A sampler that is too slow for them gets the rows that it can afford, and
the others are answered with a test without draws, which is INCONCLUSIVE and says what it could have missed. A slow
sampler that shows its bits needs no wide rows: its tails follow from the law of its noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .contract_layer import ContractLayer
from .distribution_layer import (
    COUNTING_CALL,
    RELATIONS,
    DistributionLayer,
    RowPlan,
    draws_needed,
    pairs_needed,
    row_not_drawn,
)
from .distributions import AuditRow, flat, half_head, ladder, last_block, offset, recorded, two_level, zipf
from .errors import ArgumentError
from .filters_layer import FiltersLayer
from .layers import AuditPlan, Layer, LayerResult, Progress
from .logprob_layer import LogprobLayer
from .noise_layer import NoiseLayer
from .replay_layer import ReplayLayer, Width
from .speculative_layer import SpeculativeLayer
from .targets import CountingTarget, NoiseTarget, SamplerTarget
from .timing import TimeBudget

NARROW = 500  # tokens in a row where a wide one is too slow; not a whole number of blocks
_NARROW_BLOCK = 128
_TREND = 0.02  # discrepancy of a trend over ids that narrow rows must show
_FILTERED = 1100  # tokens in a row of the filters: a whole block and a part
_RECORDED = 32  # the first ids of the recorded model are control tokens, of which one has nearly all of the mass
_REPORTED = 50_000  # tokens in a row of log-probabilities in a short run
_SPECULATIONS = 200_000
_FOR_ROWS = 0.6  # share of the time that is left which rows may take; pairs and repeats need some
_SPARE = 1.25  # draws beyond those that a test's design asks for, since counts are whole numbers
_PROBE = 16  # factor from one call that is timed to the next
_PROBE_SECONDS = 0.1


@dataclass(frozen=True)
class Profile:
    """What a run costs, about, and how closely it looks.

    Attributes:
        name: as on the command line.
        seconds: of the whole run on two cores; rows that would take longer are left out.
        more: multiplier of all numbers of draws.
        keys: keys searched for duplicate rows of noise.
        coarse_bits: leading bits of the noise that are enumerated.
    """

    name: str
    seconds: float
    more: int
    keys: int
    coarse_bits: int


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("pr", 60.0, 1, 2**18, 18),
        Profile("nightly", 1800.0, 20, 2**22, 22),
        Profile("overnight", 28800.0, 20, 2**22, 22),
    )
}


def profile_of(name: str, seconds: float | None = None) -> Profile:
    """A profile by its name, with another length if one is given.

    Raises:
        ArgumentError: there is no such profile, or the time is not above 0.
    """
    if name not in PROFILES:
        raise ArgumentError(
            f"profile {name!r}", "a profile must be a known one", "it decides what is tested", ", ".join(PROFILES)
        )
    if seconds is not None and not 0 < seconds < math.inf:
        raise ArgumentError(f"time {seconds!r}", "a time above 0", "nothing can be drawn in no time", "60s or 10m")
    profile = PROFILES[name]
    return profile if seconds is None else replace(profile, seconds=seconds)


def layers_of(profile: Profile, plan: AuditPlan) -> list[Layer]:
    """The layers of an audit, in order: what is exact and cheap first, and last what takes all the time there is.

    Args:
        profile: how much to ask.
        plan: its vocabulary.
    """
    return [
        ContractLayer(),
        NoiseLayer(profile.coarse_bits, profile.keys),
        ReplayLayer(_widths(profile)),
        _Narrowed(FiltersLayer(400 * profile.more), min(plan.vocab_size, _FILTERED)),
        _Narrowed(LogprobLayer(1), min(plan.vocab_size, _REPORTED)) if profile.more == 1 else LogprobLayer(),
        SpeculativeLayer(_SPECULATIONS * profile.more),
        AffordableDistribution(profile),
    ]


@dataclass(frozen=True, eq=False)
class _Narrowed:
    """A layer whose rows are narrower than those of the others."""

    layer: Layer
    vocab_size: int

    @property
    def name(self) -> str:
        return self.layer.name

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        return self.layer.run(target, replace(plan, vocab_size=self.vocab_size), progress)


def _widths(profile: Profile) -> tuple[Width, ...]:
    more = profile.more
    return (
        Width("narrow rows", 1000, 6000 * more, 5e-4 / more),
        Width("rows of the vocabulary", None, 60 * more, 0.04 / more),
    )


class AffordableDistribution:
    """The distribution layer with the rows that there is time for, chosen when it first runs.

    Args:
        profile: how much to ask.
    """

    name = "distribution"

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._chosen: Affordable | None = None

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`."""
        if not isinstance(target, SamplerTarget):
            return LayerResult(self.name, (), not_run="the target draws no tokens")
        chosen = self.chosen(target, plan)
        results = chosen.run(target, plan, progress)
        # Calls that are timed before anything is drawn may be the slow ones of a sampler: one that proves faster gets
        # the rows that were left out.
        while plan.parts is None and (more := chosen.more(target)):
            results += more.run(target, plan, progress)
            chosen = self._chosen = chosen.joined(more)
        return chosen.told(results, plan)

    def chosen(self, target: SamplerTarget, plan: AuditPlan) -> Affordable:
        """What there is time for, the same until rows that were left out have been drawn too; times a few draws."""
        self._chosen = self._chosen or _affordable_rows(self._profile, target, plan)
        return self._chosen


@dataclass(frozen=True, eq=False)
class Affordable:
    """Rows and pairs to draw.

    Attributes:
        rows: drawn from, with the vocabulary of the rows.
        pairs: pairs of keys, with the vocabulary of their flat row.
        left_out: rows that there is no time for, with the draws that they would need.
        time: of the rows.
    """

    rows: tuple[DistributionLayer, int]
    pairs: tuple[DistributionLayer, int]
    left_out: Sequence[RowPlan]
    time: TimeBudget

    def run(self, target: SamplerTarget, plan: AuditPlan, progress: Progress) -> list[LayerResult]:
        """Draw rows, then pairs; see :class:`mrv2.stats.layers.Layer`."""
        return [layer.run(target, replace(plan, vocab_size=size), progress) for layer, size in (self.rows, self.pairs)]

    def more(self, target: SamplerTarget) -> Affordable | None:
        """Those of the rows left out that fit into what is left of the time of the rows; None if none does."""
        if not self.left_out or self.time.over():
            return None
        size = self.rows[1]
        speed = _speed(target, size, self.time, counting=True)
        chosen, left_out = _affordable(self.left_out, self.time.left() * speed)
        no_pairs = (DistributionLayer((), 0), size)
        return Affordable((DistributionLayer(chosen, 0), size), no_pairs, left_out, self.time) if chosen else None

    def joined(self, more: Affordable) -> Affordable:
        """Both, where the other has what this one left out."""
        rows = DistributionLayer([*self.rows[0].rows, *more.rows[0].rows], 0)
        return replace(self, rows=(rows, self.rows[1]), left_out=more.left_out)

    def told(self, results: Sequence[LayerResult], plan: AuditPlan) -> LayerResult:
        """The results of all rows and pairs as one, with the rows that were not drawn."""
        missing = [row_not_drawn(row_plan, cut=False) for row_plan in self.left_out if plan.wants(row_plan.row.name)]
        shown = [text for result in results for text in result.could_have_missed if text not in _OF_A_HALF]
        if self.rows[1] < plan.vocab_size:
            shown.insert(0, f"{NARROW_ROWS} {self.rows[1]:,} tokens; drawing from wider ones often would take too long")
        return LayerResult(
            AffordableDistribution.name,
            (*(test for result in results for test in result.tests), *missing),
            tuple(text for result in results for text in result.coverage),
            (*shown, *(test.missed() for test in missing)),
            draws={name: drawn for result in results for name, drawn in result.draws.items()},
            width=self.rows[1],
        )


NARROW_ROWS = "what shows only in rows of more than"
_OF_A_HALF = ("noise shared between keys: no pairs were drawn", "missing tails: no cliff was drawn")


def _affordable_rows(profile: Profile, target: SamplerTarget, plan: AuditPlan) -> Affordable:
    """Rows of the whole vocabulary if there is time for them, or if the sampler does not show its bits."""
    # Without a time that must be kept, what earlier layers took is not taken from this one.
    budget, wide, size = min(profile.seconds, plan.time.left()), _wide_rows(profile, plan), plan.vocab_size
    speed = _speed(target, size, plan.time, counting=True)
    narrow = replace(plan, vocab_size=NARROW)
    if isinstance(target, NoiseTarget) and sum(row.draws for row in wide) > _FOR_ROWS * budget * speed:
        wide, size = _narrow_rows(profile, narrow), NARROW
        speed = _speed(target, size, plan.time, counting=True)
    seconds = min(profile.seconds, _FOR_ROWS * plan.time.left())
    chosen, left_out = _affordable(wide, seconds * speed)
    ends = plan.time.until(plan.time.clock() + seconds)
    pairs = _pairs(target, plan, narrow, budget / 6)
    return Affordable((DistributionLayer(chosen, 0), size), pairs, left_out, ends)


def _pairs(target: SamplerTarget, plan: AuditPlan, narrow: AuditPlan, budget: float) -> tuple[DistributionLayer, int]:
    """Pairs of keys, of rows of the whole vocabulary if there is time for them."""
    draws = 2 * len(RELATIONS) * math.ceil(pairs_needed(plan) * _SPARE)
    chosen = plan if draws / _speed(target, plan.vocab_size, plan.time, counting=False) < budget else narrow
    return DistributionLayer((), math.ceil(pairs_needed(chosen) * _SPARE)), chosen.vocab_size


def _affordable(rows: Sequence[RowPlan], draws: float) -> tuple[list[RowPlan], list[RowPlan]]:
    """As many rows as fit into a number of draws, those that need few first; and the others."""
    chosen: list[RowPlan] = []
    for row_plan in sorted(rows, key=lambda plan: plan.draws):
        if row_plan.draws <= draws:
            draws -= row_plan.draws
            chosen.append(row_plan)
    return [row for row in rows if row in chosen], [row for row in rows if row not in chosen]


def _wide_rows(profile: Profile, plan: AuditPlan) -> list[RowPlan]:
    size = plan.vocab_size
    heads = [half_head(size)] if size > 2 else []  # two equally likely tokens are so at each temperature
    models = recorded(size) if size >= _RECORDED else ()
    rows = [*ladder(size), *heads, last_block(size), two_level(size), flat(size), zipf(size), offset(size), *models]
    return [_planned(row, profile, plan) for row in rows]


def _narrow_rows(profile: Profile, plan: AuditPlan) -> list[RowPlan]:
    size = plan.vocab_size
    rows = [last_block(size, _NARROW_BLOCK), two_level(size, _NARROW_BLOCK), flat(size), zipf(size), offset(size)]
    return [_planned(replace(row, must_see_trend=_TREND), profile, plan) for row in (*rows, recorded(size)[1])]


def _planned(row: AuditRow, profile: Profile, plan: AuditPlan) -> RowPlan:
    return RowPlan(row, math.ceil(draws_needed(row, plan) * _SPARE) * profile.more)


def _speed(target: SamplerTarget, vocab_size: int, time: TimeBudget, counting: bool) -> float:
    """Draws per second of a flat row, about; calls get larger until one takes long enough to be timed."""
    logits, draws, best = np.zeros(vocab_size, np.float32), 1, 0.0

    def draw() -> None:
        if counting and isinstance(target, CountingTarget):
            target.count(logits, 1.0, 1, 0, draws)
        else:
            keys = np.arange(draws, dtype=np.uint64), np.arange(draws)
            target.sample(logits, np.ones(draws, np.float32), *keys)

    def seconds() -> float:
        start = time.clock()
        draw()
        return max(time.clock() - start, 1e-7)

    draw()  # the first call may compile something
    while draws <= COUNTING_CALL:
        took = seconds()
        if took > _PROBE_SECONDS and not time.over():
            took = min(took, seconds())  # and so may the first one of a size, which must not end the search
        best = max(best, draws / took)
        if took > _PROBE_SECONDS or time.over():
            break
        draws *= _PROBE
    return best
