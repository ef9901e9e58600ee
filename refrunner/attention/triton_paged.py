"""Paged attention in Triton: two launches a layer, whatever the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..config import RunnerConfig
from ..device import Device
from ..input_batch import InputBatch
from ..kernels.attention import attend_paged, write_keys_and_values
from ..memory import padded
from ..models.config import LlamaConfig
from .paged_cache import PagedCache

#: Keys in one turn of a program's loop.
KEYS = 32

#: Several threads hold the same score and store it to one place. Fused into the first addition of its sum, a product is
#: rounded in one of them and not in the other: their scores differ in the last bits, and which is kept differs from
#: run to run. compute-sanitizer's racecheck shows both values; that fusion is why is inferred from the threads that
#: differ.
LAUNCH = {"enable_fp_fusion": False}


class TritonPagedAttention(PagedCache):
    """Attention backend for prefill and decode, with grouped heads.

    Each program takes one token and one key head, so a long prefill reads the cache once a token: simple, and the
    same arithmetic for a token whatever else is in the batch.
    """

    def __init__(self, config: RunnerConfig, model: LlamaConfig, device: Device) -> None:
        super().__init__(config, model, device)
        self._heads, self._kv_heads, self._head_dim = model.num_heads, model.num_kv_heads, model.head_dim
        # One kernel for every batch: another number here would be another one, loaded in the middle of a run.
        self._request_lanes = _lanes(padded(config.max_num_reqs, config.pad_to))
        self._batch: InputBatch | None = None
        self._tables: tuple[Tensor, ...] = ()
        self._slots: tuple[Tensor, ...] = ()

    def order(self, scheduled: Mapping[str, int]) -> Sequence[str]:
        """Decodes first, then the longer ones by length: programs of similar length run side by side."""
        return sorted(scheduled, key=scheduled.__getitem__)

    def begin(self, batch: InputBatch) -> None:
        """See :class:`AttentionBackend`."""
        if self._batch is None or batch.block_table is not self._batch.block_table:
            self._tables = batch.block_table.unbind()
        if self._batch is None or batch.slot_mapping is not self._batch.slot_mapping:
            self._slots = batch.slot_mapping.unbind()
        self._batch = batch

    def forward(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`AttentionBackend`."""
        assert self._batch is not None, "begin() comes before forward()"
        batch, (keys, values) = self._batch, self.layer_cache(layer)
        kv_group = self._groups.group_of_layer[layer]
        table = self._tables[kv_group]
        lanes, width = query.shape[0], self._kv_heads * self._head_dim
        write_keys_and_values[(lanes,)](
            key, key.stride(0), value, value.stride(0), self._slots[kv_group], keys, values, keys.stride(0),
            WIDTH=width, BLOCK=_lanes(width),
        )  # fmt: skip
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        # Padding requests count too: none of them has lanes, and a captured graph may not know how many are real.
        group, requests = self._heads // self._kv_heads, batch.query_start_loc.shape[0] - 1
        attend_paged[(lanes, self._kv_heads)](
            query, query.stride(0), keys, values, keys.stride(0), table, table.stride(0),
            batch.query_start_loc, batch.positions, out, requests, self._scale,
            WINDOW=self._groups.windows[kv_group], BLOCK_SIZE=self._block_size, HEADS=self._heads,
            GROUP=group, GROUP_LANES=_lanes(group), HEAD_DIM=self._head_dim, DIM_LANES=_lanes(self._head_dim),
            REQUEST_LANES=self._request_lanes, KEYS=KEYS, **LAUNCH,
        )  # fmt: skip
        return out


def _lanes(count: int) -> int:
    """The power of two that holds so many."""
    return 1 << (count - 1).bit_length()
