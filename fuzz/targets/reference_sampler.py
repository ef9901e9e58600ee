"""The reference sampler on its own, as everything that :mod:`mrv2.stats.targets` knows of a sampler."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mrv2.stats.targets import Filters, Identity, Purpose

from .device_counts import counted
from .reference_noise import reference_words

if TYPE_CHECKING:
    from torch import Tensor

_COUNTED_AT_ONCE = {"cpu": 2**24, "cuda": 2**30}  # logits per launch of `count`


class ReferenceSampler:
    """The sampler of one package, the real one or a mutated copy, with the noise contract's bits as its own.

    Args:
        package: where the sampler is.
        device: ``"cpu"`` or ``"cuda"``. On a GPU, draws and counts stay there, on its current stream.
        compiled: compile the kernels for the CPU; else launches on the CPU go where the caller's scope sends them, or
            to Triton's interpreter if there is none.
    """

    keyed = True
    noise_bits = 64
    processed_logprobs = False
    serial = False

    def __init__(self, package: str = "mrv2.refrunner", device: str = "cpu", compiled: bool = False) -> None:
        self.name = "refrunner.sampling" + (" on cuda" if device == "cuda" else "")
        self._package = package
        self._device = device
        self._compiled = compiled
        self._module = self._import("sampling.gumbel")

    @property
    def block(self) -> int:
        """Tokens per partial sum of the denominator, for the largest vocabularies."""
        blocks = self._import("sampling.blocks")
        return int(blocks.CPU_BLOCK if self._device == "cpu" else blocks.GPU_BLOCK)

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.SamplerTarget`."""
        return self._tokens(lambda: self._drawn(self._table(logits, len(seeds)), temperature, seeds, positions, None))

    def count(
        self, logits: NDArray[np.float32], temperature: float, seed: int, first_position: int, draws: int
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.CountingTarget`; only the counts leave the device."""
        import torch

        row = self._tensor(np.ascontiguousarray(logits, dtype=np.float32))
        warmth = torch.full((1,), temperature, dtype=torch.float32, device=self._device)
        seeds = self._tensor(np.array([seed], dtype=np.uint64).view(np.int64))
        positions = torch.arange(draws, dtype=torch.int32, device=self._device) + first_position
        step = max(1, _COUNTED_AT_ONCE[self._device] // row.numel())
        rows = torch.zeros(min(step, draws), dtype=torch.int32, device=self._device)

        def draw(some: Tensor) -> Tensor:
            count = some.numel()
            tokens: Tensor = self._module.draw(row.expand(count, -1), rows[:count], some, warmth, seeds)[0]
            return tokens

        with self._scope():
            return counted(draw, positions, row.numel(), step)

    def identity(self) -> Identity:
        """See :class:`mrv2.stats.targets.IdentifiedTarget`: the sources of sampling and kernels, device and Triton."""
        import torch

        folder = Path(str(importlib.import_module(self._package).__file__)).parent
        sources = sorted(path for part in ("sampling", "kernels") for path in (folder / part).glob("*.py"))
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
        device = torch.cuda.get_device_name() if self._device == "cuda" else "cpu"
        return Identity(digest, device, f"triton {version('triton')}")

    def words(
        self,
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        tokens: NDArray[np.int64],
        purpose: Purpose = Purpose.TARGET,
    ) -> NDArray[np.uint64]:
        """See :class:`mrv2.stats.targets.NoiseTarget`; computed by the specification, not by the kernel."""
        return reference_words(seeds, positions, tokens, purpose)

    def noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """The kernel's own noise, float32 values in float64."""
        from .reference_noise import kernel_noise

        function = self._import("kernels.gumbel").gumbel_noise
        with self._scope():
            bits = self._tensor(np.ascontiguousarray(words).view(np.int64))
            found: NDArray[np.float64] = kernel_noise(function, bits).cpu().numpy().astype(np.float64)
        return found

    def noise_bound(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """What the kernel, when it looks for tokens that may win, takes the noise of each word to be at most."""
        from .reference_noise import kernel_bound

        function = self._import("kernels.gumbel").coarse_logarithm
        with self._scope():
            bits = self._tensor(np.ascontiguousarray(words).view(np.int64))
            found: NDArray[np.float64] = kernel_bound(function, bits).cpu().numpy()
        return found

    def noise_identity(self) -> Identity:
        """As :meth:`identity`, of the noise and its bound alone, whatever else of the sampler may change."""
        from .reference_noise import source_of

        gumbel = self._import("kernels.gumbel")
        return replace(self.identity(), kernel=source_of((gumbel.gumbel_noise, gumbel.coarse_logarithm)))

    def sample_filtered(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        filters: Filters,
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.FilteringTarget`."""

        def draw() -> Tensor:
            table = self._table(logits, len(seeds))
            return self._drawn(table, temperature, seeds, positions, self._filtered(table, temperature, filters))

        return self._tokens(draw)

    def kept(
        self, logits: NDArray[np.float32], temperature: NDArray[np.float32], filters: Filters
    ) -> NDArray[np.bool_]:
        """See :class:`mrv2.stats.targets.MaskTarget`."""
        table = self._table(logits, len(logits))
        with self._scope():
            processed = self._filtered(table, temperature, filters)
            thresholds = processed.thresholds.cpu().numpy()
        values = _divided(logits, temperature)
        filtering = processed.stages.cpu().numpy() & int(self._stages().FILTERS.value) != 0
        above = _ordered(values) >= np.where(filtering, thresholds, -(2**31))[:, np.newaxis]
        kept: NDArray[np.bool_] = above & ~np.isneginf(values) & ~np.isnan(values)
        return kept

    def logprobs(self, logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> NDArray[np.float32]:
        """See :class:`mrv2.stats.targets.LogprobTarget`."""
        tokens = np.zeros(len(logits), dtype=np.int64)
        with self._scope():
            report = self._reported(logits, tokens)
            found: NDArray[np.float32] = report.full.cpu().numpy()
        return found

    def peak_bytes(self, logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> int | None:
        """See :class:`mrv2.stats.targets.MemoryTarget`; the logits count, since the call puts them on the device."""
        import torch

        if self._device != "cuda":
            return None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.logprobs(logits, temperature)
        return torch.cuda.max_memory_allocated() - before

    def ranks(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.RankTarget`."""
        return self._tokens(lambda: self._reported(logits, tokens).ranks)

    def prompt_logprobs(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """See :class:`mrv2.stats.targets.PromptLogprobTarget`."""
        with self._scope():
            values = self._reported(logits[:-1], tokens[1:]).values[:, 0]
            found: NDArray[np.float32] = values.cpu().numpy()
        return found

    # The parts of a draw

    def _drawn(
        self,
        table: Tensor,
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        processed: Any,
    ) -> Tensor:
        import torch

        sampled = self._module.sample(
            table,
            torch.arange(len(seeds), dtype=torch.int32, device=self._device),
            self._tensor(positions.astype(np.int32)),
            self._tensor(np.ascontiguousarray(temperature, dtype=np.float32)),
            self._tensor(np.ascontiguousarray(seeds).view(np.int64)),
            processed,
        )
        tokens: Tensor = sampled.token_ids
        return tokens

    def _filtered(self, table: Tensor, temperature: NDArray[np.float32], filters: Filters) -> Any:
        """Thresholds, by the kernels that a step of the runner launches; filters alone need no copy of the logits."""
        import torch

        stages = self._stages()
        count, vocab_size = table.shape
        host_numbers = _numbers(stages, filters, count)
        numbers = self._tensor(host_numbers)
        reals = self._tensor(_reals(stages, temperature, filters, count))
        rows = torch.arange(count, dtype=torch.int32, device=self._device)
        processed = torch.empty(0, vocab_size, dtype=torch.float32, device=self._device)
        grouping = self._import("sampling.blocks").grouping_of(table.device, vocab_size)
        groups = torch.empty(count, -(-vocab_size // grouping.group), dtype=torch.int32, device=self._device)
        maxima = self._import("sampling.maxima").find_maxima(table, rows, numbers, reals, groups, grouping.group)
        needed = int(np.bitwise_or.reduce(host_numbers[:, stages.STAGES.value]))
        thresholds = self._import("sampling.filters").thresholds_of(
            table, processed, groups, rows, numbers, reals, needed, grouping
        )
        return self._module.Processed(numbers[:, int(stages.STAGES.value)], processed, thresholds, maxima)

    def _reported(self, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> Any:
        """A report of the whole vocabulary for each row."""
        import torch

        module = self._import("sampling.logprobs")
        table, count = self._table(logits, len(logits)), len(logits)
        lowest = torch.full((count,), -(2**31), dtype=torch.int32, device=self._device)
        zeros = torch.zeros(count, dtype=torch.int32, device=self._device)
        fixed = torch.zeros(count, module.MAX_LOGPROB_IDS, dtype=torch.int32, device=self._device)
        reported = module.Reported(table, lowest, module.row_statistics(table), True)
        asker = module.Asker(torch.arange(count, dtype=torch.int32, device=self._device), zeros + 1, zeros, fixed)
        return module.report_logprobs(reported, self._tensor(tokens.astype(np.int32)), asker, 1, range(count))

    # Between numpy and the device

    def _tokens(self, enqueue: Callable[[], Tensor]) -> NDArray[np.int64]:
        """Run on the device and bring integers back."""
        with self._scope():
            found: NDArray[np.int64] = enqueue().cpu().numpy().astype(np.int64)
        return found

    def _scope(self) -> AbstractContextManager[object]:
        if not self._compiled or self._device != "cpu":
            return nullcontext()
        from mrv2.checks import triton_cpu

        return triton_cpu.enabled()

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        import torch

        return torch.from_numpy(np.array(array)).to(self._device)

    def _table(self, logits: NDArray[np.float32], count: int) -> Tensor:
        """[count, V] on the device; one row for all is not copied."""
        if logits.ndim == 1:
            return self._tensor(logits).expand(count, -1)
        return self._tensor(np.ascontiguousarray(logits, dtype=np.float32))

    def _stages(self) -> ModuleType:
        return self._import("kernels.logits_processing")

    def _import(self, name: str) -> ModuleType:
        return importlib.import_module(f"{self._package}.{name}")


def _numbers(kernels: ModuleType, filters: Filters, count: int) -> NDArray[np.int32]:
    numbers = np.zeros((count, kernels.NUMBERS.value), dtype=np.int32)
    numbers[:, kernels.STAGES.value] = (
        kernels.MIN_P.value * (filters.min_p > 0)
        + kernels.TOP_K.value * (filters.top_k > 0)
        + kernels.TOP_P.value * (filters.top_p < 1)
    )
    numbers[:, kernels.COLUMN_TOP_K.value] = filters.top_k
    return numbers


def _reals(kernels: ModuleType, temperature: NDArray[np.float32], filters: Filters, count: int) -> NDArray[np.float32]:
    reals = np.zeros((count, kernels.REALS.value), dtype=np.float32)
    reals[:, kernels.TEMPERATURE.value] = temperature
    reals[:, kernels.COLUMN_TOP_P.value] = filters.top_p
    # As the runner stores it: the logarithm is taken on the host, in float64.
    reals[:, kernels.LOG_MIN_P.value] = [math.log(p) if p else -math.inf for p in filters.min_p.tolist()]
    return reals


def _divided(logits: NDArray[np.float32], temperature: NDArray[np.float32]) -> NDArray[np.float32]:
    divisor: NDArray[np.float32] = np.where(temperature > 0, temperature, np.float32(1))[:, np.newaxis]
    return (logits / divisor).astype(np.float32)


def _ordered(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """Integers in the order of the numbers, as ``kernels.order.ordered`` makes them."""
    bits = (np.where(np.isnan(values), -np.inf, values).astype(np.float32) + np.float32(0)).view(np.int32)
    ordered: NDArray[np.int32] = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ordered
