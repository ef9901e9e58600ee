"""Kernels that make noise of given random bits with vLLM's own functions, as its ``gumbel_noised_argmax`` does."""

# ruff: noqa: ANN001

from __future__ import annotations

import triton.language as tl

from mrv2.refrunner.kernels.launch import kernel


@kernel
def single_noise(
    words_ptr, noise_ptr, count, LOG1P_NEG: tl.constexpr, UNIFORM64: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """From 32 bits, float32; the uniform is put together as ``murmur3_uniform32`` does it."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_ptr + place, mask=place < count, other=0)
    upper = ((word >> 16) & 0xFFFF).to(tl.int32).to(tl.float32)
    lower = (word & 0xFFFF).to(tl.int32).to(tl.float32)
    uniform = upper * 1.52587890625e-05 + (lower + 0.5) * 2.3283064365386963e-10
    noise = -tl.log(-LOG1P_NEG(uniform))
    tl.store(noise_ptr + place, noise.to(tl.float64), mask=place < count)


@kernel
def double_noise(
    words_ptr, noise_ptr, count, LOG1P_NEG: tl.constexpr, UNIFORM64: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """From 53 bits, float64."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_ptr + place, mask=place < count, other=0)
    uniform = UNIFORM64(word.to(tl.uint64))
    tl.store(noise_ptr + place, -tl.log(-tl.log(uniform)), mask=place < count)
