"""Samplers of a few lines for the tests of the layers, exact and wrong; they draw from float64 probabilities."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mrv2.stats.strata import log_softmax

Spoil = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Multinomial:
    """Counts and draws as it should, but for ``spoil``, which changes the probabilities, and ``key``, the seeds."""

    name = "multinomial"

    def __init__(self, spoil: Spoil = lambda p: p, key: Spoil = lambda s: s, temperature: float = 1.0) -> None:
        self.spoil, self.key, self.factor = spoil, key, temperature

    def probabilities(self, logits: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
        p = self.spoil(np.exp(log_softmax(logits, temperature * self.factor)))
        return p / p.sum()

    def count(self, logits, temperature, seed, first_position, draws):
        random = np.random.default_rng([seed, first_position])
        return np.append(random.multinomial(draws, self.probabilities(logits, temperature)), 0)

    def sample(self, logits, temperature, seeds, positions):
        edges = np.cumsum(self.probabilities(logits, float(temperature[0])))
        # A splitmix64 step as hash (Steele, Lea and Flood 2014): one uniform per key.
        with np.errstate(over="ignore"):
            x = self.key(seeds) + positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
            x ^= x >> np.uint64(31)
        uniform = (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.minimum(np.searchsorted(edges, uniform, side="right"), logits.size - 1)
