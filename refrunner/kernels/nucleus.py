"""Top-p of whole rows, in two passes of many programs and a search among the few tokens that these leave in question.

A token lies ``largest - logit`` below the largest; the first pass counts the tokens by that, in bins of equal width w.
Of a bin's tokens each weighs no more than at its upper edge and no less than at the lower one, so the share of the mass
down to some bin is known within w * p * (1 - p). That names a few bins of which one holds the threshold. The second
pass adds up what is above them, and all of it, and lists what is in them; the search is in the list.

What is compared are sums of whole numbers in the end: see ``filters``. The floats decide only which bins are listed.
"""

import triton.language as tl

from .filters import COLUMNS, FOUND, OPEN, target_of, threshold_of_mass
from .launch import kernel
from .logits_processing import COLUMN_TOP_P, REALS
from .order import LOWEST, as_logit, ordered, threshold_of_tile, weight_of

_SPAN = tl.constexpr(27.75)  # exp(-27.75) is below 2**-40: a token so far below the largest weighs nothing
_SLACK = tl.constexpr(1.0001)  # of float32 sums, and of weights that are cut


@kernel
def bin_of(logit, cut, largest, BINS: tl.constexpr) -> tl.tensor:
    """Bin of each logit; the last one for what is below ``cut``, or NaN, or weighs nothing."""
    below = tl.where(logit == largest, 0.0, largest - logit)
    place = tl.minimum(below * ((BINS - 1) / _SPAN), BINS - 1.0)
    return tl.where(logit >= cut, place, BINS - 1.0).to(tl.int32)


@kernel
def count_bins(
    logits_ptr,  # [N, V] float32, dense
    state_ptr,  # [N, COLUMNS] int32
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32
    bins_ptr,  # [N, BINS] int32, zeros; out
    vocab_size,
    part_blocks,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """How many tokens there are in each bin. One program per row and part of the vocabulary."""
    index = tl.program_id(0).to(tl.int64)
    if tl.load(state_ptr + index * COLUMNS + OPEN) == 0:
        return
    begin = tl.program_id(1) * part_blocks * BLOCK
    end = tl.minimum(begin + part_blocks * BLOCK, vocab_size)
    logits_ptr += index * vocab_size
    largest, cut = tl.load(largest_ptr + index), as_logit(tl.load(threshold_ptr + index))
    number = tl.zeros([BINS], tl.int32)
    for start in range(begin, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = tl.load(logits_ptr + token, mask=token < end, other=float("nan"))
        number += tl.histogram(bin_of(logit, cut, largest, BINS), BINS)
    tl.atomic_add(bins_ptr + index * BINS + tl.arange(0, BINS), number, mask=number > 0)


@kernel
def bins_in_question(bins_ptr, share, BINS: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """First and last of the bins that may hold the threshold of a share of the mass."""
    place = tl.arange(0, BINS)
    number = tl.load(bins_ptr + place).to(tl.float32)
    number = tl.where(place < BINS - 1, number, 0.0)
    # The upper and the lower edge of every bin. With A above and R for the rest, the share is A / (A + R).
    most = number * tl.exp(place * (-_SPAN / (BINS - 1)))
    least = number * tl.exp((place + 1) * (-_SPAN / (BINS - 1)))
    most_above, least_above = tl.cumsum(most, 0), tl.cumsum(least, 0)
    most_rest, least_rest = tl.sum(most, 0) - most_above, tl.sum(least, 0) - least_above
    certain = least_above * (1.0 - share) >= most_rest * share * _SLACK
    possible = most_above * (1.0 - share) * _SLACK >= least_rest * share
    first = tl.sum((~possible).to(tl.int32), 0)
    last = tl.sum((~certain).to(tl.int32), 0)
    return first, tl.minimum(last, BINS - 2)


@kernel
def weigh_bins(
    logits_ptr,  # [N, V] float32, dense
    state_ptr,  # [N, COLUMNS] int32
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32
    rows_ptr,  # [N] int32
    reals_ptr,  # [R, REALS] float32
    bins_ptr,  # [N, BINS] int32
    mass_ptr,  # [N, 2] int64, zeros; out: mass above the tokens in question, and all of it
    keys_ptr,  # [N, LIST] int32, out: integers of the tokens in question, in any order
    vocab_size,
    part_blocks,
    BINS: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The masses that `settle_nucleus` needs, and its tokens. One program per row and part of the vocabulary."""
    index = tl.program_id(0).to(tl.int64)
    if tl.load(state_ptr + index * COLUMNS + OPEN) == 0:
        return
    begin = tl.program_id(1) * part_blocks * BLOCK
    end = tl.minimum(begin + part_blocks * BLOCK, vocab_size)
    logits_ptr += index * vocab_size
    keys_ptr += index * LIST
    largest, cut = tl.load(largest_ptr + index), as_logit(tl.load(threshold_ptr + index))
    share = tl.load(reals_ptr + tl.load(rows_ptr + index).to(tl.int64) * REALS + COLUMN_TOP_P)
    first, last = bins_in_question(bins_ptr + index * BINS, share, BINS)
    above = tl.zeros([BLOCK], tl.int64)
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(begin, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = tl.load(logits_ptr + token, mask=token < end, other=float("nan"))
        place = bin_of(logit, cut, largest, BINS)
        weight = tl.where(place < BINS - 1, weight_of(logit, largest), 0)
        total += weight
        above += tl.where(place < first, weight, 0)
        asked = ((place >= first) & (place <= last)).to(tl.int32)
        number = tl.sum(asked, 0)
        if number > 0:
            there = tl.atomic_add(state_ptr + index * COLUMNS + FOUND, number) + tl.cumsum(asked, 0) - 1
            tl.store(keys_ptr + there, ordered(logit), mask=(asked != 0) & (there < LIST))
    tl.atomic_add(mass_ptr + 2 * index, tl.sum(above, 0))
    tl.atomic_add(mass_ptr + 2 * index + 1, tl.sum(total, 0))


@kernel
def threshold_of_list(keys_ptr, number, largest, target, SIZE: tl.constexpr) -> tl.tensor:
    """Largest integer such that a list's from it on weigh ``target``; the lowest one if there is none."""
    place = tl.arange(0, SIZE)
    present = place < number
    keys = tl.load(keys_ptr + place, mask=present, other=LOWEST)
    weights = tl.where(present, weight_of(as_logit(keys), largest), 0)
    return threshold_of_tile(keys, weights, tl.min(tl.where(present, keys, 2147483647), 0), target)


@kernel
def settle_nucleus(
    logits_ptr,  # [N, V] float32, dense
    state_ptr,  # [N, COLUMNS] int32
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32, in and out
    rows_ptr,  # [N] int32
    reals_ptr,  # [R, REALS] float32
    mass_ptr,  # [N, 2] int64
    keys_ptr,  # [N, LIST] int32
    vocab_size,
    FEW: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The threshold of top-p. One program per row."""
    index = tl.program_id(0).to(tl.int64)
    if tl.load(state_ptr + index * COLUMNS + OPEN) == 0:
        return
    floor = tl.load(threshold_ptr + index)
    largest = tl.load(largest_ptr + index)
    number = tl.load(state_ptr + index * COLUMNS + FOUND)
    share = tl.load(reals_ptr + tl.load(rows_ptr + index).to(tl.int64) * REALS + COLUMN_TOP_P)
    target = target_of(tl.load(mass_ptr + 2 * index + 1), share)
    missing = target - tl.load(mass_ptr + 2 * index)
    threshold = tl.full([], LOWEST, tl.int32)
    if (number <= FEW) & (missing > 0):
        threshold = threshold_of_list(keys_ptr + index * LIST, number, largest, missing, FEW)
    elif (number <= LIST) & (missing > 0):
        threshold = threshold_of_list(keys_ptr + index * LIST, number, largest, missing, LIST)
    if (threshold == LOWEST) & (share < 1.0):
        threshold = threshold_of_mass(
            logits_ptr + index * vocab_size, vocab_size, floor.to(tl.int64), largest, target, BLOCK
        ).to(tl.int32)
    tl.store(threshold_ptr + index, tl.maximum(floor, threshold))
