"""Puts a virtual device in the place of CUDA, and takes it away again.

Every change is one entry of an exit stack, so leaving undoes all of them in reverse order, whatever raised.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinMethodType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from . import compilers, cuda_api, refused, settings, storages
from .collector import take_over
from .errors import VirtualDeviceError
from .functions import group_tensors, handler_of
from .streams import activate, active_runtime, is_active
from .threads import heres

if TYPE_CHECKING:
    from .runtime import Runtime

_MISSING = object()
_ANSWERED: tuple[tuple[Any, str], ...] = (
    (torch, "tensor"), (torch, "as_tensor"), (torch, "asarray"), (torch.Tensor, "to"), (torch.Tensor, "cuda"),
    (torch.Tensor, "new_tensor"), (torch, "from_dlpack"), (torch.utils.dlpack, "from_dlpack"), (torch, "to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"), (torch.Tensor, "__reduce_ex__"),
)  # fmt: skip
#: Functions of torch that remember sets of its functions, and might remember ours.
_REMEMBERING = ("get_ignored_functions", "get_testing_overrides", "_get_overridable_functions", "_get_tensor_methods")


class DispatchMode(TorchDispatchMode):
    """Sends every operator of its thread to a device."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dispatch = runtime.operators.dispatch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch wraps the method below, imports its whole compiler and adds to every call."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operator was called, on either side."""
        return self._dispatch(func, args, kwargs or {})


class FunctionMode(TorchFunctionMode):
    """Sends the few Python calls that never become operators to a device."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._here = heres.here  # of the thread that enters the mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function or method of torch was called."""
        here = self._here
        here.frame = sys._getframe(1)
        outer = here.function
        if outer is None:
            here.function = func
        try:
            handler = handler_of(func)
            if handler is not None:
                return handler(self._runtime, func, args, dict(kwargs) if kwargs else {})
            here.call = (func, args, kwargs)
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            here.call = here.frame = here.stack = None
            if outer is None:
                here.function = here.told = None


@contextlib.contextmanager
def modes(runtime: Runtime) -> Iterator[None]:
    """Both modes, in the calling thread."""
    with FunctionMode(runtime), DispatchMode(runtime):
        yield


class Patches:
    """Changes of attributes that are undone together.

    Attributes:
        touched: (object, name) of every attribute changed.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.touched: list[tuple[Any, str]] = []

    def set(self, target: Any, name: str, value: Any) -> None:
        """Set an attribute until the stack unwinds; an attribute that did not exist is removed then."""
        old = vars(target).get(name, _MISSING)
        setattr(target, name, value)
        self.touched.append((target, name))
        self._stack.callback(_restore, target, name, old)

    def set_all(self, target: Any, values: Mapping[str, Any]) -> None:
        """Set those attributes that the target has in this version of torch."""
        for name, value in values.items():
            if hasattr(target, name):
                is_function = isinstance(value, FunctionType | MethodType | BuiltinMethodType)
                self.set(target, name, self._forward(target, name, value) if is_function else value)

    def _forward(self, target: Any, name: str, value: Any) -> Any:
        """A program that imports a function while a device is open keeps it: it must serve the next device as well."""
        key = target.__name__, name
        _present[key] = value
        self._stack.callback(_present.pop, key)
        if key not in _forwards:
            _forwards[key] = _forwarder(key, getattr(target, name))
        return _forwards[key]

    def undo(self, function: Callable[..., None], *args: Any) -> None:
        """Call this when the stack unwinds."""
        self._stack.callback(function, *args)


#: (module, name) -> what stands in for the function on the open device, and what a program gets instead.
_present: dict[tuple[str, str], Callable[..., Any]] = {}
_forwards: dict[tuple[str, str], Callable[..., Any]] = {}


def _forwarder(key: tuple[str, str], original: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return _present.get(key, original)(*args, **kwargs)

    return forward


def _restore(target: Any, name: str, old: Any) -> None:
    if old is _MISSING:
        delattr(target, name)
    else:
        setattr(target, name, old)


@contextlib.contextmanager
def installed(runtime: Runtime, hooks: tuple[Callable[[Runtime], Callable[[], None]], ...]) -> Iterator[None]:
    """A device in the place of CUDA, for as long as the context lasts.

    Args:
        runtime: the device.
        hooks: further installers; each returns its undo.

    Raises:
        VirtualDeviceError: there is one already.
    """
    if is_active():
        raise VirtualDeviceError(
            "virtual_device inside another",
            "one process has one virtual device at a time",
            "both would stand in for the same torch.cuda",
            "one block, or one after the other",
        )
    with contextlib.ExitStack() as stack:
        stack.callback(activate(runtime))
        stack.callback(take_over())
        patch_torch(runtime, Patches(stack))
        for hook in hooks:
            stack.callback(hook(runtime))
        stack.enter_context(modes(runtime))
        stack.callback(runtime.close)
        yield


def patch_torch(runtime: Runtime, patches: Patches) -> None:
    """Replace what the program would reach CUDA by."""
    api = cuda_api.CudaApi(runtime)
    functions = api.cuda()
    for name in ("Stream", "Event", "CUDAGraph", "graph", "StreamContext"):
        # A class that the program has imported under a name of its own still makes the device's kind.
        patches.set(getattr(torch.cuda, name), "__new__", staticmethod(_maker(functions[name])))
    patches.set_all(torch.cuda, functions)
    for module in (torch.cuda.streams, torch.cuda.memory, torch.cuda.random, torch.cuda.graphs):
        own = {name: value for name, value in functions.items() if _defines(module, name)}
        patches.set_all(module, own)
    patches.set(torch._C, "_cuda_getCurrentRawStream", lambda device: runtime.current_queue().id)
    patches.set(torch._C, "_group_tensors_by_device_and_dtype", group_tensors)
    patches.set_all(torch.cuda.nvtx, cuda_api.NVTX)
    patches.set_all(torch.cuda.profiler, refused.profiler())
    patches.set_all(torch.accelerator, api.accelerator())
    patches.set_all(torch, cuda_api.GENERIC | cuda_api.autocast())
    patches.set(torch.Tensor, "record_stream", _record_stream)
    for target, name, replacement in (*storages.patched(runtime), *settings.patched(runtime)):
        patches.set(target, name, replacement)
    patches.undo(storages.refuse_other_processes())
    for module, replacements in compilers.functions():
        patches.set_all(module, replacements)
    stance = compilers.stance()
    if stance is not None:
        patches.set(*stance)
    _answer_everywhere(patches)
    patches.set(torch, "is_storage", storages.is_storage)


def _answer_everywhere(patches: Patches) -> None:
    """Answer some calls also where no function mode sees them: in torch's own Python code, and in other threads."""
    _device_constructors()  # torch remembers its functions by identity here: the true ones, not ours
    for target, name in _ANSWERED:
        patches.set(target, name, _answered(getattr(target, name)))
    for name in _REMEMBERING:
        patches.undo(getattr(torch.overrides, name).cache_clear)


def _answered(function: Any) -> Callable[..., Any]:
    handler = handler_of(function)
    assert handler is not None

    @functools.wraps(function)
    def answered(*args: Any, **kwargs: Any) -> Any:
        here = heres.here
        # A program that imported this while a device was open keeps it; and deferred work is on plain memory.
        if not is_active() or here.below:
            return function(*args, **kwargs)
        if here.function is not None:
            return handler(active_runtime(), function, args, kwargs)
        here.function = function
        try:
            return handler(active_runtime(), function, args, kwargs)
        finally:
            here.function = here.told = None

    return answered


def _maker(replacement: Callable[..., Any]) -> Callable[..., Any]:
    return lambda cls, *args, **kwargs: replacement(*args, **kwargs)


def _defines(module: Any, name: str) -> bool:
    return bool(getattr(vars(module).get(name), "__module__", None) == module.__name__)


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Torch's parser would refuse a virtual stream before any mode sees the call, so the method is replaced."""
    raise NotImplementedError("Could not run 'aten::record_stream' with arguments from the 'CPU' backend.")
