"""Min-p, top-k and top-p as one threshold a row, exact and without a sort.

Each filter keeps the largest logits, so each is a threshold, and the strictest of the three holds. Logits are compared
as integers (`ordered`). The k-th largest is found among the few logits that reach the k-th largest of the groups'
maxima (`groups`), and top-p behind it in the same list; where they are neighbours and the list has no room, among
those of fewer groups. Where k is large, or those are too few, the row is searched: the k-th largest logit is at least
the k-th largest of the lanes' own largest ones, and mostly is that one, since few of the k share a lane; from there it
is a step or two up (`kth_largest`). Top-p of whole rows is in `nucleus`.
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
    source_of,
)
from .nucleus import COLUMNS, HIGH, HIGH_MASS, LEAST, LISTED, LOW, MASSES, MOST, OPEN, ROUNDS, target_of
from .order import FEW, LOWEST, as_logit, divided, kth_of_tile, listed_keys, ordered, threshold_of_tile, weight_of

_STEPS = tl.constexpr(4)
_ABOVE_ALL = tl.constexpr(2147483648)


@kernel
def keys_of(logits_ptr, divisor, start, size, floor, BLOCK: tl.constexpr) -> tl.tensor:
    """Integers of a block of a row, the lowest one outside it; a logit below ``floor`` counts as minus infinity."""
    token = start + tl.arange(0, BLOCK)
    logit = divided(tl.load(logits_ptr + token, mask=token < size, other=float("-inf")), divisor)
    key = ordered(tl.where(ordered(logit) >= floor, logit, float("-inf")))
    return tl.where(token < size, key, LOWEST)


@kernel
def kth_of_lanes(logits_ptr, divisor, size, floor, count, BLOCK: tl.constexpr) -> tl.tensor:
    """The ``count``-th largest of the lanes' largest integers; the lowest one if there are fewer: int64."""
    top = tl.full([BLOCK], LOWEST, tl.int32)
    for start in range(0, size, BLOCK):
        top = tl.maximum(top, keys_of(logits_ptr, divisor, start, size, floor, BLOCK))
    kth = tl.full([], LOWEST, tl.int64)
    for bit in range(32):
        candidate = kth + (tl.full([], 1, tl.int64) << (31 - bit))
        reaching = tl.sum((top.to(tl.int64) >= candidate).to(tl.int32), 0)
        kth = tl.where(reaching >= count, candidate, kth)
    return kth


@kernel
def next_above(logits_ptr, divisor, size, floor, key, BLOCK: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """How many integers of a row are above ``key``, int32, and the smallest of them, int64."""
    number = tl.full([], 0, tl.int32)
    smallest = tl.full([], _ABOVE_ALL, tl.int64)
    for start in range(0, size, BLOCK):
        other = keys_of(logits_ptr, divisor, start, size, floor, BLOCK).to(tl.int64)
        number += tl.sum((other > key).to(tl.int32), 0)
        smallest = tl.minimum(smallest, tl.min(tl.where(other > key, other, _ABOVE_ALL), 0))
    return number, smallest


@kernel
def kth_largest(logits_ptr, divisor, size, floor, count, BLOCK: tl.constexpr) -> tl.tensor:
    """Largest integer that ``count`` or more logits of a row reach; the lowest one if there are fewer: int64.

    Logits are divided first, and one below ``floor``, an integer too, is minus infinity. The search begins at an
    integer that enough logits reach, and goes up while enough are above; where that takes long, as when ``count`` is
    more than the lanes, a bisection of the whole row finds the same.
    """
    kth = kth_of_lanes(logits_ptr, divisor, size, floor, count, BLOCK)
    number, above = next_above(logits_ptr, divisor, size, floor, kth, BLOCK)
    for _step in range(_STEPS):
        if (number >= count) & (number > 0):
            kth = above
            number, above = next_above(logits_ptr, divisor, size, floor, kth, BLOCK)
    if (number >= count) & (number > 0):
        kth = tl.full([], LOWEST, tl.int64)
        for bit in range(32):
            candidate = kth + (tl.full([], 1, tl.int64) << (31 - bit))
            number, above = next_above(logits_ptr, divisor, size, floor, candidate - 1, BLOCK)
            kth = tl.where(number >= count, candidate, kth)
    return kth


@kernel
def kth_of_list(list_ptr, found, line, count, LIST: tl.constexpr) -> tl.tensor:
    """The ``count``-th largest integer of a list, or the line that all of them are above if they are fewer."""
    few: tl.constexpr = (LIST + FEW - 1) // FEW
    kth = line
    if found >= count:
        if found <= few:
            kth = kth_of_tile(listed_keys(list_ptr, found, few), line + 1, count)
        else:
            kth = kth_of_tile(listed_keys(list_ptr, found, LIST), line + 1, count)
    return kth


@kernel
def top_p_of_list(list_ptr, found, equal, line, floor, largest, share, LIST: tl.constexpr) -> tl.tensor:
    """Threshold of top-p where all that is left is on a list, or on its line."""
    few: tl.constexpr = (LIST + FEW - 1) // FEW
    if found <= few:
        threshold = top_p_of_keys(listed_keys(list_ptr, found, few), equal, line, floor, largest, share)
    else:
        threshold = top_p_of_keys(listed_keys(list_ptr, found, LIST), equal, line, floor, largest, share)
    return threshold


@kernel
def top_p_of_keys(keys, equal, line, floor, largest, share) -> tl.tensor:
    """`top_p_of_list` of integers in registers."""
    weights = tl.where(keys >= floor, weight_of(as_logit(keys), largest), 0)
    mass = tl.sum(weights, 0)
    whole = mass
    if line >= floor:
        whole += equal * weight_of(as_logit(line), largest)
    target = target_of(whole, share)
    threshold = floor
    if mass >= target:
        threshold = threshold_of_tile(keys, weights, tl.maximum(line + 1, floor), ordered(largest), target)
    return threshold


@kernel
def list_likely(
    source_ptr, divisor, maxima, groups_ptr, list_ptr, num_groups, size, count, LIST: tl.constexpr, TILE: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """A line that ``count`` logits reach; how many are above, listed if there is room; and how many on it."""
    line = line_of(maxima, num_groups, count, GROUPS)
    number = list_groups(maxima, groups_ptr, num_groups, line, GROUPS)
    found, equal = list_above(source_ptr, divisor, groups_ptr, number, list_ptr, size, line, LIST, TILE, GROUP)
    return line, found, equal


@kernel
def list_with_room(
    source_ptr, divisor, maxima, groups_ptr, list_ptr, num_groups, size, count, LIST: tl.constexpr, TILE: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """`list_likely`, of fewer groups if there is no room; and whether ``count`` logits are on the list or its line."""
    FITTING: tl.constexpr = max(1, LIST // (2 * GROUP))
    line, found, equal = list_likely(
        source_ptr, divisor, maxima, groups_ptr, list_ptr, num_groups, size, count, LIST, TILE, GROUP, GROUPS
    )
    crowded = found > LIST
    if crowded:  # they are neighbours
        line, found, equal = list_likely(
            source_ptr, divisor, maxima, groups_ptr, list_ptr, num_groups, size, tl.minimum(count, FITTING), LIST, TILE,
            GROUP, GROUPS,
        )  # fmt: skip
    # Fewer groups may have too few tokens above their line.
    enough = (found <= LIST) & ((crowded == 0) | (found >= count))
    return line, found, equal, enough


@kernel
def leave_open(state_ptr, mass_ptr, list_ptr, found, line, threshold, largest, LIST: tl.constexpr) -> None:
    """Leave top-p of a row to the kernels of `nucleus`, with the list as far as there was room."""
    if found > LIST:  # an empty list is right, too
        line, found = ordered(largest), found * 0
    keys = listed_keys(list_ptr, found, LIST)
    listed = (keys > line) & (keys >= threshold)
    mass = tl.sum(tl.where(listed, weight_of(as_logit(keys), largest), 0), 0)
    column = tl.arange(0, ROUNDS * MASSES)
    tl.store(mass_ptr + column, tl.where(column == HIGH_MASS, mass, 0))
    column = tl.arange(0, ROUNDS * COLUMNS)
    state = tl.where(column == OPEN, 1, 0)
    state = tl.where(column == LOW, threshold, state)
    state = tl.where(column == HIGH, line, state)
    state = tl.where(column == LISTED, found, state)
    # What a round finds begins with nothing; before the first one nothing is known.
    first = column < COLUMNS
    state = tl.where(column % COLUMNS == LEAST, tl.where(first, LOWEST, -1 - LOWEST), state)
    state = tl.where(column % COLUMNS == MOST, tl.where(first, -1 - LOWEST, LOWEST), state)
    tl.store(state_ptr + column, state)


@kernel
def find_thresholds(
    logits_ptr,  # [N, V] float32
    logits_stride,
    processed_ptr,  # [N, V] float32; rows without a stage of STORED are not there
    rows_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    maxima_ptr,  # [N, groups] int32: largest integer of each group of tokens
    groups_ptr,  # [N, groups] int32, for itself
    list_ptr,  # [N, LIST] int32, out: integers above a line, for `nucleus`
    threshold_ptr,  # [N] int32, out: tokens whose `ordered` logit is below it are dropped; LOWEST without a filter
    largest_ptr,  # [N] float32, out
    state_ptr,  # [N, ROUNDS, COLUMNS] int32, out, see `nucleus`
    mass_ptr,  # [N, ROUNDS, MASSES] int64, out, likewise
    vocab_size,
    num_groups,
    MOST: tl.constexpr,  # tokens that are looked for by groups
    LIKELY: tl.constexpr,  # as many of the likeliest tokens are listed for top-p
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
    state_ptr += index * ROUNDS * COLUMNS
    tl.store(state_ptr + OPEN, 0)
    if (stages & FILTERS) == 0:
        tl.store(threshold_ptr + index, LOWEST)
        return
    source_ptr, divisor = source_of(
        logits_ptr, logits_stride, processed_ptr, rows_ptr, numbers_ptr, reals_ptr, index, vocab_size
    )
    groups_ptr += index * num_groups
    list_ptr += index * LIST
    share = tl.load(reals_ptr + row * REALS + COLUMN_TOP_P)
    maxima = load_maxima(maxima_ptr + index * num_groups, num_groups, GROUPS)
    largest = as_logit(tl.max(maxima, 0))
    threshold = tl.full([], LOWEST, tl.int32)
    if (stages & MIN_P) != 0:
        threshold = ordered(largest + tl.load(reals_ptr + row * REALS + LOG_MIN_P))
    count = tl.minimum(LIKELY, num_groups)
    by_groups = stages < 0
    if (stages & TOP_K) != 0:
        # Of the k-th of all, and that of what min-p left, the larger one with min-p's is the same.
        wanted = tl.load(numbers_ptr + row * NUMBERS + COLUMN_TOP_K)
        by_groups = (wanted <= MOST) & (wanted <= num_groups)
        if by_groups:
            count = wanted
        else:
            kth = kth_largest(source_ptr, divisor, vocab_size, LOWEST, wanted, BLOCK).to(tl.int32)
            threshold = tl.maximum(threshold, kth)
    if by_groups | ((stages & TOP_P) != 0):
        line, found, equal, enough = list_with_room(
            source_ptr, divisor, maxima, groups_ptr, list_ptr, num_groups, vocab_size, count, LIST, TILE, GROUP, GROUPS
        )
        if by_groups:
            kth = line
            if enough:
                kth = kth_of_list(list_ptr, found, line, count, LIST)
            else:
                kth = kth_largest(source_ptr, divisor, vocab_size, LOWEST, count, BLOCK).to(tl.int32)
            threshold = tl.maximum(threshold, kth)
        if ((stages & TOP_P) != 0) & by_groups & enough:
            threshold = top_p_of_list(list_ptr, found, equal, line, threshold, largest, share, LIST)
        elif (stages & TOP_P) != 0:
            tl.store(largest_ptr + index, largest)
            leave_open(state_ptr, mass_ptr + index * ROUNDS * MASSES, list_ptr, found, line, threshold, largest, LIST)
    tl.store(threshold_ptr + index, threshold)
