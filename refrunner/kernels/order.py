"""Logits as integers that order as they do, and searches among those that fit into the registers of a program."""

import triton.language as tl

from .launch import kernel

LOWEST = tl.constexpr(-2147483648)  # below every logit
WAYS = tl.constexpr(8)  # candidates that a step of a search looks at
_WAY_BITS = tl.constexpr(3)
FEW = tl.constexpr(8)  # a list that is not fuller than by this part is searched as a shorter one
_FIXED_POINT = tl.constexpr(1099511627776.0)  # 2**40


@kernel
def ordered(x) -> tl.tensor:
    """An int32 that orders as the float32 does; NaN as minus infinity, -0.0 as 0.0."""
    x = tl.where(x == x, x, float("-inf"))
    x = tl.where(x == 0.0, 0.0, x)
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 2147483647)


@kernel
def as_logit(key) -> tl.tensor:
    """The float32 that `ordered` makes an integer of; minus infinity for the integers below every logit."""
    logit = (key ^ ((key >> 31) & 2147483647)).to(tl.float32, bitcast=True)
    return tl.where(logit == logit, logit, float("-inf"))


@kernel
def divided(logit, divisor) -> tl.tensor:
    """Quotients, rounded once."""
    return tl.div_rn(logit, divisor + tl.zeros_like(logit))


@kernel
def share_of(logit, largest) -> tl.tensor:
    """exp(logit - largest), float32, for equal infinities too."""
    return tl.where(logit == largest, 1.0, tl.exp(logit - largest))


@kernel
def in_fixed_point(share) -> tl.tensor:
    """A share cut to a whole number of 2**-40, int64; not for NaN."""
    return (share * _FIXED_POINT).to(tl.int64)


@kernel
def weight_of(logit, largest) -> tl.tensor:
    """What a logit weighs: `share_of` it `in_fixed_point`."""
    return in_fixed_point(share_of(logit, largest))


@kernel
def candidates(low, high) -> tl.tensor:
    """Integers that divide an interval into equal parts, the last one its end: int32 [WAYS], above ``low``.

    A step of a search among them waits for one reduction and decides three bits, where a bisection decides one.
    """
    width = high.to(tl.int64) - low
    return (low + ((width * (tl.arange(0, WAYS) + 1) + WAYS - 1) >> _WAY_BITS)).to(tl.int32)


@kernel
def closer(low, high, candidate, enough) -> tuple[tl.tensor, tl.tensor]:
    """The part of an interval between the last candidate that is enough and the first one that is not."""
    return tl.max(tl.where(enough, candidate, low), 0), tl.min(tl.where(enough, high, candidate - 1), 0)


@kernel
def number_from(keys, candidate) -> tl.tensor:
    """How many integers reach each candidate: int32 [WAYS]."""
    return tl.sum((keys[None, :] >= candidate[:, None]).to(tl.int32), 1)


@kernel
def listed_keys(list_ptr, number, SIZE: tl.constexpr) -> tl.tensor:
    """The first so many integers of a list, and the lowest one in their place where there are no more."""
    place = tl.arange(0, SIZE)
    return tl.load(list_ptr + place, mask=place < number, other=LOWEST)


@kernel
def kth_of_tile(keys, low, count) -> tl.tensor:
    """The ``count``-th largest of integers in registers, of which that many or more reach ``low``."""
    high = tl.max(keys, 0)
    while low < high:
        candidate = candidates(low, high)
        low, high = closer(low, high, candidate, number_from(keys, candidate) >= count)
    return low


@kernel
def threshold_of_tile(keys, weights, low, high, target) -> tl.tensor:
    """Largest integer from which on those in registers weigh ``target``.

    From ``low`` on they must, and none may be above ``high``.
    """
    while low < high:
        candidate = candidates(low, high)
        reaching = keys[None, :] >= candidate[:, None]
        enough = tl.sum(tl.where(reaching, weights[None, :], 0), 1) >= target
        low, high = closer(low, high, candidate, enough)
    return low
