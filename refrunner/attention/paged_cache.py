"""The paged cache of keys and values that every attention backend here writes and reads."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import NULL_BLOCK, RunnerConfig
from ..device import Device
from ..kernels.kv_blocks import copy_blocks, fill_blocks
from ..kv_groups import KVGroups
from ..models.config import LlamaConfig

COPY_LANES = 1024


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
        self._layers: list[tuple[Tensor, ...]] = [layer.unbind() for layer in self.cache]
        self._scale = model.head_dim**-0.5
        if config.poison:
            self.cache[:, :, (NULL_BLOCK + 1) * config.block_size :].fill_(float("nan"))

    def layer_cache(self, layer: int) -> tuple[Tensor, ...]:
        """Keys and values of a layer, [slots, kv_heads, head_dim] each."""
        return self._layers[self._groups.index_in_group[layer]]

    def copy_blocks(self, sources: Tensor, targets: Tensor) -> None:
        """See :class:`~.interface.AttentionBackend`; one launch on the main stream."""
        layers, elements = self._layout()
        copy_blocks[(len(sources), layers)](
            self.cache, self.cache.stride(1), elements, sources, targets, BLOCK=COPY_LANES
        )

    def fill_blocks(self, blocks: Tensor, value: float) -> None:
        """See :class:`~.interface.AttentionBackend`; one launch on the main stream."""
        layers, elements = self._layout()
        fill_blocks[(len(blocks), layers)](self.cache, self.cache.stride(1), elements, blocks, value, BLOCK=COPY_LANES)

    def _layout(self) -> tuple[int, int]:
        """Layers times two, for keys and values, and elements of one block in one of them."""
        return self.cache.shape[0] * 2, self._block_size * self.cache.stride(2)
