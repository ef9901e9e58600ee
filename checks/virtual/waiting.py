"""Which operators make the host wait for the stream they are on, by their nature or by that of their arguments.

A real device would; that this one cannot tell some shapes without running is another matter. Found by parking a kernel
in front of the calls: those of ``mrv2.checks.sync.probes``, and the samples that torch tests its operators with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..semantics import (
    NOT_WAITING_OPERATORS,
    NUMBER_ARGUMENTS,
    UNTAGGED_ANSWERS,
    isin_waits,
    waits_inside,
)
from ..sync.waits import WaitKind
from .calls import INDEXING, Call
from .tensor import DeviceTensor
from .threads import heres

#: Why a call waits, if it does, and of a copy the bytes.
Reason: TypeAlias = tuple[WaitKind | None, int | None]

_FREE: Reason = (None, None)
_SHAPE: Reason = (WaitKind.SHAPE, None)
_VALUE: Reason = (WaitKind.VALUE, None)
_INSIDE: Reason = (WaitKind.INSIDE, None)


def reason_to_wait(call: Call) -> Reason:
    """Why a call with a tensor of the device makes the host wait, if it does."""
    operator = call.operator
    name = operator.schema_name
    rule = _RULES.get(name)
    if rule is not None:
        return rule(call)
    if name in NUMBER_ARGUMENTS and any(map(call.on_device_at, NUMBER_ARGUMENTS[name])):
        return _VALUE
    if name in UNTAGGED_ANSWERS:
        return _VALUE
    if operator.waits and name not in NOT_WAITING_OPERATORS:
        return _SHAPE if operator.shape_from_data else _VALUE
    return _INSIDE if _waits_inside(call, name) else _FREE


def _waits_inside(call: Call, name: str) -> bool:
    if call.kwargs.get("check_errors") is True:  # reads error codes, to raise them
        return True
    return waits_inside(name, call.plain[0].shape if call.plain else ())


def _repeat_interleave(call: Call) -> Reason:
    """A length that the host knows is no reason to wait."""
    return _FREE if len(call.args) > 1 or call.kwargs.get("output_size") is not None else _SHAPE


def _isin(call: Call) -> Reason:
    if len(call.plain) != 2:
        return _FREE
    return _INSIDE if isin_waits(call.plain[0].numel(), call.plain[1].numel()) else _FREE


def _equal(call: Call) -> Reason:
    """Shapes are compared first. Torch's ``quantile`` compares on the host only, where this device's memory lies."""
    asked = heres.here.call
    if asked is not None and getattr(asked[0], "__name__", "").rpartition("nan")[2] == "quantile":
        return _FREE
    first, second = call.plain
    return _VALUE if first.shape == second.shape and first.numel() else _FREE


def _histc(call: Call) -> Reason:
    """Without a range it looks for the least and the greatest value."""
    call.key = None  # numbers are not part of it, and here they decide
    low, high = call.argument(2, "min", 0), call.argument(3, "max", 0)
    return _INSIDE if low == high else _FREE


def _normal(call: Call) -> Reason:
    """Deviations are looked at, whether one is negative."""
    deviations = call.argument(1, "std")
    return _INSIDE if isinstance(deviations, Tensor) and deviations.numel() else _FREE


def _segment_reduce(call: Call) -> Reason:
    """Lengths are looked at, unless the caller vouches for them."""
    return _INSIDE if call.kwargs.get("lengths") is not None and not call.kwargs.get("unsafe") else _FREE


def _where(call: Call) -> Reason:
    """A 0-dim tensor of the host is uploaded from pageable memory."""
    uploaded = [tensor.nbytes for tensor in call.tensors if type(tensor) is not DeviceTensor]
    return (WaitKind.UPLOAD, sum(uploaded)) if uploaded else _FREE


def _indexing(call: Call) -> Reason:
    """Masks of the device, indices of the host and values of the host wait.

    A mask of the host does not: it becomes indices there, which are uploaded through pinned memory; but a list or an
    array of numpy is made a tensor of the device first. Nor does one value under a mask, which needs no indices, if the
    host has it; if the device has it, it is read.
    """
    count = sum(index is not None for index in call.args[1])
    indices, rest = call.tensors[1 : 1 + count], call.tensors[1 + count :]
    on_host = [tensor for tensor in indices if type(tensor) is not DeviceTensor]
    on_host = [tensor for tensor in on_host if not (_is_mask(tensor) and _is_given(tensor))]
    values = [tensor for tensor in rest if type(tensor) is not DeviceTensor]
    if on_host:
        return WaitKind.UPLOAD, _bytes(on_host) + _bytes(values)
    masks = [index for index in indices if _is_mask(index) and type(index) is DeviceTensor]
    if rest and masks and count == 1 and call.plain[-1].numel() == 1:
        return _FREE if values else _VALUE
    if masks:
        return _SHAPE
    return (WaitKind.UPLOAD, _bytes(values)) if values else _FREE


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _is_given(index: Tensor) -> bool:
    """Whether the program indexed with this tensor itself, and not with what it was made of."""
    call = heres.here.call
    return call is None or any(index is part for part in _parts(call[1]))


def _parts(value: Any) -> Iterator[Any]:
    """What is in nested tuples and lists."""
    for item in value:
        if isinstance(item, tuple | list):
            yield from _parts(item)
        else:
            yield item


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


_Rule: TypeAlias = Callable[[Call], Reason]
_RULES: Mapping[str, _Rule] = {
    "aten::repeat_interleave": _repeat_interleave,
    "aten::isin": _isin,
    "aten::equal": _equal,
    "aten::histc": _histc,
    "aten::normal": _normal,
    "aten::segment_reduce": _segment_reduce,
    "aten::where": _where,
    **dict.fromkeys(INDEXING, _indexing),
}
