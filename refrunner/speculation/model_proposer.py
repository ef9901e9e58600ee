"""Drafts of a model: one pass over what the target has computed, then one for each further draft."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

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
from .draft_graphs import LANES_OF_FIRST, LANES_OF_NEXT, DraftGraphs
from .draft_inputs import DraftInputs
from .draft_models import DraftModel, EagleHead
from .drawing import draw_draft

COLUMNS = 1024


class ModelProposer:
    """Drafts of a draft model or of a head, see ``draft_models``.

    Attributes:
        attention: holds the keys and values of the draft model, in the blocks of the target's full attention.
        kept: [R, H] on the device, the target's state of each row's last computed token; [R, 0] for a model that looks
            at no states. Written by ``keep_states`` on the main stream; stale before a request's first step.
        before: [D, H] on the device, the state before each lane of a pass, address fixed; [D, 0] likewise. Written by
            ``states_before`` and by copies of the model's own states, on the main stream.
        graphs: captured passes.
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
        width = width if self._reads_states else 0
        lanes, dtype, place = draft_capacity(config)[0], config.torch_dtype, device.torch_device
        self.kept = torch.zeros(config.max_num_reqs, width, dtype=dtype, device=place)
        self.before = torch.zeros(lanes, width, dtype=dtype, device=place)
        self.graphs = DraftGraphs(config, model, attention, device)

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
        count = batch.num_requests
        requests = self.graphs.requests_for(count)
        padded_count = padded(count, self._config.pad_to) if requests is None else requests
        self._begin_states(batch, num_emitted, hidden)
        if self._inputs.all_have(LANES_OF_FIRST):
            first = self._inputs.uniform_pass(batch, num_emitted, states, 0, LANES_OF_FIRST, padded_count)
            last = self._forward(first, (LANES_OF_FIRST, requests))
        else:
            last = self._forward(self._inputs.ragged_pass(batch, num_emitted, states), None)
        last = last.index_select(0, self._inputs.last_lanes)
        self._draw(last, 0, batch, num_emitted, states)
        for ahead in range(1, self._config.drafts):
            following = self._inputs.uniform_pass(batch, num_emitted, states, ahead, LANES_OF_NEXT, padded_count)
            if self._reads_states:
                self.before[:count].copy_(last)
            last = self._forward(following, (LANES_OF_NEXT, requests))[:count]
            self._draw(last, ahead, batch, num_emitted, states)

    def warm_up(self, batch: InputBatch, hidden: Tensor, states: RequestStates) -> None:
        """See :class:`~.proposer.Proposer`; the largest batches that are padding alone are computed."""
        self._plan_nothing(batch)
        for lanes in (LANES_OF_FIRST, LANES_OF_NEXT):
            largest = self._inert(batch, states, lanes, draft_capacity(self._config)[1])
            self._model.compute_logits(self._forward(largest, None))
        self._inputs.ragged_pass(batch, batch.rows, states)
        self._begin_states(batch, batch.rows, hidden)
        nothing = hidden.new_zeros(0, self._model.config.hidden_size)
        self._draw(nothing, 0, batch, batch.rows, states)

    def capture(self, batch: InputBatch, states: RequestStates) -> None:
        """See :class:`~.proposer.Proposer`."""
        self._plan_nothing(batch)
        self.graphs.capture(partial(self._inert, batch, states), self.before, self._inputs.buffers)

    def moved(self) -> list[str]:
        """See :class:`~.proposer.Proposer`."""
        return self.graphs.moved()

    def _plan_nothing(self, batch: InputBatch) -> None:
        upload = PackedUpload()
        self.plan((), batch.host_rows, upload)
        upload.send_and_wait(self._device)
        self._inputs.take(upload)

    def _inert(self, batch: InputBatch, states: RequestStates, lanes: int, requests: int) -> InputBatch:
        """A pass of nobody; ``batch`` has no request."""
        return self._inputs.uniform_pass(batch, batch.rows, states, 1, lanes, requests)

    def _forward(self, batch: InputBatch, graph: tuple[int, int | None] | None) -> Tensor:
        """Hidden states [D, H'], from a captured pass if there is one."""
        self.attention.begin(batch)
        captured = None if graph is None or graph[1] is None else self.graphs.captured[graph[0], graph[1]]
        if captured is not None:
            return captured.replay(self.attention.forward)
        before = self.before[: batch.num_tokens]
        return self._model.forward(batch.input_ids, batch.positions, before, self.attention.forward)

    def _begin_states(self, batch: InputBatch, num_emitted: Tensor, hidden: Tensor) -> None:
        """States of the token before each lane of the first pass; two launches, none for a model without."""
        if not self._reads_states:
            return
        inputs, width = self._inputs, hidden.shape[1]
        grid = (batch.num_requests, -(-width // COLUMNS))
        states_before[grid](
            batch.rows, inputs.starts, batch.query_start_loc, batch.logit_bounds, num_emitted, inputs.enters,
            hidden, self.kept, self.before, width, BLOCK=COLUMNS,
        )  # fmt: skip
        keep_states[grid](
            batch.rows, batch.query_start_loc, batch.logit_bounds, num_emitted, hidden, self.kept, width,
            BLOCK=COLUMNS,
        )  # fmt: skip

    def _draw(self, hidden: Tensor, offset: int, batch: InputBatch, num_emitted: Tensor, states: RequestStates) -> None:
        assert self._sampler.verifier is not None, "a runner that speculates verifies"
        logits = self._model.compute_logits(hidden)
        tables, kept = self._sampler.tables, self._sampler.verifier.draft_logits
        draw_draft(logits, offset, num_emitted, batch.rows, tables, states, kept)
