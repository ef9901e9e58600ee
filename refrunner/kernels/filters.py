"""Min-p, top-k and top-p as one threshold a row, exact and without a sort.

Each filter keeps the largest logits, so each is a threshold, and the strictest of the three holds. Logits are compared
as integers (`ordered`), whose bits a bisection fixes one by one, from the top: 32 sums over the row find where the
probability above a logit reaches p. The k-th largest logit is at least the k-th largest of the lanes' own largest
ones, and mostly is that one, since few of the k share a lane; from there it is a step or two up (`kth_largest`).

For top-p, the weight exp(x - max) of each token is cut to a whole number of 2**-40. Sums of whole numbers are exact
and have no order, so the threshold depends neither on the size of a block nor on the device's way of adding. Against
exact real numbers a weight is off by no more than E = 2**-21 + 2**-23 * (max - x) of itself (exp to 2 units in the last
place, its argument to one rounding) and by 2**-40: the mass above a token, as a share, is off by at most
2 * (E + V * 2**-40). Equal logits stay or go together.
"""

import triton.language as tl

from .groups import line_of, list_above, list_groups, load_maxima
from .launch import kernel
from .logits_processing import (
    COLUMN_TOP_K,
    COLUMN_TOP_P,
    FILTERS,
    LOG_MIN_P,
    MIN_P,
    NUMBERS,
    REALS,
    STAGES,
    TOP_K,
    TOP_P,
)
from .order import FIXED_POINT, LOWEST, as_logit, kth_of_tile, ordered, threshold_of_tile, weight_of

# Columns of `state`, int32 [N, COLUMNS].
OPEN = tl.constexpr(0)  # whether the threshold of top-p is still to be found
FOUND = tl.constexpr(1)  # number of tokens in question
COLUMNS = tl.constexpr(2)

_STEPS = tl.constexpr(4)
_ABOVE_ALL = tl.constexpr(2147483648)


@kernel
def mass_from(logits_ptr, size, threshold, floor, largest, BLOCK: tl.constexpr) -> tl.tensor:
    """Weight in fixed point of the logits of a row whose integers reach both threshold and floor: int64."""
    mass = tl.full([], 0, tl.int64)
    for start in range(0, size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = tl.load(logits_ptr + token, mask=token < size, other=float("-inf"))
        logit = tl.where(logit == logit, logit, float("-inf"))
        key = ordered(logit).to(tl.int64)
        counted = (token < size) & (key >= threshold) & (key >= floor)
        share = tl.where(logit == largest, 1.0, tl.exp(logit - largest))
        mass += tl.sum((tl.where(counted, share, 0.0) * FIXED_POINT).to(tl.int64), 0)
    return mass


@kernel
def threshold_of_mass(logits_ptr, size, floor, largest, target, BLOCK: tl.constexpr) -> tl.tensor:
    """Largest integer such that the logits from it on weigh ``target`` or more; the lowest one if none do: int64."""
    threshold = tl.full([], LOWEST, tl.int64)
    for bit in range(32):
        candidate = threshold + (tl.full([], 1, tl.int64) << (31 - bit))
        mass = mass_from(logits_ptr, size, candidate, floor, largest, BLOCK)
        threshold = tl.where(mass >= target, candidate, threshold)
    return threshold


@kernel
def keys_of(logits_ptr, start, size, floor, BLOCK: tl.constexpr) -> tl.tensor:
    """Integers of a block of a row, the lowest one outside it; a logit below ``floor`` counts as minus infinity."""
    token = start + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + token, mask=token < size, other=float("-inf"))
    key = ordered(tl.where(ordered(logit) >= floor, logit, float("-inf")))
    return tl.where(token < size, key, LOWEST)


@kernel
def kth_of_lanes(logits_ptr, size, floor, count, BLOCK: tl.constexpr) -> tl.tensor:
    """The ``count``-th largest of the lanes' largest integers; the lowest one if there are fewer: int64."""
    top = tl.full([BLOCK], LOWEST, tl.int32)
    for start in range(0, size, BLOCK):
        top = tl.maximum(top, keys_of(logits_ptr, start, size, floor, BLOCK))
    kth = tl.full([], LOWEST, tl.int64)
    for bit in range(32):
        candidate = kth + (tl.full([], 1, tl.int64) << (31 - bit))
        reaching = tl.sum((top.to(tl.int64) >= candidate).to(tl.int32), 0)
        kth = tl.where(reaching >= count, candidate, kth)
    return kth


@kernel
def next_above(logits_ptr, size, floor, key, BLOCK: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """How many integers of a row are above ``key``, int32, and the smallest of them, int64."""
    number = tl.full([], 0, tl.int32)
    smallest = tl.full([], _ABOVE_ALL, tl.int64)
    for start in range(0, size, BLOCK):
        other = keys_of(logits_ptr, start, size, floor, BLOCK).to(tl.int64)
        number += tl.sum((other > key).to(tl.int32), 0)
        smallest = tl.minimum(smallest, tl.min(tl.where(other > key, other, _ABOVE_ALL), 0))
    return number, smallest


@kernel
def kth_largest(logits_ptr, size, floor, count, BLOCK: tl.constexpr) -> tl.tensor:
    """Largest integer that ``count`` or more logits of a row reach; the lowest one if there are fewer: int64.

    A logit below ``floor``, an integer too, is minus infinity. The search begins at an integer that enough logits
    reach, and goes up while enough are above; where that takes long, as when ``count`` is more than the lanes, a
    bisection of the whole row finds the same.
    """
    kth = kth_of_lanes(logits_ptr, size, floor, count, BLOCK)
    number, above = next_above(logits_ptr, size, floor, kth, BLOCK)
    for _step in range(_STEPS):
        if (number >= count) & (number > 0):
            kth = above
            number, above = next_above(logits_ptr, size, floor, kth, BLOCK)
    if (number >= count) & (number > 0):
        kth = tl.full([], LOWEST, tl.int64)
        for bit in range(32):
            candidate = kth + (tl.full([], 1, tl.int64) << (31 - bit))
            number, above = next_above(logits_ptr, size, floor, candidate - 1, BLOCK)
            kth = tl.where(number >= count, candidate, kth)
    return kth


@kernel
def largest_of(logits_ptr, size, BLOCK: tl.constexpr) -> tl.tensor:
    """Largest logit of a row; NaN is no logit."""
    largest = tl.full([], float("-inf"), tl.float32)
    for start in range(0, size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = tl.load(logits_ptr + token, mask=token < size, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(tl.where(logit == logit, logit, float("-inf")), 0))
    return largest


@kernel
def target_of(total, share) -> tl.tensor:
    """Mass that the tokens kept must have: int64."""
    target = tl.ceil(total.to(tl.float64) * share.to(tl.float64)).to(tl.int64)
    # All of it is one more than there is: tokens whose weight is cut to nothing are kept too.
    return tl.where(share < 1.0, tl.maximum(target, 1), total + 1)


@kernel
def top_k_by_groups(
    logits_ptr, maxima, list_ptr, keys_ptr, num_groups, size, count, floor, largest, share, WEIGH, GROUPS: tl.constexpr,
    LIST: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Threshold of top-k, and of top-p behind it if WEIGH; and whether the list had room for what they need."""
    line = line_of(maxima, num_groups, count, GROUPS)
    number = list_groups(maxima, list_ptr, num_groups, tl.where(WEIGH, line, line + 1), GROUPS)
    found, equal = list_above(logits_ptr, list_ptr, number, keys_ptr, size, line, LIST, TILE, GROUP)
    place = tl.arange(0, LIST)
    keys = tl.load(keys_ptr + place, mask=place < found, other=LOWEST)
    kth = line
    if (found >= count) & (found <= LIST):
        kth = kth_of_tile(keys, line + 1, count)
    threshold = tl.maximum(floor, kth)
    if WEIGH & (found <= LIST):
        weights = tl.where(keys >= threshold, weight_of(as_logit(keys), largest), 0)
        total = tl.sum(weights, 0)
        if line >= threshold:
            total += equal * weight_of(as_logit(line), largest)
        target = target_of(total, share)
        threshold = tl.maximum(threshold, threshold_of_tile(keys, weights, line + 1, target))
    return threshold, found <= LIST


@kernel
def find_thresholds(
    processed_ptr,  # [N, V] float32; rows without a stage are not there
    rows_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    maxima_ptr,  # [N, groups] int32: largest integer of each group of tokens
    list_ptr,  # [N, groups] int32, for itself
    keys_ptr,  # [N, LIST] int32, likewise
    threshold_ptr,  # [N] int32, out: tokens whose `ordered` logit is below it are dropped
    largest_ptr,  # [N] float32, out
    state_ptr,  # [N, COLUMNS] int32, out, see `nucleus`
    bins_ptr,  # [N, BINS] int32, out: zeros
    mass_ptr,  # [N, 2] int64, out: zeros
    vocab_size,
    num_groups,
    MOST: tl.constexpr,
    BINS: tl.constexpr,
    SLOTS: tl.constexpr,
    LIST: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per row of logits: min-p, then top-k of what is left, then top-p of what is left then."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index).to(tl.int64)
    stages = tl.load(numbers_ptr + row * NUMBERS + STAGES)
    threshold = tl.full([], LOWEST, tl.int32)
    weigh = (stages & TOP_P) != 0
    if (stages & FILTERS) != 0:
        logits_ptr = processed_ptr + index * vocab_size
        maxima = load_maxima(maxima_ptr + index * num_groups, num_groups, GROUPS)
        largest = as_logit(tl.max(maxima, 0))
        if (stages & MIN_P) != 0:
            threshold = ordered(largest + tl.load(reals_ptr + row * REALS + LOG_MIN_P))
        if (stages & TOP_K) != 0:
            # Of the k-th of all, and that of what min-p left, the larger one with min-p's is the same.
            count = tl.load(numbers_ptr + row * NUMBERS + COLUMN_TOP_K)
            share = tl.load(reals_ptr + row * REALS + COLUMN_TOP_P)
            settled = (count <= num_groups) & (count <= MOST)
            if settled:
                found, settled = top_k_by_groups(
                    logits_ptr, maxima, list_ptr + index * num_groups, keys_ptr + index * SLOTS, num_groups, vocab_size,
                    count, threshold, largest, share, weigh, GROUPS, LIST, TILE, GROUP,
                )  # fmt: skip
                threshold = tl.where(settled, found, threshold)
            if settled:
                weigh = weigh & False
            else:
                kth = kth_largest(logits_ptr, vocab_size, LOWEST, count, BLOCK).to(tl.int32)
                threshold = tl.maximum(threshold, kth)
        if weigh:
            tl.store(bins_ptr + index * BINS + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))
            tl.store(mass_ptr + 2 * index + tl.arange(0, 2), tl.zeros([2], tl.int64))
        tl.store(largest_ptr + index, largest)
    else:
        weigh = weigh & False
    tl.store(
        state_ptr + index * COLUMNS + tl.arange(0, COLUMNS),
        tl.where(tl.arange(0, COLUMNS) == OPEN, weigh.to(tl.int32), 0),
    )
    tl.store(threshold_ptr + index, threshold)
