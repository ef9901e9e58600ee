"""Settings of the process that kernels of the host ask for when they run, such as the deterministic algorithms.

A real device is told at the launch what to compute. So before such a setting changes, all that was enqueued under the
old one runs; that orders nothing, and no program may rely on it. What is remembered of calls was found out under the
old settings as well, and is forgotten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import inference, operators
from .schedules import Reason

if TYPE_CHECKING:
    from .runtime import Runtime

#: Functions of ``torch._C`` that all others end in.
_SETTERS = (
    "_set_default_dtype", "_set_default_tensor_type", "_set_deterministic_algorithms", "_set_float32_matmul_precision",
    "_set_fp32_precision_setter", "_set_mkldnn_enabled", "_set_mkldnn_deterministic",
    "_set_cpu_allow_fp16_reduced_precision_reduction",
)  # fmt: skip


def patched(runtime: Runtime) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """What to replace: object, name and replacement; forgets what was remembered under other settings."""
    _forget_what_changed()
    for name in _SETTERS:
        original = getattr(torch._C, name, None)  # not all versions of torch have them all
        if original is not None:
            yield torch._C, name, _setter(runtime, original)


def _setter(runtime: Runtime, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_it(*args: Any, **kwargs: Any) -> Any:
        with runtime.lock:
            runtime.memory.settle()
            runtime.drain(Reason.HOST_SYNC)
            try:
                return original(*args, **kwargs)
            finally:
                _forget_what_changed()

    return set_it


#: The settings under which calls have been remembered so far.
_remembered_under: list[tuple[Any, ...]] = []


def _forget_what_changed() -> None:
    """Only some settings change what a call returns, or whether it is refused; the others change numbers."""
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    present = torch.get_default_dtype(), *deterministic
    if _remembered_under != [present]:
        operators.forget_calls()
        inference.forget_plans()
        _remembered_under[:] = [present]
