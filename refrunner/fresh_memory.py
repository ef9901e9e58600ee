"""A debug aid: memory that an allocator has just given holds what would show in the output if anything read it.

What ``torch.empty`` returns is whatever its last owner left, which is mostly zeros or plausible numbers, so code that
reads before it writes is right by luck. Here it is NaN, or the number one in tensors of integers: in range nearly
everywhere, and hardly ever right.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

POISON_NUMBER = 1
ALLOCATING = frozenset({
    torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default, torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default, torch.ops.aten.new_empty_strided.default,
})  # fmt: skip


class PoisonedFreshMemory(TorchDispatchMode):
    """Within this scope, and in its thread, fresh memory is filled; the fill is enqueued on the current stream.

    Pinned memory is left alone: the host would write it while the device may still read what it held.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch wraps the method below, imports its whole compiler and adds to every call."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operator was called."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in ALLOCATING and not kwargs.get("pin_memory"):
            _fill(result)
        return result


def fresh_memory(poison: bool) -> AbstractContextManager[object]:
    """The scope of a step: with poison in fresh memory, or as it comes."""
    return PoisonedFreshMemory() if poison else nullcontext()


def _fill(tensor: Tensor) -> None:
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype is not torch.bool:
        tensor.fill_(POISON_NUMBER)
