"""Tail probabilities of a sum of independent draws' values, right far out where the normal approximation is not.

Saddlepoint approximation of Lugannani and Rice (1980, Advances in Applied Probability 12): relative error O(1/n) at any
distance from the mean. It needs the cumulant generating function, which is known here because the distributions are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

_NEAR = 0.05  # in standard deviations: closer to the mean the formula is 0/0, and the normal value is as good
_FAR = 2.0**20  # largest tilt tried; beyond it the sum sits on the edge of what is possible


@dataclass(frozen=True, eq=False)
class SumLaw:
    """Law of ``sum(value(X))`` for independent draws X of several distributions.

    Attributes:
        parts: per distribution, the log-probability of each value float64 [S] (finite), the values float64 [S], and the
            number of draws.
    """

    parts: tuple[tuple[NDArray[np.float64], NDArray[np.float64], int], ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[NDArray[np.float64], NDArray[np.float64], int]]) -> SumLaw:
        """From log-probabilities [V] (-inf outside the support), values [V] and draws, per distribution."""
        inside = [(~np.isneginf(log_p), log_p, values, draws) for log_p, values, draws in parts]
        return cls(tuple((log_p[mask], values[mask], draws) for mask, log_p, values, draws in inside))

    @classmethod
    def of_surprisal(cls, parts: Sequence[tuple[NDArray[np.float64], int]]) -> SumLaw:
        """Law of ``sum(-log p(X))``, nats, from log-probabilities [V] and draws, per distribution.

        Tokens of one probability are one value, which makes designed rows (a head and a flat tail) cheap.
        """
        grouped = [(*np.unique(log_p[~np.isneginf(log_p)], return_counts=True), draws) for log_p, draws in parts]
        return cls(tuple((log_p + np.log(counts), -log_p, draws) for log_p, counts, draws in grouped))

    def moments(self) -> tuple[float, float]:
        """Mean and variance of the sum, in the unit of the values and its square."""
        _, mean, variance = self._cumulants(0.0)
        return mean, variance

    def two_sided(self, total: float) -> float:
        """Twice the smaller tail at ``total``, at most 1. The variance must not be 0."""
        mean, variance = self.moments()
        if abs(total - mean) < _NEAR * math.sqrt(variance):
            return float(2.0 * norm.sf(abs(total - mean) / math.sqrt(variance)))
        return min(1.0, 2.0 * self._tail(total, upper=total > mean))

    def _tail(self, total: float, upper: bool) -> float:
        tilt = self._tilt(total, upper)
        value, _, variance = self._cumulants(tilt)
        root = math.sqrt(max(0.0, 2.0 * (tilt * total - value)))
        chernoff = math.exp(-0.5 * root**2)
        scale = abs(tilt) * math.sqrt(variance)
        if not scale > 0 or not root > 0:
            return chernoff
        tail = float(norm.sf(root)) + float(norm.pdf(root)) * (1.0 / scale - 1.0 / root)
        # At the edge of the possible sums 1/scale diverges; Chernoff's bound always holds.
        return min(max(tail, 0.0), chernoff)

    def _tilt(self, total: float, upper: bool) -> float:
        """The t at which the tilted mean is ``total``, or the largest one tried."""
        sign = 1.0 if upper else -1.0

        def excess(size: float) -> float:
            return sign * (self._cumulants(sign * size)[1] - total)

        far = 1.0
        while excess(far) < 0:
            far *= 2.0
            if far > _FAR:
                return sign * _FAR
        return sign * float(brentq(excess, 0.0, far, xtol=1e-12))

    def _cumulants(self, tilt: float) -> tuple[float, float, float]:
        """The cumulant generating function at ``tilt`` and its first two derivatives."""
        result = np.zeros(3)
        for log_p, values, draws in self.parts:
            weights = log_p + tilt * values
            generating = float(logsumexp(weights))
            tilted = np.exp(weights - generating)
            mean = float(tilted @ values)
            result += draws * np.array([generating, mean, float(tilted @ (values - mean) ** 2)])
        return float(result[0]), float(result[1]), float(result[2])
