"""Numbers that find mistakes: the edges of each type, and random ones between."""

from __future__ import annotations

import math

import torch

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
FLOATS = (torch.float16, torch.float32, torch.float64)


def integers(dtype: torch.dtype, lanes: int, seed: int) -> torch.Tensor:
    """Edges of the type, small numbers, bit patterns."""
    info = torch.iinfo(dtype)
    width = info.bits
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, width - 1, width, width + 1, info.max // 2]
    if info.min < 0:
        edges += [-1, -2, -3, -width]
    return _mixed(torch.tensor(edges, dtype=dtype), _bits(dtype, lanes, seed), lanes, seed)


def floats(dtype: torch.dtype, lanes: int, seed: int) -> torch.Tensor:
    """Zeros, denormals, infinities, a NaN, numbers of every size."""
    info = torch.finfo(dtype)
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, math.pi, 100.25, -7.75, 1e-3]
    edges += [info.max, info.min, info.tiny, -info.tiny, info.tiny * info.eps, info.eps, 1 + info.eps, 1 - info.eps]
    edges += [math.inf, -math.inf, math.nan]
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(lanes, generator=generator, dtype=torch.float64)
    wide = plain * torch.exp2(torch.randint(-20, 20, (lanes,), generator=generator).double())
    random = torch.where(torch.rand(lanes, generator=generator) < 0.5, plain, wide).to(dtype)
    return _mixed(torch.tensor(edges, dtype=torch.float64).to(dtype), random, lanes, seed)


def masks(lanes: int, seed: int) -> torch.Tensor:
    """Zeros and ones as int8."""
    return torch.randint(0, 2, (lanes,), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


def _bits(dtype: torch.dtype, lanes: int, seed: int) -> torch.Tensor:
    size = torch.tensor([], dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(seed)
    octets = torch.randint(0, 256, (lanes * size,), generator=generator, dtype=torch.uint8)
    return octets.view(dtype)


def _mixed(edges: torch.Tensor, random: torch.Tensor, lanes: int, seed: int) -> torch.Tensor:
    """Half of the lanes are edges, in random order."""
    generator = torch.Generator().manual_seed(seed + 1)
    picks = torch.randint(0, len(edges), (lanes,), generator=generator)
    take_edge = torch.rand(lanes, generator=generator) < 0.5
    size = edges.element_size()
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return torch.where(take_edge, edges.view(bits)[picks], random.view(bits)).view(edges.dtype)
