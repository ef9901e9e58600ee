"""A tensor object that goes to the other side, and copies of tensor objects: copy, pickle and ``.data = ...``.

``module.to("cuda")`` gives each parameter other memory but leaves the object, since others hold it: ties, optimisers.
The two sides are different Python classes here, so the object changes its class, and what C++ has for it is exchanged.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .errors import UnsupportedOperationError
from .layouts import layout_of
from .tensor import DEVICE, DeviceTensor, Face, face_of, plain_face, wrap
from .threads import below_modes

#: Attributes of a tensor object that are the device's own.
_OWN = frozenset({"_face", "_is_param"})
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
#: Of pickling; that of Python 3.8 and later.
_PROTOCOL = 5


def move_to_device(tensor: Tensor, value: DeviceTensor) -> None:
    """``tensor.data = value`` for a tensor of the host: the object becomes a device tensor.

    Its gradient comes with it.

    Raises:
        UnsupportedOperationError: it is of another class, or a graph of autograd holds it.
    """
    if type(tensor) not in (Tensor, Parameter):
        raise _kept(tensor, "only plain tensors and parameters change sides")
    face = face_of(value)
    is_parameter = type(tensor) is Parameter
    _exchange(tensor, lambda: wrap(plain_face(face.raw), face.owner, face.runtime, face.layout), DeviceTensor)
    tensor._face = Face(plain_face(face.raw), face.layout, face.owner, face.runtime)  # type: ignore[attr-defined]
    if is_parameter:
        tensor._is_param = True


def move_to_host(tensor: DeviceTensor, value: Tensor) -> None:
    """``tensor.data = value`` for a tensor of the device: the object becomes one of the host, with its gradient.

    Raises:
        UnsupportedOperationError: a graph of autograd holds it.
    """
    is_parameter = tensor.__dict__.get("_is_param", False)
    _exchange(tensor, lambda: plain_face(value), Parameter if is_parameter else Tensor)
    for name in _OWN:
        tensor.__dict__.pop(name, None)


def _exchange(tensor: Tensor, make: Callable[[], Tensor], kind: type) -> None:
    """Give an object the class and the C++ side of a new tensor."""
    if not tensor.is_leaf:
        raise _kept(tensor, "a graph of autograd made it")
    hooks = {name: getattr(tensor, name) for name in _HOOKS}
    gradient, requires = tensor.grad, tensor.requires_grad
    with below_modes():
        other = make().requires_grad_(requires)
        tensor.grad = None
        if tensor._use_count() > 1:  # type: ignore[attr-defined]
            tensor.grad = gradient
            raise _kept(tensor, "a graph of autograd holds it")
        tensor.__class__ = kind
        torch._C._swap_tensor_impl(tensor, other)
    for name, value in hooks.items():
        if value is not None:
            setattr(tensor, name, value)
    if gradient is not None:
        if kind is DeviceTensor:
            move_to_device(gradient, gradient.detach().to(DEVICE))  # type: ignore[arg-type]
        else:
            move_to_host(gradient, gradient.detach().to("cpu"))  # type: ignore[arg-type]
        tensor.grad = gradient


def _kept(tensor: Tensor, why: str) -> UnsupportedOperationError:
    with below_modes():
        subject = f"tensor {layout_of(tensor)} of class {type(tensor).__name__}, moved to the other side in place"
    return UnsupportedOperationError(
        subject,
        f"it cannot change sides: {why}",
        "the two sides are different Python classes on the virtual device",
        "move it before the forward pass, or make a new tensor with .to(...)",
    )


def deep_copy(tensor: DeviceTensor, memo: dict[int, Any]) -> Tensor:
    """``copy.deepcopy``: tensors over one storage share its copy, as in torch.

    Raises:
        RuntimeError: it is the result of an operation that autograd records.
    """
    if not tensor.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol")
    if id(tensor) in memo:
        return memo[id(tensor)]  # type: ignore[no-any-return]
    if _is_parameter(tensor):
        made: Any = Parameter(tensor.detach().clone(), tensor.requires_grad)
        memo[id(tensor)] = made
        return made  # type: ignore[no-any-return]
    storage = copy.deepcopy(tensor.untyped_storage(), memo)
    with torch.no_grad():
        made = torch.empty(0, dtype=tensor.dtype, device=DEVICE)
        made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.requires_grad:
        made.requires_grad_()
    if tensor.grad is not None:
        made.grad = copy.deepcopy(tensor.grad, memo)
    made.__dict__.update(copy.deepcopy(_state(tensor), memo))
    memo[id(tensor)] = made
    return made  # type: ignore[no-any-return]


def _state(tensor: Tensor) -> Mapping[str, Any]:
    return {name: value for name, value in tensor.__dict__.items() if name not in _OWN}


def _is_parameter(tensor: Tensor) -> bool:
    return bool(tensor.__dict__.get("_is_param", False))


def reduce(tensor: DeviceTensor) -> Any:
    """How it is pickled: as torch pickles a CUDA tensor, so that it says where it was and ``map_location`` works."""
    state = _state(tensor)
    if _is_parameter(tensor):
        arguments: tuple[Any, ...] = (tensor.detach(), tensor.requires_grad, OrderedDict())
        if not state:
            return torch._utils._rebuild_parameter, arguments
        return torch._utils._rebuild_parameter_with_state, (*arguments, state)
    rebuild, arguments = tensor._reduce_ex_internal(_PROTOCOL)  # type: ignore[no-untyped-call]
    return (rebuild_with_state, (rebuild, arguments, state)) if state else (rebuild, arguments)


def rebuild_with_state(rebuild: Callable[..., Tensor], arguments: Any, state: Mapping[str, Any]) -> Tensor:
    """A tensor with the attributes that its original had."""
    made = rebuild(*arguments)
    made.__dict__.update(state)
    return made
