"""Operators that copy, or that give a tensor other memory or another shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..events import OperationKind
from .calls import Call
from .inference import NoPlan, plan
from .layouts import Layout, layout_of, row_major
from .storages import DeviceStorage, refuse_other_side
from .tensor import DeviceTensor, Face, face_of, rebind

if TYPE_CHECKING:
    from .operators import Operators
    from .runtime import Runtime

_aten = torch.ops.aten


class MemoryOperators:
    """The operators of one device that are more than a kernel with inputs and outputs.

    Attributes:
        special: overload -> who answers it.
    """

    def __init__(self, runtime: Runtime, operators: Operators) -> None:
        self._runtime = runtime
        self._operators = operators
        self.special: dict[Any, Callable[[Call], Any]] = {
            _aten.copy_.default: self._copy,
            _aten._to_copy.default: self._to_copy,
            _aten.is_pinned.default: lambda call: self._runtime.copies.is_pinned(call.plain[0]),
            _aten._pin_memory.default: lambda call: self._runtime.copies.pin(call.plain[0]),
            _aten.pin_memory.default: lambda call: self._runtime.copies.pin(call.plain[0]),
            _aten.resize_.default: self._resize,
            _aten.set_.default: self._set,
            _aten.set_.source_Tensor: self._set,
            _aten.set_.source_Storage: self._set,
            _aten.set_.source_Storage_storage_offset: self._set,
            _aten._foreach_copy_.default: self._foreach_copy,
            _aten._pack_padded_sequence.default: self._pack,
        }

    def _copy(self, call: Call) -> Any:
        if not call.on_device:
            return self._operators.on_host(call)
        target, source = call.tensors
        if call.overlaps or target.shape != source.shape:
            self._check_copy(call)
        non_blocking = call.args[2] if len(call.args) > 2 else call.kwargs.get("non_blocking", False)
        return self._runtime.copies.copy(target, source, non_blocking)

    def _check_copy(self, call: Call) -> None:
        """What the kernel would refuse is refused at the call."""
        refused: list[BaseException] = []
        try:
            plan(call.operator, call.args[:2], {}, call.overlaps)
        except NoPlan as error:
            refused.append(error.__cause__ or error)
        if refused:  # raised in there, it would lead to the other error, which leads to it
            raise refused.pop()

    def _pack(self, call: Call) -> Any:
        """Lengths are on the host, and so are the batch sizes that follow from them."""
        if not call.on_device:
            return self._operators.on_host(call)
        self._operators.freeze_host_tensors(call)
        compute, args = call.operator.compute, call.args
        packed, sizes = compute(torch.zeros_like(call.plain[0]), *args[1:])
        made = self._operators.empty(layout_of(packed))
        target, source = made._face, face_of(call.tensors[0])  # type: ignore[arg-type]

        def run() -> None:
            target.raw.copy_(compute(*args)[0])

        self._runtime.enqueue(call.operator.name, OperationKind.KERNEL, run, source.ranges, target.ranges)
        return made, sizes

    def _foreach_copy(self, call: Call) -> Any:
        if not call.on_device:
            return self._operators.on_host(call)
        count = len(call.args[0])
        non_blocking = call.args[2] if len(call.args) > 2 else call.kwargs.get("non_blocking", False)
        for target, source in zip(call.tensors[:count], call.tensors[count:], strict=True):
            self._runtime.copies.copy(target, source, non_blocking)
        return None

    def _to_copy(self, call: Call) -> Any:
        """Between the sides it is a copy; C++ asks for the CPU when it means the device of its argument."""
        if not call.tensors:  # a number in the place of a tensor
            call.args[0] = torch.tensor(call.args[0])
            return self._operators.on_host(call)
        source = call.tensors[0]
        target = call.kwargs.get("device")
        if type(source) is DeviceTensor:
            call.kwargs.pop("device", None)
            return self._operators.on_device(call)
        if target is None or target.type != "cuda":
            return self._operators.on_host(call)
        return self._runtime.copies.upload(
            source,
            call.kwargs.get("dtype"),
            non_blocking=call.kwargs.get("non_blocking", False),
            memory_format=call.kwargs.get("memory_format") or torch.preserve_format,
        )

    def _set(self, call: Call) -> Any:
        """A tensor gets other memory: that of a tensor, of a storage, or none."""
        _, *rest = call.args
        source = rest[0] if rest else None
        if not call.on_device:
            if isinstance(source, DeviceStorage):
                refuse_other_side("cpu", "cuda:0")
            return self._operators.on_host(call)
        self._operators.check_devices(call)
        target, *others = call.tensors
        assert type(target) is DeviceTensor
        if others:
            rebind(target, face_of(others[0]))  # type: ignore[arg-type]
        else:
            storages = self._runtime.storages
            storage = storages.new(0) if source is None else source
            rebind(target, storages.face(storage, face_of(target).layout.dtype, *rest[1:], **call.kwargs))
        return target

    def _resize(self, call: Call) -> Any:
        if not call.on_device:
            return self._operators.on_host(call)
        tensor = call.tensors[0]
        assert type(tensor) is DeviceTensor
        old = face_of(tensor)
        layout = _resized_layout(old.layout.dtype, *call.args[1:], **call.kwargs)
        new = self.room(old, layout)
        if new.owner is not old.owner:
            self._move_elements(new, old)
        rebind(tensor, new)
        return tensor

    def room(self, face: Face, layout: Layout) -> Face:
        """Where a tensor of this layout lies that takes the place of another: in the same memory, if it is enough."""
        plain = face.raw.untyped_storage()
        first = face.raw.storage_offset()
        if first * layout.dtype.itemsize + layout.span <= plain.nbytes() and layout.span:
            raw = torch.empty(0, dtype=layout.dtype).set_(plain, first, layout.shape, layout.stride)
            return Face(raw, layout, face.owner, self._runtime)
        return face_of(self._operators.empty(layout))

    def _move_elements(self, new: Face, old: Face) -> None:
        """All elements behind the first one that fit, as they lie in memory."""
        plain, first, size = old.raw.untyped_storage(), old.raw.storage_offset(), old.layout.dtype.itemsize
        count = min(plain.nbytes() // size - first, new.layout.span // size)
        if count:
            flat = row_major((int(count),), old.layout.dtype)
            raws = [face.raw.as_strided(flat.shape, flat.stride) for face in (new, old)]
            target, source = (Face(raw, flat, None, self._runtime) for raw in raws)
            self._runtime.copies._on_device(target, source)


def _resized_layout(
    dtype: torch.dtype, size: Sequence[int], memory_format: torch.memory_format | None = None
) -> Layout:
    if memory_format in (None, torch.contiguous_format):
        return row_major(size, dtype)
    return layout_of(torch.empty(torch.Size(size), dtype=dtype, device="meta", memory_format=memory_format))
