"""Which KV blocks hold the keys and values of each request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .config import RunnerConfig
from .device import Device
from .kernels.block_table import compute_slot_mapping, gather_block_tables
from .staging import PackedUpload, StagedWriteTensor

LANES = 256


class BlockTables:
    """Block table of every row (one KV group), and its view in the order of the batch.

    Attributes:
        batch_table: int32 [R, B] on the device; row i belongs to request i of the batch. Entries beyond a request's
            block count are stale. Written on the main stream by ``gather``; its address never changes.
        slot_mapping: int64 [max_num_batched_tokens padded] on the device; -1 for padding lanes.
        num_blocks: int32 [R] on the host.
    """

    def __init__(self, config: RunnerConfig, device: Device, max_lanes: int, max_batch: int) -> None:
        columns = config.max_blocks_per_request
        self._table = StagedWriteTensor(config.max_num_reqs, columns, torch.int32, device, "block table")
        self._block_size = config.block_size
        self.batch_table = torch.zeros(max_batch, columns, dtype=torch.int32, device=device.torch_device)
        self.slot_mapping = torch.full((max_lanes,), -1, dtype=torch.int64, device=device.torch_device)
        self.num_blocks: NDArray[np.int32] = np.zeros(config.max_num_reqs, dtype=np.int32)
        self._blocks_of_row: dict[int, list[int]] = {}

    def append(self, row: int, blocks: Sequence[int]) -> None:
        """Stage further blocks at the end of a row."""
        self._table.stage_write(row, int(self.num_blocks[row]), blocks)
        self._blocks_of_row.setdefault(row, []).extend(blocks)
        self.num_blocks[row] += len(blocks)

    def clear(self, row: int) -> list[int]:
        """Forget a row's blocks when its request leaves, and say which they were."""
        self.num_blocks[row] = 0
        return self._blocks_of_row.pop(row, [])

    def blocks_of(self, row: int) -> tuple[int, ...]:
        """Blocks of a row as the host knows them."""
        return tuple(self._blocks_of_row.get(row, ()))

    def device_table(self) -> Tensor:
        """int32 [R, B] on the device, by row."""
        return self._table.gpu

    def pack(self, upload: PackedUpload) -> None:
        """Add the staged blocks to the step's upload."""
        self._table.pack(upload)

    def apply(self, upload: PackedUpload) -> None:
        """Scatter them on the device."""
        self._table.apply(upload)

    def gather(self, rows: Tensor, num_blocks: Tensor, num_requests: int, padded_requests: int) -> Tensor:
        """Block tables in batch order.

        Args:
            rows: int32 [N], on the device.
            num_blocks: int32 [N], on the device.
            num_requests: N.
            padded_requests: requests including padding; the padding ones get the null block.

        Returns:
            int32 [padded_requests, B], a view of ``batch_table``.
        """
        gather_block_tables[(padded_requests,)](
            rows, num_blocks, self._table.gpu, self._table.gpu.stride(0),
            self.batch_table, self.batch_table.stride(0), num_requests, BLOCK=LANES,
        )  # fmt: skip
        return self.batch_table[:padded_requests]

    def map_slots(self, query_start_loc: Tensor, positions: Tensor, num_requests: int) -> None:
        """Fill ``slot_mapping`` for the batch; everything behind its last real lane becomes -1."""
        compute_slot_mapping[(num_requests + 1,)](
            query_start_loc, positions, self.batch_table, self.batch_table.stride(0),
            self.slot_mapping, num_requests, self.slot_mapping.numel(),
            BLOCK_SIZE=self._block_size, BLOCK=LANES,
        )  # fmt: skip
