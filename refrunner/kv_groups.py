"""Layers that see the same tokens share their KV blocks: one group for full attention, one for each window size.

All groups take blocks from one pool, and a block serves all layers of its group. A layer with a window of W tokens
lets position p see p - W + 1 .. p; what lies below that for every position still to come is never read again, so
its blocks go back to the pool while the request lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The window of a layer that sees every earlier token.
FULL_ATTENTION = 0


@dataclass(frozen=True)
class KVGroups:
    """Which layers share a block table.

    Attributes:
        windows: tokens that a layer of each group sees, its own included; ``FULL_ATTENTION`` for all. Ascending, so
            that full attention, where there is any, is group 0.
        group_of_layer: group of each layer.
        index_in_group: place of each layer among those of its group.
    """

    windows: tuple[int, ...]
    group_of_layer: tuple[int, ...]
    index_in_group: tuple[int, ...]

    @classmethod
    def of_layers(cls, layer_windows: Sequence[int]) -> KVGroups:
        """Group the layers of a model by their windows."""
        windows = tuple(sorted(set(layer_windows)))
        group_of_layer = tuple(windows.index(window) for window in layer_windows)
        index_in_group = tuple(group_of_layer[:layer].count(group) for layer, group in enumerate(group_of_layer))
        return cls(windows, group_of_layer, index_in_group)

    @property
    def layers_per_group(self) -> int:
        """Layers that the largest group has; a block has room for so many."""
        return max(self.index_in_group) + 1


def blocks_below_window(window: int, position: int, block_size: int) -> int:
    """How many leading blocks of a sequence no token from ``position`` on can see.

    Args:
        window: of the group.
        position: the next position to compute.
        block_size: tokens a block.
    """
    if window == FULL_ATTENTION:
        return 0
    return max(0, position - window + 1) // block_size
