"""Samplers that are no runner's: the oracle, any function, and two ways to draw that torch offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mrv2.refrunner.oracle import sampling as specification
from mrv2.refrunner.oracle.noise import exponential
from mrv2.refrunner.sampling_params import SamplingParams
from mrv2.stats.strata import log_softmax
from mrv2.stats.targets import Filters, Purpose

if TYPE_CHECKING:
    import torch

    Draw = Callable[[torch.Tensor, int, torch.Generator], torch.Tensor]

SampleFunction = Callable[
    [NDArray[np.float32], NDArray[np.float32], NDArray[np.uint64], NDArray[np.int64]], NDArray[np.int64]
]


class CallableSampler:
    """A function with the arguments of :meth:`mrv2.stats.targets.SamplerTarget.sample`.

    Args:
        function: from logits, temperatures, seeds and positions to tokens.
        name: shown in reports; the function's own by default.
        keyed: whether a token is a function of its own row, seed and position.
    """

    def __init__(self, function: SampleFunction, name: str = "", keyed: bool = True) -> None:
        self.name = name or str(getattr(function, "__qualname__", function))
        self.keyed = keyed
        self._function = function

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See the protocol; what the function answers is checked by the audit."""
        return self._function(logits, temperature, seeds, positions)


class OracleSampler:
    """The specification in float64: slow, exact, and sharing no code with the sampler but its noise contract."""

    name = "oracle"
    keyed = True
    noise_bits = 64
    processed_logprobs = False
    serial = False
    block = 2**30

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.SamplerTarget`."""
        return self.sample_filtered(logits, temperature, seeds, positions, Filters.same(len(seeds)))

    def sample_filtered(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        filters: Filters,
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.FilteringTarget`."""
        rows = np.broadcast_to(logits, (len(seeds), np.shape(logits)[-1]))
        drawn = np.empty(len(seeds), dtype=np.int64)
        tokens = np.arange(rows.shape[1])
        for index, row in enumerate(rows):
            kept = self._kept(row, float(temperature[index]), _parameters(filters, index))
            scores = _scaled(row, float(temperature[index]))
            if temperature[index] > 0:
                key = seeds[index : index + 1], positions[index : index + 1]
                scores = scores + self.noise(self.words(*key, tokens))
            drawn[index] = int(np.where(kept, scores, -np.inf).argmax())
        return drawn

    def kept(
        self, logits: NDArray[np.float32], temperature: NDArray[np.float32], filters: Filters
    ) -> NDArray[np.bool_]:
        """See :class:`mrv2.stats.targets.MaskTarget`."""
        rows = [
            self._kept(row, float(temperature[index]), _parameters(filters, index)) for index, row in enumerate(logits)
        ]
        return np.stack(rows)

    def words(
        self,
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        tokens: NDArray[np.int64],
        purpose: Purpose = Purpose.TARGET,
    ) -> NDArray[np.uint64]:
        """See :class:`mrv2.stats.targets.NoiseTarget`."""
        from .reference_noise import reference_words

        return reference_words(seeds, positions, tokens, purpose)

    def noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Gumbel noise in float64."""
        return -np.log(exponential(words))

    def logprobs(self, logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> NDArray[np.float32]:
        """See :class:`mrv2.stats.targets.LogprobTarget`."""
        return np.stack([log_softmax(row, 1.0) for row in logits]).astype(np.float32)

    def ranks(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.RankTarget`."""
        own = np.take_along_axis(logits, tokens[:, np.newaxis], axis=1)
        ranks: NDArray[np.int64] = 1 + (logits > own).sum(axis=1)
        return ranks

    def prompt_logprobs(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """See :class:`mrv2.stats.targets.PromptLogprobTarget`."""
        return self.logprobs(logits[:-1], np.ones(len(logits) - 1, np.float32))[np.arange(len(logits) - 1), tokens[1:]]

    def _kept(self, row: NDArray[np.float32], temperature: float, parameters: SamplingParams) -> NDArray[np.bool_]:
        scaled = _scaled(row, temperature).astype(np.float32)
        kept: NDArray[np.bool_] = specification.filtered(scaled, parameters).surely
        return kept


class TorchSampler:
    """Draws with a generator of torch; the keys of a call only seed it, so a token depends on the whole batch.

    Args:
        name: shown in reports.
        draw: from probabilities float32 [N, V], a number of draws n and a generator to tokens int64 [N, n].
    """

    keyed = False

    def __init__(self, name: str, draw: Draw) -> None:
        self.name = name
        self._draw = draw

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.SamplerTarget`."""
        import torch

        rows = np.broadcast_to(logits, (len(seeds), np.shape(logits)[-1]))
        numbers = torch.from_numpy(np.where(np.isnan(rows), -np.inf, rows).astype(np.float32))
        warm = torch.from_numpy(temperature > 0)
        tokens = numbers.argmax(dim=1)
        if warm.any():
            scaled = numbers[warm] / torch.from_numpy(temperature[temperature > 0])[:, None]
            tokens[warm] = self._draw(torch.softmax(scaled, dim=1), 1, _generator(seeds, positions))[:, 0]
        drawn: NDArray[np.int64] = tokens.numpy()
        return drawn

    def count(
        self, logits: NDArray[np.float32], temperature: float, seed: int, first_position: int, draws: int
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.CountingTarget`."""
        import torch

        row = torch.softmax(torch.from_numpy(np.array(logits, dtype=np.float32)) / temperature, dim=0)[None]
        generator = _generator(np.array([seed], np.uint64), np.array([first_position]))
        counts = np.zeros(row.shape[1] + 1, dtype=np.int64)
        step = 2**16 if self.name == "torch.multinomial" else max(1, 2**24 // row.shape[1])
        for start in range(0, draws, step):
            tokens = self._draw(row, min(step, draws - start), generator)
            counts += np.bincount(tokens.flatten().numpy(), minlength=counts.size)
        return counts


def multinomial_sampler() -> TorchSampler:
    """``torch.multinomial`` with replacement."""
    import torch

    return TorchSampler(
        "torch.multinomial",
        lambda shares, draws, generator: torch.multinomial(shares, draws, replacement=True, generator=generator),
    )


def exponential_race_sampler() -> TorchSampler:
    """The largest of p / e for independent exponential e: what many engines draw with, in float32."""
    import torch

    def race(shares: torch.Tensor, draws: int, generator: torch.Generator) -> torch.Tensor:
        waits = torch.empty(len(shares), draws, shares.shape[1]).exponential_(generator=generator)
        return (shares[:, None] / waits).argmax(dim=-1)

    return TorchSampler("exponential race", race)


def _generator(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> torch.Generator:
    import torch

    state = np.random.SeedSequence([*seeds.tolist(), *positions.tolist()]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def _scaled(row: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    numbers = np.where(np.isnan(row), -np.inf, row).astype(np.float64)
    scaled: NDArray[np.float64] = numbers / temperature if temperature > 0 else numbers
    return scaled


def _parameters(filters: Filters, index: int) -> SamplingParams:
    return SamplingParams(
        temperature=1.0,
        top_k=int(filters.top_k[index]),
        top_p=float(filters.top_p[index]),
        min_p=float(filters.min_p[index]),
    )
