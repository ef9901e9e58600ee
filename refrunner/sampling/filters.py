"""Host side of the filters: from processed logits to the threshold of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.filters import find_thresholds
from ..kernels.logits_processing import TOP_P
from ..kernels.nucleus import COLUMNS, MASSES, ROUNDS, settle_nucleus
from ..kernels.nucleus_rounds import narrow_rows, weigh_rows
from ..kernels.nucleus_sample import ask_by_sample
from .blocks import LAUNCH, Grouping, power_of_two, row_block_of, search_of


def thresholds_of(
    logits: Tensor,
    processed: Tensor,
    maxima: Tensor,
    rows: Tensor,
    numbers: Tensor,
    reals: Tensor,
    stages: int,
    grouping: Grouping,
) -> Tensor:
    """The integer of each row below which its filters drop tokens, int32 [N]; see ``kernels.filters``.

    Enqueues one launch, and six more where a row has top-p: they do nothing in rows that are settled.

    Args:
        logits: float32 [N, V], unit stride in V: the model's own.
        processed: float32 [N, V], dense; read for rows with a stage of ``STORED`` only.
        maxima: int32 [N, groups], largest integer of each group of tokens.
        rows: int32 [N], row of the tables.
        numbers: int32 [R, NUMBERS].
        reals: float32 [R, REALS].
        stages: those that some row needs.
        grouping: how tokens are grouped.
    """
    (count, vocab_size), device = logits.shape, logits.device
    block, num_groups = row_block_of(device, vocab_size), maxima.shape[1]
    thresholds = torch.empty(count, dtype=torch.int32, device=device)
    largest = torch.empty(count, dtype=torch.float32, device=device)
    state = torch.empty(count, ROUNDS.value, COLUMNS.value, dtype=torch.int32, device=device)
    mass = torch.empty(count, ROUNDS.value, MASSES.value, dtype=torch.int64, device=device)
    listed = torch.empty(count, grouping.list, dtype=torch.int32, device=device)
    source = (logits, logits.stride(0), processed)
    find_thresholds[(count,)](
        *source, rows, numbers, reals, maxima, torch.empty_like(maxima), listed, thresholds, largest, state, mass,
        vocab_size, num_groups, MOST=grouping.most, LIKELY=grouping.likely, LIST=grouping.list,
        GROUPS=power_of_two(num_groups), GROUP=grouping.group, TILE=grouping.tile, BLOCK=block,
        num_warps=grouping.warps, **LAUNCH,
    )  # fmt: skip
    if stages & TOP_P.value:
        search = search_of(device, count, vocab_size, grouping.group)
        asked = torch.empty(count, search.slots, dtype=torch.int32, device=device)
        row = (*source, state, largest, thresholds, rows, numbers, reals, mass)
        ask_by_sample[(count,)](
            *row, vocab_size, SAMPLE=search.sample, RUN=search.run, num_warps=search.sample_warps, **LAUNCH
        )
        cut = {"TILE": search.tile, "GROUP": grouping.group, "num_warps": search.warps, **LAUNCH}
        weigh_rows[(count, search.parts)](*row, maxima, vocab_size, num_groups, search.part_blocks, **cut)
        for number in range(1, search.rounds):
            of_rounds = (state[:, number - 1], mass[:, number - 1], state[:, number], mass[:, number])
            narrow_rows[(count, search.parts)](
                *row, maxima, *of_rounds, asked, vocab_size, num_groups, search.part_blocks, SLOTS=search.slots, **cut
            )
        last = (state[:, search.rounds - 1], mass[:, search.rounds - 1])
        settle_nucleus[(count,)](
            *row, *last, listed, asked, vocab_size, LIST=grouping.list, SLOTS=search.slots, BLOCK=search.settle_block,
            num_warps=search.settle_warps, **LAUNCH,
        )  # fmt: skip
    return thresholds
