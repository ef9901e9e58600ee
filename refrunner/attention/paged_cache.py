"""The paged cache of keys and values that every attention backend here writes and reads."""

from __future__ import annotations

import torch

from ..config import NULL_BLOCK, RunnerConfig
from ..device import Device
from ..models.config import LlamaConfig


class PagedCache:
    """Keys and values by slot.

    Attributes:
        cache: [layers, 2 (key, value), blocks * block_size, kv_heads, head_dim] on the device, dtype of the model.
            Written by the backend on the main stream. Block b owns the slots from b * block_size on.
    """

    def __init__(self, config: RunnerConfig, model: LlamaConfig, device: Device) -> None:
        self._block_size = config.block_size
        slots = config.num_kv_blocks * config.block_size
        shape = (model.num_layers, 2, slots, model.num_kv_heads, model.head_dim)
        self.cache = torch.zeros(shape, dtype=config.torch_dtype, device=device.torch_device)
        self._scale = model.head_dim**-0.5
        if config.poison:
            self.cache[:, :, (NULL_BLOCK + 1) * config.block_size :].fill_(float("nan"))

    def poison_blocks(self, blocks: list[int]) -> None:
        """Fill freed blocks with NaN; enqueued on the main stream."""
        for block in blocks:
            self.cache[:, :, block * self._block_size : (block + 1) * self._block_size].fill_(float("nan"))
