"""The tests of a sample, each with its own power: what it could see, and what it must be able to see to count.

Power is part of the answer, as in TensorFlow Probability's statistical testing: a test that could not have failed a
sampler that is wrong by the declared amount has shown nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .design import (
    min_discrepancy,
    min_event_probability,
    min_event_samples,
    min_num_samples,
    temperature_discrepancy,
)
from .gof import TestResult, index_test, pair_agreement_test, rank_test, surprisal_test
from .plan import SEEDS, VARIATION
from .pooling import GROUPS
from .replay import ReplayResult, min_changed_share, min_replayed
from .sample import Sample
from .strata import Stratum

FALSE_FAIL_RATE = 1e-6  # of all tests of a sample together
FALSE_PASS_RATE = 0.1

# What each test must be able to see with probability 0.9; 2000 draws, the quick budget, suffice for all of them.
# For the G and surprisal tests it is the discrepancy of mrv2.stats.design: 0.3 in surprisal is a temperature off by
# 0.3 / sd(log p), which is 15 % for the usual sd of 2 nats.
MUST_SEE_RANK = 0.35
MUST_SEE_INDEX = 0.25
MUST_SEE_SURPRISAL = 0.3
MUST_SEE_SHARED = 0.5  # share of the pairs whose noise is shared, as when half of the seed's bits are lost
MUST_SEE_CHANGED = 0.01  # share of the draws that a defect changes, for the replay


@dataclass(frozen=True)
class Check:
    """A test with its power.

    Attributes:
        name: what is tested.
        draws: number of independent observations.
        needed: observations needed to see ``must_see``; None if these distributions cannot show it with any number.
        could_see: smallest error that would have shown with probability 0.9, in the unit of ``must_see``.
        must_see: the declared error.
        result: the test's answer; None for the replay, which has no p-value, and without observations.
        temperature_error: ``could_see`` as a relative error of the temperature, for the surprisal test.
        idle_seed_bits: seed bits whose flip changed no token, for the pairs that differ in seeds.
    """

    name: str
    draws: int
    needed: int | None
    could_see: float
    must_see: float
    result: TestResult | None = None
    temperature_error: float | None = None
    idle_seed_bits: tuple[int, ...] = ()

    @property
    def short(self) -> bool:
        """Whether it could have missed what it must see."""
        return self.needed is None or self.draws < self.needed

    def metrics(self) -> dict[str, JSON]:
        """All numbers; infinite ones are None, because JSON has no infinity."""
        numbers: dict[str, JSON] = {
            "draws": self.draws,
            "min_num_samples": self.needed,
            "could_see": finite(self.could_see),
            "must_see": self.must_see,
        }
        if self.temperature_error is not None:
            numbers["temperature_error"] = finite(self.temperature_error)
        if self.result is not None:
            numbers["statistic"] = finite(self.result.statistic)
            numbers["p_value"] = self.result.p_value
            numbers["degrees_of_freedom"] = self.result.degrees_of_freedom
        return numbers


def finite(value: float) -> float | None:
    """The value, or None in place of an infinity, for JSON."""
    return value if math.isfinite(value) else None


def distribution_checks(sample: Sample, strata: Mapping[float, Sequence[Stratum]]) -> list[Check]:
    """The family of distribution tests; a verdict needs :func:`mrv2.stats.multiplicity.holm` over their p-values.

    Rank groups and surprisal are tested per temperature, since errors of opposite sign would cancel in a sum over
    temperatures (one that always uses temperature 1 is too hot for 0.7 and too cold for 1.3). Index groups are tested
    over all draws: a range of ids that is missing is missing at every temperature.

    Args:
        sample: every token inside the vocabulary.
        strata: ``sample.strata()``.

    Returns:
        the checks, each designed for the strictest level that Holm's rule can ask of it; none without strata.
    """
    if not strata:
        return []
    level = FALSE_FAIL_RATE / (2 * len(strata) + 1 + len(VARIATION))
    checks = []
    for temperature, group in strata.items():
        rank = rank_test(group, f"rank groups at temperature {temperature:.3g}")
        surprisal = surprisal_test(group, f"surprisal at temperature {temperature:.3g}")
        checks.append(_designed(rank, MUST_SEE_RANK, level, GROUPS - 1))
        checks.append(_with_temperature_error(_designed(surprisal, MUST_SEE_SURPRISAL, level, 1), group))
    index = index_test([s for group in strata.values() for s in group])
    checks.append(_designed(index, MUST_SEE_INDEX, level, GROUPS - 1))
    return checks + [_pair_check(sample, variation, level) for variation in range(len(VARIATION))]


def replay_check(result: ReplayResult) -> Check:
    """The power of a replay: which share of changed draws would have shown."""
    return Check(
        name="replay",
        draws=result.replayed,
        needed=min_replayed(MUST_SEE_CHANGED, FALSE_PASS_RATE),
        could_see=min_changed_share(result.replayed, FALSE_PASS_RATE),
        must_see=MUST_SEE_CHANGED,
    )


def _designed(result: TestResult, must_see: float, level: float, full_df: int) -> Check:
    """The draws needed are those for all groups: few draws allow few groups, which need fewer draws but see less."""
    if result.degrees_of_freedom == 0:
        return Check(result.name, result.draws, None, math.inf, must_see, result)
    needed = min_num_samples(must_see, level, FALSE_PASS_RATE, full_df)
    could_see = min_discrepancy(result.draws, level, FALSE_PASS_RATE, result.degrees_of_freedom)
    return Check(result.name, result.draws, needed, could_see, must_see, result)


def _with_temperature_error(check: Check, group: Sequence[Stratum]) -> Check:
    squares = sum(s.draws * temperature_discrepancy(s.probabilities, 1.0) ** 2 for s in group) / check.draws
    error = check.could_see / math.sqrt(squares) if squares > 0 else math.inf
    return replace(check, temperature_error=error)


def _pair_check(sample: Sample, variation: int, level: float) -> Check:
    """Agreement of the pairs whose keys differ in one way."""
    pairs = sample.plan.pairs[sample.plan.variation == variation]
    name = f"agreement of pairs that differ in {VARIATION[variation]}"
    if not len(pairs):
        return Check(name, 0, None, math.inf, MUST_SEE_SHARED)
    agree = sample.tokens[pairs[:, 0]] == sample.tokens[pairs[:, 1]]
    chance = _agreement_chance(sample)[pairs[:, 0]]
    result = pair_agreement_test(agree, chance, name)
    # Of all laws with this mean, the binomial has the heaviest tail (Hoeffding 1956): its design is on the safe side.
    mean = float(chance.mean())
    if result.degrees_of_freedom == 0 or mean > 1.0 - 1e-9:
        return Check(name, len(pairs), None, math.inf, MUST_SEE_SHARED, result)
    raised = min_event_probability(len(pairs), mean, level, FALSE_PASS_RATE)
    needed = min_event_samples(mean, mean + MUST_SEE_SHARED * (1.0 - mean), level, FALSE_PASS_RATE)
    could_see = (raised - mean) / (1.0 - mean)
    check = Check(name, len(pairs), needed, could_see, MUST_SEE_SHARED, result)
    if variation != SEEDS:
        return check
    bits = sample.plan.bits[sample.plan.variation == variation]
    return replace(check, idle_seed_bits=tuple(np.setdiff1d(bits, bits[~agree]).tolist()))


def _agreement_chance(sample: Sample) -> NDArray[np.float64]:
    """Chance that an independent draw gives the same token, ``sum(p**2)``, float64 [N]; 1 for greedy draws."""
    chance = np.ones(sample.tokens.size)
    for cell in sample.cells():
        chance[cell.chosen] = min(1.0, float(np.exp(2.0 * cell.log_probabilities).sum()))
    return chance
