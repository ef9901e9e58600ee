"""Paged attention in plain torch: one request after another, exact and slow; the reference for faster kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..config import NULL_BLOCK, RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..models.config import LlamaConfig
from .paged_cache import PagedCache


class TorchReferenceAttention(PagedCache):
    """Attention backend without custom kernels."""

    def __init__(self, config: RunnerConfig, model: LlamaConfig, device: Device) -> None:
        super().__init__(config, model, device)
        self._batch: InputBatch | None = None
        self._slots: Tensor | None = None
        self._context_slots: list[Tensor] = []

    def begin(self, batch: InputBatch) -> None:
        """Turn block tables into slot lists, once for all layers."""
        self._batch = batch
        # A padding lane (slot -1) writes to the null block, from which nothing is read.
        self._slots = batch.slot_mapping.clamp_min(NULL_BLOCK)
        offsets = torch.arange(self._block_size, device=batch.block_table.device)
        self._context_slots = []
        for request in range(batch.num_requests):
            length = int(batch.host_seq_lens[request])
            blocks = batch.block_table[request, : -(-length // self._block_size)].long()
            slots = (blocks[:, None] * self._block_size + offsets).flatten()
            self._context_slots.append(slots[:length])

    def forward(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`AttentionBackend`."""
        assert self._batch is not None and self._slots is not None, "begin() comes before forward()"
        keys, values = self.cache[layer]
        keys.index_copy_(0, self._slots, key)
        values.index_copy_(0, self._slots, value)
        out = torch.zeros_like(query)
        bounds = self._batch.host_query_start_loc
        for request, slots in enumerate(self._context_slots):
            lanes = slice(int(bounds[request]), int(bounds[request + 1]))
            out[lanes] = self._attend(query[lanes], keys[slots], values[slots], self._batch.positions[lanes])
        return out

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        """Attention of one request: query [n, heads, d] over keys and values [context, kv_heads, d]."""
        visible = torch.arange(len(keys), device=keys.device) <= positions[:, None]
        attended = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=visible,
            scale=self._scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)
