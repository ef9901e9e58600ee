"""Top-p: the fewest tokens whose probabilities reach p, by masses that are whole numbers, and without a sort.

The weight exp(x - max) of each token is cut to a whole number of 2**-40. Sums of whole numbers are exact and have no
order, so the threshold depends neither on the size of a block nor on the device's way of adding. Against exact real
numbers a weight is off by no more than E = 2**-21 + 2**-23 * (max - x) of itself (exp to 2 units in the last place, its
argument to one rounding) and by 2**-40: the mass above a token, as a share, is off by at most 2 * (E + V * 2**-40).
Equal logits stay or go together.

The search goes in rounds. A round knows two integers that the threshold is between, and the mass above either. It adds
up the masses above a few *pivots* in between, over all of the row at once, and leaves a narrower interval to the next
one (`nucleus_rounds`). The first pivots come from a sample of the row (`nucleus_sample`), the others from the masses
known so far. Groups of tokens whose largest one is below the interval are not read. As soon as the interval can hold
only few tokens, a round lists them instead, and the last search is in the list; tokens that are all equal need none.
The likeliest ones are known beforehand (`groups`), so the sample stands only for the others. Pivots decide how long it
takes; which token stays, exact masses decide. Where the rounds do not suffice, as with half of a row equal and the
other half close around it, or evenly spaced logits and p = 1 - 2**-24, one program searches what is left.
"""

import triton.language as tl

from .launch import kernel
from .logits_processing import COLUMN_TOP_P, REALS, source_of
from .order import FEW, as_logit, divided, listed_keys, ordered, threshold_of_tile, weight_of

SPAN = tl.constexpr(27.75)  # exp(-27.75) is below 2**-40: a token so far below the largest weighs nothing
_MARGIN = tl.constexpr(32)  # shares of an interval, of which one is searched on either side of a guess

# Columns of `state`, int32 [N, ROUNDS, COLUMNS]. Integers are those of `ordered`.
OPEN = tl.constexpr(0)  # whether this round has something to do
LOW = tl.constexpr(1)  # the threshold is no smaller
HIGH = tl.constexpr(2)  # and no larger
LEAST = tl.constexpr(3)  # smallest integer of a token that the round has found between them
MOST = tl.constexpr(4)  # and the largest one
PIVOT = tl.constexpr(8)  # PIVOTS of them
# In the first round's row of them only.
LISTED = tl.constexpr(5)  # number of likeliest tokens, all those above HIGH
FOUND = tl.constexpr(6)  # number of tokens in question
SEARCHED = tl.constexpr(7)  # whether rounds did not suffice
LAST_LOW = tl.constexpr(12)  # LOW of the last round that had something to do
LAST_HIGH = tl.constexpr(13)
COLUMNS = tl.constexpr(16)
PIVOTS = tl.constexpr(4)

# Columns of `mass`, int64 [N, ROUNDS, MASSES].
LOW_MASS = tl.constexpr(0)  # of tokens from LOW; of all of them in the first round's
HIGH_MASS = tl.constexpr(1)  # of tokens above HIGH
LAST_MASS = tl.constexpr(2)  # HIGH_MASS of the last round that had something to do, in the first round's
PIVOT_MASS = tl.constexpr(4)  # of tokens above each pivot
MASSES = tl.constexpr(8)
ROUNDS = tl.constexpr(4)  # the first one, and room for three more


@kernel
def target_of(total, share) -> tl.tensor:
    """Mass that the tokens kept must have: int64."""
    target = tl.ceil(total.to(tl.float64) * share.to(tl.float64)).to(tl.int64)
    # All of it is one more than there is: tokens whose weight is cut to nothing are kept too.
    return tl.where(share < 1.0, tl.maximum(target, 1), total + 1)


@kernel
def interval_of(state_ptr, mass_ptr, target) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """What a round leaves: the smallest and the largest integer that may be the threshold, and the masses."""
    which = tl.arange(0, PIVOTS)
    pivot, above = tl.load(state_ptr + PIVOT + which), tl.load(mass_ptr + PIVOT_MASS + which)
    low, high = tl.load(state_ptr + LOW), tl.load(state_ptr + HIGH)
    low_mass, high_mass = tl.load(mass_ptr + LOW_MASS), tl.load(mass_ptr + HIGH_MASS)
    between = (pivot >= low) & (pivot < high)
    enough, short = between & (above >= target), between & (above < target)
    low_mass = tl.min(tl.where(enough, above, low_mass), 0)
    high_mass = tl.max(tl.where(short, above, high_mass), 0)
    low = tl.maximum(tl.max(tl.where(enough, pivot + 1, low), 0), tl.load(state_ptr + LEAST))
    high = tl.minimum(tl.min(tl.where(short, pivot, high), 0), tl.load(state_ptr + MOST))
    return low, high, low_mass, high_mass


# A search by one program


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
def threshold_of_mass(
    logits_ptr, divisor, size, floor, largest, low, high, low_mass, high_mass, target, BLOCK: tl.constexpr
) -> tl.tensor:
    """Largest integer from which on the logits of a row, divided first, weigh ``target`` or more.

    Args:
        floor: smaller ones count for nothing.
        low: smallest integer that it may be.
        high: largest one.
        low_mass: of those from ``low``, which is enough.
        high_mass: of those above ``high``, which is not.
    """
    first, last, mass, beyond = low.to(tl.int64), high.to(tl.int64), low_mass, high_mass
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


# The end of the search


@kernel
def search_list(keys_ptr, number, floor, low, high, largest, target, SIZE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Whether listed integers from ``floor`` on weigh ``target``, and if so the largest one from which on they do.

    It is between ``low`` and ``high``, and none of them is above.
    """
    keys = listed_keys(keys_ptr, number, SIZE)
    weights = tl.where((tl.arange(0, SIZE) < number) & (keys >= floor), weight_of(as_logit(keys), largest), 0)
    return tl.sum(weights, 0) >= target, threshold_of_tile(keys, weights, low, high, target)


@kernel
def search_list_of(
    keys_ptr, number, floor, low, high, largest, target, SIZE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """`search_list` of up to SIZE integers, which takes less time where they are few, as they mostly are."""
    few: tl.constexpr = (SIZE + FEW - 1) // FEW
    if number <= few:
        enough, threshold = search_list(keys_ptr, number, floor, low, high, largest, target, few)
    else:
        enough, threshold = search_list(keys_ptr, number, floor, low, high, largest, target, SIZE)
    return enough, threshold


@kernel
def settle_nucleus(
    logits_ptr,  # [N, V] float32
    logits_stride,
    processed_ptr,  # [N, V] float32, dense; read for rows with a stage of STORED
    state_ptr,  # [N, ROUNDS, COLUMNS] int32, in and out
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32, in and out
    rows_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    mass_ptr,  # [N, ROUNDS, MASSES] int64
    last_ptr,  # [N, COLUMNS] int32: the last round, of `state`
    last_mass_ptr,  # [N, MASSES] int64, likewise
    list_ptr,  # [N, LIST] int32, the likeliest tokens' integers
    keys_ptr,  # [N, SLOTS] int32, integers in question
    vocab_size,
    LIST: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The threshold of top-p: among the likeliest tokens, else those in question, else all. One program per row."""
    index = tl.program_id(0).to(tl.int64)
    state_ptr += index * ROUNDS * COLUMNS
    mass_ptr += index * ROUNDS * MASSES
    last_ptr += index * ROUNDS * COLUMNS
    if tl.load(state_ptr + OPEN) == 0:
        return
    share = tl.load(reals_ptr + tl.load(rows_ptr + index).to(tl.int64) * REALS + COLUMN_TOP_P)
    whole, listed = tl.load(mass_ptr + LOW_MASS), tl.load(mass_ptr + HIGH_MASS)
    target = target_of(whole, share)
    if target > whole:
        return
    floor, largest = tl.load(threshold_ptr + index), tl.load(largest_ptr + index)
    if listed >= target:
        number, line = tl.load(state_ptr + LISTED), tl.load(state_ptr + HIGH)
        _enough, threshold = search_list_of(
            list_ptr + index * LIST, number, floor, tl.maximum(line + 1, floor), ordered(largest), largest, target, LIST
        )
        tl.store(threshold_ptr + index, threshold)
        return
    threshold, high = tl.load(state_ptr + LAST_LOW), tl.load(state_ptr + LAST_HIGH)
    low_mass, high_mass = whole, tl.load(mass_ptr + LAST_MASS)
    found = tl.load(state_ptr + FOUND)
    if tl.load(last_ptr + OPEN) != 0:
        threshold, high, low_mass, high_mass = interval_of(last_ptr, last_mass_ptr + index * ROUNDS * MASSES, target)
    if threshold < high:
        settled = (found > 0) & (found <= SLOTS)
        if settled:
            settled, listed_one = search_list_of(
                keys_ptr + index * SLOTS, found, threshold, threshold, high, largest, target - high_mass, SLOTS
            )
            threshold = tl.where(settled, listed_one, threshold)
        if settled == 0:
            tl.store(state_ptr + SEARCHED, 1)
            source_ptr, divisor = source_of(
                logits_ptr, logits_stride, processed_ptr, rows_ptr, numbers_ptr, reals_ptr, index, vocab_size
            )
            threshold = threshold_of_mass(
                source_ptr, divisor, vocab_size, floor, largest, threshold, high, low_mass, high_mass, target, BLOCK
            )
    tl.store(threshold_ptr + index, tl.maximum(floor, threshold))
