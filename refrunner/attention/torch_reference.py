"""Paged attention in plain torch: one request after another, exact and slow; the reference for faster kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..config import NULL_BLOCK, RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..kv_groups import FULL_ATTENTION
from ..models.config import LlamaConfig
from .paged_cache import PagedCache


class TorchReferenceAttention(PagedCache):
    """Attention backend without custom kernels."""

    def __init__(self, config: RunnerConfig, model: LlamaConfig, device: Device) -> None:
        super().__init__(config, model, device)
        self._drafts = config.drafts
        self._batch: InputBatch | None = None
        self._slots: Tensor | None = None
        self._context_slots: list[list[Tensor]] = []

    def order(self, scheduled: Mapping[str, int]) -> Sequence[str]:
        """As the scheduler has it."""
        return tuple(scheduled)

    def begin(self, batch: InputBatch) -> None:
        """Turn block tables into slot lists, once for all layers of a group."""
        self._batch = batch
        # A padding lane (slot -1) writes to the null block, from which nothing is read.
        self._slots = batch.slot_mapping.clamp_min(NULL_BLOCK)
        self._context_slots = [self._slots_of_group(batch, table) for table in batch.block_table]

    def forward(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`AttentionBackend`."""
        assert self._batch is not None and self._slots is not None, "begin() comes before forward()"
        group = self._groups.group_of_layer[layer]
        keys, values = self.layer_cache(layer)
        keys.index_copy_(0, self._slots[group], key)
        values.index_copy_(0, self._slots[group], value)
        out = torch.zeros_like(query)
        bounds, window = self._batch.host_query_start_loc, self._groups.windows[group]
        for request, slots in enumerate(self._context_slots[group]):
            lanes = slice(int(bounds[request]), int(bounds[request + 1]))
            visible = _visible(self._batch.positions[lanes], len(slots), window)
            context = keys[slots], values[slots]
            if self._drafts:
                # The host's length is an upper bound then, and what nobody sees there may be anything, NaN included.
                seen = visible.any(dim=0)[:, None, None]
                context = torch.where(seen, context[0], 0), torch.where(seen, context[1], 0)
            out[lanes] = self._attend(query[lanes], *context, visible)
        return out

    def _slots_of_group(self, batch: InputBatch, table: Tensor) -> list[Tensor]:
        """Slot of every position of each request: int64 [sequence length] each."""
        offsets = torch.arange(self._block_size, device=table.device)
        context = []
        for request in range(batch.num_requests):
            length = int(batch.host_seq_lens[request])
            blocks = table[request, : -(-length // self._block_size)].long()
            slots = (blocks[:, None] * self._block_size + offsets).flatten()
            context.append(slots[:length])
        return context

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        """Attention of one request: query [n, heads, d] over keys and values [context, kv_heads, d]."""
        attended = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=visible,
            scale=self._scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)


def _visible(positions: Tensor, context: int, window: int) -> Tensor:
    """Which key each query sees: bool [n, context], for queries at ``positions`` int64 [n]."""
    places = torch.arange(context, device=positions.device)
    visible = places <= positions[:, None]
    return visible if window == FULL_ATTENTION else visible & (places > positions[:, None] - window)
