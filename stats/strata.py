"""Draws grouped by the distribution they should follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from .errors import ArgumentError


def log_softmax(logits: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    """Log-probabilities of softmax(logits / temperature), in float64.

    Args:
        logits: [V], any float type; -inf is a masked token.
        temperature: above 0. Pass the float32 value that the sampler gets: 0.7 rounds to 0.69999999.

    Returns:
        float64 [V], natural logarithm; -inf where the logit is -inf.

    Raises:
        ArgumentError: no token has a finite logit, a logit is NaN or +inf, or the temperature is not positive.
    """
    if not temperature > 0:
        raise ArgumentError(
            f"temperature={temperature!r}",
            "temperature must be above 0",
            "greedy decoding has no distribution to test",
            "compare greedy tokens with the argmax",
        )
    scaled = np.asarray(logits, dtype=np.float64) / float(temperature)
    if not np.isfinite(scaled.max(initial=-np.inf)):
        raise ArgumentError(
            f"logits with maximum {scaled.max(initial=-np.inf)}",
            "the largest logit must be finite",
            "NaN, +inf or a fully masked row defines no distribution",
            "leave such rows out and test them as edge cases",
        )
    result: NDArray[np.float64] = scaled - logsumexp(scaled)
    return result


@dataclass(frozen=True, eq=False)
class Stratum:
    """Independent draws that share one known distribution.

    Attributes:
        log_probabilities: float64 [V], natural logarithm, -inf outside the support.
        tokens: int64 [n], the tokens drawn, each in [0, V).

    Raises:
        ArgumentError: the probabilities do not sum to 1, or a token is not in [0, V).
    """

    log_probabilities: NDArray[np.float64]
    tokens: NDArray[np.int64]

    def __post_init__(self) -> None:
        total = float(np.exp(self.log_probabilities).sum())
        if not abs(total - 1.0) < 1e-9:
            raise ArgumentError(
                f"log_probabilities that sum to probability {total}",
                "probabilities must sum to 1",
                "expected counts would be wrong by the same factor, and every test would alarm",
                "log_softmax(logits, temperature)",
            )
        if self.tokens.size and not 0 <= self.tokens.min() <= self.tokens.max() < self.log_probabilities.size:
            raise ArgumentError(
                f"tokens in [{self.tokens.min()}, {self.tokens.max()}] of vocabulary {self.log_probabilities.size}",
                "a token must be in [0, V)",
                "an id outside the vocabulary belongs to no group and would be dropped",
                "report such draws before testing the distribution",
            )

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities, float64 [V]."""
        result: NDArray[np.float64] = np.exp(self.log_probabilities)
        return result

    @property
    def draws(self) -> int:
        """Number of draws n."""
        return int(self.tokens.size)
