"""Why a patched call of torch waited: from its arguments, once torch has warned of it or the rules say so.

A judge gets how often torch warned in the call, its arguments, what it returned and how long it took, and gives the
cause of the wait; None stands for a call that did not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..semantics import waits_inside
from ..sync.waits import Cause, WaitKind
from .copies import bytes_of, download_cause, is_tensor, upload_cause

#: (warnings, positional arguments, keyword arguments, result, nanoseconds) -> cause.
Judge: TypeAlias = Callable[[int, Sequence[Any], Mapping[str, Any], Any, int], Cause | None]

_MASKS = (torch.bool, torch.uint8)


def reads_value(name: str) -> Judge:
    """Of a call that gives the host a number."""
    return lambda noticed, args, kwargs, result, took: Cause(WaitKind.VALUE, name) if noticed else None


def reads_tensor(name: str) -> Judge:
    """Of a call that gives the host all values of a tensor."""

    def judge(noticed: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, took: int) -> Cause | None:
        size = bytes_of(args[0]) if args and is_tensor(args[0]) else None
        return Cause(WaitKind.DOWNLOAD, name, size) if noticed else None

    return judge


def has_shape_from_data(name: str) -> Judge:
    """Of a call whose result is as long as the data say."""
    return lambda noticed, args, kwargs, result, took: Cause(WaitKind.SHAPE, name) if noticed else None


def finds_distinct(name: str, place: int) -> Judge:
    """Of a call that finds distinct values, or along a dimension distinct slices, of which torch does not warn.

    Args:
        name: of the call.
        place: of ``dim`` among its positional arguments.
    """

    def judge(noticed: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, took: int) -> Cause | None:
        given = next(filter(is_tensor, (*args, *kwargs.values())))
        dim = kwargs.get("dim", args[place] if len(args) > place else None)
        waits = noticed or (dim is not None and given.is_cuda and given.numel())
        return Cause(WaitKind.SHAPE, name) if waits else None

    return judge


def decomposes(name: str, operator: str) -> Judge:
    """Of a call that waits below torch, which is silent then, for the shape of its first tensor.

    Args:
        name: of the call.
        operator: the name of its rule.
    """

    def judge(noticed: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, took: int) -> Cause | None:
        given = next(filter(is_tensor, (*args, *kwargs.values())))
        waits = noticed or (given.is_cuda and waits_inside(operator, given.shape))
        return Cause(WaitKind.INSIDE, name) if waits else None

    return judge


def builds(name: str) -> Judge:
    """Of a call that makes a tensor from what the host has, or from numbers of the device among it."""

    def judge(noticed: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, took: int) -> Cause | None:
        if not noticed:
            return None
        source = kwargs.get("data", kwargs.get("obj", args[-1] if name.startswith("Tensor.") else args[0]))
        if is_tensor(source) and source.is_cuda:
            return Cause(WaitKind.DOWNLOAD, name, bytes_of(source))
        if _holds_device_number(source) or not (is_tensor(result) and result.is_cuda):
            return Cause(WaitKind.VALUE, name)
        return Cause(WaitKind.UPLOAD, name, bytes_of(result))

    return judge


def moves(name: str) -> Judge:
    """Of a call that gives a tensor on the other side, such as ``Tensor.to``."""

    def judge(noticed: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, took: int) -> Cause | None:
        source = args[0]
        if not is_tensor(result) or source.is_cuda == result.is_cuda:
            return None
        if source.is_cuda:
            return Cause(WaitKind.DOWNLOAD, name, bytes_of(result)) if noticed else None
        return upload_cause(name, source, result, noticed, took)

    return judge


def copies(name: str) -> Judge:
    """Of ``target.copy_(source)``."""

    def judge(noticed: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, took: int) -> Cause | None:
        target, source = args[0], kwargs["src"] if "src" in kwargs else args[1]
        return _copied(name, target, source, noticed, took)

    return judge


def copies_each(name: str) -> Judge:
    """Of ``torch._foreach_copy_(targets, sources)``; of several that wait the first is told."""

    def judge(noticed: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, took: int) -> Cause | None:
        targets, sources = kwargs.get("self", args[0] if args else ()), kwargs.get("src", args[1] if args[1:] else ())
        causes = (_copied(name, target, source, noticed, took) for target, source in zip(targets, sources, strict=True))
        return next((cause for cause in causes if cause is not None), None)

    return judge


def _copied(name: str, target: Any, source: Any, noticed: int, took: int) -> Cause | None:
    if not is_tensor(source) or target.is_cuda == source.is_cuda:
        return None
    if target.is_cuda:
        return upload_cause(name, source, target, noticed, took)
    return download_cause(name, target, source, noticed)


def indexes(name: str) -> Judge:
    """Of ``x[index]``."""

    def judge(noticed: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, took: int) -> Cause | None:
        if not noticed:
            return None
        parts = _parts(args[1])
        uploaded = _uploaded(parts)
        if uploaded:
            return Cause(WaitKind.UPLOAD, name, uploaded)
        return Cause(WaitKind.SHAPE if _masks(parts) else WaitKind.VALUE, name)

    return judge


def assigns(name: str) -> Judge:
    """Of ``x[index] = value``; ``x`` may be the host's."""

    def judge(noticed: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, took: int) -> Cause | None:
        if not noticed:
            return None
        target, index, value = args
        if not target.is_cuda:
            return Cause(WaitKind.DOWNLOAD_INTO, name, bytes_of(value) if is_tensor(value) else None)
        return Cause(*_assigned(name, target, _parts(index), value))

    return judge


def _assigned(name: str, target: Tensor, parts: Sequence[Any], value: Any) -> tuple[WaitKind, str, int | None]:
    """The kind of wait, the name of the call, and of an upload the bytes."""
    from_host = _host_bytes(value, target)
    uploaded = _uploaded(parts)
    masks = _masks(parts)
    if uploaded or (from_host and not masks):
        return WaitKind.UPLOAD, name, uploaded + from_host
    filled = len(parts) == 1 and is_tensor(value) and value.numel() == 1
    if masks and not filled:
        return WaitKind.SHAPE, name, None
    return WaitKind.VALUE, name, None


def _host_bytes(value: Any, target: Tensor) -> int:
    """Of a value that has to be uploaded; of a Python number one element."""
    if is_tensor(value):
        return 0 if value.is_cuda else bytes_of(value)
    return int(np.asarray(value).size) * target.dtype.itemsize


def _parts(index: Any) -> tuple[Any, ...]:
    """The indices of each dimension: a list of indices is one, as an array is."""
    return index if isinstance(index, tuple) else (index,)


def _masks(parts: Iterable[Any]) -> bool:
    return any(is_tensor(part) and part.is_cuda and part.dtype in _MASKS for part in parts)


def _uploaded(parts: Iterable[Any]) -> int:
    """The bytes of those indices that lie on the host."""
    return sum(_index_bytes(part) for part in parts)


def _index_bytes(part: Any) -> int:
    if is_tensor(part):
        return 0 if part.is_cuda or part.dim() == 0 else bytes_of(part)
    if isinstance(part, list | range | np.ndarray) and not _holds_device_number(part):
        return int(np.asarray(part).size) * torch.int64.itemsize
    return 0


def _holds_device_number(value: Any) -> bool:
    if is_tensor(value):
        return bool(value.is_cuda)
    return isinstance(value, list | tuple) and any(_holds_device_number(item) for item in value)
