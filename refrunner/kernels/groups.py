"""The largest logits of a row by way of the largest one of each group of neighbouring tokens.

The *line* is an integer that the maxima of k groups reach, or of a few more. So do as many logits, and the k-th largest
one is on the line or above. Those above are in these groups, and not many more than k unless they are neighbours:
reading the groups finds them all.
"""

import triton.language as tl

from .launch import kernel
from .order import LOWEST, candidates, closer, divided, number_from, ordered

_SPARE = tl.constexpr(4)  # a line may be too low by a fraction of the groups above it: a narrower search takes longer


@kernel
def maxima_of(keys, BLOCK: tl.constexpr, GROUP: tl.constexpr) -> tl.tensor:
    """Largest integer of each group of a block: [BLOCK] gives [BLOCK / GROUP]."""
    return tl.max(tl.reshape(keys, [BLOCK // GROUP, GROUP]), 1)


@kernel
def load_maxima(maxima_ptr, num_groups, GROUPS: tl.constexpr) -> tl.tensor:
    """The maxima of a row's groups, and the lowest integer for those that are not there."""
    group = tl.arange(0, GROUPS)
    return tl.load(maxima_ptr + group, mask=group < num_groups, other=LOWEST)


@kernel
def line_of(maxima, num_groups, count, GROUPS: tl.constexpr) -> tl.tensor:
    """An integer that ``count`` of the maxima reach, of at least as many, and not many more."""
    present = tl.arange(0, GROUPS) < num_groups
    low, high = tl.min(tl.where(present, maxima, 2147483647), 0), tl.max(maxima, 0)
    reaching = tl.full([], 0, tl.int32) + num_groups
    while (low < high) & (reaching > count + count // _SPARE):
        candidate = candidates(low, high)
        number = number_from(maxima, candidate)
        low, high = closer(low, high, candidate, number >= count)
        reaching = tl.min(tl.where(number >= count, number, reaching), 0)
    return tl.where(low == -1, 0, low)  # no logit is between them, and -1 stands for a zero, as 0 does


@kernel
def list_groups(maxima, list_ptr, num_groups, line, GROUPS: tl.constexpr) -> tl.tensor:
    """Numbers of the groups whose maximum reaches ``line``, in order, and how many they are."""
    group = tl.arange(0, GROUPS)
    chosen = ((group < num_groups) & (maxima >= line)).to(tl.int32)
    tl.store(list_ptr + tl.cumsum(chosen, 0) - 1, group, mask=chosen != 0)
    tl.debug_barrier()  # another thread of the program may read what this one has written
    return tl.sum(chosen, 0)


@kernel
def keys_of_groups(
    logits_ptr, divisor, cut, list_ptr, first, number, size, TILE: tl.constexpr, GROUP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Integers of the tokens of some listed groups, the tokens, and which of them are there.

    Logits are divided first. One whose integer is below ``cut`` counts as minus infinity.
    """
    place = tl.arange(0, TILE * GROUP)
    which = first + place // GROUP
    group = tl.load(list_ptr + which, mask=which < number, other=0)
    token = group * GROUP + place % GROUP
    inside = (which < number) & (token < size)
    logit = tl.load(logits_ptr + token, mask=inside, other=float("-inf"))
    key = ordered(divided(logit, divisor))
    return tl.where(key >= cut, key, ordered(tl.full([], float("-inf"), tl.float32))), token, inside


@kernel
def list_above(
    logits_ptr,
    divisor,
    list_ptr,
    number,
    keys_ptr,
    size,
    line,
    LIST: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The first LIST integers above ``line`` in the listed groups; how many there are, and how many on it."""
    found = tl.full([], 0, tl.int32)
    equal = tl.full([], 0, tl.int32)
    for first in range(0, number, TILE):
        key, _, inside = keys_of_groups(logits_ptr, divisor, LOWEST, list_ptr, first, number, size, TILE, GROUP)
        above = (inside & (key > line)).to(tl.int32)
        place = found + tl.cumsum(above, 0) - 1
        tl.store(keys_ptr + place, key, mask=(above != 0) & (place < LIST))
        found += tl.sum(above, 0)
        equal += tl.sum((inside & (key == line)).to(tl.int32), 0)
    tl.debug_barrier()
    return found, equal


@kernel
def list_likeliest(
    logits_ptr, cut, list_ptr, number, keys_ptr, ids_ptr, equal_ptr, size, line, wanted, LIST: tl.constexpr,
    TILE: tl.constexpr, GROUP: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Integers above ``line`` of the listed groups, their tokens, and the first tokens on it; how many are above."""
    found = tl.full([], 0, tl.int32)
    equal = tl.full([], 0, tl.int32)
    for first in range(0, number, TILE):
        key, token, inside = keys_of_groups(logits_ptr, 1.0, cut, list_ptr, first, number, size, TILE, GROUP)
        above = (inside & (key > line)).to(tl.int32)
        place = found + tl.cumsum(above, 0) - 1
        tl.store(keys_ptr + place, key, mask=(above != 0) & (place < LIST))
        tl.store(ids_ptr + place, token, mask=(above != 0) & (place < LIST))
        on_it = (inside & (key == line)).to(tl.int32)
        place = equal + tl.cumsum(on_it, 0) - 1
        tl.store(equal_ptr + place, token, mask=(on_it != 0) & (place < wanted))
        found += tl.sum(above, 0)
        equal += tl.sum(on_it, 0)
    tl.debug_barrier()
    return found
