"""What lies between the matrix products of a Llama layer: norm, rotary embedding and gate, one launch each.

All of it is computed in float32 and rounded once, where it is stored.
"""

import triton.language as tl

from .launch import kernel


@kernel
def rms_norm(
    hidden_ptr,  # [T, WIDTH], dense; out too if something is added
    added_ptr,  # like hidden, or None
    weight_ptr,  # [WIDTH]
    out_ptr,  # like hidden, out
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per lane: add to the residual stream, then divide by the root mean square.

    RMSNorm is Zhang and Sennrich's (2019). The norm is that of the stream as it is stored, rounded.
    """
    element = tl.arange(0, BLOCK)
    inside = element < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + element
    hidden = tl.load(hidden_ptr + at, mask=inside, other=0.0)
    if added_ptr is not None:
        added = tl.load(added_ptr + at, mask=inside, other=0.0)
        hidden = (hidden.to(tl.float32) + added.to(tl.float32)).to(hidden.dtype)
        tl.store(hidden_ptr + at, hidden, mask=inside)
    wide = hidden.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    weight = tl.load(weight_ptr + element, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, wide * scale * weight, mask=inside)


@kernel
def rotate_heads(
    heads_ptr,  # [T, all heads, 2 HALF], the last two dimensions dense; out
    stride,
    positions_ptr,  # [T] int64
    angles_ptr,  # [positions, 2 HALF] float32: cosines, then sines
    HEADS: tl.constexpr,  # the first so many are turned
    HEAD_LANES: tl.constexpr,
    HALF: tl.constexpr,
    HALF_LANES: tl.constexpr,
) -> None:
    """One program per lane: turn element i of each head against element i + HALF, in place.

    Rotary embedding is Su et al.'s (RoFormer, 2021), in the NeoX layout.
    """
    lane = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEAD_LANES)[:, None]
    element = tl.arange(0, HALF_LANES)[None, :]
    angle = angles_ptr + tl.load(positions_ptr + lane) * (2 * HALF) + element
    cos = tl.load(angle, mask=element < HALF, other=0.0)
    sin = tl.load(angle + HALF, mask=element < HALF, other=0.0)
    inside = (head < HEADS) & (element < HALF)
    at = heads_ptr + lane * stride + head * (2 * HALF) + element
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, first * cos - second * sin, mask=inside)
    tl.store(at + HALF, second * cos + first * sin, mask=inside)


@kernel
def silu_and_multiply(
    gate_up_ptr,  # [T, 2 WIDTH], dense: gate, then up
    out_ptr,  # [T, WIDTH], dense, out
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per lane and block of columns: ``silu(gate) * up``, where silu(x) is x * sigmoid(x)."""
    lane = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = gate_up_ptr + lane * (2 * WIDTH) + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + lane * WIDTH + column, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)
