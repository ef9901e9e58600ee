"""The paged cache of keys and values that every attention backend here writes and reads."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import NULL_BLOCK, RunnerConfig
from ..device import Device
from ..kv_groups import KVGroups
from ..models.config import LlamaConfig


class PagedCache:
    """Keys and values by slot.

    Attributes:
        cache: [layers a group, 2 (key, value), blocks * block_size, kv_heads, head_dim] on the device, dtype of the
            model. Written by the backend on the main stream. Block b owns the slots from b * block_size on, for the
            layers of the KV group that holds it.
    """

    def __init__(self, config: RunnerConfig, model: LlamaConfig, device: Device) -> None:
        self._block_size = config.block_size
        slots = config.num_kv_blocks * config.block_size
        self._groups = KVGroups.of_layers(model.layer_windows)
        shape = (self._groups.layers_per_group, 2, slots, model.num_kv_heads, model.head_dim)
        self.cache = torch.zeros(shape, dtype=config.torch_dtype, device=device.torch_device)
        self._scale = model.head_dim**-0.5
        if config.poison:
            self.cache[:, :, (NULL_BLOCK + 1) * config.block_size :].fill_(float("nan"))

    def layer_cache(self, layer: int) -> Tensor:
        """Keys and values of a layer, [2, slots, kv_heads, head_dim]."""
        return self.cache[self._groups.index_in_group[layer]]

    def poison_blocks(self, blocks: list[int]) -> None:
        """Fill freed blocks with NaN; enqueued on the main stream."""
        for block in blocks:
            self.cache[:, :, block * self._block_size : (block + 1) * self._block_size].fill_(float("nan"))
