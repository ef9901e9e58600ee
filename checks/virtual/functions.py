"""Python calls that C++ would answer before any operator is dispatched.

On a CPU-only torch ``x.to("cuda")`` raises and ``x.to("cpu")`` is a no-op, and ``numpy()`` or ``tolist()`` of pinned
memory reads it without an operator. A torch-function mode sees these calls; all others it passes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch._ops import OpOverloadPacket
from torch.utils import dlpack

from .layouts import tensor_ranges
from .sides import move_to_device
from .tensor import DEVICE, DeviceTensor, needs_device
from .threads import below_modes

if TYPE_CHECKING:
    from .runtime import Runtime

_aten = torch.ops.aten
Handler = Callable[["Runtime", Any, tuple[Any, ...], dict[str, Any]], Any]
_handlers: dict[Any, Handler] = {}


def handler_of(func: Any) -> Handler | None:
    """Who answers a call instead of torch, if anyone does."""
    return _handlers.get(func)


def _handles(*functions: Any) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for function in functions:
            _handlers[function] = handler
        return handler

    return register


def names_device_tensor(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, *, from_cpp: bool) -> bool:
    """Whether a function was given a device tensor and no device: then what C++ allocates in it is the device's.

    Args:
        func: that is being called; one written in Python may well allocate on the host.
        args: of the call.
        kwargs: of the call.
        from_cpp: whether the allocation is surely C++'s.
    """
    if (isinstance(func, FunctionType) and not from_cpp) or (kwargs and kwargs.get("device") is not None):
        return False
    for value in (*args, *(kwargs or {}).values()):
        if type(value) is DeviceTensor:
            return True
        if isinstance(value, (list, tuple)) and any(type(item) is DeviceTensor for item in value):
            return True
    return False


@_handles(Tensor.to)
def _to(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, rest = args[0], args[1:]
    targets = (*rest[:1], kwargs.get("device"), kwargs.get("other"))
    named = any(type(t) is DeviceTensor or (isinstance(t, str | int | torch.device) and _is_device(t)) for t in targets)
    if type(tensor) is DeviceTensor or named:
        return runtime.copies.to(tensor, rest, kwargs)
    return func(*args, **kwargs)


def _is_device(value: Any) -> bool:
    return not isinstance(value, bool) and needs_device(value)


@_handles(Tensor.type_as)
def _type_as(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    other = args[1] if len(args) > 1 else kwargs["other"]
    if type(args[0]) is not type(other) and DeviceTensor in (type(args[0]), type(other)):
        return runtime.copies.to(args[0], (other,), {})
    return func(*args, **kwargs)


@_handles(_aten._to_copy, _aten._to_copy.default, _aten.to, _aten.to.device, _aten.to.dtype_layout, _aten.to.other)
def _to_operator(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The program calls the operator itself; here it means the device that it says, which C++ need not."""
    overload = func
    if isinstance(func, OpOverloadPacket):
        overload = getattr(func, torch._C._jit_resolve_packet(func._qualified_op_name, *args, **kwargs) or "default")
    named = dict(zip((argument.name for argument in overload._schema.arguments), args, strict=False)) | kwargs
    tensor, other = named["self"], named.get("other")
    device = named.get("device") if other is None else DEVICE if type(other) is DeviceTensor else other.device
    if device is None or needs_device(device) == (type(tensor) is DeviceTensor):
        return func(*args, **kwargs)
    kept = ("dtype", "non_blocking", "memory_format")
    flags = {name: named[name] for name in kept if named.get(name) is not None}
    if other is not None:
        flags["dtype"] = other.dtype
    return runtime.copies.to(tensor, (), {"device": torch.device(device), **flags})


@_handles(Tensor.apply_, Tensor.map_, Tensor.map2_)
def _elementwise(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A Python function for each element, without any operator: reads all tensors, and writes the first."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if any(type(tensor) is DeviceTensor for tensor in tensors):
        raise TypeError(f"{func.__name__} is only implemented on CPU tensors")
    name = f"Tensor.{func.__name__}"
    with below_modes():
        for tensor in tensors:
            runtime.host_access(tensor_ranges(tensor), write=False, name=name)
        runtime.host_access(tensor_ranges(tensors[0]), write=True, name=name)
    return func(*args, **kwargs)


@_handles(Tensor.cuda)
def _cuda(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flags = {name: value for name, value in kwargs.items() if name in ("non_blocking", "memory_format")}
    if len(args) > 2:
        flags["non_blocking"] = args[2]
    return runtime.copies.to(args[0], (DEVICE,), flags)


@_handles(Tensor.cpu)
def _cpu(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].cpu(**kwargs) if type(args[0]) is DeviceTensor else func(*args, **kwargs)


@_handles(Tensor.type)
def _type(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    if type(tensor) is DeviceTensor:
        return tensor.type(*rest, **kwargs)
    wanted = rest[0] if rest else kwargs.get("dtype")
    if isinstance(wanted, str) and wanted.startswith("torch.cuda."):
        return runtime.copies.as_type(tensor, wanted, bool(kwargs.get("non_blocking", False)))
    return func(*args, **kwargs)


@_handles(Tensor.__array__)
def _array(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """C code of numpy was given a tensor where it wants an array, and will read it."""
    if type(args[0]) is not DeviceTensor:
        return _read(runtime, func, args, kwargs)
    return args[0].__array__(*args[1:], **kwargs)


@_handles(Tensor.numpy)
def _numpy(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if type(tensor) is DeviceTensor:
        return tensor.numpy(**kwargs)
    with below_modes():
        array = func(*args, **kwargs)
        tracked = runtime.wrap_array is not None and runtime.find_block(tensor.data_ptr()) is not None
    return runtime.wrap_array(array) if tracked and runtime.wrap_array is not None else array


@_handles(Tensor.tolist, Tensor.__repr__, Tensor.__format__, Tensor.__reduce_ex__)
def _read(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reads that no operator shows."""
    tensor = args[0]
    if type(tensor) is DeviceTensor:
        return getattr(tensor, func.__name__)(*args[1:], **kwargs)
    with below_modes():
        if runtime.memory.pinned_blocks and tensor.layout is torch.strided and tensor.device.type == "cpu":
            runtime.host_access(tensor_ranges(tensor), write=False, name=f"Tensor.{func.__name__}")
        return func(*args, **kwargs)


@_handles(torch.tensor)
def _tensor(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device, pin = kwargs.pop("device", None), kwargs.pop("pin_memory", False)
    source = args[0] if args else kwargs["data"]
    if type(source) is DeviceTensor:
        dtype = kwargs.get("dtype")
        copy = runtime.copies.to(source.detach(), (device or DEVICE,), {"dtype": dtype, "copy": True})
        return copy.requires_grad_(kwargs.get("requires_grad", False))
    made = func(
        _on_host(runtime, source), **{name: value for name, value in kwargs.items() if name != "data"}, **_first(device)
    )
    if pin and type(made) is DeviceTensor:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    return _placed(runtime, made, device, pin)


@_handles(Tensor.new_tensor)
def _new_tensor(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = kwargs.pop("device", None)
    like, *rest = args
    if device is None and type(like) is DeviceTensor:
        device = DEVICE
    kwargs.setdefault("dtype", like.dtype)
    return _tensor(runtime, torch.tensor, tuple(rest), {**kwargs, "device": device})


@_handles(Tensor.new)
def _new(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The constructor of old: of a sequence that is no torch.Size, it takes the values."""
    like, *rest = args
    is_data = len(rest) == 1 and isinstance(rest[0], list | tuple) and not isinstance(rest[0], torch.Size)
    if type(like) is DeviceTensor and is_data:
        return _tensor(runtime, torch.tensor, tuple(rest), {"dtype": like.dtype, "device": DEVICE})
    return func(*args, **kwargs)


@_handles(torch.as_tensor, torch.asarray)
def _as_tensor(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    device = kwargs.pop("device", None)
    if len(args) > 2:  # as_tensor(data, dtype, device)
        args, device = args[:2], args[2]
    dtype = kwargs.get("dtype", args[1] if len(args) > 1 else None)
    if isinstance(source, Tensor):
        target = source.device if device is None else device
        flags = {"dtype": dtype, "copy": bool(kwargs.get("copy", False))}
        return _to(runtime, Tensor.to, (source, target), flags)
    if needs_device(device) and hasattr(source, "__cuda_array_interface__"):
        return runtime.copies.view_of_pinned(source)
    kwargs = {name: value for name, value in kwargs.items() if name not in ("data", "obj")} | _first(device)
    return _placed(runtime, func(_on_host(runtime, source), *args[1:], **kwargs), device, pin=False)


def _first(device: Any) -> dict[str, Any]:
    """Where the values go first, if the program said where they go in the end: a default device is not asked then."""
    return {} if device is None else {"device": "cpu"}


def _on_host(runtime: Runtime, data: Any) -> Any:
    """Nested lists with tensors of the device in them: C++ would read those at once, past every mode."""
    if type(data) is DeviceTensor:
        return runtime.copies.download(cast(DeviceTensor, data.detach()))
    if type(data) not in (list, tuple) or not any(type(item) in _HOLDERS for item in data):
        return data
    return [_on_host(runtime, item) for item in data]


_HOLDERS = frozenset({DeviceTensor, list, tuple})


@_handles(Tensor.untyped_storage)
def _untyped_storage(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].untyped_storage() if type(args[0]) is DeviceTensor else func(*args, **kwargs)


@_handles(Tensor.data.__set__)  # type: ignore[attr-defined]
def _set_data(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, value = args
    if type(value) is DeviceTensor and type(tensor) is not DeviceTensor:
        return move_to_device(tensor, value)
    return func(*args, **kwargs)


@_handles(dlpack.from_dlpack)
def _from_dlpack(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a device tensor it is an alias: nothing leaves the device."""
    if type(args[0]) is not DeviceTensor:
        return func(*args, **kwargs)
    alias = args[0].detach()
    return alias.to(kwargs.get("device") or DEVICE, copy=bool(kwargs.get("copy")))


@_handles(torch.utils.dlpack.to_dlpack)  # type: ignore[attr-defined]
def _to_dlpack(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].__dlpack__() if type(args[0]) is DeviceTensor else func(*args, **kwargs)


def group_tensors(lists: Sequence[Sequence[Tensor | None]], with_indices: bool = False) -> Any:
    """In the place of the helper of torch's optimisers, which would take all tensors to be on the CPU.

    Args:
        lists: of tensors, all as long as the first or empty; what stands at one place in them belongs together.
        with_indices: whether the places are wanted.

    Returns:
        for each device and type in the first list, the lists of what belongs there, and the places.
    """
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[list[Tensor | None]], list[int]]] = {}
    for place, first in enumerate(lists[0]):
        assert first is not None
        into, places = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for chosen, tensors in zip(into, lists, strict=True):
            chosen.extend(tensors[place : place + 1])
        if with_indices:
            places.append(place)
    return groups


def _placed(runtime: Runtime, made: Tensor, device: Any, pin: bool) -> Tensor:
    """A tensor that was built in pageable memory, moved to where it was asked for."""
    if needs_device(device):
        with below_modes():
            moved = runtime.copies.upload(made)
            return moved.requires_grad_(made.requires_grad)
    if pin:
        with below_modes():
            return runtime.copies.pinned_like(made.detach()).requires_grad_(made.requires_grad)
    return made
