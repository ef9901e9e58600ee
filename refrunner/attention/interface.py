"""What the runner asks of an attention implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from ..input_batch import InputBatch


class AttentionBackend(Protocol):
    """Causal attention over a paged KV cache.

    The backend owns the cache. A step calls ``begin`` once and ``forward`` once per layer.
    """

    def order(self, scheduled: Mapping[str, int]) -> Sequence[str]:
        """The order in which the batch holds its requests.

        Args:
            scheduled: tokens of each request, in the order of the scheduler.

        Returns:
            its keys. No output depends on it.
        """
        ...

    def begin(self, batch: InputBatch) -> None:
        """Take the metadata of the step; may not read device values on the host."""
        ...

    def forward(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write the step's keys and values to the cache, then attend.

        Args:
            layer: index of the layer.
            query: [padded T, heads, head_dim].
            key: [padded T, kv_heads, head_dim].
            value: like ``key``.

        Returns:
            [padded T, heads, head_dim]; padding lanes are undefined but finite.
        """
        ...

    def copy_blocks(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks, int32 [n] each on the device, in all layers; no block is on both sides."""
        ...

    def fill_blocks(self, blocks: Tensor, value: float) -> None:
        """Overwrite whole blocks, int32 [n] on the device, in all layers."""
        ...
