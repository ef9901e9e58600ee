"""Where the threshold of top-p probably is, from a sample of the row; see `nucleus`. No float decides about a token."""

import triton.language as tl

from .launch import kernel
from .logits_processing import COLUMN_TOP_P, REALS, source_of
from .nucleus import COLUMNS, HIGH, HIGH_MASS, MASSES, OPEN, PIVOT, ROUNDS, SPAN
from .order import as_logit, ordered, share_of

_UNIT = tl.constexpr(9.094947017729282e-13)  # 2**-40
_ERRORS = tl.constexpr(4.5)  # standard errors of a sample that are allowed for
_INNER = tl.constexpr(0.15)  # of this, where the two pivots in the middle are: most thresholds are between them
_PARTS = tl.constexpr(8)  # of an interval, in which a sample is judged at a time
_STEPS = tl.constexpr(3)  # in which they are made smaller, between the first and the last one


@kernel
def sampled_masses(logit, weight, low, high) -> tuple[tl.tensor, tl.tensor]:
    """Numbers that divide an interval into equal parts, from ``low`` on, and the mass of a sample that reaches each."""
    number = low + (high - low) * (tl.arange(0, _PARTS) / _PARTS)
    return number, tl.sum(tl.where(logit[None, :] >= number[:, None], weight[None, :], 0.0), 1)


@kernel
def part_with(number, mass, low, high, more, less) -> tuple[tl.tensor, tl.tensor]:
    """From the last number that ``more`` reaches to the first one that not even ``less`` does."""
    return tl.max(tl.where(mass >= more, number, low), 0), tl.min(tl.where(mass < less, number, high), 0)


@kernel
def error_of(logit, weight, crossing, share, heaviest, SAMPLE: tl.constexpr, RUN: tl.constexpr) -> tl.tensor:
    """What is allowed for the error of a sample's mass above a number less its share of the whole.

    By runs, since neighbours may be alike; and what a few unseen tokens weigh. Runs are compared with the one beside
    them and not with their mean, or a row whose likely tokens are at one end, as sorted vocabularies have, would seem
    to be little known, while a sample at regular distances knows it well (Wolter, Introduction to Variance Estimation).
    """
    sign = tl.where(tl.arange(0, SAMPLE) // RUN % 2 == 0, 1.0, -1.0)
    parts = sign * weight * (tl.where(logit >= crossing, 1.0, 0.0) - share)
    differences = tl.sum(tl.reshape(parts, [SAMPLE // (2 * RUN), 2 * RUN]), 1)
    unseen = 2.0 * heaviest * tl.maximum(1.0 - share, 0.0)
    return _ERRORS * tl.sqrt(tl.sum(differences * differences, 0) + unseen * unseen)


@kernel
def below(number) -> tl.tensor:
    """The integer of the largest number below one; -1 is that of none, since both zeros have 0."""
    key = ordered(number)
    return tl.where(key == 0, -2, key - 1)


@kernel
def ask_by_sample(
    logits_ptr,  # [N, V] float32
    logits_stride,
    processed_ptr,  # [N, V] float32, dense; read for rows with a stage of STORED
    state_ptr,  # [N, ROUNDS, COLUMNS] int32, in and out
    largest_ptr,  # [N] float32
    threshold_ptr,  # [N] int32
    rows_ptr,  # [N] int32
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    mass_ptr,  # [N, ROUNDS, MASSES] int64
    vocab_size,
    SAMPLE: tl.constexpr,
    RUN: tl.constexpr,  # neighbouring tokens, which come from memory together
) -> None:
    """The pivots of the first round, two on either side of where the threshold probably is. One program per row."""
    index = tl.program_id(0).to(tl.int64)
    state_ptr += index * ROUNDS * COLUMNS
    if tl.load(state_ptr + OPEN) == 0:
        return
    run = tl.arange(0, SAMPLE // RUN)
    runs = tl.full([], 0, tl.int32) + (vocab_size + RUN - 1) // RUN
    taken = tl.minimum(runs, SAMPLE // RUN)
    # In the middle of what a run stands for. A float is good enough to place it, and int64 is slow. Beyond its
    # precision two runs may be the same.
    first = tl.minimum(((run + 0.5) * tl.div_rn(runs.to(tl.float32), taken.to(tl.float32))).to(tl.int32), runs - 1)
    token = (first * RUN)[:, None] + tl.arange(0, RUN)[None, :]
    inside = (run < taken)[:, None] & (token < vocab_size)
    source_ptr, divisor = source_of(
        logits_ptr, logits_stride, processed_ptr, rows_ptr, numbers_ptr, reals_ptr, index, vocab_size
    )
    logit = tl.load(source_ptr + token, mask=inside, other=float("-inf")) * tl.div_rn(1.0, divisor)
    logit = tl.reshape(tl.where(logit == logit, logit, float("-inf")), [SAMPLE])
    inside = tl.reshape(inside, [SAMPLE])
    largest, line = tl.load(largest_ptr + index), as_logit(tl.load(state_ptr + HIGH))
    cut = as_logit(tl.load(threshold_ptr + index))
    share = tl.load(reals_ptr + tl.load(rows_ptr + index).to(tl.int64) * REALS + COLUMN_TOP_P)
    factor = vocab_size * tl.div_rn(1.0, tl.sum(inside.to(tl.float32), 0))
    weight = share_of(logit, largest) * factor
    weight = tl.where(inside & (logit >= cut) & (logit <= line), weight, 0.0)
    listed = tl.load(mass_ptr + index * ROUNDS * MASSES + HIGH_MASS).to(tl.float32) * _UNIT
    wanted = share * (listed + tl.sum(weight, 0)) - listed
    lowest = tl.min(tl.where(weight > 0.0, tl.maximum(logit, largest - SPAN), line), 0)
    number, mass = sampled_masses(logit, weight, lowest, line)
    lower, upper = part_with(number, mass, lowest, line, wanted, wanted)
    finer, its_mass = sampled_masses(logit, weight, lower, upper)
    lower, upper = part_with(finer, its_mass, lower, upper, wanted, wanted)
    # It is between them. Where the error is the larger one: with all mass above there would be none.
    crossing = tl.where(share > 0.5, upper, lower)
    heaviest = factor * share_of(line, largest)
    error = error_of(logit, weight, crossing, share, heaviest, SAMPLE, RUN)
    low, high = part_with(number, mass, lowest, line, wanted + error, wanted - error)
    for _step in range(_STEPS):
        number, mass = sampled_masses(logit, weight, low, high)
        low, high = part_with(number, mass, low, high, wanted + error, wanted - error)
    number, mass = sampled_masses(logit, weight, low, high)
    lower, upper = part_with(number, mass, low, high, wanted + _INNER * error, wanted - _INNER * error)
    low, high = part_with(number, mass, low, high, wanted + error, wanted - error)
    # What is above a pivot reaches the number.
    tl.store(state_ptr + PIVOT, below(low))
    tl.store(state_ptr + PIVOT + 1, below(lower))
    tl.store(state_ptr + PIVOT + 2, below(upper))
    tl.store(state_ptr + PIVOT + 3, below(high))
