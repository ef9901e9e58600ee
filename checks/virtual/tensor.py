"""Device tensors: real CPU storage that says it is on ``cuda:0``.

C++ sees an ordinary CPU tensor, so indexing, views, ``data_ptr`` and pointer tables work natively; Python sees a CUDA
tensor. Each has two faces over one storage: the subclass, which the program holds, and a plain tensor, which deferred
work uses. Only the first keeps the block alive in the eyes of the program.

Methods that leave the device are methods of the class here, so that they work in a thread that never entered the modes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from .errors import StaleObjectError, UnsupportedOperationError
from .layouts import Layout, layout_of

if TYPE_CHECKING:
    from ..events import ByteRange
    from .runtime import Runtime

DEVICE = torch.device("cuda:0")
CPU = torch.device("cpu")

_make_subclass = Tensor._make_subclass


def needs_device(device: Any) -> bool:
    """Whether a ``device=`` argument names the virtual device.

    Raises:
        RuntimeError: it names a second one.
    """
    if device is None or device == DEVICE:
        return device is not None
    named = torch.device(device)
    if named.type == "cuda" and named.index not in (None, 0):
        raise RuntimeError(f"CUDA error: invalid device ordinal {named.index}: the virtual device is one device")
    return named.type == "cuda"


class Face:
    """What the device knows of one device tensor.

    Attributes:
        raw: plain tensor over the same bytes.
        ranges: the bytes it touches.
        layout: of ``raw``.
        address: of the first element.
        owner: keeps the block alive for the program: an Ownership, or the host tensor that this is a view of.
        runtime: the device it belongs to.
    """

    __slots__ = ("_ranges", "address", "layout", "owner", "raw", "runtime")

    def __init__(self, raw: Tensor, layout: Layout, owner: object, runtime: Runtime) -> None:
        self.raw = raw
        self.layout = layout
        self.address = raw.data_ptr()
        self.owner = owner
        self.runtime = runtime
        self._ranges: tuple[ByteRange, ...] | None = None

    @property
    def ranges(self) -> tuple[ByteRange, ...]:
        """The bytes it touches."""
        found = self._ranges
        if found is None:
            found = self._ranges = self.layout.ranges(self.address)
        return found


class DeviceTensor(Tensor):
    """A tensor of the virtual device."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _face: Face

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Reached in threads that never entered the dispatch mode, and after the device is gone."""
        return _runtime_of(args, kwargs).dispatch(func, args, kwargs or {})

    def get_device(self) -> int:
        """The index of the one device."""
        return 0

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """See ``torch.Tensor.to``."""
        return face_of(self).runtime.copies.to(self, args, kwargs)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> Any:
        """Copy to pageable memory; waits for the current stream."""
        return face_of(self).runtime.copies.to(self, (CPU,), {"memory_format": memory_format})

    def cuda(self, *args: Any, **kwargs: Any) -> Any:
        """Itself: there is one device."""
        face_of(self)
        return self

    def type(self, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        """See ``torch.Tensor.type``; without argument the name says CUDA."""
        if dtype is None:
            return f"torch.cuda.{super().type().rpartition('.')[2]}"
        return face_of(self).runtime.copies.as_type(self, dtype, non_blocking)

    def numpy(self, *, force: bool = False) -> Any:
        """Refused, as torch does, unless forced."""
        return self.detach().cpu().numpy() if force else _refuse_numpy()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        _refuse_numpy()

    def tolist(self) -> Any:
        """The values; waits for the current stream."""
        return self.detach().cpu().tolist()

    def is_pinned(self, device: Any = None) -> bool:
        """Never: only host memory is pinned."""
        return False

    def pin_memory(self, device: Any = None) -> NoReturn:
        """Refused, as torch does."""
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")

    def untyped_storage(self) -> Any:
        """Its memory; one object for all tensors over it."""
        return face_of(self).runtime.storages.of(self)

    def set_(self, source: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Take other memory; given a part of a tensor, C++ would take its storage past us."""
        if source is None:
            return super().set_()  # type: ignore[call-overload]
        if args and isinstance(source, DeviceTensor):
            source = source.untyped_storage()
        return super().set_(source, *args, **kwargs)

    def record_stream(self, stream: Any) -> None:
        """Keep the memory until the stream has passed this point; does nothing for a view of pinned memory."""
        face = face_of(self)
        face.runtime.record_stream(face, stream)

    @property
    def data(self) -> Any:
        """The same memory without gradient history."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        from .sides import move_to_host

        if isinstance(value, DeviceTensor):
            rebind(self, face_of(value))
        else:
            face_of(self)
            move_to_host(self, value)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        face = self.__dict__.get("_face")
        if face is None or not face.runtime.active:
            return f"DeviceTensor({layout_of_any(self)}, of a device that is gone)"
        text = repr(self.detach().cpu())
        return f"{text[:-1]}, device='cuda:0')"

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else repr(self).__format__(spec)

    def __copy__(self) -> Any:
        return self.detach().requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        from .sides import deep_copy

        return deep_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        from .sides import reduce

        return reduce(self)

    def __dlpack__(self, **kwargs: Any) -> NoReturn:
        raise UnsupportedOperationError(
            "DLPack capsule of a tensor on the device",
            "its memory cannot be handed to another library",
            "the other library would read it at once, past every stream",
            "torch.from_dlpack(tensor) for an alias, or tensor.cpu() for the values",
        )

    def __dlpack_device__(self) -> Any:
        face_of(self)
        return super().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> Any:
        face_of(self)
        return super().__cuda_array_interface__


def _refuse_numpy() -> NoReturn:
    raise TypeError(
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def face_of(tensor: DeviceTensor) -> Face:
    """The face of a device tensor that is still alive.

    Raises:
        StaleObjectError: its device is gone.
    """
    face = tensor._face
    if not face.runtime.active:
        raise StaleObjectError(f"device tensor {layout_of_any(tensor)}")
    return face


def layout_of_any(tensor: Tensor) -> Layout:
    """The layout of any tensor, below all modes."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return layout_of(tensor)


def wrap(raw: Tensor, owner: object, runtime: Runtime, layout: Layout | None = None) -> DeviceTensor:
    """A device tensor over a plain one; called below the modes."""
    tensor: DeviceTensor = _make_subclass(DeviceTensor, raw)
    tensor._face = Face(raw, layout_of(raw) if layout is None else layout, owner, runtime)
    return tensor


def plain_face(raw: Tensor) -> Tensor:
    """Another plain tensor over the same bytes, whose shape may change on its own."""
    return _make_subclass(Tensor, raw)


def rebind(tensor: DeviceTensor, face: Face) -> None:
    """Let a device tensor denote the bytes of another; pending work keeps what it had."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        Tensor.data.__set__(tensor, face.raw)  # type: ignore[attr-defined]
    tensor._face = Face(plain_face(face.raw), face.layout, face.owner, face.runtime)


def _runtime_of(args: Any, kwargs: Any) -> Runtime:
    for value in (*args, *(kwargs or {}).values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, DeviceTensor):
                return face_of(item).runtime
    raise AssertionError("dispatched without a device tensor")
