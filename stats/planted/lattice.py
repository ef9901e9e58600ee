"""A sampler whose uniforms have few bits, as samplers in float32 had for years, and the law of many of its draws.

Noise that comes from k bits ends k * log(2) nats up: farther tokens are never drawn, those below it too often or too
rarely. With V tokens, ties at the top are settled by the lowest id.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..strata import log_softmax
from ..targets import Purpose
from .clean import CleanSampler, multinomial

_EXACT_GROUPS = 64  # rows with more distinct logits are counted by the integral
_CELL = 1.0 / 64  # nats: logits this close share a group of the integral
_GRID = np.concatenate([np.arange(-4.0, 12.0, 1e-3), np.arange(12.0, 40.0, 1e-2)])  # scores above the largest logit
_DRAWS_AT_ONCE = 2**16


class LatticeSampler(CleanSampler):
    """Gumbel noise ``-log(-log(1 - j / 2**bits))`` for a random integer j.

    Args:
        name: shown in reports.
        bits: random bits per token.
        first: the smallest j; 1 is the resolution itself. With ``clamped`` j starts at 0 and 0 is raised to 1.
        clamped: j = 0 counts as 1, so that the largest noise is twice as likely as it should be.
    """

    def __init__(self, name: str, bits: int, clamped: bool) -> None:
        self.name = name
        self.noise_bits = bits
        self._size = 2**bits
        self._clamped = clamped
        self._row: NDArray[np.float32] | None = None
        self._shares: dict[float, NDArray[np.float64]] = {}
        self._found: tuple[NDArray[np.float32], list[NDArray[np.int64]]] = (np.empty(0, np.float32), [])

    def words(
        self,
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        tokens: NDArray[np.int64],
        purpose: Purpose = Purpose.TARGET,
    ) -> NDArray[np.uint64]:
        """The upper bits of the correct sampler's words."""
        return super().words(seeds, positions, tokens, purpose) >> np.uint64(64 - self.noise_bits)

    def waits(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """See the correct sampler."""
        return -np.log1p(-self._uniform(words.astype(np.float64)))

    def noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Noise of the word j (clamped) or j + 1."""
        return -np.log(self.waits(words))

    def counts_of(
        self, logits: NDArray[np.float32], temperature: float, draws: int, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Exact draws of the groups of equal logits, or counts by the integral if there are many groups."""
        values, members = self._groups(logits)
        if values.size > _EXACT_GROUPS:
            return multinomial(self._shares_of(logits, temperature), draws, random)
        counts = np.zeros(logits.size + 1, dtype=np.int64)
        sizes = np.array([ids.size for ids in members])
        for start in range(0, draws, _DRAWS_AT_ONCE):
            size = min(_DRAWS_AT_ONCE, draws - start)
            counts[:-1] += self._group_draws(values.astype(np.float64) / temperature, sizes, members, size, random)
        return counts

    def _groups(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.float32], list[NDArray[np.int64]]]:
        """Distinct logits and, if they are few, the ids of each; found once for a row that is drawn from again."""
        if self._row is not logits:
            values, group = np.unique(logits, return_inverse=True)
            few = range(values.size if values.size <= _EXACT_GROUPS else 0)
            self._shares.clear()
            self._row, self._found = logits, (values, [np.flatnonzero(group == index) for index in few])
        return self._found

    def _shares_of(self, logits: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
        """Probabilities of the row whose groups were found last, computed once for each temperature."""
        if temperature not in self._shares:
            self._shares[temperature] = self._integrated(log_softmax(logits, temperature))
        return self._shares[temperature]

    def _uniform(self, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
        """``1 - exp(-exp(-noise))`` of each rank; rank 0 is the largest noise."""
        places = np.maximum(ranks, 1.0) if self._clamped else ranks + 1.0
        uniform: NDArray[np.float64] = np.minimum(places / self._size, 1.0 - 2.0**-53)
        return uniform

    def _group_draws(
        self,
        values: NDArray[np.float64],
        sizes: NDArray[np.int64],
        members: list[NDArray[np.int64]],
        draws: int,
        random: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Draws one by one, of which only the best token of each group matters: counts int64 [V]."""
        best = np.empty((values.size, draws))
        for index, (value, size) in enumerate(zip(values, sizes, strict=True)):
            # Of n ranks the smallest is at least r with probability (1 - r / K)**n.
            least = np.floor(-self._size * np.expm1(np.log(random.random(draws)) / size))
            best[index] = value - np.log(-np.log1p(-self._uniform(least))) if np.isfinite(value) else -np.inf
        top = best.max(axis=0)
        # Several groups may tie, too; the lowest id of all wins, and a group's own is the least of those at its top.
        firsts = np.full((values.size, draws), sum(map(len, members)), dtype=np.int64)
        for index, ids in enumerate(members):
            won = np.flatnonzero(best[index] == top)
            firsts[index, won] = ids[self._lowest(values[index] - top[won], ids.size, random)]
        return np.bincount(firsts.min(axis=0), minlength=sum(map(len, members))).astype(np.int64)

    def _lowest(self, behind: NDArray[np.float64], size: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Place in its group of the winner: the first of those tokens that have the group's largest noise.

        Each token has it with the same chance if none has more, so the first is a geometric variable below ``size``.
        """
        uniform = -np.expm1(-np.exp(behind))
        more = self._size * uniform - 1.0
        at_end = self._clamped & (more < 0.5)
        share = np.where(at_end, 2.0 / self._size, 1.0 / np.maximum(self._size - np.round(more) - self._clamped, 1.0))
        fails = np.log1p(-np.minimum(share, 1.0 - 2.0**-53))
        place = np.log1p(random.random(share.size) * np.expm1(size * fails)) / fails
        first: NDArray[np.int64] = np.minimum(place.astype(np.int64), size - 1)
        return first

    def _integrated(self, log_p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of a row with many different logits, from the distribution of the best score.

        Tokens within ``1 / 64`` nat are taken together, and share in proportion to the softmax. Ties are left out.
        """
        shifted = log_p - log_p.max()
        cell = np.where(np.isneginf(shifted), -(2.0**20), np.floor(shifted / _CELL))
        _, group = np.unique(cell, return_inverse=True)
        mass = np.bincount(group, weights=np.exp(shifted))
        sizes = np.bincount(group)
        centre = np.log(np.maximum(mass / sizes, 1e-300))
        below = np.stack([self._log_below(_GRID - value) for value in centre])
        weighted = sizes[:, np.newaxis] * below
        total = weighted.sum(axis=0)
        # The best score lies in a step of the grid, and it is the group's with its share of the step's probability.
        step = np.exp(total[1:]) - np.exp(total[:-1])
        rises = weighted[:, 1:] - weighted[:, :-1]
        with np.errstate(invalid="ignore"):
            share = np.where(np.isfinite(rises), rises, 0.0)
            share = share / np.maximum(share.sum(axis=0), 1e-300)
        wins = (share * step).sum(axis=1)
        result: NDArray[np.float64] = wins[group] * np.exp(shifted) / np.maximum(mass[group], 1e-300)
        return result

    def _log_below(self, noise: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logarithm of the chance that the noise of one token is below a value."""
        uniform = -np.expm1(-np.exp(-np.clip(noise, -6.0, 60.0)))
        reached = np.floor(uniform * self._size + 1e-9)
        # Ranks 0 up to `reached` (clamped) or `reached` - 1 have at least this noise.
        least = np.where(reached >= 1, reached + self._clamped, 0.0)
        logarithm: NDArray[np.float64] = np.log1p(-np.minimum(least / self._size, 1.0 - math.ulp(0.5)))
        return logarithm
