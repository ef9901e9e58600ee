"""Which KV blocks hold the keys and values of each request."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .config import NULL_BLOCK, RunnerConfig
from .device import Device
from .kernels.block_table import prepare_block_tables
from .kv_groups import FULL_ATTENTION, blocks_below_window
from .staging import PackedUpload, StagedWriteTensor

LANES = 256
#: Shapes of batches whose views of the persistent buffers are remembered.
VIEWS = 16


class BlockTables:
    """Block tables of every row, one for each KV group, and their view in the order of the batch.

    The tables of all G groups are one staged tensor, so one launch flushes what was appended to any of them.

    Attributes:
        batch_table: int32 [G, R, B] on the device; row i belongs to request i of the batch. Entries beyond a request's
            block count are stale. Written on the main stream by ``prepare``, as the slots; both stay where they are.
        slot_mapping: int64 [G, max_num_batched_tokens padded] on the device; -1 for padding lanes.
        num_blocks: int32 [G, R] on the host.
        block_size: tokens a block.
    """

    def __init__(
        self,
        config: RunnerConfig,
        device: Device,
        max_lanes: int,
        max_batch: int,
        windows: Sequence[int] = (FULL_ATTENTION,),
    ) -> None:
        groups, columns, target = len(windows), config.max_blocks_per_request, device.torch_device
        self._rows, self.block_size = config.max_num_reqs, config.block_size
        self._table = StagedWriteTensor(groups * self._rows, columns, torch.int32, device, "block table")
        self._windows = torch.tensor(list(windows), dtype=torch.int32).to(target)
        self.batch_table = torch.zeros(groups, max_batch, columns, dtype=torch.int32, device=target)
        by_row, by_batch = self._table.gpu, self.batch_table
        # Views that are made once: each would cost an operation in every step.
        self._device_table = functools.lru_cache(lambda: by_row.view(groups, config.max_num_reqs, columns))
        self._gathered = functools.lru_cache(maxsize=VIEWS)(lambda requests: by_batch[:, :requests])
        self.slot_mapping = torch.full((groups, max_lanes), -1, dtype=torch.int64, device=target)
        self.num_blocks: NDArray[np.int32] = np.zeros((groups, self._rows), dtype=np.int32)
        self._blocks_of_row: dict[int, tuple[list[int], ...]] = {}
        self._window_sizes = tuple(windows)
        self._num_below: NDArray[np.int32] = np.zeros_like(self.num_blocks)

    @property
    def num_groups(self) -> int:
        """G."""
        return len(self.num_blocks)

    def append(self, row: int, groups: Sequence[Sequence[int]]) -> None:
        """Stage further blocks at the end of a row, one sequence of blocks for each group."""
        held = self._blocks_of_row.get(row)
        if held is None:
            held = self._blocks_of_row[row] = tuple([] for _ in self._window_sizes)
        for group, (blocks, known) in enumerate(zip(groups, held, strict=True)):
            self._table.stage_write(group * self._rows + row, len(known), blocks)
            known.extend(blocks)
            self.num_blocks[group, row] = len(known)

    def clear(self, row: int) -> list[int]:
        """Forget a row's blocks when its request leaves, and say which they were, over all groups."""
        self.num_blocks[:, row] = 0
        self._num_below[:, row] = 0
        return [block for blocks in self._blocks_of_row.pop(row, ()) for block in blocks if block != NULL_BLOCK]

    def drop_below_window(self, row: int, position: int) -> list[int]:
        """Forget the blocks that no token from ``position`` on can see, and say which they were, over all groups.

        On the device they stay in the row's table; ``prepare`` hides them.
        """
        dropped = []
        for group, window in enumerate(self._window_sizes):
            below = blocks_below_window(window, position, self.block_size)
            for place in range(self._num_below[group, row], min(below, self.num_blocks[group, row])):
                dropped.append(self._blocks_of_row[row][group][place])
                self._blocks_of_row[row][group][place] = NULL_BLOCK
            self._num_below[group, row] = max(below, self._num_below[group, row])
        return [block for block in dropped if block != NULL_BLOCK]

    def blocks_of(self, row: int, group: int = 0) -> tuple[int, ...]:
        """Blocks of a row as the host knows them, the null block where one was dropped."""
        return tuple(self._blocks_of_row[row][group]) if row in self._blocks_of_row else ()

    def device_table(self) -> Tensor:
        """int32 [G, R, B] on the device, by row."""
        return self._device_table()

    def pack(self, upload: PackedUpload) -> None:
        """Add the staged blocks to the step's upload."""
        self._table.pack(upload)

    def apply(self, upload: PackedUpload) -> None:
        """Scatter them on the device."""
        self._table.apply(upload)

    def warm_up(self) -> None:
        """Load the kernel of ``apply``; nothing changes."""
        self._table.warm_up()

    def prepare(
        self,
        rows: Tensor,
        query_start_loc: Tensor,
        num_blocks: Tensor,
        num_computed: Tensor,
        num_requests: int,
        padded_requests: int,
    ) -> Tensor:
        """Block tables in batch order, and ``slot_mapping`` for all lanes; those behind the last real one get -1.

        Args:
            rows: int32 [N], on the device.
            query_start_loc: int32 [N + 1], likewise: first lane of each request, and the end of the last one.
            num_blocks: int32 [G, N] or the same flat, likewise.
            num_computed: int32 [R], by row, likewise: where the lanes, and a sliding window, stand.
            num_requests: N.
            padded_requests: requests including padding; the padding ones get null blocks.

        Returns:
            int32 [G, padded_requests, B], a view of ``batch_table``.
        """
        table = self.device_table()
        prepare_block_tables[(padded_requests, self.num_groups)](
            rows, query_start_loc, num_blocks, num_computed, self._windows, table, table.stride(0), table.stride(1),
            self.batch_table, self.batch_table.stride(0), self.batch_table.stride(1), self.slot_mapping,
            num_requests, table.shape[2], self.slot_mapping.shape[1], BLOCK_SIZE=self.block_size, BLOCK=LANES,
        )  # fmt: skip
        return self._gathered(padded_requests)
