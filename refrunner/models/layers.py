"""What lies between the matrix products of a Llama layer, twice: as torch operations, and as Triton kernels."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from ..kernels.layers import rms_norm, rotate_heads, silu_and_multiply
from .config import LlamaConfig

#: Columns that one program of the gate takes at most.
GATE_BLOCK = 1024
Angles: TypeAlias = tuple[Tensor, ...]


class LayerOperations(Protocol):
    """T lanes, H hidden columns, I intermediate ones, D columns a head; everything enqueues on the current stream."""

    def angles(self, positions: Tensor) -> Angles:
        """What ``rotate`` needs of the positions, int64 [T], in all layers of a step."""
        ...

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """The norm, [T, H] in the model's dtype, of a residual stream [T, H] with a weight [H]."""
        ...

    def add_and_norm(self, hidden: Tensor, added: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream with something added, and its norm.

        Args:
            hidden: [T, H] in the model's dtype; the caller's no longer, it may be overwritten.
            added: like ``hidden``.
            weight: [H].
        """
        ...

    def rotate(self, qkv: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, the first two with rotary embedding.

        Args:
            qkv: [T, (heads + 2 kv_heads) D]; the caller's no longer, it may be overwritten.
            angles: of this step.

        Returns:
            [T, heads, D], [T, kv_heads, D] and the like; the last dimension is contiguous.
        """
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """``silu(gate) * up``, [T, I], of the two side by side, [T, 2 I]."""
        ...


class TorchLayerOperations:
    """The reference: operations of torch."""

    def __init__(self, config: LlamaConfig, rotary_table: Tensor, dtype: torch.dtype) -> None:
        """``rotary_table`` is float32 [positions, D]: cosines of the D/2 angles, then their sines."""
        self._config, self._rotary_table, self._dtype = config, rotary_table, dtype

    def angles(self, positions: Tensor) -> Angles:
        """See :class:`LayerOperations`; cosines and sines, float32 [T, 1, D/2]."""
        return self._rotary_table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """See :class:`LayerOperations`."""
        # Statistics in float32: the mean square of a few thousand bfloat16 values has no correct digit left otherwise.
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self._config.rms_norm_eps)
        return (wide * scale * weight).to(self._dtype)

    def add_and_norm(self, hidden: Tensor, added: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`LayerOperations`."""
        hidden = hidden + added
        return hidden, self.norm(hidden, weight)

    def rotate(self, qkv: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`LayerOperations`."""
        heads, kv_heads = self._config.num_heads, self._config.num_kv_heads
        qkv = qkv.view(qkv.shape[0], heads + 2 * kv_heads, self._config.head_dim)
        turned = _rotate(qkv[:, : heads + kv_heads], *angles)
        return turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :]

    def gate(self, gate_up: Tensor) -> Tensor:
        """See :class:`LayerOperations`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn element i of every head against element i + D/2 (Su et al., RoFormer, 2021, in the NeoX layout).

    Args:
        heads: [T, n, D].
        cos: float32 [T, 1, D/2].
        sin: float32 [T, 1, D/2].

    Returns:
        a new contiguous tensor like ``heads``; computed in float32.
    """
    first, second = heads.float().chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.to(heads.dtype)


class TritonLayerOperations:
    """One launch each. What torch would round to the model's dtype on the way stays float32 here."""

    def __init__(self, config: LlamaConfig, rotary_table: Tensor) -> None:
        """``rotary_table`` is float32 [positions, D], dense: cosines of the D/2 angles, then their sines."""
        self._config, self._rotary_table = config, rotary_table

    def angles(self, positions: Tensor) -> Angles:
        """See :class:`LayerOperations`; the positions themselves."""
        return (positions,)

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """See :class:`LayerOperations`."""
        return self._norm(hidden, None, weight)

    def add_and_norm(self, hidden: Tensor, added: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`LayerOperations`; adds in place."""
        return hidden, self._norm(hidden, added, weight)

    def _norm(self, hidden: Tensor, added: Tensor | None, weight: Tensor) -> Tensor:
        lanes, width = hidden.shape
        out = torch.empty_like(hidden)
        rms_norm[(lanes,)](hidden, added, weight, out, self._config.rms_norm_eps, WIDTH=width, BLOCK=_lanes(width))
        return out

    def rotate(self, qkv: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`LayerOperations`; turns in place."""
        heads, kv_heads, width = self._config.num_heads, self._config.num_kv_heads, self._config.head_dim
        turned, half = heads + kv_heads, width // 2
        rotate_heads[(qkv.shape[0],)](
            qkv, qkv.stride(0), *angles, self._rotary_table,
            HEADS=turned, HEAD_LANES=_lanes(turned), HALF=half, HALF_LANES=_lanes(half),
        )  # fmt: skip
        query, key, value = qkv.view(-1, turned + kv_heads, width).split([heads, kv_heads, kv_heads], dim=1)
        return query, key, value

    def gate(self, gate_up: Tensor) -> Tensor:
        """See :class:`LayerOperations`."""
        lanes, width = gate_up.shape[0], gate_up.shape[1] // 2
        block = min(GATE_BLOCK, _lanes(width))
        out = torch.empty(lanes, width, dtype=gate_up.dtype, device=gate_up.device)
        silu_and_multiply[(lanes, -(-width // block))](gate_up, out, WIDTH=width, BLOCK=block)
        return out


def _lanes(count: int) -> int:
    """The power of two that holds so many."""
    return 1 << (count - 1).bit_length()
