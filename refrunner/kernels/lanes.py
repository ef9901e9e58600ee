"""What a lane keeps of four neighbouring tokens of each block."""

import triton.language as tl

from .launch import kernel

_LOG2_E = tl.constexpr(1.4426950408889634)


@kernel
def quarters(x, LANES: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """First, second, third and last of each four elements: [4 * LANES] as four of [LANES]."""
    even, odd = tl.split(tl.reshape(x, [LANES, 2, 2]))
    first, third = tl.split(even)
    second, last = tl.split(odd)
    return first, second, third, last


@kernel
def larger_or_nan(x, y) -> tl.tensor:
    """The larger one; NaN if one is NaN."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@kernel
def exponential(x) -> tl.tensor:
    """exp(x) as a GPU computes it anyway, less its care for results below 2**-126."""
    return tl.exp2(x * _LOG2_E)


@kernel
def add_exponentials(reported, largest, total, LANES: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Each lane's largest value and its sum of exp below it (Milakov and Gimelshein 2018), with four more values."""
    x0, x1, x2, x3 = quarters(reported, LANES)
    larger = tl.maximum(largest, tl.maximum(tl.maximum(x0, x1), tl.maximum(x2, x3)))
    kept = tl.where(larger == float("-inf"), 0.0, larger)
    share = (exponential(x0 - kept) + exponential(x1 - kept)) + (exponential(x2 - kept) + exponential(x3 - kept))
    return larger, total * exponential(largest - kept) + share
