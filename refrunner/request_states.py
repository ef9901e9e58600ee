"""The state table: one stable row per live request, for as long as it lives.

A row is taken when a request enters and given back when it finishes or is preempted; a preempted request returns
as a new one, in whatever row is free then. Nothing ever moves a row. The host keeps only who owns which row; the
values live on the device, because only the device knows them in time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .api import NewRequest
from .config import RunnerConfig
from .device import Device
from .staging import PackedUpload, StagedWriteTensor

NUM_COMPUTED, TOTAL_LEN, LAST_SAMPLED = range(3)

# What a poisoned row holds. Small and in range, so that a stale read gives wrong tokens and not a crash.
POISON_COUNTER = 1


class RequestStates:
    """Rows of the live requests.

    Device tables, written on the main stream by staged writes (request added) and by ``post_update``:
    ``num_computed`` int32 [R], tokens whose keys and values are in the cache; ``total_len`` int32 [R], tokens known
    on the device; ``last_sampled`` int32 [R], the newest token; ``token_ids`` int32 [R, L].
    """

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int) -> None:
        rows = config.max_num_reqs
        self._poison_token = vocab_size - 1
        self._counters = StagedWriteTensor(3, rows, torch.int32, device, "request counters")
        self._token_ids = StagedWriteTensor(rows, config.max_model_len, torch.int32, device, "token ids")
        # Last in, first out: a row is warm, and a stale row is re-read as soon as possible, where tests see it.
        self.free_rows = list(reversed(range(rows)))
        self.row_of: dict[str, int] = {}

    @property
    def num_computed(self) -> Tensor:
        """int32 [R]."""
        return self._counters.gpu[NUM_COMPUTED]

    @property
    def total_len(self) -> Tensor:
        """int32 [R]."""
        return self._counters.gpu[TOTAL_LEN]

    @property
    def last_sampled(self) -> Tensor:
        """int32 [R]."""
        return self._counters.gpu[LAST_SAMPLED]

    @property
    def token_ids(self) -> Tensor:
        """int32 [R, L]."""
        return self._token_ids.gpu

    def add(self, request: NewRequest) -> int:
        """Give the request a row and stage its whole state; nothing of the former owner survives."""
        row = self.free_rows.pop()
        self.row_of[request.request_id] = row
        self._token_ids.stage_write(row, 0, request.token_ids)
        self._counters.stage_write(NUM_COMPUTED, row, [request.num_computed_tokens])
        self._counters.stage_write(TOTAL_LEN, row, [len(request.token_ids)])
        self._counters.stage_write(LAST_SAMPLED, row, [request.token_ids[-1]])
        return row

    def remove(self, request_id: str) -> int:
        """Give the row back; work already enqueued may still read it, work enqueued later may not."""
        row = self.row_of.pop(request_id)
        self.free_rows.append(row)
        return row

    def poison(self, row: int) -> None:
        """Stage values into a freed row that would change the output if anything read them."""
        self._token_ids.stage_write(row, 0, [self._poison_token] * self._token_ids.gpu.shape[1])
        self._counters.stage_write(NUM_COMPUTED, row, [POISON_COUNTER])
        self._counters.stage_write(TOTAL_LEN, row, [POISON_COUNTER])
        self._counters.stage_write(LAST_SAMPLED, row, [self._poison_token])

    def pack(self, upload: PackedUpload) -> None:
        """Add the staged writes of all tables to the step's upload."""
        for table in (self._counters, self._token_ids):
            table.pack(upload)

    def apply(self, upload: PackedUpload) -> None:
        """Scatter them on the device."""
        for table in (self._counters, self._token_ids):
            table.apply(upload)

    def warm_up(self) -> None:
        """Load the kernels of ``apply``; nothing changes."""
        for table in (self._counters, self._token_ids):
            table.warm_up()
