"""Calls of torch that neither an operator nor a callback shows: polls, and reads and writes of pinned memory.

Each is a method that is replaced for a while, also those of ``torch.Event`` and ``torch.Stream``, which torch wrote in
C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..hooks.patching import Patches
from ..virtual.layouts import layout_of
from ..virtual.stacks import program_stack
from .patches import CallPatches
from .recorder_operators import address_of_stream

if TYPE_CHECKING:
    from .recorder_runtime import CudaRuntime

#: Methods that read all of a host tensor without an operator.
_READING = ("tolist", "__repr__", "__format__", "__reduce_ex__")
#: Methods that call a Python function for each element, and write the first tensor.
_ELEMENTWISE = ("apply_", "map_", "map2_")


def install(runtime: CudaRuntime) -> Callable[[], None]:
    """Tell a recorder of polls, and of uses of pinned memory without an operator; returns the undo."""
    patches, calls = Patches(), CallPatches()
    for event in (torch.cuda.Event, torch.Event):
        calls.method(event, "query", functools.partial(_event_query, runtime))
    for stream in (torch.cuda.Stream, torch.Stream):
        calls.method(stream, "query", functools.partial(_stream_query, runtime))
    patches.update(Tensor, {name: _reading(runtime, getattr(Tensor, name)) for name in _READING})
    patches.update(Tensor, {name: _elementwise(runtime, getattr(Tensor, name)) for name in _ELEMENTWISE})
    patches.set(Tensor, "numpy", _numpy(runtime, Tensor.numpy))
    patches.set(Tensor, "new_tensor", _pinning(runtime, Tensor.new_tensor))
    patches.set(torch, "tensor", _pinning(runtime, torch.tensor))

    def undo() -> None:
        patches.undo()
        calls.undo()

    return undo


def install_streams(runtime: CudaRuntime) -> Callable[[], None]:
    """Name streams by the line that makes them; returns the undo."""
    patches, stream = Patches(), torch.cuda.Stream
    stock: Any = stream.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = stock(cls, *args, **kwargs)
        runtime.stream_made(made.cuda_stream)
        return made

    patches.set(stream, "__new__", staticmethod(new))
    return patches.undo


def _event_query(runtime: CudaRuntime, stock: Callable[..., bool]) -> Callable[..., bool]:
    def query(self: Any) -> bool:
        over = stock(self)
        event = getattr(self, "cuda_event", None)
        runtime.order.event_queried(self.event_id if event is None else event, over)
        return over

    return query


def _stream_query(runtime: CudaRuntime, stock: Callable[..., bool]) -> Callable[..., bool]:
    def query(self: Any) -> bool:
        over = stock(self)
        runtime.order.stream_queried(address_of_stream(self), over)
        return over

    return query


def _reading(runtime: CudaRuntime, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        _tell(runtime, self, stock.__name__, write=False)
        return stock(self, *args, **kwargs)

    return read


def _elementwise(runtime: CudaRuntime, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        for tensor in args:
            if isinstance(tensor, Tensor):
                _tell(runtime, tensor, stock.__name__, write=False)
        _tell(runtime, self, stock.__name__, write=True)
        return stock(self, *args, **kwargs)

    return call


def _numpy(runtime: CudaRuntime, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        array = stock(self, *args, **kwargs)
        wrap = runtime.wrap_array
        if wrap is None or not _is_tracked(runtime, self):
            return array
        return wrap(array)

    return numpy


def _pinning(runtime: CudaRuntime, stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Of ``torch.tensor`` an operator shows the values, but not that they end up in pinned memory."""

    @functools.wraps(stock)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        made = stock(*args, **kwargs)
        if kwargs.get("pin_memory"):
            with runtime.lock:
                runtime.memory.seen(made, program_stack())
        return made

    return make


def _is_tracked(runtime: CudaRuntime, tensor: Tensor) -> bool:
    """Whether a host tensor lies in pinned memory; memory that was made out of sight becomes known."""
    if runtime.backend.is_on_device(tensor) or tensor.layout is not torch.strided:
        return False
    with runtime.lock:
        return runtime.memory.seen(tensor, program_stack()) is not None


def _tell(runtime: CudaRuntime, tensor: Tensor, name: str, *, write: bool) -> None:
    if tensor.layout is torch.strided and not runtime.backend.is_on_device(tensor):
        ranges = layout_of(tensor).ranges(tensor.data_ptr())
        runtime.host_access(ranges, write=write, name=f"Tensor.{name}")
