"""Copies between host and device, by the table of :mod:`mrv2.checks.semantics`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..events import OperationKind, Space
from ..semantics import COPIES, CopyRule, Direction, HostMemory, HostRead, InCapture, Waits, one_transfer, staging_waits
from ..sync.waits import Certainty, WaitKind
from .errors import UnsupportedOperationError, VirtualDeviceError
from .layouts import Layout, intern_layout, layout_of, tensor_ranges
from .memory import Block
from .queues import PendingOperation
from .tensor import DEVICE, DeviceTensor, Face, face_of, needs_device, wrap
from .threads import below_modes

if TYPE_CHECKING:
    from .runtime import Runtime


class Copies:
    """Uploads, downloads, and the conversions that imply them.

    Attributes:
        staging_taken: whether others hold all of the driver's staging memory, which every stream and library shares.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.staging_taken = False
        self._runtime = runtime
        self._staged: deque[tuple[PendingOperation, int]] = deque()
        self._staged_bytes = 0

    # Entries; called with or without the modes

    def to(self, tensor: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``Tensor.to`` of a tensor on either side.

        Args:
            tensor: on the host or the device.
            args: of the call, without the tensor.
            kwargs: of the call.
        """
        if is_lazy(tensor):
            raise UnsupportedOperationError(
                "uninitialised parameter of a lazy module, moved to the device",
                "a parameter has a shape before it is moved",
                "what has no memory cannot be followed on the device",
                "one call of the module on the host first, or a module with its sizes given",
            )
        target, dtype, non_blocking, copy, memory_format = _parse_to(args, kwargs)
        here = isinstance(tensor, DeviceTensor)
        there = here if target is None else needs_device(target)
        if target is not None and target.type not in ("cuda", "cpu"):
            return torch.empty_like(tensor, dtype=dtype, device=target)
        if here and there:
            return _convert_in_place(tensor, dtype, copy, memory_format)
        if not here and not there:
            raise AssertionError("a copy within the host is torch's own")
        if here:
            assert isinstance(tensor, DeviceTensor)
            return self.download(tensor, dtype, non_blocking=non_blocking, memory_format=memory_format)
        return self.upload(tensor, dtype, non_blocking=non_blocking, memory_format=memory_format)

    def as_type(self, tensor: Tensor, dtype: Any, non_blocking: bool) -> Any:
        """``Tensor.type(dtype)`` of a device tensor, or to a device type such as ``torch.cuda.FloatTensor``."""
        # A class of tensors such as ``torch.FloatTensor`` stands for its name.
        name = f"{dtype.__module__}.{dtype.__name__}" if isinstance(dtype, type) else dtype
        name = name if isinstance(name, str) else None
        if name is None:
            return self.to(tensor, (dtype,), {"non_blocking": non_blocking})
        on_device = name.startswith("torch.cuda.")
        kind = getattr(torch, name.rpartition(".")[2].removesuffix("Tensor").lower())
        target = DEVICE if on_device else torch.device("cpu")
        return self.to(tensor, (target, kind), {"non_blocking": non_blocking})

    def upload(
        self,
        source: Tensor,
        dtype: torch.dtype | None = None,
        *,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> DeviceTensor:
        """A new device tensor with the values of a host tensor."""
        with below_modes():
            target = self._runtime.operators.empty(_copied_layout(layout_of(source), dtype, memory_format))
            self.copy(target, source.detach(), non_blocking)
            return target

    def download(
        self,
        source: DeviceTensor,
        dtype: torch.dtype | None = None,
        *,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> Tensor:
        """A new host tensor with the values of a device tensor; pinned if the copy need not be waited for."""
        with below_modes():
            layout = _copied_layout(face_of(source).layout, dtype, memory_format)
            if non_blocking:
                target = self._runtime.memory.allocate_pinned(layout)
            else:
                target = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
            with self._runtime.lock:
                self._download(target, face_of(source), non_blocking, WaitKind.DOWNLOAD)
            return target

    def copy(self, target: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
        """``target.copy_(source)`` where at least one is on the device; called below the modes."""
        with self._runtime.lock:
            if isinstance(target, DeviceTensor):
                if isinstance(source, DeviceTensor):
                    self._on_device(face_of(target), face_of(source))
                else:
                    self._upload(face_of(target), source, non_blocking)
            else:
                assert isinstance(source, DeviceTensor)
                self._download(target, face_of(source), non_blocking, WaitKind.DOWNLOAD_INTO)
        return target

    # The three directions

    def _on_device(self, target: Face, source: Face) -> None:
        run = _mover(target.raw, source.raw)
        kind = OperationKind.COPY_ON_DEVICE
        self._runtime.enqueue("aten.copy_", kind, run, source.ranges, target.ranges)

    def _upload(self, target: Face, source: Tensor, non_blocking: bool) -> None:
        layout = layout_of(source)
        if layout.nbytes == 0:
            return
        block = self._pinned_block(source)
        rule = copy_rule(Direction.UPLOAD, block is not None, layout, target.layout, non_blocking)
        self._refuse_in_capture(rule)
        if rule.source is HostRead.AT_CALL:
            operation = self._upload_staged(target, source, layout, rule)
        else:
            assert block is not None
            operation = self._upload_later(target, source, layout, block)
        if rule.waits is Waits.ALWAYS:
            self._runtime.order.wait_for_operation(operation, WaitKind.UPLOAD, layout.nbytes)

    def _upload_staged(self, target: Face, source: Tensor, layout: Layout, rule: CopyRule) -> PendingOperation:
        """The bytes are taken before the call returns; no space for them makes the host wait, which orders nothing."""
        self._runtime.host_access(layout.ranges(source.data_ptr()), write=False, name="aten.copy_")
        never_fits = staging_waits(0, layout.nbytes)
        full = self._make_room(layout.nbytes) or self.staging_taken
        if rule.waits is Waits.OVER_BUDGET and (never_fits or full):
            certainty = Certainty.WAITED if never_fits else Certainty.DEPENDS
            self._runtime.host_waits(WaitKind.UPLOAD, "aten.copy_", layout.nbytes, certainty)
        run = _mover(target.raw, source.clone())
        operation = self._runtime.enqueue("aten.copy_", OperationKind.COPY_TO_DEVICE, run, (), target.ranges)
        if never_fits:
            self._runtime.run_oldest(operation)
        if not operation.done:
            self._staged.append((operation, layout.nbytes))
            self._staged_bytes += layout.nbytes
        return operation

    def _upload_later(self, target: Face, source: Tensor, layout: Layout, block: Block) -> PendingOperation:
        """The bytes are read when the copy runs, whatever the host has written there by then."""
        alias = _over(block, source.data_ptr(), layout)
        run = _mover(target.raw, alias)
        guard = self._runtime.upload_guard
        prepare = None if guard is None else lambda: _after(guard(alias, "aten.copy_"), run)
        owned = owned_by_allocator(block, source)
        operation = self._runtime.enqueue(
            "aten.copy_", OperationKind.COPY_TO_DEVICE, run, layout.ranges(source.data_ptr()), target.ranges,
            protected=owned, prepare=prepare,
        )  # fmt: skip
        if owned:
            block.record(operation.queue)
        return operation

    def _download(self, target: Tensor, source: Face, non_blocking: bool, kind: WaitKind) -> None:
        layout = layout_of(target)
        if layout.nbytes == 0:
            return
        block = self._pinned_block(target)
        rule = copy_rule(Direction.DOWNLOAD, block is not None, layout, source.layout, non_blocking)
        self._refuse_in_capture(rule)
        alias = target if block is None else _over(block, target.data_ptr(), layout)
        owned = block is not None and owned_by_allocator(block, target)
        operation = self._runtime.enqueue(
            "aten.copy_", OperationKind.COPY_TO_HOST, _mover(alias, source.raw), source.ranges,
            layout.ranges(target.data_ptr()), protected=owned,
        )  # fmt: skip
        if block is not None and owned:
            block.record(operation.queue)
        if rule.waits is Waits.ALWAYS:
            self._runtime.order.wait_for_operation(operation, kind, layout.nbytes)

    def _refuse_in_capture(self, rule: CopyRule) -> None:
        if rule.in_capture is not InCapture.CAPTURED:
            runtime = self._runtime
            runtime.captures.refuse(runtime.current_queue(), "aten.copy_", rule.in_capture)

    def _make_room(self, size: int) -> bool:
        """Space for more bytes in the staging memory; says whether the host had to wait for it."""
        staged = self._staged
        while staged and staged[0][0].done:
            self._staged_bytes -= staged.popleft()[1]
        waits = bool(staged) and staging_waits(self._staged_bytes, size)
        while staged and staging_waits(self._staged_bytes, size):
            operation, taken = staged.popleft()
            self._runtime.run_oldest(operation)
            self._staged_bytes -= taken
        return waits

    def _pinned_block(self, tensor: Tensor) -> Block | None:
        block = self._runtime.find_block(tensor.data_ptr())
        return block if block is not None and block.space is Space.PINNED else None

    def view_of_pinned(self, source: Any) -> DeviceTensor:
        """A device tensor over pinned memory, from an object with ``__cuda_array_interface__``.

        The memory lives as long as the object does, and the allocators know nothing of such a view.

        Raises:
            VirtualDeviceError: the address is not that of pinned memory.
        """
        with below_modes():
            described = source.__cuda_array_interface__
            address = described["data"][0]
            block = self._runtime.find_block(address)
            if block is None or block.owner is None:
                raise _not_pinned("an object with __cuda_array_interface__")
            element = np.dtype(described["typestr"])
            dtype = torch.from_numpy(np.empty(0, element)).dtype
            shape = torch.Size(described["shape"])
            strides = described.get("strides")
            stride = torch.empty(shape, device="meta").stride() if strides is None else _in_elements(strides, element)
            raw = _over(block, address, intern_layout(shape, stride, dtype))
            return wrap(raw, source, self._runtime)

    def uva_view(self, tensor: Tensor) -> DeviceTensor:
        """A device tensor over a pinned host tensor, which it keeps alive.

        Raises:
            VirtualDeviceError: the tensor is not pinned.
        """
        with below_modes():
            raw = self.alias(tensor)
            if raw is None:
                raise _not_pinned(f"tensor {layout_of(tensor)}")
            return wrap(raw, tensor, self._runtime)

    def alias(self, tensor: Tensor) -> Tensor | None:
        """A pinned host tensor as the device sees it; None if it is not pinned. Called below the modes."""
        block = None if isinstance(tensor, DeviceTensor) else self._pinned_block(tensor)
        return None if block is None else _over(block, tensor.data_ptr(), layout_of(tensor))

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a host tensor lies in pinned memory: its address decides, so aliases are pinned too."""
        with below_modes():
            return self._pinned_block(tensor) is not None

    def pin(self, tensor: Tensor) -> Tensor:
        """The tensor itself if it is pinned, else a pinned copy."""
        with below_modes():
            if self._pinned_block(tensor) is not None:
                return tensor
            self._runtime.host_access(tensor_ranges(tensor), write=False, name="aten.pin_memory")
            return self.pinned_like(tensor)

    def pinned_like(self, tensor: Tensor, *, fill: bool = True) -> Tensor:
        """Fresh pinned memory with the values of a host tensor, or with none; called below the modes."""
        pinned = self._runtime.memory.allocate_pinned(layout_of(tensor))
        if fill and tensor.numel():
            self._runtime.host_access(tensor_ranges(pinned), write=True, name="aten.copy_")
            pinned.copy_(tensor)
        return pinned


def _not_pinned(subject: str) -> VirtualDeviceError:
    return VirtualDeviceError(
        subject,
        "its address must lie in pinned memory",
        "a device cannot read pageable memory in place",
        "torch.empty(..., pin_memory=True)",
    )


def copy_rule(direction: Direction, pinned: bool, host: Layout, device: Layout, non_blocking: bool) -> CopyRule:
    """The row of the table for a copy between host memory, in a pinned block or pageable, and the device."""
    same = host.stride == device.stride and host.dtype is device.dtype and host.shape == device.shape
    whole = one_transfer(contiguous=host.contiguous, dense=host.dense, same_layout=same)
    return COPIES[direction, HostMemory.PINNED if pinned else HostMemory.PAGEABLE, whole, non_blocking]


class HostBlock(Protocol):
    """A block of pinned memory."""

    base: int
    storage: int


def owned_by_allocator(block: HostBlock, tensor: Tensor) -> bool:
    """Whether torch's host allocator learns of a copy: the storage is its own, or the pointer is that of the block."""
    return tensor.untyped_storage()._cdata == block.storage or tensor.data_ptr() == block.base


def _over(block: Block, address: int, layout: Layout) -> Tensor:
    """A tensor over bytes of a block through the allocator's own storage, not through the program's.

    So pending work does not keep the program's tensors alive, and the end of their life is seen when it comes.
    """
    assert block.owner is not None
    offset = address - block.base
    if offset % layout.dtype.itemsize == 0:
        storage, first = block.owner.untyped_storage(), offset // layout.dtype.itemsize
    else:
        storage, first = torch.from_numpy(block.owner.numpy()[offset:]).untyped_storage(), 0
    return torch.empty(0, dtype=layout.dtype).set_(storage, first, layout.shape, layout.stride)


def _in_elements(strides: Sequence[int], element: np.dtype[Any]) -> tuple[int, ...]:
    return tuple(step // element.itemsize for step in strides)


def _mover(target: Tensor, source: Tensor) -> Callable[[], None]:
    def run() -> None:
        target.copy_(source)

    return run


def _after(check: Callable[[], None], run: Callable[[], None]) -> Callable[[], None]:
    def checked() -> None:
        check()
        run()

    return checked


def _copied_layout(layout: Layout, dtype: torch.dtype | None, memory_format: torch.memory_format) -> Layout:
    """The layout of a copy of a tensor."""
    kind = layout.dtype if dtype is None else dtype
    if memory_format is torch.preserve_format:
        return intern_layout(layout.shape, layout.preserved, kind)
    model = torch.empty(layout.shape, dtype=kind, device="meta", memory_format=memory_format)
    return layout_of(model)


def _convert_in_place(tensor: Tensor, dtype: Any, copy: bool, memory_format: Any) -> Any:
    if not copy and dtype in (None, tensor.dtype) and memory_format is torch.preserve_format:
        return tensor
    if dtype in (None, tensor.dtype):
        return tensor.clone(memory_format=memory_format)
    return torch.ops.aten._to_copy.default(tensor, dtype=dtype, memory_format=memory_format)


def _parse_to(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, bool, bool, torch.memory_format]:
    """Device, type, non_blocking, copy and memory format of a call of ``Tensor.to``."""
    rest = {name: value for name, value in kwargs.items() if name not in ("copy", "other")}
    copy = bool(kwargs.get("copy", False))
    other = kwargs.get("other", args[0] if args else None)
    if isinstance(other, Tensor):
        names = dict(zip(("non_blocking", "copy"), args[1:], strict=False))
        target = DEVICE if isinstance(other, DeviceTensor) else other.device
        flags = {**rest, **names}
        copy = bool(flags.get("copy", copy))
        kind = flags.get("memory_format") or torch.preserve_format
        return target, other.dtype, bool(flags.get("non_blocking", False)), copy, kind
    limit = 2 if args and isinstance(args[0], torch.dtype) else 3
    if len(args) > limit:
        copy = bool(args[limit])
    with torch._C.DisableTorchFunction():
        target, dtype, non_blocking, kind = torch._C._nn._parse_to(*args[:limit], **rest)
    return target, dtype, non_blocking, copy, kind or torch.preserve_format
