"""Functions of ``torch.cuda`` for which there is nothing here: refused by name, and not by some error further down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from .errors import UnsupportedOperationError

_MEMORY = "torch.cuda.memory_allocated() and max_memory_allocated(); the sites of allocations are in the findings"
_ALLOCATOR = "torch.empty(..., device='cuda')"
_MEASURED = "a constant, if device='cuda' means the virtual device"
#: Name -> what to write instead.
_FUNCTIONS: dict[str, str] = {
    "memory_snapshot": _MEMORY,
    "_record_memory_history": _MEMORY,
    "_dump_snapshot": _MEMORY,
    "_snapshot": _MEMORY,
    "memory_stats_as_nested_dict": _MEMORY,
    "host_memory_stats": _MEMORY,
    "caching_allocator_alloc": _ALLOCATOR,
    "caching_allocator_delete": _ALLOCATOR,
    "change_current_allocator": _ALLOCATOR,
    "use_mem_pool": _ALLOCATOR,
    "list_gpu_processes": _MEASURED,
    "device_memory_used": _MEASURED,
    "utilization": _MEASURED,
    "temperature": _MEASURED,
    "power_draw": _MEASURED,
    "clock_rate": _MEASURED,
    "current_blas_handle": "an operator of torch",
}


def functions() -> dict[str, Any]:
    """Name -> replacement for ``torch.cuda``."""
    found: dict[str, Any] = {name: _refusing(f"torch.cuda.{name}", instead) for name, instead in _FUNCTIONS.items()}
    return {
        **found,
        **profiler(),
        "set_sync_debug_mode": _set_sync_debug_mode,
        "get_sync_debug_mode": lambda: 0,
    }


def profiler() -> dict[str, Any]:
    """Name -> replacement for ``torch.cuda.profiler``, which has names of its own for functions of ``torch.cuda``."""
    return {"cudart": CudaRuntime, "check_error": _check_error}


def _check_error(res: int) -> None:
    assert res == 0


def refuse(subject: str, instead: str) -> NoReturn:
    """Say that something is not there.

    Raises:
        UnsupportedOperationError: always.
    """
    raise UnsupportedOperationError(
        subject,
        "the virtual device knows streams, events, graphs, copies, kernels and memory by its address",
        "what went on below it unseen could not be judged",
        instead,
    )


def _refusing(subject: str, instead: str) -> Callable[..., NoReturn]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        refuse(subject, instead)

    return refused


class CudaRuntime:
    """``torch.cuda.cudart()``: starts and stops a profiler, which is not there; all else is refused."""

    cudaError = torch.cuda.cudaStatus  # noqa: N815 - torch's name

    def cudaProfilerStart(self) -> int:  # noqa: N802 - CUDA's name
        """Success."""
        return 0

    def cudaProfilerStop(self) -> int:  # noqa: N802 - CUDA's name
        """Success."""
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks for its own
            raise AttributeError(name)
        refuse(
            f"torch.cuda.cudart().{name}", "the function of torch that does it, e.g. torch.empty(..., pin_memory=True)"
        )


def _set_sync_debug_mode(debug_mode: int | str) -> None:
    if debug_mode not in (0, "default"):
        refuse(f"torch.cuda.set_sync_debug_mode({debug_mode!r})", "the sync trap, mrv2.checks.sync, which sees more")
