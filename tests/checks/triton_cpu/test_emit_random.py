"""Random chains of operations on shapes and elements, sums and scans: bit for bit what the interpreter computes.

Float sums show in which order numpy holds a tensor, so that each chain ends in several.
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from .differential import same

Shape = list[int]


class Chain:
    """A kernel being written; each value has a name and a shape."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.shape = [self.draw.choice([1, 4, 8, 16, 32]) for _ in range(3)]
        self.lines = ["import triton", "import triton.language as tl", "", "@triton.jit", "def kernel(x, y, out):"]
        self.values: list[tuple[str, Shape]] = []
        self.lanes = 0
        for argument in "xy":
            self.add(f"tl.load({argument} + {_lanes(self.shape)})", self.shape)

    def add(self, expression: str, shape: Shape) -> str:
        """Defines a value."""
        name = f"v{len(self.values)}"
        self.lines.append(f"    {name} = {expression}")
        self.values.append((name, list(shape)))
        return name

    def store(self, expression: str, shape: Shape) -> None:
        """Keeps a value for the comparison."""
        place = f"out + {self.lanes}" + (f" + {_lanes(shape)}" if shape else "")
        self.lines.append(f"    tl.store({place}, {expression})")
        self.lanes += math.prod(shape)

    def like(self, shape: Shape) -> str:
        """A value of a shape."""
        return self.draw.choice([name for name, other in self.values if other == shape])

    def grow(self) -> None:
        """Applies one random operation to one random value, if it can be."""
        name, shape = self.draw.choice(self.values)
        self.draw.choice(_OPERATIONS)(self, name, shape)


def _lanes(shape: Sequence[int]) -> str:
    """The number of each lane of a tensor."""
    parts, step = [], 1
    for axis in reversed(range(len(shape))):
        place = ", ".join(":" if other == axis else "None" for other in range(len(shape)))
        parts.append(f"tl.arange(0, {shape[axis]})[{place}] * {step}")
        step *= shape[axis]
    return " + ".join(parts)


def _tuple(numbers: Sequence[int]) -> str:
    return f"({', '.join(map(str, numbers))},)"


def permute(chain: Chain, name: str, shape: Shape) -> None:
    order = chain.draw.sample(range(len(shape)), len(shape))
    chain.add(f"tl.permute({name}, {_tuple(order)})", [shape[axis] for axis in order])


def arithmetic(chain: Chain, name: str, shape: Shape) -> None:
    chain.add(f"{name} {chain.draw.choice('+-*')} {chain.like(shape)}", shape)


def choose(chain: Chain, name: str, shape: Shape) -> None:
    chain.add(f"tl.where({name} > 0, {name}, {chain.like(shape)})", shape)


def exponential(chain: Chain, name: str, shape: Shape) -> None:
    chain.add(f"tl.exp(({name} * 0.1).to(tl.float32)).to({name}.dtype)", shape)


def fold(chain: Chain, name: str, shape: Shape) -> None:
    axis = chain.draw.randrange(len(shape))
    kind = chain.draw.choice(["sum", "sum", "max"])
    rest = shape[:axis] + shape[axis + 1 :]
    result = f"tl.{kind}({name}, axis={axis}).to({name}.dtype)"
    chain.store(chain.add(result, rest) if rest else result, rest)


def centre(chain: Chain, name: str, shape: Shape) -> None:
    axis = chain.draw.randrange(len(shape))
    chain.add(f"{name} - tl.sum({name}, axis={axis}, keep_dims=True)", shape)


def spread(chain: Chain, name: str, shape: Shape) -> None:
    target = [4 if extent == 1 else extent for extent in shape]
    if math.prod(target) <= 16384:
        chain.add(f"tl.broadcast_to({name}, {_tuple(target)})", target)


def expand(chain: Chain, name: str, shape: Shape) -> None:
    axis = chain.draw.randrange(len(shape) + 1)
    if len(shape) < 4:
        chain.add(f"tl.expand_dims({name}, {axis})", [*shape[:axis], 1, *shape[axis:]])


def running(chain: Chain, name: str, shape: Shape) -> None:
    chain.add(f"tl.cumsum({name}, axis={chain.draw.randrange(len(shape))})", shape)


def join(chain: Chain, name: str, shape: Shape) -> None:
    if len(shape) < 4 and math.prod(shape) <= 8192:
        chain.add(f"tl.join({name}, {chain.like(shape)})", [*shape, 2])


def flatten(chain: Chain, name: str, shape: Shape) -> None:
    lanes = math.prod(shape)
    rows = 2 ** chain.draw.randrange(lanes.bit_length())
    chain.add(f"tl.reshape({name}, ({rows}, {lanes // rows}))", [rows, lanes // rows])


_OPERATIONS: list[Callable[[Chain, str, Shape], None]] = [
    permute, permute, permute, arithmetic, arithmetic, choose, exponential, fold, fold, centre, spread, expand, running,
    join, flatten,
]  # fmt: skip


def _kernel(chain: Chain, folder: Path) -> Any:
    file = folder / "chain.py"
    file.write_text("\n".join(chain.lines) + "\n")
    specification = importlib.util.spec_from_file_location("chain", file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_chains(tmp_path, dtype, seed):
    chain = Chain(seed)
    for _ in range(10):
        chain.grow()
    for name, shape in chain.values[-4:]:
        fold(chain, name, shape)
        chain.store(name, shape)
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, *chain.shape, generator=generator).to(dtype)
    same(_kernel(chain, tmp_path), (1,), x, y, torch.zeros(chain.lanes, dtype=dtype))
