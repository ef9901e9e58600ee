"""Drafting and verification of the reference runner without a model, as a target of the sampler audit."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrv2.stats.targets import SpeculativeDraws

#: Requests in one launch of the kernels.
REQUESTS = 4096
#: Of so many requests in a batch one is a stranger.
STRANGERS = 8


class ReferenceSpeculation:
    """Rejection sampling of the reference runner as a :class:`mrv2.stats.targets.SpeculativeTarget`.

    Every draw is a request of its own in one batch: its drafts are drawn by the runner's kernel, one after another,
    then all are verified at once, so one call makes thousands of draws a launch.

    Args:
        verification: ``"token"`` or ``"block"``.
        package: the runner's, or that of a mutated copy.
        device: where the kernels run.
    """

    name = "refrunner.speculation"

    def __init__(self, verification: str = "token", package: str = "mrv2.refrunner", device: str = "cpu") -> None:
        self._package = package
        self._verification = verification
        self._device = device
        self.own_acceptance = verification == "block"

    def speculate(
        self,
        target_logits: NDArray[np.float32],
        draft_logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> SpeculativeDraws:
        """See the protocol."""
        parts = []
        for start in range(0, len(seeds), REQUESTS):
            chosen = slice(start, start + REQUESTS)
            batch = _Batch(self._part, self._verification, self._device, target_logits, draft_logits)
            parts.append(batch.run(temperature[chosen], seeds[chosen], positions[chosen]))
        drafts, emitted = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return SpeculativeDraws(drafts, emitted)

    def _part(self, module: str) -> Any:
        return importlib.import_module(f"{self._package}.{module}")


class _Batch:
    """N requests of one draw each among strangers, and what the kernels read of them.

    A stranger has other logits and another temperature, and the batch is in another order than the rows of the state
    table: a kernel that reads what is another request's draws from another distribution.
    """

    def __init__(
        self,
        part: Any,
        verification: str,
        device: str,
        target_logits: NDArray[np.float32],
        draft_logits: NDArray[np.float32],
    ) -> None:
        import torch

        self._torch, self._part, self._verification = torch, part, verification
        self._device = torch.device(device)
        self._target = torch.from_numpy(np.array(target_logits, dtype=np.float32)).to(self._device)
        self._draft = torch.from_numpy(np.array(draft_logits, dtype=np.float32)).to(self._device)
        self._drafts, self._vocab_size = draft_logits.shape

    def run(
        self, temperature: NDArray[np.float32], seeds: NDArray[np.uint64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Drafts [N, k] and emitted tokens [N, k + 1]."""
        draws = np.arange(len(seeds))
        places = draws + draws // (STRANGERS - 1) + 1
        count = int(places[-1]) + 1
        of_draw = np.clip(np.arange(count) - np.arange(count) // STRANGERS - 1, 0, None)
        strange = np.arange(count) % STRANGERS == 0
        self._strange = self._on_device(np.flatnonzero(strange))
        temperature, seeds, positions = temperature[of_draw], seeds[of_draw], positions[of_draw]
        temperature = np.where(strange, temperature / 2, temperature).astype(np.float32)
        tables = self._tables(temperature[::-1], seeds[::-1])
        states = self._states(positions[::-1])
        batch = self._inputs(count, positions)
        verifier = self._verifier(count)
        for offset in range(self._drafts):
            self._propose(offset, count, tables, states, batch, verifier)
        columns = self._on_device(positions[::-1])[:, None] + self._torch.arange(self._drafts, device=self._device)
        drafts = states.token_ids.gather(1, columns).cpu().numpy().astype(np.int64)[::-1]
        emitted = self._verify(count, tables, states, batch, verifier)
        return drafts[places], emitted[places]

    def _on_device(self, values: NDArray[Any], kind: str = "int64") -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(values).astype(kind)).to(self._device)

    def _tables(self, temperature: NDArray[np.float32], seeds: NDArray[np.uint64]) -> SimpleNamespace:
        stages = self._torch.zeros(len(seeds), dtype=self._torch.int32, device=self._device)
        seeds = np.ascontiguousarray(seeds).view(np.int64)
        return SimpleNamespace(
            temperature=self._on_device(temperature, "float32"), seeds=self._on_device(seeds), stages=stages
        )

    def _states(self, positions: NDArray[np.int64]) -> SimpleNamespace:
        """Known tokens end at each position, and all but the last are computed.

        The token table is as wide as the positions differ: row r has its column p at r * width + p, so that whatever
        lies before all positions takes no memory for each row.
        """
        width = int(np.ptp(positions)) + self._drafts + 2
        size = len(positions) * width + int(positions.max()) + self._drafts + 2
        memory = self._torch.zeros(size, dtype=self._torch.int32, device=self._device)
        total = self._on_device(positions, "int32")
        return SimpleNamespace(
            token_ids=memory.as_strided((len(positions), int(positions.max()) + self._drafts + 1), (width, 1)),
            total_len=total,
            num_computed=total - 1,
            num_drafts=self._torch.zeros_like(total),
        )

    def _inputs(self, count: int, positions: NDArray[np.int64]) -> SimpleNamespace:
        rows, size = np.arange(count)[::-1], self._drafts + 1
        bounds = self._on_device(np.arange(count + 1) * size, "int32")
        return SimpleNamespace(
            num_requests=count,
            num_logits=count * size,
            rows=self._on_device(rows, "int32"),
            query_start_loc=bounds,
            logit_bounds=bounds,
            logit_rows=self._on_device(np.repeat(rows, size), "int32"),
            logit_offsets=self._on_device(np.tile(np.arange(size), count), "int32"),
            sample_positions=self._on_device((positions[:, None] + np.arange(size)).reshape(-1), "int32"),
        )

    def _of_each(self, logits: Any, count: int) -> Any:
        """Rows [n, V] of every request of the batch, [count * n, V]; those of strangers the other way round."""
        every = logits.repeat(count, 1, 1)
        every[self._strange] = logits.flip(1)
        return every.flatten(0, 1)

    def _verifier(self, count: int) -> Any:
        config = SimpleNamespace(
            drafts=self._drafts, verification=self._verification, draws_drafts=True, max_num_reqs=count
        )
        device = SimpleNamespace(torch_device=self._device)
        return self._part("speculation.verification").Verifier(config, device, self._vocab_size)

    def _propose(
        self, offset: int, count: int, tables: Any, states: Any, batch: SimpleNamespace, verifier: Any
    ) -> None:
        logits = self._of_each(self._draft[offset : offset + 1], count)
        drawing = self._part("speculation.drawing")
        every = self._torch.ones(count, dtype=self._torch.int32, device=self._device)
        drawing.draw_draft(logits, offset, every, batch.rows, tables, states, verifier.draft_logits)

    def _verify(self, count: int, tables: Any, states: Any, batch: Any, verifier: Any) -> NDArray[np.int64]:
        gumbel, logprobs = self._part("sampling.gumbel"), self._part("sampling.logprobs")
        logits = self._of_each(self._target, count)
        sampled = gumbel.sample(logits, batch.logit_rows, batch.sample_positions, tables.temperature, tables.seeds)
        processed = gumbel.Processed(tables.stages, logits, tables.stages)
        reported = logprobs.Reported(logits, tables.stages, sampled.statistics, True)
        num_emitted = verifier.verify(logits, processed, sampled, reported, tables, batch, states)
        tokens = sampled.token_ids.view(count, -1).cpu().numpy().astype(np.int64)
        return np.where(np.arange(self._drafts + 1) < num_emitted.cpu().numpy()[:, None], tokens, -1)
