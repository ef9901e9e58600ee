"""What one reading of the logits leaves of a row with filters and without a copy, so that the draw reads few of them.

Of each group of neighbouring tokens the largest integer, by `ordered`, of the quotients by the temperature. A quotient
rounded once grows with the logit, or stays; so the largest quotient is that of the largest logit, and one division a
group is enough. A group whose largest integer is below the row's threshold has no token that may be drawn, and the draw
reads only the other groups, which it lists. Where a part of a row has NaN among its logits, which the draw must count,
the part is marked, and read as a whole; so is one with plus infinity, which looks the same in a sum. The sums of
exponentials that a log-probability is made of are taken here, too, in the same lanes and order as in a draw that reads
all.

*Places* number the tokens of a part's listed groups as if they were neighbours: place p of a row stands for token
list[p // group] * group + p % group. A part that is not listed has tokens for places.
"""

import triton.language as tl

from .groups import maxima_of
from .lanes import add_exponentials, quarters
from .launch import kernel
from .logits_processing import FILTERS, NUMBERS, REALS, STAGES, STORED, TEMPERATURE
from .order import LOWEST, divided, ordered


@kernel
def store_shares(float_ptr, plane, largest, total) -> None:
    """A part's largest value and its sum of exp below that, from those of its lanes, in the draw's last two planes."""
    maximum = tl.max(largest, 0)
    kept = tl.where(maximum == float("-inf"), 0.0, maximum)
    tl.store(float_ptr + 2 * plane, maximum)
    tl.store(float_ptr + 3 * plane, tl.sum(total * tl.exp(largest - kept), 0))


@kernel
def is_filtered_only(stages) -> tl.tensor:
    """Whether a row has a filter and is drawn from the model's own logits."""
    return ((stages & FILTERS) != 0) & ((stages & STORED) == 0)


@kernel
def largest_of_fours(logit, LANES: tl.constexpr) -> tl.tensor:
    """Largest of each four neighbours, NaN as minus infinity."""
    x0, x1, x2, x3 = quarters(logit, LANES)
    largest = tl.maximum(tl.maximum(x0, x1), tl.maximum(x2, x3))
    return tl.where(largest == largest, largest, float("-inf"))


@kernel
def find_maxima(
    logits_ptr,  # [N, V] float32, float16 or bfloat16
    logits_stride,
    rows_ptr,  # [N] int32, row of the tables that each row of logits belongs to
    numbers_ptr,  # [R, NUMBERS] int32
    reals_ptr,  # [R, REALS] float32
    maxima_ptr,  # [N, groups] int32, out: largest integer of each group of tokens, of rows with filters only
    float_ptr,  # [4, N, parts] float32, out, of the same rows: the last two planes, as `sample_blocks` has them
    int_ptr,  # [4, N, parts] int32, out, of the same rows: the last plane, 1 with NaN or plus infinity, else 0
    vocab_size,
    num_groups,
    num_parts,
    part_blocks,  # blocks of each part
    plane,  # N * parts
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per row and part, as in `sample_blocks`; a block is loaded while one is reduced."""
    index = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    logits_ptr += index * logits_stride
    begin = part * part_blocks * BLOCK
    end = tl.minimum(begin + part_blocks * BLOCK, vocab_size)
    token = begin + tl.arange(0, BLOCK)
    ahead = tl.load(logits_ptr + token, mask=token < end, other=float("-inf")).to(tl.float32)
    row = tl.load(rows_ptr + index).to(tl.int64)
    temperature = tl.load(reals_ptr + row * REALS + TEMPERATURE)
    if is_filtered_only(tl.load(numbers_ptr + row * NUMBERS + STAGES)):
        divisor = tl.where(temperature > 0.0, temperature, 1.0)
        largest = tl.full([BLOCK // 4], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK // 4], tl.float32)
        for first_token in range(begin, end, BLOCK):
            logit = ahead
            token = first_token + BLOCK + tl.arange(0, BLOCK)
            ahead = tl.load(logits_ptr + token, mask=token < end, other=float("-inf")).to(tl.float32)
            group = first_token // GROUP + tl.arange(0, BLOCK // GROUP)
            top = maxima_of(largest_of_fours(logit, BLOCK // 4), BLOCK // 4, GROUP // 4)
            tl.store(maxima_ptr + index * num_groups + group, ordered(divided(top, divisor)), mask=group < num_groups)
            largest, total = add_exponentials(logit, largest, total, BLOCK // 4)
        out = index * num_parts + part
        # A sum with NaN or plus infinity in it is NaN.
        tl.store(int_ptr + 3 * plane + out, tl.max((total != total).to(tl.int32), 0))
        store_shares(float_ptr + out, plane, largest, total)


@kernel
def list_reaching(maxima_ptr, list_ptr, threshold, begin, end, CHUNK: tl.constexpr) -> tl.tensor:
    """List the groups begin .. end - 1 whose largest integer reaches a threshold, in order, from ``begin`` on.

    Args:
        maxima_ptr: of the row's groups.
        list_ptr: room for as many numbers.

    Returns:
        how many they are.
    """
    number = tl.full([], 0, tl.int32)
    for first in range(begin, end, CHUNK):
        group = first + tl.arange(0, CHUNK)
        largest = tl.load(maxima_ptr + group, mask=group < end, other=LOWEST)
        reaches = ((group < end) & (largest >= threshold)).to(tl.int32)
        tl.store(list_ptr + begin + number + tl.cumsum(reaches, 0) - 1, group, mask=reaches != 0)
        number += tl.sum(reaches, 0)
    tl.debug_barrier()  # another thread of the program may read what this one has written
    return number


@kernel
def list_part(
    maxima_ptr, list_ptr, threshold_ptr, marked_ptr, begin, end, GROUP: tl.constexpr, CHUNK: tl.constexpr
) -> tl.tensor:
    """List the groups of a part that reach the row's threshold, unless they are many or the part is marked.

    Args:
        begin: first token of the part, a multiple of ``GROUP``; ``end`` is after its last one.

    Returns:
        how many places they have; -1 if the part is to be read as a whole.
    """
    first, last = begin // GROUP, (end + GROUP - 1) // GROUP
    marked = tl.load(marked_ptr)  # before the barrier: what is returned takes its place
    number = list_reaching(maxima_ptr, list_ptr, tl.load(threshold_ptr), first, last, CHUNK)
    whole = (2 * number > last - first) | (marked != 0)
    return tl.where(whole, -1, number * GROUP)


@kernel
def tokens_at(row, place, end, GROUP: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Tokens at places of a part that ends with ``end``, and which of them are there; without lists (0) the same.

    Args:
        row: see `draw.best_of_groups`.
    """
    token, inside = place, place < end
    if GROUP > 0:
        list_ptr, listed, vocab_size = row[7], row[8], row[9]
        group = tl.load(list_ptr + place // GROUP, mask=place < tl.where(listed, end, -1), other=0)
        token = tl.where(listed, group * GROUP + place % GROUP, place)
        inside = inside & (token < vocab_size)
    return token, inside


@kernel
def load_listed(row, first_place, end, GROUP: tl.constexpr, BLOCK: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Logits at a block of places of a listed part, and the first token of each four.

    The four tokens are a dimension of their own, from which the compiler sees that they are read together.
    """
    place = first_place + 4 * tl.arange(0, BLOCK // 4)
    group = tl.load(row[7] + place // GROUP, mask=place < end, other=0)
    first = group * GROUP + place % GROUP
    token = first[:, None] + tl.arange(0, 4)[None, :]
    inside = (place < end)[:, None] & (token < row[9])
    logit = tl.load(row[0] + token, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.reshape(logit, [BLOCK]), first
