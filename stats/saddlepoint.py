"""Tail probabilities of a sum of surprisals, right far out where the normal approximation is not.

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
class SurprisalSum:
    """Law of ``sum(-log p(X))`` for independent draws of several distributions.

    Attributes:
        parts: per distribution, log-probabilities of its support, float64 [S], and the number of draws.
    """

    parts: tuple[tuple[NDArray[np.float64], int], ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[NDArray[np.float64], int]]) -> SurprisalSum:
        """From log-probabilities [V] (-inf outside the support) and draws, per distribution."""
        return cls(tuple((values[~np.isneginf(values)], draws) for values, draws in parts))

    def moments(self) -> tuple[float, float]:
        """Mean (the total entropy, nats) and variance (nats squared)."""
        _, mean, variance = self._cumulants(0.0)
        return mean, variance

    def two_sided(self, total: float) -> float:
        """Twice the smaller tail at ``total`` (nats), at most 1. The variance must not be 0."""
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
        for log_p, draws in self.parts:
            weights = (1.0 - tilt) * log_p
            value = float(logsumexp(weights))
            tilted = np.exp(weights - value)
            mean = -float(tilted @ log_p)
            result += draws * np.array([value, mean, float(tilted @ (log_p + mean) ** 2)])
        return float(result[0]), float(result[1]), float(result[2])
