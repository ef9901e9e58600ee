"""Host side of the pass that finds the largest logit of each group of tokens; see ``kernels.maxima``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import maxima as kernels
from .blocks import LAUNCH, Parts, parts_of


@dataclass(frozen=True)
class Maxima:
    """What one reading of the logits leaves to the draw; of rows that have filters and no stage of ``STORED``.

    It is for one draw, which writes into it: another one from it gives the same tokens, but reads more logits.

    Attributes:
        group: tokens of a group.
        groups: int32 [N, groups], largest integer of each group; of rows with a filter, whoever wrote it.
        floats: float32 [4, N, parts], of which the draw's statistics are written; the others are room for the draw.
        ints: int32 [4, N, parts], of which the marks of parts with NaN are written.
    """

    group: int
    groups: Tensor
    floats: Tensor
    ints: Tensor


def find_maxima(
    logits: Tensor,
    rows: Tensor,
    numbers: Tensor,
    reals: Tensor,
    groups: Tensor,
    group: int,
    parts: Parts | None = None,
) -> Maxima:
    """Enqueue the pass: one launch.

    Args:
        logits: [N, V], float32, float16 or bfloat16, unit stride in V.
        rows: int32 [N], row of the tables that each row of logits belongs to.
        numbers: int32 [R, NUMBERS].
        reals: float32 [R, REALS].
        groups: int32 [N, groups], written in the rows that have filters only.
        group: tokens of a group.
        parts: how the draw divides a row, if not as usual.
    """
    (count, vocab_size), device = logits.shape, logits.device
    parts = parts or parts_of(device, count, vocab_size)
    floats = torch.empty(4, count, parts.number, dtype=torch.float32, device=device)
    ints = torch.empty(4, count, parts.number, dtype=torch.int32, device=device)
    kernels.find_maxima[(count, parts.number)](
        logits, logits.stride(0), rows, numbers, reals, groups, floats, ints, vocab_size, groups.shape[1],
        parts.number, parts.blocks, count * parts.number, GROUP=group, BLOCK=parts.block, num_warps=parts.warps,
        **LAUNCH,
    )  # fmt: skip
    return Maxima(group, groups, floats, ints)
