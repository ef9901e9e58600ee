"""Random kernels: bit for bit what the interpreter computes."""

from __future__ import annotations

import importlib.util
import random

import pytest
import torch

from .differential import same
from .random_programs import Writer

SHAPES = ((4, 8), (16, 4), (1, 32), (32, 1), (8, 64), (2, 128))


def module(source: str, folder):
    """Import it from a file, where Triton finds its lines."""
    file = folder / "random_kernel.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("random_kernel", file)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed, tmp_path):
    kernel = module(Writer(seed).source(), tmp_path).kernel
    generator, chosen = torch.Generator().manual_seed(seed), random.Random(seed)
    (rows, columns), audit = chosen.choice(SHAPES), chosen.random() < 0.7
    lanes = rows * columns
    x, y = (torch.randint(-1000, 1000, (2048,), generator=generator, dtype=torch.int32) for _ in range(2))
    n = chosen.choice([0, 5, lanes // 2, lanes - 1, lanes])
    same(kernel, (2,), x, y, torch.zeros(9 * lanes, dtype=torch.int32), n, rows, columns, audit=audit)
