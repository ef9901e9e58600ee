"""The calls of torch that are wrapped: to say what waited, and because torch does not warn of all that wait.

What is not here is no less watched: torch warns when it waits, and the program's source tells what it called.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch

from .judges import (
    Judge,
    assigns,
    builds,
    copies,
    copies_each,
    has_shape_from_data,
    indexes,
    moves,
    reads_tensor,
    reads_value,
)


@dataclass(frozen=True)
class Call:
    """One function or method of torch.

    Attributes:
        owner: module or class that has it.
        attribute: its name there.
        name: as torch's manual has it.
        judge: says why it waited.
        may_meet_full_queue: whether it may wait without a warning of torch, and so is judged and timed each time.
    """

    owner: type | ModuleType
    attribute: str
    name: str
    judge: Judge
    may_meet_full_queue: bool = False


def _methods(names: str, judge: object, *, launches: bool = False) -> tuple[Call, ...]:
    return tuple(
        Call(torch.Tensor, name, f"Tensor.{name}", judge(f"Tensor.{name}"), launches)  # type: ignore[operator]
        for name in names.split()
    )


def _functions(names: str, judge: object, *, launches: bool = False) -> tuple[Call, ...]:
    return tuple(
        Call(torch, name, f"torch.{name}", judge(f"torch.{name}"), launches)  # type: ignore[operator]
        for name in names.split()
    )


CALLS: tuple[Call, ...] = (
    *_methods("item __bool__ __int__ __float__ __complex__ __index__ is_nonzero equal allclose", reads_value),
    *_methods("__contains__ __format__", reads_value),
    *_functions("equal allclose is_nonzero", reads_value),
    *_methods("tolist numpy __repr__ __reduce_ex__", reads_tensor),
    *_functions("save", reads_tensor),
    *_methods("nonzero masked_select unique bincount repeat_interleave argwhere", has_shape_from_data),
    *_functions("nonzero masked_select bincount repeat_interleave argwhere", has_shape_from_data),
    *_functions("tensor as_tensor asarray", builds),
    *_methods("new_tensor", builds),
    *_methods("__getitem__", indexes),
    *_methods("__setitem__", assigns),
    *_methods("to cuda cpu type type_as", moves, launches=True),
    *_methods("copy_", copies, launches=True),
    *_functions("_foreach_copy_", copies_each, launches=True),
    Call(torch.cuda.CUDAGraph, "replay", "CUDAGraph.replay", lambda *_: None, may_meet_full_queue=True),
)
