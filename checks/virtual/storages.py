"""Storages of the device: what ``Tensor.untyped_storage()`` gives, so that nobody reaches the host memory behind it.

A storage here is its bytes as a device tensor. Whatever reads or writes it is an operation on that tensor, in the order
of the current stream. To C++ it is an empty storage of the host: what is not answered here finds nothing to harm.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from .errors import UnsupportedOperationError, VirtualDeviceError
from .layouts import intern_layout, layout_of, row_major
from .streams import is_active
from .tensor import DEVICE, DeviceTensor, Face, face_of, needs_device, wrap
from .threads import below_modes

if TYPE_CHECKING:
    from .runtime import Runtime

_Base = torch.UntypedStorage


class DeviceStorage(_Base):
    """``torch.UntypedStorage`` on the device.

    Attributes:
        bytes: all of it, as a device tensor of type uint8.
    """

    bytes: DeviceTensor
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    _cdata = property(lambda self: self.bytes._face.raw.untyped_storage()._cdata)

    @classmethod
    def over(cls, raw: Tensor, owner: object, runtime: Runtime) -> DeviceStorage:
        """A storage of the bytes of a plain tensor of type uint8; called below the modes."""
        storage: DeviceStorage = torch._C.StorageBase.__new__(cls, 0)  # type: ignore[call-arg]
        storage.bytes = wrap(raw, owner, runtime)
        return storage

    # What it is

    def nbytes(self) -> int:
        """Its size."""
        return self.bytes._face.layout.nbytes

    size = __len__ = nbytes

    def data_ptr(self) -> int:
        """Address of the first byte."""
        return self.bytes._face.address

    def get_device(self) -> int:
        """The index of the one device."""
        return 0

    def element_size(self) -> int:
        """A byte."""
        return 1

    def resizable(self) -> bool:
        """Never."""
        return False

    def is_shared(self) -> bool:
        """Always, as torch says of memory on a device."""
        return True

    def is_pinned(self, device: Any = None) -> bool:
        """Never: only host memory is pinned."""
        return False

    # What it holds

    def __getitem__(self, index: Any) -> Any:
        part: Any = self.bytes[index]
        if not isinstance(index, slice):
            return part.item()
        with below_modes():
            face = face_of(part)
            return DeviceStorage.over(face.raw, face.owner, face.runtime)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.bytes[index] = value

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    def tolist(self) -> list[int]:
        """The bytes; waits for the current stream."""
        values: list[int] = self.bytes.tolist()
        return values

    def __repr__(self) -> str:
        return (
            "".join(f" {value}\n" for value in self)
            + f"[torch.storage.UntypedStorage(device=cuda:0) of size {len(self)}]"
        )

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """See ``torch.UntypedStorage.type``."""
        return "torch.storage.UntypedStorage" if dtype is None else super().type(dtype, non_blocking)

    def fill_(self, value: int) -> DeviceStorage:
        """Set every byte."""
        self.bytes.fill_(value)
        return self

    def copy_(self, source: Any, non_blocking: bool | None = None) -> DeviceStorage:  # type: ignore[override]
        """The values of another storage, on either side."""
        self.bytes.copy_(bytes_of(source), bool(non_blocking))
        return self

    def clone(self) -> DeviceStorage:
        """A copy in device memory."""
        return face_of(self.bytes).runtime.storages.new(self.nbytes()).copy_(self)

    def cpu(self) -> Any:
        """A copy in pageable memory; waits for the current stream."""
        return self.bytes.cpu().untyped_storage()

    def __reduce__(self) -> Any:
        return load_storage, (self.cpu(),)

    def _write_file(self, *args: Any) -> None:
        self.cpu()._write_file(*args)

    def _set_from_file(self, *args: Any) -> DeviceStorage:
        host = _Base(self.nbytes())
        host._set_from_file(*args)
        return self.copy_(host)

    def share_memory_(self, *args: Any, **kwargs: Any) -> DeviceStorage:
        """Nothing to do for memory on a device."""
        return self

    # What it cannot do

    def resize_(self, size: int) -> Any:
        """Refused, unless it is as large already: tensors over it, and pending work, would lose their memory."""
        if size == self.nbytes():
            return self
        raise UnsupportedOperationError(
            f"storage of {self.nbytes()} bytes, resized to {size}",
            "a storage on the virtual device keeps its size",
            "work that is pending would touch memory that is gone",
            "a new tensor; memory is given back when the last tensor over it is dropped",
        )

    def _share_cuda_(self, *_: Any) -> NoReturn:
        refuse_sharing()

    _share_fd_cpu_ = _share_filename_cpu_ = _share_cuda_

    def _byteswap(self, *_: Any) -> NoReturn:
        raise UnsupportedOperationError(
            "byteswap of a storage on the device",
            "only storages of the host swap their bytes in place",
            "torch would do it on the host, past every stream",
            "storage.cpu(), swapped there and copied back",
        )


DeviceStorage.__name__ = "UntypedStorage"  # torch.save writes this name down, and torch.load looks it up
_is_torchs = torch.is_storage


def is_storage(obj: Any) -> bool:
    """See ``torch.is_storage``."""
    return isinstance(obj, DeviceStorage) or _is_torchs(obj)


def refuse_sharing(*_: Any) -> NoReturn:
    """Memory of the device cannot be given to another process.

    Raises:
        UnsupportedOperationError: always.
    """
    raise UnsupportedOperationError(
        "a tensor on the device, sent to another process",
        "memory of the virtual device belongs to its process",
        "CUDA's memory handles (IPC) are not modelled",
        "tensor.cpu() before it is sent, and .to('cuda') where it arrives",
    )


def bytes_of(storage: Any) -> Tensor:
    """The bytes of a storage of either side, as a tensor of its side."""
    untyped = storage.untyped() if isinstance(storage, torch.TypedStorage) else storage
    if isinstance(untyped, DeviceStorage):
        return untyped.bytes
    with below_modes():
        return torch.empty(0, dtype=torch.uint8).set_(untyped)


class Storages:
    """The storages of one device."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: weakref.WeakValueDictionary[int, DeviceStorage] = weakref.WeakValueDictionary()

    def new(self, nbytes: int) -> DeviceStorage:
        """Fresh device memory."""
        with below_modes():
            made = self._runtime.operators.empty(intern_layout(torch.Size((nbytes,)), (1,), torch.uint8))
        return self.of(made)

    def of(self, tensor: DeviceTensor) -> DeviceStorage:
        """The storage of a tensor: one object for all tensors over it."""
        with below_modes():
            face = face_of(tensor)
            plain = face.raw.untyped_storage()
            storage = self._known.get(plain._cdata)
            if storage is None:
                raw = torch.empty(0, dtype=torch.uint8).set_(plain)
                storage = self._known[plain._cdata] = DeviceStorage.over(raw, face.owner, self._runtime)
            return storage

    def face(
        self, storage: Any, dtype: torch.dtype, storage_offset: int = 0, size: Any = None, stride: Any = None
    ) -> Face:
        """What a tensor over a storage has for a face; called below the modes.

        Args:
            storage: on the device.
            dtype: of the tensor.
            storage_offset: of its first element, in elements from the beginning of the storage.
            size: all of the storage, in one dimension, by default.
            stride: in elements; row-major by default.

        Raises:
            RuntimeError: the storage is on the host.
            VirtualDeviceError: the tensor would not lie within the storage.
        """
        if not isinstance(storage, DeviceStorage):
            refuse_other_side("cuda:0", "cpu")
        whole = face_of(storage.bytes)
        shape = (storage.nbytes() // dtype.itemsize,) if size is None else tuple(size)
        layout = intern_layout(torch.Size(shape), tuple(stride), dtype) if stride else row_major(shape, dtype)
        begin = whole.raw.storage_offset() + storage_offset * dtype.itemsize
        if storage_offset * dtype.itemsize + layout.span > storage.nbytes() or begin % dtype.itemsize:
            raise VirtualDeviceError(
                f"tensor {layout} at element {storage_offset} of a storage of {storage.nbytes()} bytes",
                "it must lie within the storage, at a multiple of its element size",
                "a storage on the virtual device keeps its size",
                "a new tensor of the size that is needed",
            )
        plain = whole.raw.untyped_storage()
        raw = torch.empty(0, dtype=dtype).set_(plain, begin // dtype.itemsize, layout.shape, layout.stride)
        return Face(raw, layout_of(raw), whole.owner, self._runtime)


def refuse_other_side(tensor: str, storage: str) -> NoReturn:
    """Torch's answer to ``set_`` across devices.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        f'Attempted to set the storage of a tensor on device "{tensor}" to a storage on different device "{storage}". '
        "This is no longer allowed; the devices must match."
    )


def patched(runtime: Runtime) -> list[tuple[Any, str, Any]]:
    """What of torch's storages is replaced, so that they can be made and copied on either side: object, name, value."""
    new, copy, wrapped = _Base.__new__, _Base.copy_, torch.TypedStorage._new_wrapped_storage

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if needs_device(kwargs.get("device")):
            return _made(runtime, *args)
        return new(cls, *args, **kwargs)

    def copy_(self: Any, source: Any, non_blocking: bool | None = None) -> Any:
        untyped = source.untyped() if isinstance(source, torch.TypedStorage) else source
        if not isinstance(untyped, DeviceStorage):
            return copy(self, source, non_blocking)
        bytes_of(self).copy_(untyped.bytes, bool(non_blocking))
        return self

    def wrap_typed(self: Any, untyped: Any) -> Any:
        if isinstance(untyped, DeviceStorage):
            return torch.TypedStorage(wrap_storage=untyped, dtype=self.dtype, _internal=True)
        return wrapped(self, untyped)

    return [
        (_Base, "__new__", staticmethod(make)),
        (_Base, "copy_", copy_),
        (torch.TypedStorage, "_new_wrapped_storage", wrap_typed),
    ]


def _made(runtime: Runtime, values: Any = 0) -> DeviceStorage:
    if isinstance(values, int):
        return runtime.storages.new(values)
    host = torch.tensor(list(values), dtype=torch.uint8)
    return runtime.storages.new(host.numel()).copy_(host.untyped_storage())


def refuse_other_processes() -> Callable[[], None]:
    """Let no tensor of the device be sent to another process; returns the undo."""
    for kind in (DeviceTensor, DeviceStorage):
        ForkingPickler.register(kind, refuse_sharing)

    def undo() -> None:
        for kind in (DeviceTensor, DeviceStorage):
            ForkingPickler._extra_reducers.pop(kind, None)  # type: ignore[attr-defined]

    return undo


def load_storage(values: Any) -> Any:
    """A storage as it was pickled; on the host, if no device is open where it is unpickled."""
    return values.cuda() if is_active() else values
