"""What the penalties know of each row: tokens of the prompt, and counts of the generated ones, kept on the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..config import RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..kernels.penalty_state import clear_counts, count_drawn_tokens, count_known_tokens
from ..kernels.speculation import count_emitted_tokens
from ..request_states import SequenceState
from ..staging import PackedUpload
from .blocks import block_of
from .tables import ParameterTables, mask_words


class PenaltyState:
    """Owner of the two tables that grow with the vocabulary.

    Attributes:
        prompt_mask: int32 [R, W] on the device, bit mask of the prompt's tokens; written by kernels on the main stream
            when a request with penalties enters. Rows without penalties are stale.
        counts: int32 [R, V] on the device, how often each token was generated; written then and after each draw.
    """

    def __init__(self, config: RunnerConfig, device: Device, vocab_size: int) -> None:
        rows, where = config.max_num_reqs, device.torch_device
        self.prompt_mask = torch.zeros(rows, mask_words(vocab_size), dtype=torch.int32, device=where)
        self.counts = torch.zeros(rows, vocab_size, dtype=torch.int32, device=where)
        self._block = block_of(where, vocab_size)
        self._entering: dict[int, int] = {}  # known tokens of each row that has to be counted
        self._ticket: int | None = None
        self._longest = 0

    def add(self, row: int, num_tokens: int) -> None:
        """Plan to count the tokens of a row whose new owner has penalties."""
        self._entering[row] = num_tokens

    def remove(self, row: int) -> None:
        """Forget what was planned for a row whose request leaves."""
        self._entering.pop(row, None)

    def pack(self, upload: PackedUpload) -> None:
        """Add the rows to be counted to the step's upload."""
        self._ticket = upload.add(np.array(list(self._entering), dtype=np.int32)) if self._entering else None
        self._longest = max(self._entering.values(), default=0)
        self._entering.clear()

    def apply(self, upload: PackedUpload, tables: ParameterTables, states: SequenceState) -> None:
        """Count them: two launches, or none if no such row has entered."""
        if self._ticket is None:
            return
        rows = upload.view(self._ticket)
        self.count(rows, len(rows), self._longest, tables, states)

    def count(self, rows: Tensor, count: int, longest: int, tables: ParameterTables, states: SequenceState) -> None:
        """Count the tokens of rows anew, all that are known of each; two launches.

        Args:
            rows: int32 [count or more], on the device.
            count: how many of them.
            longest: known tokens of a row, at most.
            tables: parameters of the rows.
            states: lengths and tokens of the rows.
        """
        vocab_size, words = self.counts.shape[1], self.prompt_mask.shape[1]
        clear_counts[(count, -(-vocab_size // self._block))](
            rows, self.prompt_mask, self.counts, vocab_size, words, BLOCK=self._block
        )
        count_known_tokens[(count, -(-longest // self._block))](
            rows, tables.numbers.gpu, states.total_len, states.token_ids, states.token_ids.stride(0),
            self.prompt_mask, self.counts, vocab_size, words, BLOCK=self._block,
        )  # fmt: skip

    def advance(
        self,
        batch: InputBatch,
        token_ids: Tensor,
        num_emitted: Tensor | None,
        tables: ParameterTables,
        states: SequenceState,
    ) -> None:
        """Count the step's draws, while the state table still shows the step's beginning; one launch."""
        if batch.logit_bounds is None or num_emitted is None:
            count_drawn_tokens[(batch.num_requests,)](
                batch.rows, batch.query_start_loc, token_ids, tables.numbers.gpu, states.num_computed,
                states.total_len, self.counts, self.counts.shape[1],
            )  # fmt: skip
        else:
            count_emitted_tokens[(batch.num_requests,)](
                batch.rows, batch.logit_bounds, token_ids, num_emitted, tables.numbers.gpu, self.counts,
                self.counts.shape[1],
            )  # fmt: skip

    def warm_up(self, rows: Tensor, tables: ParameterTables, states: SequenceState) -> None:
        """Load the kernels of ``apply``: launches over no row, which touch nothing."""
        self.count(rows, 0, 0, tables, states)
