"""The inputs of a step, computed on the host from the rows of the batch and uploaded array by array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..config import RunnerConfig
from ..device import Device
from ..input_batch import BatchShape, InputBatch
from ..memory import padded
from .barrier import Draws
from .mirrored import MirroredTensor
from .persistent_batch import PersistentBatch

PAD_SLOT = -1


class StepInputs:
    """Owns the pinned input arrays and their copies on the device, whose addresses never change."""

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int, batch: PersistentBatch) -> None:
        lanes = padded(config.max_num_batched_tokens, config.pad_to)
        requests = padded(config.max_num_reqs, config.pad_to)
        self._batch, self._block_size, self._pad_to = batch, config.block_size, config.pad_to
        self._input_ids = MirroredTensor(device, (lanes,), torch.int32)
        self._positions = MirroredTensor(device, (lanes,), torch.int64)
        self._query_start_loc = MirroredTensor(device, (requests + 1,), torch.int32)
        self._seq_lens = MirroredTensor(device, (requests,), torch.int32)
        groups = len(batch.tables)
        self._slot_mapping = torch.full((groups, lanes), PAD_SLOT, dtype=torch.int64, device=device.torch_device)
        self._slots = [MirroredTensor(device, (lanes,), torch.int64, group) for group in self._slot_mapping.unbind()]
        # Where draws that the host does not know go to, and where they come from.
        self._drawn_lanes = MirroredTensor(device, (requests,), torch.int64)
        self._drawn_rows = MirroredTensor(device, (requests,), torch.int64)
        self.rows = torch.arange(requests, dtype=torch.int32, device=device.torch_device)
        self._poison = (vocab_size - 1, config.max_model_len - 1) if config.poison else None

    def build(
        self,
        counts: NDArray[np.int32] | Sequence[int],
        unknown: Sequence[int],
        draws: Draws | None,
        shape: BatchShape | None,
    ) -> InputBatch:
        """Fill the arrays for the first rows of the batch, enqueue their uploads, and return the batch.

        Args:
            counts: int32 [N], tokens to compute of each row.
            unknown: rows whose newest token only the device knows.
            draws: of the step that drew these tokens.
            shape: size with padding; by default the next multiples of ``pad_to``.
        """
        lengths = np.array(counts, dtype=np.int32)
        starts = np.cumsum([0, *lengths], dtype=np.int32)
        count, tokens = len(lengths), int(starts[-1])
        shape = shape or BatchShape(padded(tokens, self._pad_to), padded(count, self._pad_to))
        seq_lens = self._fill(lengths, starts, shape)
        for array, size in self._arrays(shape):
            array.upload(size)
        if draws is not None and unknown:
            self._fill_drawn(unknown, starts, draws)
        starts_on_device = self._query_start_loc.gpu[: shape.num_requests + 1]
        return InputBatch(
            request_ids=tuple(self._batch.names),
            num_tokens=tokens,
            host_rows=np.arange(count, dtype=np.int32),
            host_query_start_loc=np.array(self._query_start_loc.host[: shape.num_requests + 1]),
            host_seq_lens=seq_lens,
            rows=self.rows[:count],
            query_start_loc=starts_on_device,
            input_ids=self._input_ids.gpu[: shape.num_tokens],
            positions=self._positions.gpu[: shape.num_tokens],
            seq_lens=self._seq_lens.gpu[: shape.num_requests],
            block_table=self._batch.device_tables[:, : shape.num_requests],
            slot_mapping=self._slot_mapping[:, : shape.num_tokens],
            host_logit_bounds=np.arange(count + 1, dtype=np.int32),
            logit_lanes=starts_on_device[1 : count + 1] - 1,
            logit_rows=self.rows[:count],
            logit_bounds=None,
            logit_offsets=None,
            sample_positions=self._seq_lens.gpu[:count],
        )

    def _arrays(self, shape: BatchShape) -> list[tuple[MirroredTensor, int]]:
        """What is uploaded in every step, and how much of it: all rows of the block tables, whatever changed."""
        lanes, requests = shape.num_tokens, shape.num_requests
        by_request = [(table, requests) for table in self._batch.tables]
        by_lane = [(array, lanes) for array in (self._input_ids, self._positions, *self._slots)]
        return [*by_request, *by_lane, (self._query_start_loc, requests + 1), (self._seq_lens, requests)]

    def _fill(self, lengths: NDArray[np.int32], starts: NDArray[np.int32], shape: BatchShape) -> NDArray[np.int64]:
        """Write all arrays; returns the length of each sequence after the step, int64 [padded N]."""
        count, tokens = len(lengths), int(starts[-1])
        computed = self._batch.num_computed[:count]
        row_of_lane = np.repeat(np.arange(count), lengths)
        positions = computed[row_of_lane] + np.arange(tokens) - np.repeat(starts[:-1], lengths)
        self._input_ids.host[:tokens] = self._batch.token_ids[row_of_lane, positions]
        self._positions.host[:tokens] = positions
        places, offsets = positions // self._block_size, positions % self._block_size
        for slots, table in zip(self._slots, self._batch.tables, strict=True):
            slots.host[:tokens] = table.host[row_of_lane, places].astype(np.int64) * self._block_size + offsets
            slots.host[tokens : shape.num_tokens].fill(PAD_SLOT)
        self._query_start_loc.host[: count + 1] = starts
        self._query_start_loc.host[count + 1 : shape.num_requests + 1].fill(tokens)
        seq_lens = np.zeros(shape.num_requests, dtype=np.int64)
        seq_lens[:count] = computed + lengths
        self._seq_lens.host[: shape.num_requests] = seq_lens
        if self._poison is not None:
            self._input_ids.host[tokens : shape.num_tokens].fill(self._poison[0])
            self._positions.host[tokens : shape.num_tokens].fill(self._poison[1])
        return seq_lens

    def _fill_drawn(self, unknown: Sequence[int], starts: NDArray[np.int32], draws: Draws) -> None:
        """Enqueue the copy of tokens from the last draws to the lanes that they belong to."""
        names = self._batch.names
        lanes = [int(starts[row + 1]) - 1 for row in unknown]
        rows = [draws.requests[names[row]][1] for row in unknown]
        count, ids = len(lanes), self._input_ids.gpu
        if lanes == rows == list(range(count)):  # a decode like the one before
            ids[:count].copy_(draws.tokens[:count])
            return
        self._drawn_lanes.host[:count] = lanes
        self._drawn_rows.host[:count] = rows
        tokens = draws.tokens.index_select(0, self._drawn_rows.upload(count))
        ids.index_copy_(0, self._drawn_lanes.upload(count), tokens)
