"""A correct sampler in numpy with every part of :mod:`mrv2.stats.targets`; the faults are changes of one part of it.

Draws of one row are counted by their law (one multinomial draw), so that an audit of any size costs next to nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..strata import log_softmax
from ..targets import Filters, Purpose, SpeculativeDraws

_CELLS = 2**14  # numbers handled at once: they fit the processor's cache
_FEW = 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class CleanSampler:
    """Gumbel-max with 64 bits of noise per token, in float64."""

    name = "clean sampler"
    keyed = True
    noise_bits = 64
    processed_logprobs = False
    serial = False
    block = 2**20

    # Noise

    def words(
        self,
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        tokens: NDArray[np.int64],
        purpose: Purpose = Purpose.TARGET,
    ) -> NDArray[np.uint64]:
        """See :class:`mrv2.stats.targets.NoiseTarget`."""
        state = self.row_state(np.asarray(seeds, np.uint64), np.asarray(positions).astype(np.uint64), purpose)
        return mix(state + np.asarray(tokens).astype(np.uint64) * _GOLDEN)

    def row_state(
        self, seeds: NDArray[np.uint64], positions: NDArray[np.uint64], purpose: Purpose
    ) -> NDArray[np.uint64]:
        """64 bits for each key, different for all positions of one seed and purpose."""
        return mix(mix(seeds ^ _SALTS[purpose]) ^ (positions + np.uint64(1)))

    def noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Standard Gumbel noise; a small word is large noise."""
        return -np.log(exponential(words))

    # Draws

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.SamplerTarget`."""
        rows = np.broadcast_to(logits, (len(seeds), np.shape(logits)[-1]))
        tokens = np.empty(len(seeds), dtype=np.int64)
        step = max(1, _CELLS // rows.shape[1])
        for start in range(0, len(seeds), step):
            some = slice(start, start + step)
            tokens[some] = self.drawn(rows[some], temperature[some], seeds[some], positions[some], Purpose.TARGET)
        return tokens

    def drawn(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        purpose: Purpose,
    ) -> NDArray[np.int64]:
        """The largest ``logit / temperature + noise`` of each row, int64 [N].

        Found as the smallest ``exponential / weight``, which spares a logarithm and a sum per token.
        """
        values = scaled(logits, temperature)
        drawn: NDArray[np.int64] = values.argmax(axis=1)
        warm = temperature > 0
        with np.errstate(over="ignore", invalid="ignore"):  # a row of nothing but -inf has no winner
            handicap = np.exp(values[warm].max(axis=1, keepdims=True) - values[warm])
        tokens = np.arange(values.shape[1])
        waits = self.waits(self.words(seeds[warm, np.newaxis], positions[warm, np.newaxis], tokens, purpose))
        drawn[warm] = (waits * handicap).argmin(axis=1)
        return drawn

    def waits(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """``exp(-noise)``, right to 2**-53 where it is small and a token can win."""
        uniform = words.astype(np.float64)
        uniform += 0.5
        uniform *= 2.0**-64
        return -np.log1p(-np.minimum(uniform, 1.0 - 2.0**-53, out=uniform))

    def count(
        self, logits: NDArray[np.float32], temperature: float, seed: int, first_position: int, draws: int
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.CountingTarget`; drawn from the law of many draws, not one by one."""
        return self.counts_of(logits, float(np.float32(temperature)), draws, key_generator(seed, first_position))

    def counts_of(
        self, logits: NDArray[np.float32], temperature: float, draws: int, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Counts of independent draws, int64 [V + 1]."""
        return multinomial(np.exp(log_softmax(logits, temperature)), draws, random)

    # Filters

    def sample_filtered(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        filters: Filters,
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.FilteringTarget`."""
        if logits.ndim == 1 and _all_alike(temperature, filters):
            few = slice(0, _FEW)  # what is kept may depend on whether a batch is small
            rows = np.broadcast_to(logits, (len(temperature[few]), logits.size))
            one = self.kept(rows, temperature[few], _part(filters, few))[0]
            return self.sample(np.where(one, logits, np.float32(-np.inf)), temperature, seeds, positions)
        rows = np.broadcast_to(logits, (len(seeds), np.shape(logits)[-1]))
        kept = self.kept(rows, temperature, filters)
        return self.sample(np.where(kept, rows, np.float32(-np.inf)), temperature, seeds, positions)

    def kept(
        self, logits: NDArray[np.float32], temperature: NDArray[np.float32], filters: Filters
    ) -> NDArray[np.bool_]:
        """See :class:`mrv2.stats.targets.MaskTarget`."""
        values = scaled(logits, temperature).astype(np.float32).astype(np.float64)  # as samplers do it
        ranked = -np.sort(-values, axis=1)
        surviving = ranked >= self.least_values(ranked, filters)[:, np.newaxis]
        lowest = np.where(surviving, ranked, np.inf).min(axis=1)
        kept: NDArray[np.bool_] = (values >= lowest[:, np.newaxis]) & ~np.isneginf(values)
        return kept

    def least_values(self, ranked: NDArray[np.float64], filters: Filters) -> NDArray[np.float64]:
        """The smallest value that min-p, top-k and top-p keep together, for sorted rows float64 [N, V]: [N]."""
        with np.errstate(divide="ignore"):
            lines = ranked[:, 0].astype(np.float32) + np.log(filters.min_p.astype(np.float64)).astype(np.float32)
        least = lines.astype(np.float64)
        width = ranked.shape[1]
        counts = np.where(filters.top_k > 0, np.minimum(filters.top_k, width), width)
        least = np.maximum(least, ranked[np.arange(len(ranked)), counts - 1])
        strictest: NDArray[np.float64] = np.maximum(least, self.least_of_top_p(ranked, least, filters.top_p))
        return strictest

    def least_of_top_p(
        self, ranked: NDArray[np.float64], least: NDArray[np.float64], top_p: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """The smallest value that top-p keeps of those from ``least`` on: the one with which the sum reaches p."""
        last = self.last_of_top_p(ranked, least, top_p)
        return np.where(top_p < 1, ranked[np.arange(len(ranked)), last], -np.inf)

    def last_of_top_p(
        self, ranked: NDArray[np.float64], least: NDArray[np.float64], top_p: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """Its place in the sorted row."""
        mass = np.where(ranked >= least[:, np.newaxis], np.exp(ranked - ranked[:, :1]), 0.0)
        before = np.cumsum(mass, axis=1) - mass
        target = top_p.astype(np.float64)[:, np.newaxis] * mass.sum(axis=1, keepdims=True)
        # A sum that is short of p by rounding alone has reached it.
        needed = (before < target * (1.0 - 1e-12)) & (mass > 0)
        last: NDArray[np.int64] = np.maximum(needed.sum(axis=1) - 1, 0)
        return last

    # Log-probabilities

    def logprobs(self, logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> NDArray[np.float32]:
        """See :class:`mrv2.stats.targets.LogprobTarget`."""
        return np.stack([log_softmax(row, 1.0) for row in logits]).astype(np.float32)

    def ranks(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.RankTarget`."""
        ranks: NDArray[np.int64] = 1 + (logits > np.take_along_axis(logits, tokens[:, np.newaxis], axis=1)).sum(axis=1)
        return ranks

    def prompt_logprobs(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """See :class:`mrv2.stats.targets.PromptLogprobTarget`."""
        rows = np.arange(len(tokens) - 1)
        return self.logprobs(logits[:-1], np.ones(rows.size, np.float32))[rows, tokens[1:]]

    # Speculative decoding

    def speculate(
        self,
        target_logits: NDArray[np.float32],
        draft_logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> SpeculativeDraws:
        """See :class:`mrv2.stats.targets.SpeculativeTarget` (Leviathan, Kalman and Matias 2023, algorithm 1)."""
        count, k = len(seeds), len(draft_logits)
        drafts = np.empty((count, k), dtype=np.int64)
        emitted = np.full((count, k + 1), -1, dtype=np.int64)
        going = np.arange(count)
        for place in range(k):
            draft_p, target_p = shares(draft_logits[place], temperature), shares(target_logits[place], temperature)
            drafts[:, place] = self.race(draft_p, seeds, positions + place, Purpose.DRAFT)
            keys = seeds[going], positions[going] + place
            laws = target_p[going], draft_p[going]
            accepted = self.accepted(*laws, drafts[going, place], *keys)
            stopped = ~accepted
            emitted[going, place] = drafts[going, place]
            emitted[going[stopped], place] = self.recovered(
                laws[0][stopped], laws[1][stopped], keys[0][stopped], keys[1][stopped]
            )
            going = going[accepted]
        last = shares(target_logits[k], temperature[going])
        emitted[going, k] = self.race(last, seeds[going], positions[going] + k, Purpose.TARGET)
        return SpeculativeDraws(drafts, emitted)

    def accepted(
        self,
        target_p: NDArray[np.float64],
        draft_p: NDArray[np.float64],
        drafts: NDArray[np.int64],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Whether each draft is accepted, with probability ``min(1, p / q)``: bool [N]."""
        words = self.words(seeds, positions, np.zeros(1, np.int64), Purpose.ACCEPT)
        uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        lanes = np.arange(len(drafts))
        accepted: NDArray[np.bool_] = uniform * draft_p[lanes, drafts] < target_p[lanes, drafts]
        return accepted

    def recovered(
        self,
        target_p: NDArray[np.float64],
        draft_p: NDArray[np.float64],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Draws from the positive part of ``p - q``, int64 [N]."""
        return self.race(np.maximum(target_p - draft_p, 0.0), seeds, positions, Purpose.RECOVER)

    def race(
        self, weights: NDArray[np.float64], seeds: NDArray[np.uint64], positions: NDArray[np.int64], purpose: Purpose
    ) -> NDArray[np.int64]:
        """Draws in proportion to weights float64 [N, V]: int64 [N]."""
        tokens, drawn = np.arange(weights.shape[1]), np.empty(len(weights), dtype=np.int64)
        step = max(1, _CELLS // weights.shape[1])
        for start in range(0, len(weights), step):
            some = slice(start, start + step)
            waits = self.waits(self.words(seeds[some, np.newaxis], positions[some, np.newaxis], tokens, purpose))
            with np.errstate(divide="ignore"):
                drawn[some] = (waits / weights[some]).argmin(axis=1)
        return drawn


def _all_alike(temperature: NDArray[np.float32], filters: Filters) -> bool:
    parts = (temperature, filters.top_k, filters.top_p, filters.min_p)
    return all(bool((part == part[0]).all()) for part in parts)


def _part(filters: Filters, some: slice) -> Filters:
    return Filters(filters.top_k[some], filters.top_p[some], filters.min_p[some])


def mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64 bits that spreads every bit over all (the finaliser of SplitMix64; Steele, Lea, Flood 2014)."""
    state = np.atleast_1d(state).copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


# Neighbouring seeds must not trade their purposes, so these are far apart.
_SALTS = {purpose: mix(np.array([index + 1], np.uint64))[0] for index, purpose in enumerate(Purpose)}


def exponential(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """``-log(1 - u)`` for ``u = (word + 1/2) / 2**64``, accurate at both ends."""
    upper = words >= np.uint64(2**63)
    small = (np.where(upper, ~words, words).astype(np.float64) + 0.5) * 2.0**-64
    return np.where(upper, -np.log(small), -np.log1p(-small))


def scaled(logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> NDArray[np.float64]:
    """``logits / temperature`` in float64 [N, V], NaN as minus infinity; greedy rows as they are."""
    numbers = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
    return numbers / np.where(temperature > 0, temperature, 1.0).astype(np.float64)[:, np.newaxis]


def shares(logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> NDArray[np.float64]:
    """Softmax of one row at each temperature, float64 [N, V], not to be written; computed once for each of them."""
    alike = temperature.size > 0 and bool((temperature == temperature[0]).all())
    warmth, place = (temperature[:1], None) if alike else np.unique(temperature, return_inverse=True)
    values = scaled(np.broadcast_to(logits, (warmth.size, logits.size)), warmth)
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    softmax: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return np.broadcast_to(softmax, (temperature.size, logits.size)) if place is None else softmax[place]


def multinomial(probabilities: NDArray[np.float64], draws: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Counts of independent draws, int64 [V + 1], none of them outside."""
    return np.append(random.multinomial(draws, probabilities / probabilities.sum()), 0).astype(np.int64)


def key_generator(seed: int, first_position: int) -> np.random.Generator:
    """The source of a count of draws, a function of its key."""
    return np.random.default_rng([seed, first_position])
