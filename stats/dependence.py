"""Are draws with different keys independent? Tables of pairs, and repeated values among many."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from scipy.stats import chi2

from .errors import ArgumentError
from .gof import GroupCount, TestResult

_NEGLIGIBLE = 1e-30  # probabilities below it are dropped from an exact law
_EXAMPLES = 8  # cells of a table that a result shows


def independence_g_test(table: NDArray[np.int64], name: str = "independence") -> TestResult:
    """G test of independence of rows and columns, whatever their own distributions are.

    ``2 * sum(n_ij * ln(n_ij * N / (n_i. * n_.j)))`` against chi-square with (R - 1) * (C - 1) degrees of freedom. Pool
    the outcomes so that each cell expects 25 pairs (:mod:`mrv2.stats.pooling`).

    Args:
        table: int64 [R, C], how often a pair of outcomes was seen. Rows and columns without a count do not count.
        name: of the result.

    Returns:
        the result; as groups the cells that deviate most.

    Raises:
        ArgumentError: not a table of counts, or without any.
    """
    if table.ndim != 2 or not np.all(table >= 0) or not table.any():
        raise ArgumentError(
            f"table of shape {table.shape} and sum {table.sum()}",
            "two dimensions, counts of 0 or above, at least one pair",
            "independence is a relation between the outcomes of two draws",
            "numpy.histogram2d of the two draws of each pair",
        )
    seen = table[table.any(axis=1)][:, table.any(axis=0)]
    draws = int(seen.sum())
    expected = np.outer(seen.sum(axis=1), seen.sum(axis=0)) / draws
    statistic = max(0.0, 2.0 * float(xlogy(seen, seen / expected).sum()))
    df = (seen.shape[0] - 1) * (seen.shape[1] - 1)
    p_value = float(chi2.sf(statistic, df)) if df else 1.0
    return TestResult(name, statistic if df else 0.0, p_value, draws, df, _worst_cells(seen, expected))


def collision_test(values: NDArray[np.integer], cells: int, name: str = "collisions") -> TestResult:
    """How many of N draws repeat an earlier one, among equally likely outcomes? Exact, two-sided.

    The number of different values among N draws from m has a known law (Knuth, The Art of Computer Programming 2,
    section 3.3.2 I), followed draw by draw. Too many repeats mean outcomes that hang together, too few that draws avoid
    each other.

    Args:
        values: int [N]; N up to about 2**16, since the law costs N steps.
        cells: m, number of equally likely outcomes.
        name: of the result.

    Returns:
        the number of repeats as statistic; one group with the expected and observed number.

    Raises:
        ArgumentError: there are fewer than 2 draws or cells.
    """
    if values.ndim != 1 or values.size < 2 or cells < 2:
        raise ArgumentError(
            f"{values.size} values, {cells} cells",
            "at least 2 of both",
            "one draw repeats nothing",
            "the draws of a flat row, and the number of its tokens",
        )
    repeats = values.size - np.unique(values).size
    first, law = _repeats_law(values.size, cells)
    counts = np.arange(first, first + law.size)
    lower, upper = float(law[counts <= repeats].sum()), float(law[counts >= repeats].sum())
    mean = float(law @ counts)
    spread = math.sqrt(float(law @ (counts - mean) ** 2))
    group = GroupCount("draws that repeat an earlier one", mean, repeats)
    statistic = (repeats - mean) / spread if spread > 0 else 0.0
    return TestResult(name, statistic, min(1.0, 2.0 * min(lower, upper)), values.size, int(spread > 0), (group,))


def _repeats_law(draws: int, cells: int) -> tuple[int, NDArray[np.float64]]:
    """Law of the number of repeats, as its smallest value that matters and the probabilities from there."""
    first, law = 0, np.ones(1)
    for done in range(1, draws):
        repeats = np.arange(first, first + law.size)
        stays = np.maximum(0, done - repeats) / cells  # chance to hit one of the values seen so far
        law = np.append(law * (1.0 - stays), 0.0) + np.append(0.0, law * stays)
        kept = np.flatnonzero(law > _NEGLIGIBLE)
        first, law = first + int(kept[0]), law[kept[0] : kept[-1] + 1]
    return first, law


def _worst_cells(seen: NDArray[np.int64], expected: NDArray[np.float64]) -> tuple[GroupCount, ...]:
    deviation = np.abs(seen - expected) / np.sqrt(expected)
    worst = np.argsort(-deviation, axis=None)[:_EXAMPLES]
    rows, columns = np.unravel_index(worst, seen.shape)
    return tuple(
        GroupCount(f"{row}, {column}", float(expected[row, column]), float(seen[row, column]))
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    )
