"""The memory of a real device, as far as bounds on it need to know: asked of torch's allocator, after each allocation.

Torch calls back after each allocation, but only while a region with a bound is open: outside of regions nothing is paid
for.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.cuda import _gpu_trace as trace

from ..memory import MemoryBoundError
from ..sync.memory import Over
from .callbacks import call_back


class Allocator(Protocol):
    """What is asked of torch's allocator."""

    @property
    def obstacle(self) -> str | None:
        """Why its figures mean nothing, if so."""
        ...

    def figures(self) -> tuple[int, int]:
        """Bytes that the program holds now, and all that it has ever been given."""
        ...


class CachingAllocator:
    """Torch's own allocator.

    Args:
        index: of the device.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    @property
    def obstacle(self) -> str | None:
        """See :class:`Allocator`; others neither call back nor count what was asked for."""
        name = torch.cuda.get_allocator_backend()
        if name != "native":
            return f"the allocator is {name}"
        return "PYTORCH_NO_CUDA_MEMORY_CACHING is set" if _is_uncached() else None

    def figures(self) -> tuple[int, int]:
        """See :class:`Allocator`; what was asked for, without what torch adds by rounding."""
        figures: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(self._index)
        if not figures:  # nothing was allocated yet
            return 0, 0
        asked = figures["requested_bytes"]["all"]
        return asked["current"], asked["allocated"]


def _is_uncached() -> bool:
    return os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "").lower() not in ("", "0", "false", "off", "no")


class CudaAccount:
    """The account of one device, for ``MemoryWatch.attach``.

    Args:
        allocator: of that device.
        step: gives the step of the runner.

    Attributes:
        lock: see :class:`~mrv2.checks.sync.memory.Account`.
    """

    def __init__(self, allocator: Allocator, step: Callable[[], int | None] = lambda: None) -> None:
        self.lock = threading.RLock()
        self._allocator, self._step = allocator, step
        self._limit, self._given = math.inf, 0
        self._over: Over | None = None
        self._undo: Callable[[], None] | None = None
        self._failure: Exception | None = None

    @property
    def step(self) -> int | None:
        """See :class:`~mrv2.checks.sync.memory.Account`."""
        return self._step()

    def held(self) -> int:
        """See :class:`~mrv2.checks.sync.memory.Account`."""
        held, self._given = self._allocator.figures()
        return held

    def tell(self, limit: float, over: Over) -> None:
        """See :class:`~mrv2.checks.sync.memory.Account`.

        Raises:
            MemoryBoundError: this allocator cannot be asked.
            Exception: what went wrong in a callback before, which torch only logs.
        """
        with self.lock:
            failure, self._failure = self._failure, None
            self._limit, self._over = limit, over
            if limit == math.inf and self._undo is not None:
                self._undo()
                self._undo = None
            elif limit < math.inf and self._undo is None:
                _refuse(self._allocator.obstacle)
                self._undo = call_back([(trace.MemoryAllocationCallbacks, self._called_back)])
            if failure is not None:
                raise failure

    def _called_back(self, address: int) -> None:
        """Torch has allocated, in the thread that asked for it."""
        with self.lock:
            try:
                self._judge()
            except Exception as error:  # noqa: BLE001 - raised when the region ends
                self._failure = self._failure or error

    def _judge(self) -> None:
        before = self._given
        held, self._given = self._allocator.figures()
        if held > self._limit and self._over is not None:
            self._over(self._given - before, held)


def _refuse(obstacle: str | None) -> None:
    if obstacle is not None:
        raise MemoryBoundError(
            f"a bound on memory, where {obstacle}",
            "torch's own caching allocator must be in use",
            "no other tells of its allocations, and what is not told would pass",
            "PYTORCH_CUDA_ALLOC_CONF without backend:..., or the virtual device",
        )
