"""Rounds of the search for the threshold of top-p, each over all of a row at once; see `nucleus`."""

import triton.language as tl

from .launch import kernel
from .logits_processing import COLUMN_TOP_P, REALS, source_of
from .nucleus import (
    COLUMNS,
    FOUND,
    HIGH,
    HIGH_MASS,
    LAST_HIGH,
    LAST_LOW,
    LAST_MASS,
    LEAST,
    LOW,
    LOW_MASS,
    MASSES,
    MOST,
    OPEN,
    PIVOT,
    PIVOT_MASS,
    ROUNDS,
    SPAN,
    interval_of,
    target_of,
)
from .order import LOWEST, as_logit, divided, in_fixed_point, ordered, share_of, weight_of

_TINY = tl.constexpr(2.0**-100)
_HIGHEST = tl.constexpr(2147483647)
# Pivots that enclose the guess: the ratio of the two parts is larger or smaller by so much.
_NEAR = tl.constexpr(1.5)
_FAR = tl.constexpr(8.0)


@kernel
def inverse_for(divisor, a, b, c, d, e, f) -> tl.tensor:
    """The float64 by which logits may be multiplied instead of divided, or 0 if they may not.

    The product, rounded to float32, is the quotient rounded once: it is off by less than 2**-52 of itself, and the
    quotient of two float32 numbers is further than that from the middle between two others. Only below 2**-126, where
    numbers have fewer bits, it may be that middle, and the product be rounded to the wrong side. As long as none of the
    numbers that quotients are compared with, or subtracted from, is as small, that makes no difference to a mass. To an
    integer that is kept it does: see `smallest_between`.
    """
    least = tl.minimum(tl.minimum(tl.minimum(tl.abs(a), tl.abs(b)), tl.minimum(tl.abs(c), tl.abs(d))), tl.abs(e))
    return tl.where(tl.minimum(least, tl.abs(f)) > _TINY, 1.0 / divisor.to(tl.float64), 0.0)


@kernel
def smallest_between(low, high) -> tl.tensor:
    """The smallest absolute value in an interval of numbers, which is zero where that is between its ends."""
    return tl.where((low < 0.0) & (high > 0.0), 0.0, tl.minimum(tl.abs(low), tl.abs(high)))


@kernel
def quotients(x, divisor, inverse) -> tl.tensor:
    """Quotients, rounded once, or what is as good; see `inverse_for`. A division costs several products, and waits."""
    return divided(x, divisor) if inverse == 0.0 else (x.to(tl.float64) * inverse).to(tl.float32)


@kernel
def tile_of(
    source_ptr, divisor, inverse, maxima_ptr, first, last, size, least, TILE: tl.constexpr, GROUP: tl.constexpr
) -> tl.tensor:
    """Logits of some groups, divided: [TILE, GROUP]. NaN where there is none, or none of the group reaches ``least``.

    Args:
        first: number of the first group.
        last: number of the last one, and one more.
    """
    group = first + tl.arange(0, TILE)
    live = tl.load(maxima_ptr + group, mask=group < last, other=LOWEST) >= least
    token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    there = (live & (group < last))[:, None] & (token < size)
    return quotients(tl.load(source_ptr + token, mask=there, other=float("nan")), divisor, inverse)


@kernel
def weights_of_tile(logit, least, largest) -> tl.tensor:
    """Weights of the logits that reach ``least``, else 0: int64."""
    kept = logit >= least
    return in_fixed_point(tl.where(kept, share_of(tl.where(kept, logit, float("-inf")), largest), 0.0))


@kernel
def in_fours(x, TILE: tl.constexpr, GROUP: tl.constexpr) -> tl.tensor:
    """Sums of four neighbours, which a thread adds by itself: [TILE, GROUP] gives [TILE * GROUP / 4]."""
    return tl.sum(tl.reshape(x, [TILE * GROUP // 4, 4]), 1)


@kernel
def add_above(
    logit, weight, p0, p1, p2, p3, m0, m1, m2, m3, TILE: tl.constexpr, GROUP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Masses above four pivots, with those of a tile added."""
    return (
        m0 + in_fours(tl.where(logit > p0, weight, 0), TILE, GROUP),
        m1 + in_fours(tl.where(logit > p1, weight, 0), TILE, GROUP),
        m2 + in_fours(tl.where(logit > p2, weight, 0), TILE, GROUP),
        m3 + in_fours(tl.where(logit > p3, weight, 0), TILE, GROUP),
    )


@kernel
def give_masses(mass_ptr, m0, m1, m2, m3) -> None:
    """Add a program's masses above the pivots to those of the others."""
    tl.atomic_add(mass_ptr + PIVOT_MASS, tl.sum(m0, 0), sem="relaxed")
    tl.atomic_add(mass_ptr + PIVOT_MASS + 1, tl.sum(m1, 0), sem="relaxed")
    tl.atomic_add(mass_ptr + PIVOT_MASS + 2, tl.sum(m2, 0), sem="relaxed")
    tl.atomic_add(mass_ptr + PIVOT_MASS + 3, tl.sum(m3, 0), sem="relaxed")


@kernel
def weigh_rows(
    logits_ptr,  # [N, V] float32
    logits_stride,
    processed_ptr,  # [N, V] float32, dense; read for rows with a stage of STORED
    state_ptr,  # [N, ROUNDS, COLUMNS] int32
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32
    rows_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    mass_ptr,  # [N, ROUNDS, MASSES] int64, in and out
    maxima_ptr,  # [N, groups] int32
    vocab_size,
    num_groups,
    part_blocks,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """The first round: masses of all of a row, and above the pivots. One program per row and part of it."""
    index = tl.program_id(0).to(tl.int64)
    state_ptr += index * ROUNDS * COLUMNS
    mass_ptr += index * ROUNDS * MASSES
    if tl.load(state_ptr + OPEN) == 0:
        return
    begin = tl.program_id(1) * part_blocks * TILE
    end = tl.minimum(begin + part_blocks * TILE, num_groups)
    source_ptr, divisor = source_of(
        logits_ptr, logits_stride, processed_ptr, rows_ptr, numbers_ptr, reals_ptr, index, vocab_size
    )
    largest, cut = tl.load(largest_ptr + index), tl.load(threshold_ptr + index)
    p0, p1 = as_logit(tl.load(state_ptr + PIVOT)), as_logit(tl.load(state_ptr + PIVOT + 1))
    p2, p3 = as_logit(tl.load(state_ptr + PIVOT + 2)), as_logit(tl.load(state_ptr + PIVOT + 3))
    whole = tl.zeros([TILE * GROUP // 4], tl.int64)
    m0, m1, m2, m3 = whole, whole, whole, whole
    maxima_ptr += index * num_groups
    heavy = tl.maximum(cut, ordered(largest - SPAN))  # a lighter one weighs nothing
    inverse = inverse_for(divisor, largest, as_logit(cut), p0, p1, p2, p3)
    for first in range(begin, end, TILE):
        logit = tile_of(source_ptr, divisor, inverse, maxima_ptr, first, end, vocab_size, heavy, TILE, GROUP)
        weight = weights_of_tile(logit, as_logit(cut), largest)
        whole += in_fours(weight, TILE, GROUP)
        m0, m1, m2, m3 = add_above(logit, weight, p0, p1, p2, p3, m0, m1, m2, m3, TILE, GROUP)
    tl.atomic_add(mass_ptr + LOW_MASS, tl.sum(whole, 0), sem="relaxed")
    give_masses(mass_ptr, m0, m1, m2, m3)


@kernel
def leave_interval(
    first_state_ptr, first_mass_ptr, state_ptr, mass_ptr, low, high, low_mass, high_mass, p0, p1, p2, p3
) -> None:
    """Leave an interval, and a round's pivots in it, to the next round, and to whatever comes after the last one."""
    tl.store(first_state_ptr + LAST_LOW, low)
    tl.store(first_state_ptr + LAST_HIGH, high)
    tl.store(first_mass_ptr + LAST_MASS, high_mass)
    tl.store(state_ptr + LOW, low)
    tl.store(state_ptr + HIGH, high)
    tl.store(mass_ptr + LOW_MASS, low_mass)
    tl.store(mass_ptr + HIGH_MASS, high_mass)
    tl.store(state_ptr + PIVOT, ordered(p0))
    tl.store(state_ptr + PIVOT + 1, ordered(p1))
    tl.store(state_ptr + PIVOT + 2, ordered(p2))
    tl.store(state_ptr + PIVOT + 3, ordered(p3))


@kernel
def pivot_at(bottom, top, above, below_it) -> tl.tensor:
    """Where an interval has these two parts; with the masses above and below the threshold, a guess where that is."""
    return top - (top - bottom) * tl.div_rn(above, above + below_it)


@kernel
def list_between(
    source_ptr, divisor, maxima_ptr, keys_ptr, found_ptr, begin, end, size, low, high, SLOTS: tl.constexpr,
    TILE: tl.constexpr, GROUP: tl.constexpr,
) -> None:  # fmt: skip
    """List the integers of a part of a row that are in an interval, in any order, as far as there is room."""
    least, most = as_logit(low), as_logit(high)
    smallest = smallest_between(least, most)
    inverse = inverse_for(divisor, smallest, smallest, smallest, smallest, smallest, smallest)
    for first in range(begin, end, TILE):
        logit = tile_of(source_ptr, divisor, inverse, maxima_ptr, first, end, size, low, TILE, GROUP)
        chosen = (logit >= least) & (logit <= most)
        # They are few and far between: sums over a tile, to ask for room once, would take longer than to ask for each.
        place = tl.atomic_add(found_ptr + tl.zeros_like(logit).to(tl.int32), 1, mask=chosen, sem="relaxed")
        tl.store(keys_ptr + place, ordered(logit), mask=chosen & (place < SLOTS))


@kernel
def weigh_between(
    source_ptr, divisor, maxima_ptr, state_ptr, mass_ptr, begin, end, size, low, high, p0, p1, p2, p3, largest,
    TILE: tl.constexpr, GROUP: tl.constexpr,
) -> None:  # fmt: skip
    """Masses above pivots in an interval, of a part of a row; and the smallest and the largest integer there."""
    bottom, top = as_logit(low), as_logit(high)
    inverse = inverse_for(divisor, largest, smallest_between(bottom, top), p0, p1, p2, p3)
    m0 = tl.zeros([TILE * GROUP // 4], tl.int64)
    m1, m2, m3 = m0, m0, m0
    least = tl.full([TILE, GROUP], _HIGHEST, tl.int32)
    most = tl.full([TILE, GROUP], LOWEST, tl.int32)
    for first in range(begin, end, TILE):
        logit = tile_of(source_ptr, divisor, inverse, maxima_ptr, first, end, size, low, TILE, GROUP)
        weight = weights_of_tile(logit, bottom, largest)
        m0, m1, m2, m3 = add_above(logit, weight, p0, p1, p2, p3, m0, m1, m2, m3, TILE, GROUP)
        inside, key = (logit >= bottom) & (logit <= top), ordered(logit)
        least = tl.minimum(least, tl.where(inside, key, _HIGHEST))
        most = tl.maximum(most, tl.where(inside, key, LOWEST))
    tl.atomic_min(state_ptr + LEAST, tl.min(tl.min(least, 1), 0), sem="relaxed")
    tl.atomic_max(state_ptr + MOST, tl.max(tl.max(most, 1), 0), sem="relaxed")
    give_masses(mass_ptr, m0, m1, m2, m3)


@kernel
def narrow_rows(
    logits_ptr,  # [N, V] float32
    logits_stride,
    processed_ptr,  # [N, V] float32, dense; read for rows with a stage of STORED
    state_ptr,  # [N, ROUNDS, COLUMNS] int32, in and out
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32
    rows_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    mass_ptr,  # [N, ROUNDS, MASSES] int64, in and out
    maxima_ptr,  # [N, groups] int32
    before_ptr,  # [N, COLUMNS] int32: the round before, of `state`
    before_mass_ptr,  # [N, MASSES] int64, likewise
    after_ptr,  # [N, COLUMNS] int32, in and out: this round, of `state`
    after_mass_ptr,  # [N, MASSES] int64, likewise
    keys_ptr,  # [N, SLOTS] int32, out: integers of the tokens in question, in any order
    vocab_size,
    num_groups,
    part_blocks,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """A further round, or the list of the tokens in question if they fit. One program per row and part of it."""
    index = tl.program_id(0).to(tl.int64)
    state_ptr += index * ROUNDS * COLUMNS
    mass_ptr += index * ROUNDS * MASSES
    before_ptr += index * ROUNDS * COLUMNS
    if tl.load(state_ptr + OPEN) == 0:
        return
    if tl.load(before_ptr + OPEN) == 0:
        return
    share = tl.load(reals_ptr + tl.load(rows_ptr + index).to(tl.int64) * REALS + COLUMN_TOP_P)
    whole = tl.load(mass_ptr + LOW_MASS)
    target = target_of(whole, share)
    if (target > whole) | (tl.load(mass_ptr + HIGH_MASS) >= target):
        return
    after_ptr += index * ROUNDS * COLUMNS
    after_mass_ptr += index * ROUNDS * MASSES
    low, high, low_mass, high_mass = interval_of(before_ptr, before_mass_ptr + index * ROUNDS * MASSES, target)
    largest = tl.load(largest_ptr + index)
    # None of them weighs less than the lowest one, so there are not more than that.
    few = low_mass - high_mass <= SLOTS * weight_of(as_logit(low), largest)
    bottom = tl.maximum(as_logit(low), largest - SPAN)
    top, above, below_it = as_logit(high), (target - high_mass).to(tl.float32), (low_mass - target).to(tl.float32)
    p0, p1 = pivot_at(bottom, top, _FAR * above, below_it), pivot_at(bottom, top, _NEAR * above, below_it)
    p2, p3 = pivot_at(bottom, top, above, _NEAR * below_it), pivot_at(bottom, top, above, _FAR * below_it)
    if tl.program_id(1) == 0:
        leave_interval(state_ptr, mass_ptr, after_ptr, after_mass_ptr, low, high, low_mass, high_mass, p0, p1, p2, p3)
        tl.store(after_ptr + OPEN, ((low < high) & (few == 0)).to(tl.int32))
    if low >= high:
        return
    begin = tl.program_id(1) * part_blocks * TILE
    end = tl.minimum(begin + part_blocks * TILE, num_groups)
    source_ptr, divisor = source_of(
        logits_ptr, logits_stride, processed_ptr, rows_ptr, numbers_ptr, reals_ptr, index, vocab_size
    )
    maxima_ptr += index * num_groups
    if few:
        list_between(
            source_ptr, divisor, maxima_ptr, keys_ptr + index * SLOTS, state_ptr + FOUND, begin, end, vocab_size, low,
            high, SLOTS, TILE, GROUP,
        )  # fmt: skip
    else:
        weigh_between(
            source_ptr, divisor, maxima_ptr, after_ptr, after_mass_ptr, begin, end, vocab_size, low, high, p0, p1, p2,
            p3, largest, TILE, GROUP,
        )  # fmt: skip
