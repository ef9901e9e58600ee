"""What a case of the test is: a call of a package's own code, or of one of its kernels, on small seeded tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

#: Every case runs in this many sizes.
SIZES = 3

_T = TypeVar("_T")


class Draw:
    """Seeded tensors of one run of a case.

    Args:
        size: which of the sizes, from 0.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._generator = torch.Generator().manual_seed(20 + size)
        self.reached: list[torch.Tensor] = []

    def one_of(self, *values: _T) -> _T:
        """The value for this size."""
        return values[self.size]

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
        """Normally distributed, of mean 0."""
        return (torch.randn(shape, generator=self._generator) * scale).to(dtype)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """In [0, 1)."""
        return torch.rand(shape, generator=self._generator).to(dtype)

    def ints(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """In [low, high)."""
        return torch.randint(low, high, shape, generator=self._generator, dtype=torch.int64).to(dtype)

    def distinct(self, count: int, below: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Different numbers in [0, below), in random order; shape (count,)."""
        return torch.randperm(below, generator=self._generator)[:count].to(dtype)

    def reaches(self, *tensors: torch.Tensor) -> None:
        """Says that a kernel reaches these tensors by addresses in its memory, not by its arguments."""
        self.reached.extend(tensors)


def starts(lengths: torch.Tensor, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Where each of the sequences of some lengths starts when they lie one after another, and the end of the last."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(dtype)


class Run(Protocol):
    """A function that is a case."""

    __name__: str

    def __call__(self, module: Any, draw: Draw, /) -> None:
        """Launch kernels of a module."""


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        module: the module that is loaded and handed to ``run``.
        name: of the function that is the case.
        run: launches at least one kernel of the module.
        conflicts: whether programs of one launch touch the same bytes without leave, in some size; the function says
            why.
        rejected: whether Triton's own front end does not compile a kernel.
        ordered: whether the result depends on the order of the programs, in some size; the function says why.
    """

    module: str
    name: str
    run: Run
    conflicts: bool = False
    rejected: bool = False
    ordered: bool = False

    @property
    def package(self) -> str:
        """The import package."""
        return self.module.partition(".")[0]


class Cases(list[Case]):
    """Cases that functions are added to."""

    def of(
        self, module: str, *, conflicts: bool = False, rejected: bool = False, ordered: bool = False
    ) -> Callable[[Run], Run]:
        """Add the decorated function, a case of a module."""

        def add(run: Run) -> Run:
            self.append(Case(module, run.__name__, run, conflicts, rejected, ordered))
            return run

        return add
