"""The calls of torch that are wrapped: to say what waited, and because torch does not warn of all that wait.

What is not here is no less watched: torch warns when it waits, and the program's source tells what it called.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch

from ..hot_path import compiling
from .judges import (
    Judge,
    assigns,
    builds,
    copies,
    copies_each,
    decomposes,
    finds_distinct,
    has_shape_from_data,
    indexes,
    moves,
    reads_tensor,
    reads_value,
)


def _never(args: Sequence[Any]) -> bool:
    return False


def _is_traced(args: Sequence[Any]) -> bool:
    """Functions, unlike methods of tensors, are entered by what traces a program."""
    return compiling()


def _is_plain_index(args: Sequence[Any]) -> bool:
    index = args[1]
    if type(index) is tuple:
        return all(map(_is_plain, index))
    return _is_plain(index)


def _is_plain(index: Any) -> bool:
    if type(index) is slice:
        return type(index.start) in _PLAIN and type(index.stop) in _PLAIN and type(index.step) in _PLAIN
    return type(index) in _PLAIN


def _is_plain_assignment(args: Sequence[Any]) -> bool:
    return isinstance(args[2], torch.Tensor) and args[0].is_cuda is args[2].is_cuda and _is_plain_index(args)


def _changes_type_only(args: Sequence[Any]) -> bool:
    return len(args) == 2 and type(args[1]) is torch.dtype


def _stays_on_its_side(args: Sequence[Any]) -> bool:
    return len(args) > 1 and args[0].is_cuda is args[1].is_cuda


#: Types of an index that reads nothing.
_PLAIN = frozenset({int, type(None), type(...)})


class Way(enum.Enum):
    """How a call is watched."""

    GUARDED = "it waits if torch warns"
    INDEXES = "the same, and it is made very often"
    COPIES = "the same as JUDGED, and every step makes it"
    MOVES = "it may wait without a warning, and so is timed, and judged if it is large or took long"
    JUDGED = "it may wait without a warning, and so is judged and timed each time"


@dataclass(frozen=True)
class Call:
    """One function or method of torch.

    Attributes:
        owner: module or class that has it.
        attribute: its name there.
        name: as torch's manual has it.
        judge: says why it waited.
        way: how it is watched.
        allocates: whether it may take long because it allocates, so that its time says nothing of the launch queue.
        is_free: knows from the positional arguments, at little cost, that a call cannot wait.
    """

    owner: type | ModuleType
    attribute: str
    name: str
    judge: Judge
    way: Way = Way.GUARDED
    allocates: bool = False
    is_free: Callable[[Sequence[Any]], bool] = _never


def _methods(names: str, judge: Callable[[str], Judge], **more: Any) -> tuple[Call, ...]:
    return tuple(Call(torch.Tensor, name, f"Tensor.{name}", judge(f"Tensor.{name}"), **more) for name in names.split())


def _functions(names: str, judge: Callable[[str], Judge], **more: Any) -> tuple[Call, ...]:
    return tuple(
        Call(torch, name, f"torch.{name}", judge(f"torch.{name}"), is_free=_is_traced, **more) for name in names.split()
    )


def _decompositions(module: ModuleType, names: str, operator: str) -> tuple[Call, ...]:
    prefix = module.__name__
    return tuple(
        Call(module, name, f"{prefix}.{name}", decomposes(f"{prefix}.{name}", operator), Way.JUDGED, True, _is_traced)
        for name in names.split()
    )


def _distinct(name: str, place: int) -> tuple[Call, ...]:
    judge = partial(finds_distinct, place=place)
    return (
        *_methods(name, judge, way=Way.JUDGED, allocates=True),
        *_functions(name, judge, way=Way.JUDGED, allocates=True),
    )


CALLS: tuple[Call, ...] = (
    *_methods("item __bool__ __int__ __float__ __complex__ __index__ is_nonzero equal allclose", reads_value),
    *_methods("__contains__ __format__", reads_value),
    *_functions("equal allclose is_nonzero", reads_value),
    *_methods("tolist numpy __repr__ __reduce_ex__", reads_tensor),
    *_functions("save", reads_tensor),
    *_methods("nonzero masked_select bincount repeat_interleave argwhere", has_shape_from_data),
    *_functions("nonzero masked_select bincount repeat_interleave argwhere", has_shape_from_data),
    *_distinct("unique", 4),
    *_distinct("unique_consecutive", 3),
    *_functions("tensor as_tensor asarray", builds),
    *_methods("new_tensor", builds),
    *_methods("__getitem__", indexes, way=Way.INDEXES, is_free=_is_plain_index),
    *_methods("__setitem__", assigns, way=Way.INDEXES, is_free=_is_plain_assignment),
    *_methods("to", moves, way=Way.MOVES, allocates=True, is_free=_changes_type_only),
    *_methods("cuda cpu type type_as", moves, way=Way.MOVES, allocates=True),
    *_methods("copy_", copies, way=Way.COPIES, is_free=_stays_on_its_side),
    *_functions("_foreach_copy_", copies_each, way=Way.JUDGED),
    # Torch waits there for cuSOLVER, or for a permutation that it makes on the host, and does not warn.
    *_decompositions(torch.linalg, "lu", "aten::linalg_lu"),
    *_decompositions(torch.linalg, "lu_factor lu_factor_ex", "aten::linalg_lu_factor_ex"),
    *_decompositions(torch, "_lu_with_info", "aten::linalg_lu_factor_ex"),
    *_decompositions(torch.linalg, "ldl_factor ldl_factor_ex", "aten::linalg_ldl_factor_ex"),
    *_decompositions(torch.linalg, "ldl_solve", "aten::linalg_ldl_solve"),
)
