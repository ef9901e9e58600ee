"""Fourteen faults that samplers of engines had, each planted into the correct sampler by one change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..strata import log_softmax
from ..targets import Filters, Purpose, SamplerTarget
from .clean import CleanSampler, mix, multinomial
from .lattice import LatticeSampler

BLOCK = 1024  # tokens per program in the samplers that are imitated
_PADDING = 128  # vocabularies are padded to a multiple
_BATCH_OF_SORT = 8  # from this batch size on, top-k sorts


class TokensOnly:
    """Shows nothing of a sampler but its draws and counts.

    Args:
        sampler: what draws.
    """

    def __init__(self, sampler: CleanSampler) -> None:
        self.name = sampler.name
        self._sampler = sampler

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.SamplerTarget`."""
        return self._sampler.sample(logits, temperature, seeds, positions)

    def count(
        self, logits: NDArray[np.float32], temperature: float, seed: int, first_position: int, draws: int
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.CountingTarget`."""
        return self._sampler.count(logits, temperature, seed, first_position, draws)


class SharedDraftNoise(CleanSampler):
    """The token behind a rejected draft is drawn with the noise that drew the draft."""

    name = "shared draft noise"

    def recovered(
        self,
        target_p: NDArray[np.float64],
        draft_p: NDArray[np.float64],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The right weights, the wrong purpose."""
        return self.race(np.maximum(target_p - draft_p, 0.0), seeds, positions, Purpose.DRAFT)


class RecoveryFromTarget(CleanSampler):
    """The token behind a rejected draft is drawn from p, not from the positive part of p - q."""

    name = "recovery from p"

    def recovered(
        self,
        target_p: NDArray[np.float64],
        draft_p: NDArray[np.float64],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The wrong weights."""
        return self.race(target_p, seeds, positions, Purpose.RECOVER)


class TopPKeepsOneMore(CleanSampler):
    """Top-p keeps the token behind the one with which the sum reaches p."""

    name = "top-p keeps one more"

    def last_of_top_p(
        self, ranked: NDArray[np.float64], least: NDArray[np.float64], top_p: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """One place further."""
        last: NDArray[np.int64] = np.minimum(super().last_of_top_p(ranked, least, top_p) + 1, ranked.shape[1] - 1)
        return last


class TopPDropsBoundary(CleanSampler):
    """Top-p drops the token with which the sum reaches p."""

    name = "top-p drops the boundary"

    def last_of_top_p(
        self, ranked: NDArray[np.float64], least: NDArray[np.float64], top_p: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """One place less, but never none."""
        return np.maximum(super().last_of_top_p(ranked, least, top_p) - 1, 0)


class TopKTies(CleanSampler):
    """Top-k sorts large batches and cuts among equal logits there, and only there."""

    name = "top-k ties"

    def kept(
        self, logits: NDArray[np.float32], temperature: NDArray[np.float32], filters: Filters
    ) -> NDArray[np.bool_]:
        """Exactly k tokens, the lowest ids first, in batches of eight and more."""
        kept = super().kept(logits, temperature, filters)
        if len(logits) < _BATCH_OF_SORT:
            return kept
        order = np.argsort(-np.where(kept, logits, np.float32(-np.inf)), axis=1, kind="stable")
        place = np.empty_like(order)
        np.put_along_axis(place, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
        limits = np.where(filters.top_k > 0, filters.top_k, order.shape[1])
        result: NDArray[np.bool_] = kept & (place < limits[:, np.newaxis])
        return result


class PaddingSampled(CleanSampler):
    """Columns that pad the vocabulary hold zeros and are drawn from."""

    name = "padding columns sampled"

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Draws from the padded rows."""
        return super().sample(self._padded(logits), temperature, seeds, positions)

    def counts_of(
        self, logits: NDArray[np.float32], temperature: float, draws: int, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Counts of the padded row; the padding is outside the vocabulary."""
        counts = super().counts_of(self._padded(logits), temperature, draws, random)
        return np.append(counts[: logits.size], counts[logits.size :].sum()).astype(np.int64)

    def _padded(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        missing = -np.shape(logits)[-1] % _PADDING
        return np.concatenate([logits, np.zeros((*np.shape(logits)[:-1], missing), np.float32)], axis=-1)


class LostLastBlock(CleanSampler):
    """The grid has ``V // 1024`` programs, so that a last, partial block is never looked at."""

    name = "lost last block"

    def drawn(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        purpose: Purpose,
    ) -> NDArray[np.int64]:
        """Draws from the whole blocks."""
        return super().drawn(self._seen(logits), temperature, seeds, positions, purpose)

    def counts_of(
        self, logits: NDArray[np.float32], temperature: float, draws: int, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Counts of the whole blocks."""
        counts = super().counts_of(self._seen(logits), temperature, draws, random)
        return np.append(np.pad(counts[:-1], (0, logits.size + 1 - counts.size)), counts[-1]).astype(np.int64)

    def _seen(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        width = np.shape(logits)[-1]
        return logits[..., : width // BLOCK * BLOCK or width]


class RoundedTemperature(CleanSampler):
    """The temperature is held in bfloat16: 0.7 becomes 0.69921875."""

    name = "bf16 temperature"

    def drawn(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        purpose: Purpose,
    ) -> NDArray[np.int64]:
        """Draws at the rounded temperature."""
        return super().drawn(logits, bfloat16(temperature), seeds, positions, purpose)

    def counts_of(
        self, logits: NDArray[np.float32], temperature: float, draws: int, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Counts at the rounded temperature."""
        rounded = float(bfloat16(np.array([temperature], np.float32))[0])
        return multinomial(np.exp(log_softmax(logits, rounded)), draws, random)


class BroadcastSeed(CleanSampler):
    """All rows of a batch use the seed of row 0."""

    name = "seed of row 0 broadcast"

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """One seed for all."""
        return super().sample(logits, temperature, np.full_like(seeds, seeds[0]), positions)


class NarrowRowState(CleanSampler):
    """Seed and position are hashed to 32 bits before the token comes in: two rows in 77,000 share all noise."""

    name = "32-bit row state"

    def row_state(
        self, seeds: NDArray[np.uint64], positions: NDArray[np.uint64], purpose: Purpose
    ) -> NDArray[np.uint64]:
        """The lower half of the correct state."""
        return mix(super().row_state(seeds, positions, purpose) & np.uint64(0xFFFFFFFF))


class LogprobAfterTemperature(CleanSampler):
    """Log-probabilities are those of the distribution drawn from, not the model's own."""

    name = "logprob after temperature"

    def logprobs(self, logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> NDArray[np.float32]:
        """Log-softmax of the divided logits."""
        warm = np.where(temperature > 0, temperature, np.float32(1))
        pairs = zip(logits, warm.tolist(), strict=True)
        return np.stack([log_softmax(row, value) for row, value in pairs]).astype(np.float32)


class PromptLogprobOffByOne(CleanSampler):
    """Each token of a prompt is looked up in its own logits, which predict the token behind it."""

    name = "prompt logprob off by one"

    def prompt_logprobs(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Token t + 1 under row t + 1."""
        rows = np.arange(1, len(tokens))
        return self.logprobs(logits, np.ones(len(logits), np.float32))[rows, tokens[1:]]


@dataclass(frozen=True)
class Planted:
    """A fault with what an audit should make of it.

    Attributes:
        make: builds the sampler.
        layer: name of the layer that must fail.
        cause: kind of the cause that the diagnosis should name.
    """

    make: Callable[[], SamplerTarget]
    layer: str
    cause: str

    @property
    def name(self) -> str:
        """The sampler's own."""
        return self.make().name


def _noise_of_24_bits() -> SamplerTarget:
    return TokensOnly(LatticeSampler("24-bit noise", 24, clamped=False))


def _noise_of_31_bits() -> SamplerTarget:
    return TokensOnly(LatticeSampler("31-bit noise", 31, clamped=True))


PLANTED: tuple[Planted, ...] = (
    Planted(_noise_of_24_bits, "distribution", "24-bit noise"),
    Planted(_noise_of_31_bits, "distribution", "31-bit noise"),
    Planted(SharedDraftNoise, "speculative", "draft and recovered token share noise"),
    Planted(RecoveryFromTarget, "speculative", "recovered from p"),
    Planted(TopPKeepsOneMore, "filters", "top-p keeps one more"),
    Planted(TopPDropsBoundary, "filters", "top-p drops the boundary"),
    Planted(TopKTies, "filters", "top-k cuts ties"),
    Planted(PaddingSampled, "contract", "padding is drawn"),
    Planted(LostLastBlock, "contract", "last block is never drawn"),
    Planted(RoundedTemperature, "replay", "temperature rounded to bfloat16"),
    Planted(BroadcastSeed, "contract", "seed of another row"),
    Planted(NarrowRowState, "noise", "row state of 32 bits"),
    Planted(LogprobAfterTemperature, "logprobs", "log-probability after temperature"),
    Planted(PromptLogprobOffByOne, "logprobs", "log-probability of another position"),
)


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to bfloat16, nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)
