"""Host side of the filters: from processed logits to the threshold of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.filters import COLUMNS, find_thresholds
from ..kernels.logits_processing import TOP_P
from ..kernels.nucleus import count_bins, settle_nucleus, weigh_bins
from .blocks import LAUNCH, Grouping, power_of_two, row_block_of, spread_of


def thresholds_of(
    processed: Tensor, maxima: Tensor, rows: Tensor, numbers: Tensor, reals: Tensor, stages: int, grouping: Grouping
) -> Tensor:
    """The integer of each row below which its filters drop tokens, int32 [N]; see ``kernels.filters``.

    Enqueues one launch, and three more where a row has top-p: they do nothing in rows whose top-k has settled it.

    Args:
        processed: float32 [N, V], dense.
        maxima: int32 [N, groups], largest integer of each group of tokens.
        rows: int32 [N], row of the tables.
        numbers: int32 [R, NUMBERS].
        reals: float32 [R, REALS].
        stages: those that some row needs.
        grouping: how tokens are grouped.
    """
    (count, vocab_size), device = processed.shape, processed.device
    number, space = maxima.shape[1], spread_of(device, count, vocab_size)
    thresholds = torch.empty(count, dtype=torch.int32, device=device)
    largest = torch.empty(count, dtype=torch.float32, device=device)
    state = torch.empty(count, COLUMNS.value, dtype=torch.int32, device=device)
    bins = torch.empty(count, space.bins, dtype=torch.int32, device=device)
    mass = torch.empty(count, 2, dtype=torch.int64, device=device)
    keys = torch.empty(count, space.slots, dtype=torch.int32, device=device)
    find_thresholds[(count,)](
        processed, rows, numbers, reals, maxima, torch.empty_like(maxima), keys, thresholds, largest, state, bins, mass,
        vocab_size, number, MOST=grouping.most, BINS=space.bins, SLOTS=space.slots, LIST=grouping.list,
        GROUPS=power_of_two(number), GROUP=grouping.group, TILE=grouping.tile, BLOCK=row_block_of(device, vocab_size),
        num_warps=grouping.warps, **LAUNCH,
    )  # fmt: skip
    if stages & TOP_P.value:
        grid = (count, space.parts)
        count_bins[grid](
            processed, state, largest, thresholds, bins, vocab_size, space.part_blocks, BINS=space.bins,
            BLOCK=space.block, num_warps=space.warps, **LAUNCH,
        )  # fmt: skip
        weigh_bins[grid](
            processed, state, largest, thresholds, rows, reals, bins, mass, keys, vocab_size, space.part_blocks,
            BINS=space.bins, LIST=space.slots, BLOCK=space.block, num_warps=space.warps, **LAUNCH,
        )  # fmt: skip
        settle_nucleus[(count,)](
            processed, state, largest, thresholds, rows, reals, mass, keys, vocab_size, FEW=space.slots // 8,
            LIST=space.slots, BLOCK=row_block_of(device, vocab_size), num_warps=8, **LAUNCH,
        )  # fmt: skip
    return thresholds
