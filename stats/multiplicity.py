"""Many tests, one false alarm rate: the chance that *any* of them fails a correct sampler."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import ArgumentError, require_rate


def holm(p_values: ArrayLike, false_fail_rate: float) -> NDArray[np.bool_]:
    """Which tests fail, by the step-down rule of Holm (1979, Scandinavian Journal of Statistics 6).

    The smallest p-value is compared with ``false_fail_rate / m``, the next with ``/ (m - 1)``, and so on until one is
    not significant. Valid under any dependence of the tests, and never weaker than Bonferroni.

    Args:
        p_values: [m], each in [0, 1].
        false_fail_rate: chance that a correct sampler fails any of the m tests.

    Returns:
        bool [m], True where the test fails.

    Raises:
        ArgumentError: there is no p-value, one is not in [0, 1] (NaN would never fail), or the rate is not in (0, 1).
    """
    values = _require_p_values(p_values)
    require_rate("false_fail_rate", false_fail_rate)
    order = np.argsort(values, kind="stable")
    levels = false_fail_rate / np.arange(values.size, 0, -1)
    steps = np.logical_and.accumulate(values[order] <= levels)
    failed = np.zeros(values.size, dtype=np.bool_)
    failed[order] = steps
    return failed


def bonferroni(p_values: ArrayLike, false_fail_rate: float, weights: ArrayLike) -> NDArray[np.bool_]:
    """Which tests fail when each gets a fixed share of the false alarm rate.

    Args:
        p_values: [m], each in [0, 1].
        false_fail_rate: chance that a correct sampler fails any of the m tests.
        weights: [m] shares, each above 0, at most 1 in sum, fixed before the draws are seen.

    Returns:
        bool [m], True where ``p <= weight * false_fail_rate``.

    Raises:
        ArgumentError: as in :func:`holm`, or the weights do not fit.
    """
    values = _require_p_values(p_values)
    require_rate("false_fail_rate", false_fail_rate)
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != values.shape or not np.all(shares > 0) or shares.sum() > 1 + 1e-9:
        raise ArgumentError(
            f"weights of shape {shares.shape} and sum {shares.sum()}",
            "one weight above 0 per p-value, at most 1 in sum",
            "the weights share out one false alarm rate",
            f"{values.size} weights such as 1/{values.size} each",
        )
    return np.asarray(values <= shares * false_fail_rate)


def weighted_holm(p_values: ArrayLike, false_fail_rate: float, weights: ArrayLike) -> NDArray[np.bool_]:
    """Which tests fail when they have unequal shares of the false alarm rate, step by step (Holm 1979, section 5).

    The test with the smallest ``p / weight`` is compared with its share of ``false_fail_rate`` among the tests not yet
    failed, and so on until one is not significant. Valid under any dependence; with equal weights it is :func:`holm`.

    Args:
        p_values: [m], each in [0, 1].
        false_fail_rate: chance that a correct sampler fails any of the m tests.
        weights: [m], each above 0, fixed before the draws are seen; only their ratios matter.

    Returns:
        bool [m], True where the test fails.

    Raises:
        ArgumentError: as in :func:`holm`, or a weight is missing or not above 0.
    """
    values = _require_p_values(p_values)
    require_rate("false_fail_rate", false_fail_rate)
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != values.shape or not np.all(shares > 0) or not np.all(np.isfinite(shares)):
        raise ArgumentError(
            f"weights of shape {shares.shape} for {values.size} p-values",
            "one finite weight above 0 per p-value",
            "a test without a share could never fail",
            "1.0 for tests that matter equally",
        )
    order = np.argsort(values / shares, kind="stable")
    left = np.cumsum(shares[order][::-1])[::-1]
    steps = np.logical_and.accumulate(values[order] <= false_fail_rate * shares[order] / left)
    failed = np.zeros(values.size, dtype=np.bool_)
    failed[order] = steps
    return failed


def benjamini_hochberg(p_values: ArrayLike, false_discovery_rate: float) -> NDArray[np.bool_]:
    """Which tests to look at, with a bounded share of false ones among them (Benjamini and Hochberg 1995).

    It ranks suspects for a diagnosis. It must not decide: a correct sampler fails it far more often than :func:`holm`.

    Args:
        p_values: [m], each in [0, 1].
        false_discovery_rate: expected share of correct ones among those chosen.

    Returns:
        bool [m], True where the test is chosen.

    Raises:
        ArgumentError: as in :func:`holm`.
    """
    values = _require_p_values(p_values)
    require_rate("false_discovery_rate", false_discovery_rate)
    order = np.argsort(values, kind="stable")
    below = values[order] <= false_discovery_rate * np.arange(1, values.size + 1) / values.size
    chosen = np.zeros(values.size, dtype=np.bool_)
    chosen[order[: int(np.flatnonzero(below)[-1]) + 1 if below.any() else 0]] = True
    return chosen


def _require_p_values(p_values: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(p_values, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.all((values >= 0) & (values <= 1)):
        raise ArgumentError(
            f"p_values={p_values!r}",
            "a list of at least one number in [0, 1]",
            "no test, or a test without an answer, must not look like one that passed",
            "the p_value of every test that ran",
        )
    return values
