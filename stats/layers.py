"""The contract between the layers of an audit and the rule that judges them.

A layer asks one kind of question of a sampler (is the noise right, are filters right at their threshold, ...) and
answers with tests. It decides nothing: :mod:`mrv2.stats.decision` repeats what looks suspicious and gives the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mrv2.checks.findings import JSON

from .design import (
    min_discrepancy,
    min_event_loss,
    min_event_loss_samples,
    min_event_probability,
    min_event_samples,
    min_num_samples,
)
from .errors import ArgumentError, require_rate
from .gof import TestResult
from .timing import UNLIMITED, TimeBudget

# A p-value below this is repeated with fresh seeds and four times the draws; tests are designed for it.
ESCALATE_BELOW = 1e-3
ESCALATED_DRAWS = 4


@dataclass(frozen=True)
class AuditPlan:
    """What all layers of one run share.

    Attributes:
        vocab_size: V of the rows that the layers make, at least 2.
        seed: root of every random choice; one seed, one run.
        false_fail_rate: chance that a correct sampler fails the whole audit.
        false_pass_rate: chance that an error of declared size passes, per test.
        scale: multiplier of all numbers of draws; ``ESCALATED_DRAWS`` when a result is repeated.
        parts: parts to run, by their names; None for all.
        time: when to stop; a layer that is cut says by tests without their draws what it did not ask.
    """

    vocab_size: int
    seed: int
    false_fail_rate: float = 1e-4
    false_pass_rate: float = 0.1
    scale: int = 1
    parts: frozenset[str] | None = None
    time: TimeBudget = UNLIMITED

    def __post_init__(self) -> None:
        require_rate("false_fail_rate", self.false_fail_rate)
        require_rate("false_pass_rate", self.false_pass_rate)
        if self.vocab_size < 2 or self.scale < 1:
            raise ArgumentError(
                f"vocab_size={self.vocab_size}, scale={self.scale}",
                "a vocabulary of at least 2 tokens and a scale of at least 1",
                "one token is always drawn, and no draws test nothing",
                "the sampler's own vocabulary, and scale=1",
            )

    def wants(self, part: str) -> bool:
        """Whether this part is to be run."""
        return self.parts is None or part in self.parts

    def generator(self, part: str) -> np.random.Generator:
        """Random numbers of one part; they do not depend on which other parts run."""
        return np.random.default_rng([self.seed, self.scale, *part.encode()])

    def keys(self, part: str, count: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Keys that have not been used by another part, another seed or another scale.

        Seeds are random over all 64 bits, positions over 31 bits: two equal ones among 2**22 have a chance of 1e-16.

        Returns:
            seeds uint64 [count] and positions int64 [count].
        """
        random = self.generator(part)
        return random.integers(0, 2**64, count, dtype=np.uint64), random.integers(0, 2**31, count)

    def repeated(self, parts: frozenset[str]) -> AuditPlan:
        """The plan that repeats some parts with fresh keys and more draws."""
        return replace(self, scale=self.scale * ESCALATED_DRAWS, parts=parts)


@dataclass(frozen=True)
class LayerTest:
    """One test with its power.

    Attributes:
        part: what of the layer it belongs to, e.g. a row of logits. A suspicious test is repeated with its part.
        result: the test's answer; its name is unique within the layer.
        exact: it has no error rate. Its p-value is 0 after a violation and 1 otherwise, and it is never repeated.
        unit: what ``must_see`` and ``could_see`` measure, e.g. ``"relative error of the tail mass"``.
        must_see: the declared error.
        could_see: smallest error that would have shown with the plan's power; infinite if none would.
        needed: observations needed to see ``must_see``; None if no number of them can show it.
        evidence: numbers for a report.
        sequential: its p-value holds at any time and counts all draws there are, so it is never repeated.
        cut: time was over before its last case.
    """

    part: str
    result: TestResult
    exact: bool
    unit: str
    must_see: float
    could_see: float
    needed: int | None
    evidence: Mapping[str, JSON] = field(default_factory=dict)
    sequential: bool = False
    cut: bool = False

    @property
    def name(self) -> str:
        """What was tested."""
        return self.result.name

    @property
    def short(self) -> bool:
        """Whether it could have missed what it must see, so that it may not count as passed."""
        return self.needed is None or self.result.draws < self.needed

    def missed(self) -> str:
        """What it could have missed, in words."""
        if self.cut:
            return f"{self.name}: time was over after {self.result.draws:,} of {self.needed or 0:,} {self.unit}s"
        if not math.isfinite(self.could_see):
            return f"{self.name}: anything, it can show nothing with these draws"
        return f"{self.name}: a {self.unit} below {self.could_see:.2g}"


@dataclass(frozen=True)
class RowDraws:
    """All draws of one row, for diagnosis.

    Attributes:
        log_probabilities: float64 [V] of the distribution they should follow.
        counts: int64 [V], how often each token was drawn.
    """

    log_probabilities: NDArray[np.float64]
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class LayerResult:
    """What a layer found.

    Attributes:
        layer: its name.
        tests: all tests that ran.
        coverage: what was tested, one phrase each.
        could_have_missed: what these draws could not show, one phrase each.
        not_run: why the layer asked nothing; empty if it ran.
        draws: by part, where the part is a row of logits.
        width: tokens of its widest rows; 0 if it asked for none.
    """

    layer: str
    tests: tuple[LayerTest, ...]
    coverage: tuple[str, ...] = ()
    could_have_missed: tuple[str, ...] = ()
    not_run: str = ""
    draws: Mapping[str, RowDraws] = field(default_factory=dict)
    width: int = 0


def call_size(vocab_size: int, most: int) -> int:
    """Draws of one call, so that a target which makes a row of float32 logits of each needs 256 MiB at most."""
    return min(most, max(64, 2**26 // vocab_size))


class Progress(Protocol):
    """Hears how far a run is."""

    def drawn(self, count: int) -> None:
        """So many more draws are done."""
        ...

    def tested(self, test: LayerTest) -> None:
        """A test has its answer."""
        ...


class Silent:
    """Hears and says nothing."""

    def drawn(self, count: int) -> None:
        """Does nothing."""

    def tested(self, test: LayerTest) -> None:
        """Does nothing."""


class Layer(Protocol):
    """One kind of question.

    Attributes:
        name: unique among the layers.
    """

    @property
    def name(self) -> str:
        """Unique among the layers."""
        ...

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """Ask a target.

        Args:
            target: implements the protocols of :mod:`mrv2.stats.targets` that it can; a layer that needs one the target
                lacks says so in ``not_run``.
            plan: seeds, rates and the parts to run.
            progress: told of draws and tests.
        """
        ...


def exact_test(
    part: str, name: str, checked: int, violations: int, unit: str, evidence: Mapping[str, JSON] | None = None
) -> LayerTest:
    """A test without an error rate: one violation is proof.

    Args:
        part: see :class:`LayerTest`.
        name: what must hold.
        checked: cases looked at; with none the test has shown nothing.
        violations: how many broke the rule.
        unit: what one case is.
        evidence: numbers for a report.
    """
    result = TestResult(name, float(violations), float(violations == 0), checked, int(checked > 0))
    could_see = 1.0 if checked else math.inf
    return LayerTest(part, result, True, unit, 1.0, could_see, 1, dict(evidence or {}))


def unasked_test(part: str, name: str, unit: str, needed: int = 1, exact: bool = True) -> LayerTest:
    """A test for which there was no time: it has no draws, and is INCONCLUSIVE.

    Args:
        part: see :class:`LayerTest`.
        name: what would have been tested.
        unit: what one case is.
        needed: cases that it would have looked at.
        exact: see :class:`LayerTest`.
    """
    return LayerTest(part, TestResult(name, 0.0, 1.0, 0, 0), exact, unit, 1.0, math.inf, needed, cut=True)


def unless_cut(test: LayerTest, planned: int) -> LayerTest:
    """An exact test, which must have looked at ``planned`` cases to count as passed."""
    cut = test.result.draws < planned
    return replace(test, needed=planned, could_see=math.inf, cut=True) if cut else test


def designed_test(part: str, result: TestResult, must_see: float, full_df: int, plan: AuditPlan) -> LayerTest:
    """A G or chi-square test with its power for a discrepancy (:mod:`mrv2.stats.design`).

    Args:
        part: see :class:`LayerTest`.
        result: of the test.
        must_see: discrepancy that must show.
        full_df: degrees of freedom with as many draws as anyone could want; few draws allow fewer groups, which need
            fewer draws but see less.
        plan: its rates.
    """
    unit = "discrepancy"
    if result.degrees_of_freedom == 0:
        return LayerTest(part, result, False, unit, must_see, math.inf, None)
    needed = min_num_samples(must_see, ESCALATE_BELOW, plan.false_pass_rate, full_df)
    could_see = min_discrepancy(result.draws, ESCALATE_BELOW, plan.false_pass_rate, result.degrees_of_freedom)
    return LayerTest(part, result, False, unit, must_see, could_see, needed)


def designed_event(
    part: str, result: TestResult, probability: float, must_see: float, what: str, plan: AuditPlan
) -> LayerTest:
    """A binomial test with its power for a loss of the event's probability; exact however rare the event is.

    Args:
        part: see :class:`LayerTest`.
        result: of :func:`mrv2.stats.gof.binomial_test`.
        probability: of the event for a correct sampler, in (0, 1).
        must_see: relative loss that must show, at most 1.
        what: the event, e.g. ``"tail mass"``.
        plan: its rates.
    """
    rates = (ESCALATE_BELOW, plan.false_pass_rate)
    needed = min_event_loss_samples(probability, must_see, *rates)
    could_see = min_event_loss(result.draws, probability, *rates)
    return LayerTest(part, result, False, f"relative loss of {what}", must_see, could_see, needed)


def designed_excess(
    part: str, result: TestResult, probability: float, must_see: float, what: str, plan: AuditPlan
) -> LayerTest:
    """A test of agreeing pairs with its power for an excess.

    Args:
        part: see :class:`LayerTest`.
        result: of :func:`mrv2.stats.gof.binomial_test`.
        probability: chance that independent draws agree, in (0, 1).
        must_see: share of pairs that agree for another reason and must show, in (0, 1).
        what: such a pair, e.g. ``"pairs with shared noise"``.
        plan: its rates.
    """
    rates = (ESCALATE_BELOW, plan.false_pass_rate)
    needed = min_event_samples(probability, probability + must_see * (1.0 - probability), *rates)
    could_see = (min_event_probability(result.draws, probability, *rates) - probability) / (1.0 - probability)
    return LayerTest(part, result, False, f"share of {what}", must_see, could_see, needed)
