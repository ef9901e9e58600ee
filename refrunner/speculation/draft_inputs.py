"""The batches of a draft model: their buffers, and the kernel that fills them from the state table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..block_tables import BlockTables
from ..config import RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..kernels.drafting import prepare_draft_inputs
from ..memory import draft_capacity
from ..request_states import RequestStates
from ..staging import PackedUpload

LANES = 64


class DraftInputs:
    """Buffers of the draft model's batches; their addresses never change.

    Written on the main stream by ``prepare_draft_inputs``: token ids int32 [D], positions and slots int64 [D], sequence
    lengths int32 [N'] and bounds int32 [N' + 1].

    Attributes:
        starts: int32 [N + 1] on the device, lanes of each request in the first pass.
        last_lanes: int64 [N] on the device, the last of them.
        enters: int32 [N] on the device, whether a request computes its first tokens since it got its row.
        num_blocks: int32 [N] on the device, length of its block table.
    """

    starts: Tensor
    last_lanes: Tensor
    enters: Tensor
    num_blocks: Tensor

    def __init__(self, config: RunnerConfig, device: Device, tables: BlockTables) -> None:
        self._config, self._tables = config, tables
        lanes, requests, place = *draft_capacity(config), device.torch_device
        self._input_ids = torch.zeros(lanes, dtype=torch.int32, device=place)
        self._positions = torch.zeros(lanes, dtype=torch.int64, device=place)
        self._slots = torch.zeros(1, lanes, dtype=torch.int64, device=place)
        self._seq_lens = torch.zeros(requests, dtype=torch.int32, device=place)
        self._bounds = torch.zeros(requests + 1, dtype=torch.int32, device=place)
        self._entering: set[int] = set()
        self._tickets: tuple[int, ...] = ()
        self._host_starts: NDArray[np.int32] = np.zeros(1, dtype=np.int32)

    def add(self, row: int) -> None:
        """A request has got this row."""
        self._entering.add(row)

    def plan(self, lanes: Sequence[int], rows: NDArray[np.int32], upload: PackedUpload) -> None:
        """Add what the first pass needs to the step's upload.

        Args:
            lanes: of each request.
            rows: int32 [N], row of each request.
        """
        self._host_starts = np.cumsum([0, *lanes]).astype(np.int32)
        enters = np.array([row in self._entering for row in rows.tolist()], dtype=np.int32)
        self._entering.difference_update(rows.tolist())
        num_blocks = np.ascontiguousarray(self._tables.num_blocks[0, rows])
        arrays = (self._host_starts, self._host_starts[1:].astype(np.int64) - 1, enters, num_blocks)
        self._tickets = tuple(upload.add(array) for array in arrays)

    def take(self, upload: PackedUpload) -> None:
        """The upload is on its way; what was planned can be viewed."""
        self.starts, self.last_lanes, self.enters, self.num_blocks = map(upload.view, self._tickets)

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """What graphs may read."""
        return (self._input_ids, self._positions, self._slots, self._seq_lens, self._bounds, self._tables.batch_table)

    @property
    def num_lanes(self) -> int:
        """Lanes of the first pass."""
        return int(self._host_starts[-1])

    def all_have(self, lanes: int) -> bool:
        """Whether every request has so many lanes in the first pass."""
        return bool((np.diff(self._host_starts) == lanes).all())

    def ragged_pass(self, batch: InputBatch, num_emitted: Tensor, states: RequestStates) -> InputBatch:
        """The batch of a first pass with the lanes that were planned; one launch."""
        count = batch.num_requests
        self._fill(batch, num_emitted, states, 0, count, 0)
        return self._view(batch, self.num_lanes, count, self._host_starts, 1)

    def uniform_pass(
        self, batch: InputBatch, num_emitted: Tensor, states: RequestStates, ahead: int, lanes: int, requests: int
    ) -> InputBatch:
        """The batch of a pass with so many lanes for each request; one launch.

        Args:
            ahead: drafts so far.
            lanes: the newest token or draft, and known ones before it.
            requests: N', with padding.
        """
        self._fill(batch, num_emitted, states, ahead, requests, lanes)
        starts = (lanes * np.minimum(np.arange(requests + 1), batch.num_requests)).astype(np.int32)
        return self._view(batch, lanes * requests, requests, starts, 1 + ahead)

    def _fill(
        self, batch: InputBatch, num_emitted: Tensor, states: RequestStates, ahead: int, requests: int, lanes: int
    ) -> None:
        table = self._tables.batch_table[0]
        prepare_draft_inputs[(requests,)](
            batch.rows, self.starts, num_emitted, states.num_computed, states.total_len,
            states.token_ids, states.token_ids.stride(0), table, table.stride(0), self.num_blocks,
            self._input_ids, self._positions, self._slots, self._seq_lens, self._bounds,
            batch.num_requests, ahead, self._config.max_model_len,
            LANES=lanes, BLOCK_SIZE=self._config.block_size, BLOCK=LANES,
        )  # fmt: skip

    def _view(self, batch: InputBatch, lanes: int, requests: int, starts: NDArray[np.int32], beyond: int) -> InputBatch:
        """What attention reads of the batch. The host's lengths are upper bounds, as in the target's."""
        longest = np.minimum(batch.host_seq_lens[: batch.num_requests] + beyond, self._config.max_model_len)
        seq_lens = np.zeros(requests, dtype=np.int64)
        seq_lens[: batch.num_requests] = longest
        return replace(
            batch,
            num_tokens=lanes,
            host_query_start_loc=starts,
            host_seq_lens=seq_lens,
            query_start_loc=self._bounds[: requests + 1],
            input_ids=self._input_ids[:lanes],
            positions=self._positions[:lanes],
            seq_lens=self._seq_lens[:requests],
            block_table=self._tables.batch_table[:1, :requests],
            slot_mapping=self._slots[:, :lanes],
        )
