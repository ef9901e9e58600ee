"""Logits as integers that order as they do, and searches among those that fit into the registers of a program."""

import triton.language as tl

from .launch import kernel

LOWEST = tl.constexpr(-2147483648)  # below every logit
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
def weight_of(logit, largest) -> tl.tensor:
    """exp(logit - largest) cut to a whole number of 2**-40, int64; not for NaN."""
    share = tl.where(logit == largest, 1.0, tl.exp(logit - largest))
    return (share * _FIXED_POINT).to(tl.int64)


@kernel
def middle(low, high) -> tl.tensor:
    """The upper one of two numbers in the middle, without leaving the range of int32."""
    return (low & high) + ((low ^ high) >> 1) + ((low ^ high) & 1)


@kernel
def kth_of_tile(keys, low, count) -> tl.tensor:
    """The ``count``-th largest of integers in registers, of which that many or more reach ``low``."""
    high = tl.max(keys, 0)
    while low < high:
        candidate = middle(low, high)
        enough = tl.sum((keys >= candidate).to(tl.int32), 0) >= count
        low = tl.where(enough, candidate, low)
        high = tl.where(enough, high, candidate - 1)
    return low


@kernel
def threshold_of_tile(keys, weights, low, high, target) -> tl.tensor:
    """Largest integer from which on those in registers weigh ``target``.

    From ``low`` on they must, and none may be above ``high``.
    """
    while low < high:
        candidate = middle(low, high)
        enough = tl.sum(tl.where(keys >= candidate, weights, 0), 0) >= target
        low = tl.where(enough, candidate, low)
        high = tl.where(enough, high, candidate - 1)
    return low
