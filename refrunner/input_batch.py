"""The step's inputs, gathered on the device from the state table in the order of the batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .block_tables import VIEWS, BlockTables
from .config import RunnerConfig
from .device import Device
from .kernels.input_prep import prepare_inputs
from .kernels.speculation import locate_logits
from .kv_groups import FULL_ATTENTION
from .memory import padded
from .request_states import RequestStates
from .scheduled import Scheduled
from .staging import PackedUpload

LANES = 256


@dataclass(frozen=True)
class InputBatch:
    """What the model and the sampler read in one step. N requests and T lanes are real, the rest is padding.

    Device tensors are written on the main stream before the forward pass and stay valid until the next step.

    Attributes:
        request_ids: the N requests, in the order of the batch.
        num_tokens: T.
        host_rows: int32 [N], row of each request.
        host_query_start_loc: int32 [padded N + 1], prefix sums of scheduled tokens; padding requests have none.
        host_seq_lens: int64 [padded N], length of each sequence after this step; an upper bound of ``seq_lens``.
        rows: int32 [N].
        query_start_loc: int32 [padded N + 1].
        input_ids: int32 [padded T].
        positions: int64 [padded T].
        seq_lens: int32 [padded N]; 0 for padding requests.
        block_table: int32 [G, padded N, B], one table for each KV group.
        slot_mapping: int64 [G, padded T]; -1 for padding lanes.
        host_logit_bounds: int32 [N + 1], rows of logits of each request: one, and one more for each draft.
        logit_lanes: int32 [M], lanes whose logits are sampled, the last ones of each request.
        logit_rows: int32 [M], row of the state table that each of them belongs to.
        logit_bounds: int32 [N + 1], the same bounds on the device; None without speculation, as all below.
        logit_offsets: int32 [M], drafts of the request before each row of logits.
        sample_positions: int32 [M], number of tokens before the one drawn, drafts included; never None.
    """

    request_ids: tuple[str, ...]
    num_tokens: int
    host_rows: NDArray[np.int32]
    host_query_start_loc: NDArray[np.int32]
    host_seq_lens: NDArray[np.int64]
    rows: Tensor
    query_start_loc: Tensor
    input_ids: Tensor
    positions: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    host_logit_bounds: NDArray[np.int32]
    logit_lanes: Tensor
    logit_rows: Tensor
    logit_bounds: Tensor | None
    logit_offsets: Tensor | None
    sample_positions: Tensor

    @property
    def num_requests(self) -> int:
        """N."""
        return len(self.request_ids)

    @property
    def num_logits(self) -> int:
        """M, rows of logits that are sampled."""
        return int(self.host_logit_bounds[-1])

    def sampled_states(self, hidden: Tensor) -> Tensor:
        """The hidden states, of all lanes [padded T, H], whose logits are sampled: [M, H].

        Where each request has one lane, as in a decode, those are all real ones, and nothing need be gathered.
        """
        if self.num_tokens == self.num_requests:
            return hidden[: self.num_tokens]
        return hidden.index_select(0, self.logit_lanes)


@dataclass(frozen=True)
class BatchShape:
    """Size of a batch with its padding: what a captured graph has fixed.

    Attributes:
        num_tokens: lanes, at least as many as the step schedules tokens.
        num_requests: requests, at least as many as the step schedules.
    """

    num_tokens: int
    num_requests: int


@dataclass(frozen=True)
class BatchLayout:
    """Host arrays of one batch, and their tickets in the upload."""

    scheduled: Scheduled
    query_start_loc: NDArray[np.int32]
    seq_lens: NDArray[np.int64]
    logit_bounds: NDArray[np.int32]
    padded_tokens: int
    tickets: dict[str, int]


@dataclass(frozen=True)
class _Parts:
    """What a batch uses of the persistent buffers; ``drawn`` is ``seq_lens`` without its padding."""

    query_start_loc: Tensor
    input_ids: Tensor
    positions: Tensor
    seq_lens: Tensor
    drawn: Tensor
    slot_mapping: Tensor


class InputBatchBuilder:
    """Owns the persistent input buffers and fills them step by step.

    ``plan`` runs on the host and adds to the upload; ``build``, after the upload, enqueues the kernels. Buffers
    keep their addresses for the life of the runner, as captured graphs will need.
    """

    def __init__(
        self,
        config: RunnerConfig,
        device: Device,
        vocab_size: int,
        windows: Sequence[int] = (FULL_ATTENTION,),
    ) -> None:
        self._config = config
        tokens = padded(config.max_num_batched_tokens, config.pad_to)
        requests = padded(config.max_num_reqs, config.pad_to)
        self._input_ids = torch.zeros(tokens, dtype=torch.int32, device=device.torch_device)
        self._positions = torch.zeros(tokens, dtype=torch.int64, device=device.torch_device)
        self._seq_lens = torch.zeros(requests, dtype=torch.int32, device=device.torch_device)
        self._query_start_loc = torch.zeros(requests + 1, dtype=torch.int32, device=device.torch_device)
        self.block_tables = BlockTables(config, device, tokens, requests, windows)
        self._cut = functools.lru_cache(maxsize=VIEWS)(self._cutter())
        if config.drafts:
            self._sample_positions = torch.zeros(config.max_logits, dtype=torch.int32, device=device.torch_device)
        if config.poison:
            # Valid ids, since the embedding reads padding lanes too; written once, refreshed by no kernel.
            self._poison_token, self._poison_position = vocab_size - 1, config.max_model_len - 1

    def plan(
        self,
        scheduled: Scheduled,
        upload: PackedUpload,
        shape: BatchShape | None = None,
    ) -> BatchLayout:
        """Lay the batch out on the host and add its arrays to the upload.

        Args:
            scheduled: its requests, in order.
            shape: size with padding; by default the next multiples of ``pad_to``.
        """
        rows, lengths, tokens = scheduled.rows, scheduled.counts, scheduled.num_tokens
        shape = shape or self._padded(len(rows), tokens)
        query_start_loc = np.full(shape.num_requests + 1, tokens, dtype=np.int32)
        query_start_loc[: len(rows) + 1] = bounds_of(lengths)
        seq_lens = np.zeros(shape.num_requests, dtype=np.int64)
        seq_lens[: len(rows)] = scheduled.computed + lengths
        arrays: dict[str, NDArray[np.generic]] = {
            "rows": rows,
            "query_start_loc": query_start_loc,
            "num_blocks": self.block_tables.num_blocks[:, rows],
        }
        bounds = bounds_of(1 + scheduled.drafts)
        arrays |= self._logit_arrays(rows, query_start_loc[1 : len(rows) + 1], scheduled.drafts, bounds)
        tickets = {name: upload.add(array) for name, array in arrays.items()}
        return BatchLayout(scheduled, query_start_loc, seq_lens, bounds, shape.num_tokens, tickets)

    def _logit_arrays(
        self,
        rows: NDArray[np.int32],
        ends: NDArray[np.int32],
        drafts: NDArray[np.int32],
        bounds: NDArray[np.int32],
    ) -> dict[str, NDArray[np.generic]]:
        """Which lanes are sampled, and for whom: of each request those of its drafts, and the one before them."""
        if not self._config.drafts:
            return {"logit_lanes": ends - 1}
        counts = 1 + drafts
        offsets = (np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts)).astype(np.int32)
        return {
            "logit_lanes": np.repeat(ends - counts, counts) + offsets,
            "logit_rows": np.repeat(rows, counts),
            "logit_bounds": bounds,
            "logit_offsets": offsets,
        }

    def build(self, layout: BatchLayout, states: RequestStates, upload: PackedUpload) -> InputBatch:
        """Enqueue the gather kernels and return the batch."""
        views = {name: upload.view(ticket) for name, ticket in layout.tickets.items()}
        rows, query_start_loc, num_blocks = views["rows"], views["query_start_loc"], views["num_blocks"]
        scheduled = layout.scheduled
        count, requests = len(scheduled.rows), len(layout.seq_lens)
        self._poison_padding(int(layout.query_start_loc[-1]))
        prepare_inputs[(requests,)](
            rows, query_start_loc, states.num_computed, states.total_len, states.last_sampled,
            states.token_ids, states.token_ids.stride(0), states.prompts, states.in_place, self._input_ids,
            self._positions, self._seq_lens, self._query_start_loc, count, self._config.max_model_len, BLOCK=LANES,
        )  # fmt: skip
        states.gathered(scheduled.rows, scheduled.computed)
        block_table = self.block_tables.prepare(
            rows, query_start_loc, num_blocks, states.num_computed, count, requests
        )  # fmt: skip
        parts = self._cut(count, requests, layout.padded_tokens)
        return InputBatch(
            request_ids=scheduled.request_ids,
            num_tokens=int(layout.query_start_loc[-1]),
            host_rows=scheduled.rows,
            host_query_start_loc=layout.query_start_loc,
            host_seq_lens=layout.seq_lens,
            rows=rows,
            query_start_loc=parts.query_start_loc,
            input_ids=parts.input_ids,
            positions=parts.positions,
            seq_lens=parts.seq_lens,
            block_table=block_table,
            slot_mapping=parts.slot_mapping,
            host_logit_bounds=layout.logit_bounds,
            logit_lanes=views["logit_lanes"],
            logit_rows=views.get("logit_rows", rows),
            logit_bounds=views.get("logit_bounds"),
            logit_offsets=views.get("logit_offsets"),
            sample_positions=self._positions_of_logits(count, views, parts),
        )

    def _cutter(self) -> Callable[[int, int, int], _Parts]:
        """What cuts out the parts for so many requests, without padding and with it, and lanes."""
        starts, ids, positions, lengths = self._query_start_loc, self._input_ids, self._positions, self._seq_lens
        slots = self.block_tables.slot_mapping

        def cut(count: int, requests: int, tokens: int) -> _Parts:
            return _Parts(
                starts[: requests + 1], ids[:tokens], positions[:tokens], lengths[:requests], lengths[:count],
                slots[:, :tokens],
            )  # fmt: skip

        return cut

    def _positions_of_logits(self, count: int, views: dict[str, Tensor], parts: _Parts) -> Tensor:
        """Number of tokens before each drawn one; without drafts that is where the step ends."""
        if not self._config.drafts:
            return parts.drawn
        locate_logits[(count,)](views["logit_bounds"], self._seq_lens, self._sample_positions)
        return self._sample_positions[: len(views["logit_rows"])]

    def _padded(self, requests: int, tokens: int) -> BatchShape:
        return BatchShape(padded(tokens, self._config.pad_to), padded(requests, self._config.pad_to))

    def _poison_padding(self, num_tokens: int) -> None:
        if self._config.poison:
            self._input_ids[num_tokens:].fill_(self._poison_token)
            self._positions[num_tokens:].fill_(self._poison_position)


def bounds_of(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where each of several parts begins, and the end of the last one."""
    bounds = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=bounds[1:])
    return bounds
