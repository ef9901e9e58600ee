"""Groups of tokens with enough expected draws each for a chi-square limit to hold far out in its tail.

At a false alarm rate of 1e-5 the textbook rule "expected at least 5" gives two to four times too many alarms; with 25
the G statistic is right (measured, see the README). Pooling keeps neighbours together, in the order of ids or of
probability, because a defect hits neighbours (a block, the tail). One bin for all the rest would hide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError
from .strata import Stratum

MIN_EXPECTED = 25.0
GROUPS = 16


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which group each token belongs to.

    Attributes:
        labels: int64 [V]; groups are 0 .. K-1, and K is kept for tokens outside the support, so that a draw of one
            is counted and never dropped.
        names: K names, e.g. ``"ids 0-3071"``.
    """

    labels: NDArray[np.int64]
    names: tuple[str, ...]

    def observed(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draws per group, int64 [K + 1]; the last entry counts draws outside the support."""
        return np.bincount(self.labels[tokens], minlength=len(self.names) + 1).astype(np.int64)

    def expected(self, probabilities: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
        """Expected draws per group, float64 [K + 1]; the last entry is 0."""
        mass = np.bincount(self.labels, weights=probabilities, minlength=len(self.names) + 1)
        return draws * mass.astype(np.float64)


@dataclass(frozen=True, eq=False)
class GroupedCounts:
    """Observed and expected draws of K groups, ready for :func:`mrv2.stats.gof.g_test`.

    Attributes:
        names: K names.
        observed: int64 [K].
        expected: float64 [K].
    """

    names: tuple[str, ...]
    observed: NDArray[np.int64]
    expected: NDArray[np.float64]


def pool_expected(expected: NDArray[np.float64], min_expected: float = MIN_EXPECTED) -> NDArray[np.int64]:
    """Merge neighbouring cells until each group expects at least ``min_expected`` draws.

    Args:
        expected: float64 [n], at least 0 each, in an order that puts like with like.
        min_expected: smallest expected count of a group.

    Returns:
        int64 [n] group labels from 0, not decreasing over the cells with a positive expectation. What is left over at
        the end joins the last group. If everything together is below ``min_expected``, there is one group. Cells that
        expect nothing get a label of their own, one above the others: merged, they would hide impossible draws.

    Raises:
        ArgumentError: an expectation is negative or NaN.
    """
    _require_mass("expected", expected)
    inside = expected > 0
    labels = np.zeros(expected.size, dtype=np.int64)
    labels[inside] = _labels(expected[inside], _cut(expected[inside], min_expected, None))
    labels[~inside] = labels[inside].max(initial=-1) + 1
    return labels


def rank_groups(probabilities: NDArray[np.float64], draws: int, groups: int = GROUPS) -> Grouping:
    """Group tokens by rank, the most likely first, each group with about the same share of the remaining mass.

    Temperature and tail defects change the share monotonically in rank, so they add up inside these groups.

    Args:
        probabilities: float64 [V], sum 1.
        draws: number of draws, which decides how small a group may be.
        groups: at most this many; fewer if 25 expected draws per group do not allow it.

    Returns:
        the grouping; ties in probability are ordered by id.

    Raises:
        ArgumentError: a probability is negative or NaN, or ``draws`` or ``groups`` is below 1.
    """
    return _grouping(probabilities, np.argsort(-probabilities, kind="stable"), draws, groups, "ranks")


def index_groups(probabilities: NDArray[np.float64], draws: int, groups: int = GROUPS) -> Grouping:
    """Group tokens by id, in consecutive ranges with about the same share of the remaining mass.

    Lost blocks, missing masks and ties won by the lowest id show here. Arguments, result and errors as in
    :func:`rank_groups`.
    """
    return _grouping(probabilities, np.arange(probabilities.size), draws, groups, "ids")


def rank_counts(strata: Sequence[Stratum]) -> GroupedCounts:
    """Counts by rank group over several distributions; group j of each is added to group j of the others.

    The counts are a sum of multinomials with different probabilities. Its covariance is at most that of one multinomial
    with the mean probabilities (the difference is a sum of squares), so a test of the sum keeps its false alarm rate.
    """
    draws = sum(stratum.draws for stratum in strata)
    groupings = [rank_groups(stratum.probabilities, draws) for stratum in strata]
    most = max(len(grouping.names) for grouping in groupings)
    names = tuple(f"rank group {index} of {most}" for index in range(most))
    return _summed(strata, groupings, names)


def index_counts(strata: Sequence[Stratum]) -> GroupedCounts:
    """Counts by id range over several distributions, the ranges made for their mean; see :func:`rank_counts`."""
    draws = sum(stratum.draws for stratum in strata)
    mean = sum(stratum.draws / max(draws, 1) * stratum.probabilities for stratum in strata)
    grouping = index_groups(np.asarray(mean), draws)
    return _summed(strata, [grouping] * len(strata), grouping.names)


def _summed(strata: Sequence[Stratum], groupings: Sequence[Grouping], names: tuple[str, ...]) -> GroupedCounts:
    observed = np.zeros(len(names) + 1, dtype=np.int64)
    expected = np.zeros(len(names) + 1)
    for stratum, grouping in zip(strata, groupings, strict=True):
        inside = len(grouping.names)
        for total, part in (
            (observed, grouping.observed(stratum.tokens)),
            (expected, grouping.expected(stratum.probabilities, stratum.draws)),
        ):
            total[:inside] += part[:inside]
            total[-1] += part[-1]
    return _pooled(GroupedCounts((*names, "outside the support"), observed, expected))


def _pooled(counts: GroupedCounts) -> GroupedCounts:
    """Merge groups that only some of the distributions filled."""
    labels = pool_expected(counts.expected)
    names: dict[int, str] = {}
    for label, name in zip(labels.tolist(), counts.names, strict=True):
        names[label] = f"{names[label]} + {name}" if label in names else name
    observed = np.bincount(labels, weights=counts.observed).astype(np.int64)
    expected = np.bincount(labels, weights=counts.expected).astype(np.float64)
    return GroupedCounts(tuple(names[label] for label in sorted(names)), observed, expected)


def _grouping(
    probabilities: NDArray[np.float64], order: NDArray[np.intp], draws: int, groups: int, unit: str
) -> Grouping:
    _require_mass("probabilities", probabilities)
    if draws < 1 or groups < 1:
        raise ArgumentError(
            f"draws={draws}, groups={groups}",
            "both must be at least 1",
            "there is nothing to group otherwise",
            "the number of draws taken, and groups=16",
        )
    inside = order[probabilities[order] > 0]
    starts = _cut(probabilities[inside], MIN_EXPECTED / draws, groups)
    if len(starts) == 1 and groups > 1:
        starts += _halves(probabilities[inside], MIN_EXPECTED / draws)
    labels = np.full(probabilities.size, len(starts), dtype=np.int64)
    labels[inside] = _labels(inside, starts)
    return Grouping(labels, _range_names(inside, starts, unit))


def _range_names(inside: NDArray[np.intp], starts: list[int], unit: str) -> tuple[str, ...]:
    ends = [*starts[1:], inside.size]
    if unit == "ids":
        return tuple(f"ids {inside[a]}-{inside[b - 1]}" for a, b in zip(starts, ends, strict=True))
    return tuple(f"ranks {a}-{b - 1}" for a, b in zip(starts, ends, strict=True))


def _labels(cells: NDArray[np.generic], starts: list[int]) -> NDArray[np.int64]:
    return np.searchsorted(np.asarray(starts), np.arange(cells.size), side="right").astype(np.int64) - 1


def _cut(mass: NDArray[np.float64], least: float, groups: int | None) -> list[int]:
    """First cell of each group: a group closes once it holds ``least`` and its fair share of what was left."""
    cumulative = np.cumsum(mass)
    total = float(cumulative[-1]) if mass.size else 0.0
    starts = [0]
    while True:
        done = float(cumulative[starts[-1] - 1]) if starts[-1] else 0.0
        left = None if groups is None else groups - len(starts) + 1
        target = least if left is None else max(least, (total - done) / left)
        # The factors keep a cell that ends exactly on the target from spilling over by rounding.
        end = int(np.searchsorted(cumulative, done + target * (1 - 1e-9))) + 1
        if left == 1 or end >= mass.size or total - cumulative[end - 1] < least * (1 - 1e-9):
            return starts
        starts.append(end)


def _require_mass(name: str, values: NDArray[np.float64]) -> None:
    if not np.all(values >= 0):
        raise ArgumentError(
            f"{name} with smallest value {values.min()}",
            "every entry must be 0 or above and not NaN",
            "a negative or undefined expectation cannot be compared with a count",
            "probabilities from softmax, or draws times probabilities",
        )


def _halves(mass: NDArray[np.float64], least: float) -> list[int]:
    """First cell of a second group, none if one of both would hold less than ``least``.

    A likely cell with little behind it takes all that is in front of it into its group, though that would do for one.
    """
    before = np.cumsum(mass)[:-1]
    behind = float(mass.sum()) - before
    cuts = np.flatnonzero((before >= least) & (behind >= least))
    return [int(cuts[np.argmax(np.minimum(before, behind)[cuts])]) + 1] if cuts.size else []
