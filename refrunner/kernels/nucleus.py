"""Top-p: the fewest tokens whose probabilities reach p, by masses that are whole numbers, and without a sort.

The weight exp(x - max) of each token is cut to a whole number of 2**-40. Sums of whole numbers are exact and have no
order, so the threshold depends neither on the size of a block nor on the device's way of adding. Against exact real
numbers a weight is off by no more than E = 2**-21 + 2**-23 * (max - x) of itself (exp to 2 units in the last place, its
argument to one rounding) and by 2**-40: the mass above a token, as a share, is off by at most 2 * (E + V * 2**-40).
Equal logits stay or go together.

A sample of the row says between which two logits the threshold must be looked for. One pass adds up what is above them
and all of it, and lists the tokens between; the search is in the list. The few likeliest tokens are known beforehand
(`groups`), so the sample stands only for the others, none of which has much weight. Where the sample has misled, or the
list has no room, which the exact masses tell, the search is in the whole row. So no float decides about a token.
"""

import triton.language as tl

from .launch import kernel
from .logits_processing import COLUMN_TOP_P, REALS, source_of
from .order import LOWEST, as_logit, divided, ordered, threshold_of_tile, weight_of

_SPAN = tl.constexpr(27.75)  # exp(-27.75) is below 2**-40: a token so far below the largest weighs nothing
_UNIT = tl.constexpr(9.094947017729282e-13)  # 2**-40
_ERRORS = tl.constexpr(4.5)  # standard errors of a sample that are allowed for
_STEPS = tl.constexpr(12)
_ROUGH_STEPS = tl.constexpr(8)  # of the crossing that the error is reckoned at
_MARGIN = tl.constexpr(32)  # shares of an interval, of which one is searched on either side of a guess

# Columns of `state`, int32 [N, COLUMNS]. Integers are those of `ordered`.
OPEN = tl.constexpr(0)  # whether the threshold of top-p is still to be found
LISTED = tl.constexpr(1)  # number of integers above LINE, all listed
LINE = tl.constexpr(2)
FOUND = tl.constexpr(3)  # number of tokens in question
LOW = tl.constexpr(4)  # they reach from this integer
HIGH = tl.constexpr(5)  # to this one
COLUMNS = tl.constexpr(8)

# Columns of `mass`, int64 [N, MASSES].
LISTED_MASS = tl.constexpr(0)
ABOVE_MASS = tl.constexpr(1)  # of tokens above those in question
WHOLE_MASS = tl.constexpr(2)
MASSES = tl.constexpr(4)


@kernel
def target_of(total, share) -> tl.tensor:
    """Mass that the tokens kept must have: int64."""
    target = tl.ceil(total.to(tl.float64) * share.to(tl.float64)).to(tl.int64)
    # All of it is one more than there is: tokens whose weight is cut to nothing are kept too.
    return tl.where(share < 1.0, tl.maximum(target, 1), total + 1)


@kernel
def masses_from(
    logits_ptr, divisor, size, floor, largest, low, middle, high, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Mass of the logits of a row, divided first, that reach each of three integers, and ``floor``: int64."""
    low_mass = tl.zeros([BLOCK], tl.int64)
    middle_mass = tl.zeros([BLOCK], tl.int64)
    high_mass = tl.zeros([BLOCK], tl.int64)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        logit = divided(tl.load(logits_ptr + place, mask=place < size, other=float("-inf")), divisor)
        logit = tl.where(logit == logit, logit, float("-inf"))
        key = ordered(logit)
        weight = tl.where((place < size) & (key >= floor), weight_of(logit, largest), 0)
        low_mass += tl.where(key >= low, weight, 0)
        middle_mass += tl.where(key >= middle, weight, 0)
        high_mass += tl.where(key >= high, weight, 0)
    return tl.sum(low_mass, 0), tl.sum(middle_mass, 0), tl.sum(high_mass, 0)


@kernel
def threshold_of_mass(logits_ptr, divisor, size, floor, largest, mass, target, BLOCK: tl.constexpr) -> tl.tensor:
    """Largest integer from which on the logits of a row, divided first, weigh ``target`` or more.

    Args:
        floor: smaller ones count for nothing.
        mass: of those from it on, which is enough.
    """
    first, last = floor.to(tl.int64), ordered(largest).to(tl.int64)
    beyond = tl.full([], 0, tl.int64)
    while first < last:
        # The middle, which halves what is left, and two that enclose a guess, which leave less if masses grow evenly.
        margin = (last - first) // _MARGIN
        share = (mass - target).to(tl.float64) / (tl.maximum(mass - beyond, 1)).to(tl.float64)
        guess = first + ((last - first).to(tl.float64) * share).to(tl.int64)
        middle = first + (last - first + 1) // 2
        lower = tl.minimum(tl.maximum(guess - margin, first + 1), last)
        upper = tl.minimum(tl.maximum(guess + margin + 1, first + 1), last)
        lower_mass, middle_mass, upper_mass = masses_from(
            logits_ptr, divisor, size, floor, largest, lower, middle, upper, BLOCK
        )
        first, last, mass, beyond = narrowed(first, last, mass, beyond, middle, middle_mass, target)
        first, last, mass, beyond = narrowed(first, last, mass, beyond, lower, lower_mass, target)
        first, last, mass, beyond = narrowed(first, last, mass, beyond, upper, upper_mass, target)
    return first.to(tl.int32)


@kernel
def narrowed(
    first, last, mass, beyond, candidate, candidate_mass, target
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """An interval with what is known of one more integer: what weighs enough, what may, and their masses."""
    rises = (candidate_mass >= target) & (candidate > first)
    falls = (candidate_mass < target) & (candidate <= last)
    return (
        tl.where(rises, candidate, first),
        tl.where(falls, candidate - 1, last),
        tl.where(rises, candidate_mass, mass),
        tl.where(falls, candidate_mass, beyond),
    )


@kernel
def crossing(logit, weight, low, high, target, STEPS: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Two numbers close together: from the first on, but not from the second, a sample weighs ``target``.

    From ``low`` on it must, and from above ``high`` on it does not.
    """
    for _step in range(STEPS):
        middle = 0.5 * low + 0.5 * high
        enough = tl.sum(tl.where(logit >= middle, weight, 0.0), 0) >= target
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low, high


@kernel
def ask_by_sample(
    logits_ptr,  # [N, V] float32
    logits_stride,
    processed_ptr,  # [N, V] float32, dense; read for rows with a stage of STORED
    state_ptr,  # [N, COLUMNS] int32, in and out
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32
    rows_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    mass_ptr,  # [N, MASSES] int64
    vocab_size,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,  # neighbouring tokens, which come from memory together
) -> None:
    """Between which two logits the threshold probably is. One program per row."""
    index = tl.program_id(0).to(tl.int64)
    state_ptr += index * COLUMNS
    if tl.load(state_ptr + OPEN) == 0:
        return
    lane = tl.arange(0, SAMPLE)
    runs = (vocab_size + RUN - 1) // RUN
    taken = tl.minimum(runs, SAMPLE // RUN)
    token = ((lane // RUN).to(tl.int64) * runs // taken * RUN).to(tl.int32) + lane % RUN
    inside = (lane < taken * RUN) & (token < vocab_size)
    source_ptr, divisor = source_of(
        logits_ptr, logits_stride, processed_ptr, rows_ptr, numbers_ptr, reals_ptr, index, vocab_size
    )
    logit = divided(tl.load(source_ptr + token, mask=inside, other=float("-inf")), divisor)
    logit = tl.where(logit == logit, logit, float("-inf"))
    largest, line = tl.load(largest_ptr + index), as_logit(tl.load(state_ptr + LINE))
    cut = as_logit(tl.load(threshold_ptr + index))
    share = tl.load(reals_ptr + tl.load(rows_ptr + index).to(tl.int64) * REALS + COLUMN_TOP_P)
    factor = vocab_size / tl.sum(inside.to(tl.float32), 0)
    weight = tl.where(logit == largest, 1.0, tl.exp(logit - largest)) * factor
    weight = tl.where(inside & (logit >= cut) & (logit <= line), weight, 0.0)
    listed = tl.load(mass_ptr + index * MASSES + LISTED_MASS).to(tl.float32) * _UNIT
    wanted = share * (listed + tl.sum(weight, 0)) - listed
    lowest = tl.maximum(cut, largest - _SPAN)
    low, high = crossing(logit, weight, lowest, line, wanted, _ROUGH_STEPS)
    # Variance of the mass above the crossing less its share of the whole, by runs; and what a few unseen tokens weigh.
    error = tl.sum(tl.reshape(weight * (tl.where(logit >= low, 1.0, 0.0) - share), [SAMPLE // RUN, RUN]), 1)
    heaviest = 2.0 * factor * tl.where(line == largest, 1.0, tl.exp(line - largest))
    error = _ERRORS * tl.sqrt(tl.sum(error * error, 0) + heaviest * heaviest)
    _low, above = crossing(logit, weight, low, line, wanted - error, _STEPS)
    below, _high = crossing(logit, weight, lowest, high, wanted + error, _STEPS)
    tl.store(state_ptr + HIGH, ordered(tl.where(wanted > error, above, line)))
    tl.store(state_ptr + LOW, ordered(tl.where(wanted + error < tl.sum(weight, 0), tl.maximum(below, cut), cut)))


@kernel
def weigh_rows(
    logits_ptr,  # [N, V] float32
    logits_stride,
    processed_ptr,  # [N, V] float32, dense; read for rows with a stage of STORED
    state_ptr,  # [N, COLUMNS] int32, in and out
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32
    rows_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    mass_ptr,  # [N, MASSES] int64, in and out
    keys_ptr,  # [N, SLOTS] int32, out: integers of the tokens in question, in any order; not all if there is no room
    vocab_size,
    part_blocks,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The masses that `settle_nucleus` needs, and its tokens. One program per row and part of the vocabulary."""
    index = tl.program_id(0).to(tl.int64)
    state_ptr += index * COLUMNS
    if tl.load(state_ptr + OPEN) == 0:
        return
    begin = tl.program_id(1) * part_blocks * BLOCK
    end = tl.minimum(begin + part_blocks * BLOCK, vocab_size)
    source_ptr, divisor = source_of(
        logits_ptr, logits_stride, processed_ptr, rows_ptr, numbers_ptr, reals_ptr, index, vocab_size
    )
    largest, cut = tl.load(largest_ptr + index), as_logit(tl.load(threshold_ptr + index))
    low, high = as_logit(tl.load(state_ptr + LOW)), as_logit(tl.load(state_ptr + HIGH))
    above = tl.zeros([BLOCK], tl.int64)
    whole = tl.zeros([BLOCK], tl.int64)
    asked = tl.zeros([BLOCK], tl.int32)
    for start in range(begin, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = divided(tl.load(source_ptr + token, mask=token < end, other=float("nan")), divisor)
        kept = logit >= cut
        logit = tl.where(kept, logit, float("-inf"))
        weight = tl.where(kept, weight_of(logit, largest), 0)
        whole += weight
        above += tl.where(logit > high, weight, 0)
        asked += (kept & (logit >= low) & (logit <= high)).to(tl.int32)
    # Room is asked for once, and not in each block: another look at the part takes less than that many answers.
    number = tl.sum(asked, 0)
    first = tl.full([], 0, tl.int32)
    if number > 0:
        first = tl.atomic_add(state_ptr + FOUND, number)
    for start in range(begin, tl.where(first + number > SLOTS, begin, end), BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = divided(tl.load(source_ptr + token, mask=token < end, other=float("nan")), divisor)
        chosen = ((logit >= cut) & (logit >= low) & (logit <= high)).to(tl.int32)
        place = first + tl.cumsum(chosen, 0) - 1
        tl.store(keys_ptr + index * SLOTS + place, ordered(logit), mask=chosen != 0)
        first += tl.sum(chosen, 0)
    mass_ptr += index * MASSES
    tl.atomic_add(mass_ptr + ABOVE_MASS, tl.sum(above, 0))
    tl.atomic_add(mass_ptr + WHOLE_MASS, tl.sum(whole, 0))


@kernel
def load_list(keys_ptr, number, floor, largest, SIZE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Listed integers, and their weights, 0 below ``floor``."""
    place = tl.arange(0, SIZE)
    keys = tl.load(keys_ptr + place, mask=place < number, other=LOWEST)
    weights = tl.where((place < number) & (keys >= floor), weight_of(as_logit(keys), largest), 0)
    return keys, weights


@kernel
def settle_nucleus(
    logits_ptr,  # [N, V] float32
    logits_stride,
    processed_ptr,  # [N, V] float32, dense; read for rows with a stage of STORED
    state_ptr,  # [N, COLUMNS] int32
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32, in and out
    rows_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    mass_ptr,  # [N, MASSES] int64
    list_ptr,  # [N, LIST] int32, integers above LINE
    keys_ptr,  # [N, SLOTS] int32, integers in question
    vocab_size,
    LIST: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The threshold of top-p: among the likeliest tokens, else those in question, else all. One program per row."""
    index = tl.program_id(0).to(tl.int64)
    state_ptr += index * COLUMNS
    mass_ptr += index * MASSES
    if tl.load(state_ptr + OPEN) == 0:
        return
    share = tl.load(reals_ptr + tl.load(rows_ptr + index).to(tl.int64) * REALS + COLUMN_TOP_P)
    whole = tl.load(mass_ptr + WHOLE_MASS)
    target = target_of(whole, share)
    if target > whole:
        return
    floor, largest = tl.load(threshold_ptr + index), tl.load(largest_ptr + index)
    found, low, high = tl.load(state_ptr + FOUND), tl.load(state_ptr + LOW), tl.load(state_ptr + HIGH)
    listed, missing = tl.load(mass_ptr + LISTED_MASS), target - tl.load(mass_ptr + ABOVE_MASS)
    source_ptr, divisor = source_of(
        logits_ptr, logits_stride, processed_ptr, rows_ptr, numbers_ptr, reals_ptr, index, vocab_size
    )
    settled = tl.full([], False, tl.int1)
    threshold = floor
    if listed >= target:
        line, number = tl.load(state_ptr + LINE), tl.load(state_ptr + LISTED)
        keys, weights = load_list(list_ptr + index * LIST, number, floor, largest, LIST)
        threshold = threshold_of_tile(keys, weights, tl.maximum(line + 1, floor), ordered(largest), target)
        settled = listed >= target
    elif missing > 0:
        if low == high:  # however many there are
            settled = found * weight_of(as_logit(low), largest) >= missing
            threshold = low
        elif found <= SLOTS:
            keys, weights = load_list(keys_ptr + index * SLOTS, found, floor, largest, SLOTS)
            settled = tl.sum(weights, 0) >= missing
            if settled:
                threshold = threshold_of_tile(keys, weights, low, high, missing)
    if settled == 0:
        threshold = threshold_of_mass(source_ptr, divisor, vocab_size, floor, largest, whole, target, BLOCK)
    tl.store(threshold_ptr + index, tl.maximum(floor, threshold))
