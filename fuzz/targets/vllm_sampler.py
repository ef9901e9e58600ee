"""vLLM's ``gumbel_sample`` (0.32 and 0.33) as a sampler to audit, without the rest of vLLM.

Its noise comes from 32 bits per token, a murmur3 hash of (seed, position, token id), computed anew here; with
``double`` from two such hashes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from mrv2.stats.targets import Purpose

from .device_counts import counted
from .vllm_noise import double_noise, single_noise

GUMBEL = "vllm.v1.worker.gpu.sample.gumbel"
_DRAFT_SALT = 2**30
_SECOND_HASH = 0x9E3779B9
_COUNTED_AT_ONCE = {"cpu": 2**23, "cuda": 2**29}


class VllmSampler:
    """The function of a loaded module.

    Args:
        module: as :func:`vllm_gumbel` gives it.
        device: ``"cpu"`` or ``"cuda"``.
        double: with noise in float64.
    """

    keyed = True

    def __init__(self, module: ModuleType, device: str = "cpu", double: bool = False) -> None:
        self.name = f"vLLM gumbel_sample{' float64' if double else ''} on {device}"
        self.noise_bits = 53 if double else 32
        self._module = module
        self._device = device
        self._double = double

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.SamplerTarget`."""
        import torch

        count = len(seeds)
        table = self._tensor(np.ascontiguousarray(logits, dtype=np.float32))
        drawn = self._module.gumbel_sample(
            table.expand(count, -1) if table.ndim == 1 else table,
            torch.arange(count, dtype=torch.int32, device=self._device),
            self._tensor(np.ascontiguousarray(temperature, dtype=np.float32)),
            self._tensor(np.ascontiguousarray(seeds).view(np.int64)),
            self._tensor(positions.astype(np.int64)),
            apply_temperature=True,
            is_drafting=False,
            use_fp64=self._double,
        )
        tokens: NDArray[np.int64] = drawn.cpu().numpy().astype(np.int64)
        return tokens

    def count(
        self, logits: NDArray[np.float32], temperature: float, seed: int, first_position: int, draws: int
    ) -> NDArray[np.int64]:
        """See :class:`mrv2.stats.targets.CountingTarget`; only the counts leave the device."""
        import torch

        row = self._tensor(np.ascontiguousarray(logits, dtype=np.float32))
        warmth = torch.full((1,), temperature, dtype=torch.float32, device=self._device)
        seeds = self._tensor(np.array([seed], dtype=np.uint64).view(np.int64))
        positions = torch.arange(draws, dtype=torch.int64, device=self._device) + first_position
        step = max(1, _COUNTED_AT_ONCE[self._device] // row.numel())
        rows = torch.zeros(min(step, draws), dtype=torch.int32, device=self._device)

        def draw(some: Any) -> Any:
            return self._module.gumbel_sample(
                row.expand(some.numel(), -1),
                rows[: some.numel()],
                warmth,
                seeds,
                some,
                apply_temperature=True,
                is_drafting=False,
                use_fp64=self._double,
            )

        return counted(draw, positions, row.numel(), step)

    def words(
        self,
        seeds: NDArray[np.uint64],
        positions: NDArray[np.int64],
        tokens: NDArray[np.int64],
        purpose: Purpose = Purpose.TARGET,
    ) -> NDArray[np.uint64]:
        """See :class:`mrv2.stats.targets.NoiseTarget`; accepting and recovering draw with other generators there."""
        salted = positions + (_DRAFT_SALT if purpose is Purpose.DRAFT else 0)
        low = _murmur3(seeds, salted, tokens, 0)
        if not self._double:
            return low
        high = _murmur3(seeds, salted, tokens, _SECOND_HASH)
        return ((high << np.uint64(32)) | low) >> np.uint64(11)

    def noise(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """The kernel's own functions on each word."""
        import torch

        bits = self._tensor(np.ascontiguousarray(words).view(np.int64))
        noise = torch.empty(bits.shape, dtype=torch.float64, device=self._device)
        kernel = double_noise if self._double else single_noise
        kernel[(-(-bits.numel() // 1024),)](
            bits, noise, bits.numel(), LOG1P_NEG=self._module._log1p_neg_stable,
            UNIFORM64=self._module._uniform64_from_random53, BLOCK=1024,
        )  # fmt: skip
        found: NDArray[np.float64] = noise.cpu().numpy()
        return found

    def _tensor(self, array: NDArray[Any]) -> Any:
        import torch

        return torch.from_numpy(np.array(array)).to(self._device)


def _murmur3(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64], tokens: NDArray[np.int64], domain: int
) -> NDArray[np.uint64]:
    """MurmurHash3 (Appleby 2011, 32 bits) of four words, as ``murmur3_hash32`` chains them: uint64 below 2**32."""
    mask = np.uint64(0xFFFFFFFF)
    places = np.asarray(positions).astype(np.uint64)
    keys = (seeds & mask, seeds >> np.uint64(32), places & mask, np.asarray(tokens).astype(np.uint64) & mask)
    state: NDArray[np.uint64] = np.asarray(np.uint64(domain))
    for key in keys:
        mixed = _rotated(key * np.uint64(0xCC9E2D51) & mask, 15) * np.uint64(0x1B873593) & mask
        state = (_rotated(state ^ mixed, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & mask
    state = state ^ np.uint64(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor) & mask
    return state ^ (state >> np.uint64(16))


def _rotated(value: NDArray[np.uint64], shift: int) -> NDArray[np.uint64]:
    return ((value << np.uint64(shift)) | (value >> np.uint64(32 - shift))) & np.uint64(0xFFFFFFFF)


def vllm_gumbel(packages: Path) -> ModuleType:
    """The module of ``gumbel_sample`` from a folder that holds vLLM unpacked; nothing of vLLM stays importable.

    What the file itself imports of vLLM is Triton and its language; a module of these two stands in for it.
    """
    file = packages.joinpath(*GUMBEL.split(".")).with_suffix(".py")
    with _stand_in():
        spec = importlib.util.spec_from_file_location("vllm_gumbel_under_audit", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@contextmanager
def _stand_in() -> Iterator[None]:
    """``vllm`` and ``vllm.triton_utils``, for as long as the file is executed."""
    stand_in: Any = ModuleType("vllm.triton_utils")
    stand_in.tl, stand_in.triton = tl, triton
    names: Sequence[str] = ("vllm", "vllm.triton_utils")
    before = {name: sys.modules.get(name) for name in names}
    sys.modules["vllm"], sys.modules["vllm.triton_utils"] = ModuleType("vllm"), stand_in
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
