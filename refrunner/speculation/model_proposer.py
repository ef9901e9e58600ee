"""Drafts of a model: one pass over what the target has computed, then one for each further draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..attention.interface import AttentionBackend
from ..block_tables import BlockTables
from ..config import RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..kernels.drafting import keep_states, states_before
from ..memory import draft_capacity, padded
from ..request_states import RequestStates
from ..sampling.sampler import Sampler
from ..staging import PackedUpload
from .draft_inputs import DraftInputs
from .draft_models import DraftModel, EagleHead
from .drawing import draw_draft

COLUMNS = 1024


class ModelProposer:
    """Drafts of a draft model or of a head, see ``draft_models``.

    Attributes:
        attention: holds the keys and values of the draft model, in the blocks of the target's full attention.
        kept: [R, H] on the device, the target's state of each row's last computed token; [R, 1] for a model that looks
            at no states. Written by ``keep_states`` on the main stream; stale before a request's first step.
    """

    def __init__(
        self,
        config: RunnerConfig,
        device: Device,
        model: DraftModel,
        attention: AttentionBackend,
        tables: BlockTables,
        sampler: Sampler,
        width: int,
    ) -> None:
        """Take the parts.

        Args:
            width: H, columns of the target's hidden states.
        """
        self._config, self._device, self._model = config, device, model
        self.attention, self._sampler = attention, sampler
        self._reads_states = isinstance(model, EagleHead)
        self._inputs = DraftInputs(config, device, tables)
        shape = (config.max_num_reqs, width if self._reads_states else 1)
        self.kept = torch.zeros(shape, dtype=config.torch_dtype, device=device.torch_device)

    @property
    def caches(self) -> tuple[AttentionBackend, ...]:
        """See :class:`~.proposer.Proposer`."""
        return (self.attention,)

    def add(self, row: int) -> None:
        """See :class:`~.proposer.Proposer`."""
        self._inputs.add(row)

    def plan(self, lanes: Sequence[int], rows: NDArray[np.int32], upload: PackedUpload) -> None:
        """See :class:`~.proposer.Proposer`."""
        self._inputs.plan(lanes, rows, upload)

    def propose(
        self, batch: InputBatch, num_emitted: Tensor, hidden: Tensor, states: RequestStates, upload: PackedUpload
    ) -> None:
        """See :class:`~.proposer.Proposer`."""
        self._inputs.take(upload)
        first = self._inputs.first_pass(batch, num_emitted, states)
        before = self._states_before(batch, num_emitted, hidden, first.num_tokens)
        last = self._forward(first, before).index_select(0, self._inputs.last_lanes)
        self._draw(last, 0, batch, num_emitted, states)
        requests = padded(batch.num_requests, self._config.pad_to)
        for ahead in range(1, self._config.drafts):
            following = self._inputs.next_pass(batch, num_emitted, states, ahead, requests)
            last = self._forward(following, _with_padding(last, requests))
            self._draw(last[: batch.num_requests], ahead, batch, num_emitted, states)

    def warm_up(self, batch: InputBatch, hidden: Tensor, states: RequestStates) -> None:
        """See :class:`~.proposer.Proposer`; the largest batch of single lanes is computed, all of it padding."""
        upload = PackedUpload()
        self.plan((), batch.host_rows, upload)
        upload.send_and_wait(self._device)
        self.propose(batch, batch.rows, hidden, states, upload)
        requests = draft_capacity(self._config)[1]
        lanes = self._inputs.next_pass(batch, batch.rows, states, 1, requests)
        before = hidden.new_zeros(requests, hidden.shape[1])
        self._model.compute_logits(self._forward(lanes, before))

    def _forward(self, batch: InputBatch, states: Tensor) -> Tensor:
        self.attention.begin(batch)
        return self._model.forward(batch.input_ids, batch.positions, states, self.attention.forward)

    def _states_before(self, batch: InputBatch, num_emitted: Tensor, hidden: Tensor, lanes: int) -> Tensor:
        """States of the token before each lane of the first pass, [D, H]; two launches, none for a model without."""
        if not self._reads_states:
            return hidden
        width, inputs = hidden.shape[1], self._inputs
        before = torch.empty(lanes, width, dtype=hidden.dtype, device=hidden.device)
        grid = (batch.num_requests, -(-width // COLUMNS))
        states_before[grid](
            batch.rows, inputs.starts, batch.query_start_loc, batch.logit_bounds, num_emitted, inputs.enters,
            hidden, self.kept, before, width, BLOCK=COLUMNS,
        )  # fmt: skip
        keep_states[grid](
            batch.rows, batch.query_start_loc, batch.logit_bounds, num_emitted, hidden, self.kept, width,
            BLOCK=COLUMNS,
        )  # fmt: skip
        return before

    def _draw(self, hidden: Tensor, offset: int, batch: InputBatch, num_emitted: Tensor, states: RequestStates) -> None:
        assert self._sampler.verifier is not None, "a runner that speculates verifies"
        logits = self._model.compute_logits(hidden)
        tables, kept = self._sampler.tables, self._sampler.verifier.draft_logits
        draw_draft(logits, offset, num_emitted, batch.rows, tables, states, kept)


def _with_padding(rows: Tensor, count: int) -> Tensor:
    """Rows [n, H], and zeros behind them up to ``count``."""
    return rows if len(rows) == count else torch.cat([rows, rows.new_zeros(count - len(rows), rows.shape[1])])
