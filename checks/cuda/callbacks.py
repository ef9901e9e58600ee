"""Torch's own callbacks of what happens to a device (``torch.cuda._gpu_trace``), on for a while."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch


def call_back(told: Sequence[tuple[Any, Callable[..., None]]]) -> Callable[[], None]:
    """Let torch call some functions back; returns the undo.

    The undo takes them off torch's lists again, and lets torch stop calling back if it did not do so before. For that
    torch has no call, but a variable. Where a build does not show it, each record, wait, synchronisation and allocation
    goes through Python once more from then on, to a list that is empty.

    Args:
        told: registries of ``torch.cuda._gpu_trace``, and what each of them calls. Torch only logs what that raises.
    """
    for registry, callback in told:
        registry.add_callback(callback)
    state = _trace_state()
    before = state is not None and state.value
    torch._C._activate_gpu_trace()
    if state is not None:
        state.value = True  # torch sets it only the first time

    def undo() -> None:
        if state is not None:
            state.value = before
        for registry, callback in told:
            registry.callback_list.remove(callback)

    return undo


def _trace_state() -> ctypes.c_bool | None:
    """Torch's own flag that it calls back; None if this build hides it."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_bool.in_dll(library, "_ZN3c104impl8GPUTrace9haveStateE")
    except (OSError, ValueError):
        return None
