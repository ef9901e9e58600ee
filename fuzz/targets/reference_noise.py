"""The noise of the reference sampler: its bits by the specification, and its transform by the kernel."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Sequence

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from mrv2.refrunner.kernels.launch import Kernel, kernel
from mrv2.refrunner.oracle import noise as specification
from mrv2.stats.targets import Purpose

_BLOCK = 4096
_AT_ONCE = 4096  # groups whose ciphers fit the processor's cache, three times as fast as a million
_PURPOSES = {
    Purpose.TARGET: specification.Purpose.TARGET,
    Purpose.DRAFT: specification.Purpose.DRAFT,
    Purpose.ACCEPT: specification.Purpose.ACCEPT,
    Purpose.RECOVER: specification.Purpose.RECOVER,
}


def reference_words(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64], tokens: NDArray[np.int64], purpose: Purpose
) -> NDArray[np.uint64]:
    """The 64 bits of each draw, of many keys at once; see :mod:`mrv2.refrunner.oracle.noise`.

    Args:
        seeds: uint64, any shape; the three arrays are broadcast against each other.
        positions: int64, from 0 below 2**32.
        tokens: int64, from 0.
        purpose: what the draws are for.

    Returns:
        uint64 of the common shape.
    """
    seeds, positions, tokens = np.asarray(seeds), np.asarray(positions), np.asarray(tokens)
    lane = (tokens & 3).astype(np.intp)
    if tokens.ndim == 1 and max(seeds.shape[-1:] + positions.shape[-1:], default=1) == 1:
        # Four neighbouring tokens share one result of the cipher, which is computed once where all keys see all tokens.
        groups, place = np.unique(tokens >> 2, return_inverse=True)
        return np.moveaxis(_four_words(seeds, positions, groups, purpose)[lane, ..., place], 0, -1)
    words = _four_words(seeds, positions, tokens >> 2, purpose)
    chosen: NDArray[np.uint64] = np.take_along_axis(words, np.broadcast_to(lane, words.shape[1:])[np.newaxis], axis=0)[
        0
    ]
    return chosen


def kernel_noise(function: Kernel, words: Tensor) -> Tensor:
    """The noise that a kernel makes of 64-bit words.

    Args:
        function: ``kernels.gumbel.gumbel_noise`` of the package under test.
        words: int64 [n], the bits of uint64.

    Returns:
        float32 [n] on the same device, written on its current stream.
    """
    return _on_words(_noise_of_words, function, words)


def kernel_bound(function: Kernel, words: Tensor) -> Tensor:
    """What noise is at most, by the leading 32 bits of 64-bit words alone.

    Args:
        function: ``kernels.gumbel.coarse_logarithm`` of the package under test: at most ``2**17 * (64 + log2(high))``.
        words: int64 [n], the bits of uint64.

    Returns:
        float64 [n], on the device and stream of the words: with u at least ``high / 2**32``, noise is below -log(u).
    """
    return (96.0 - _on_words(_logarithm_of_words, function, words).double() / 2.0**17) * math.log(2.0)


def source_of(functions: Sequence[Kernel]) -> str:
    """SHA-256 of what makes functions of kernels compute what they do: their sources, and the constants they name."""
    told = []
    for function in functions:
        names = function.fn.__code__.co_names
        constants = {name: function.fn.__globals__.get(name) for name in names}
        told += [inspect.getsource(function.fn)]
        told += [f"{name} = {held.value!r}" for name, held in constants.items() if isinstance(held, tl.constexpr)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _on_words(kernel_of_words: Kernel, function: Kernel, words: Tensor) -> Tensor:
    found = torch.empty(words.shape, dtype=torch.float32, device=words.device)
    kernel_of_words[(-(-words.numel() // _BLOCK),)](words, found, words.numel(), FUNCTION=function, BLOCK=_BLOCK)
    return found


@kernel
def _noise_of_words(words_ptr, noise_ptr, count, FUNCTION: tl.constexpr, BLOCK: tl.constexpr) -> None:  # noqa: ANN001
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_ptr + place, mask=place < count, other=0)
    high = ((word >> 32) & 4294967295).to(tl.uint32)
    low = (word & 4294967295).to(tl.uint32)
    tl.store(noise_ptr + place, FUNCTION(high, low), mask=place < count)


@kernel
def _logarithm_of_words(words_ptr, found_ptr, count, FUNCTION: tl.constexpr, BLOCK: tl.constexpr) -> None:  # noqa: ANN001
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_ptr + place, mask=place < count, other=0)
    tl.store(found_ptr + place, FUNCTION(((word >> 32) & 4294967295).to(tl.uint32)), mask=place < count)


def _four_words(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64], groups: NDArray[np.int64], purpose: Purpose
) -> NDArray[np.uint64]:
    """The words of each group's four tokens, uint64 [4, ...] with the broadcast shape of the arguments."""
    every = np.broadcast_arrays(groups.astype(np.uint64), positions.astype(np.uint64), seeds)
    group, position, seed = (np.ravel(array) for array in every)
    words = np.empty((4, group.size), dtype=np.uint64)
    for start in range(0, group.size, _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        constant = np.full_like(group[some], _PURPOSES[purpose])
        key = (seed[some] & np.uint64(0xFFFFFFFF), seed[some] >> np.uint64(32))
        parts = [np.full_like(constant, part) for part in (0, 1)]
        high, low = (
            specification.philox4x32(np.stack((group[some], position[some], constant, part)), key) for part in parts
        )
        words[:, some] = (high << np.uint64(32)) | low
    return words.reshape(4, *every[0].shape)
