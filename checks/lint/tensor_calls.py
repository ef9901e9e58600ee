"""Methods of tensors, and functions of torch: where the result is, and whether the host waits."""

from __future__ import annotations

import ast
from dataclasses import replace

from . import torch_facts as facts
from .annotations import device_of
from .frame import Arguments, Frame
from .operators import computed
from .values import (
    DTYPE,
    NONE,
    NUMBER,
    UNKNOWN,
    Device,
    Host,
    Items,
    Place,
    Sure,
    Tensor,
    Value,
    is_host,
    items_of,
    join,
    on_device,
    sequence,
    tensors,
    value,
)


def method(frame: Frame, owner: Tensor, owners: Value, name: str, arguments: Arguments, node: ast.Call) -> Value:
    """What a method of a tensor gives.

    Args:
        frame: where.
        owner: the tensor.
        owners: all that it can be.
        name: the method.
        arguments: its arguments.
        node: the call.
    """
    sure = on_device(owners) if owner.place in {Place.DEVICE, Place.UNKNOWN} else None
    if owner.buffer is not None and (name in facts.WRITES or (name.endswith("_") and not name.endswith("__"))):
        frame.effect("write", owner.buffer, node)
    if name in {"to", "cuda", "cpu"}:
        return _moved(frame, owner, owners, name, arguments, node)
    if name in {"copy_", "__setitem__"}:
        return _copied(frame, owner, sure, arguments, node)
    if name in facts.PULLS:
        return _pulled(frame, owner, sure, name, node)
    if name in facts.HOST_METHODS:
        return items_of(NUMBER) if name in {"size", "stride"} and not node.args else NUMBER
    if name == "pin_memory":
        return value(_fresh(frame, Tensor(Place.PINNED, Sure.CERTAIN, owner.mask), node))
    if name in {"new_tensor"}:
        return _made(frame, arguments, node, owner, copies=True)
    if name in facts.LIKE:
        return _made(frame, arguments, node, owner, copies=False)
    if name in facts.HOST_RESULT:
        return _host_result(frame, sure, node)
    _judge_shape(frame, name, sure, arguments, node, from_method=True)
    return _shaped(name, _result(name, owner), arguments, node)


def _result(name: str, owner: Tensor) -> Tensor:
    mask = name in facts.MASKS or (owner.mask and name in facts.KEEPS_MASK)
    buffer = owner.buffer if name in facts.VIEWS or (name.endswith("_") and not name.endswith("__")) else None
    place = owner.place if buffer or owner.place is not Place.PINNED or name in facts.VIEWS else Place.PAGEABLE
    return Tensor(place, owner.sure, mask, buffer)


def _shaped(name: str, one: Tensor, arguments: Arguments, node: ast.Call) -> Value:
    """One tensor or several, as the function gives them."""
    if name in facts.PAIRS and not (name == "median" and not node.args):
        return sequence([value(one), value(one)])
    if name in facts.PAIR_WITH_DIM and (arguments.get(0, "dim") is not None and _is_dimension(node)):
        return sequence([value(one), value(one)])
    if name in facts.MANY:
        return items_of(value(one))
    if name in {"unique", "unique_consecutive"} and any(word.startswith("return_") for word in arguments.keywords):
        return sequence([value(one), value(one)])
    if name in {"nonzero", "where"} and "as_tuple" in arguments.keywords:
        return items_of(value(one))
    return value(one)


def _is_dimension(node: ast.Call) -> bool:
    """``x.max(dim=-1)`` and ``x.max(-1)``, but not ``x.max(other)``."""
    if any(keyword.arg == "dim" for keyword in node.keywords):
        return True
    last = node.args[-1] if node.args else None
    if isinstance(last, ast.UnaryOp):
        last = last.operand
    return isinstance(last, ast.Constant) and type(last.value) is int


def _pulled(frame: Frame, owner: Tensor, sure: Sure | None, name: str, node: ast.Call) -> Value:
    """``item``, ``tolist``, ``numpy``. What ``numpy`` is called on is a tensor of the host, or it raises."""
    if name == "numpy":
        if sure is Sure.CERTAIN:
            frame.report("pull", node, sure)
        return value(Host("array", buffer=owner.buffer))
    if sure is not None:
        frame.report("pull", node, sure)
    return items_of(NUMBER) if name == "tolist" else NUMBER


def _host_result(frame: Frame, sure: Sure | None, node: ast.Call) -> Value:
    if sure is not None:
        frame.report("host_result", node, sure)
    return NUMBER


# ---- moving


def _is_true(of: Value | None) -> bool | None:
    """Whether ``non_blocking`` is given as true; ``None`` if that is not known."""
    if of is None:
        return False
    known = {atom.constant if isinstance(atom, Host) else None for atom in of}
    return known.pop() is True if len(known) == 1 and None not in known else None


def _target(frame: Frame, owner: Tensor, name: str, arguments: Arguments, node: ast.Call) -> Device | None:
    """The device that a tensor is moved to; ``None`` if it stays, or nobody knows."""
    if name == "cpu":
        return Device(Place.PAGEABLE, Sure.CERTAIN)
    if name == "cuda":
        return Device(Place.DEVICE, Sure.CERTAIN)
    for of in (arguments.keywords.get("device"), *arguments.positional[:2], arguments.keywords.get("other")):
        if not of or of <= DTYPE:
            continue
        found = device_of(of - NUMBER) or (device_of(of) if "device" in arguments.keywords else None)
        if found is not None:
            return found
        for tensor in tensors(of):
            return None if tensor.place is Place.UNKNOWN else Device(tensor.place, tensor.sure)
    return None


def _moved(frame: Frame, owner: Tensor, owners: Value, name: str, arguments: Arguments, node: ast.Call) -> Value:
    """``to``, ``cuda`` and ``cpu``."""
    sure = on_device(owners) if owner.place in {Place.DEVICE, Place.UNKNOWN} else None
    target = _target(frame, owner, name, arguments, node)
    position = 2 if name == "to" else 1
    free = _is_true(arguments.get(position, "non_blocking"))
    if target is None:
        return value(replace(owner, buffer=None) if owner.place is not Place.PINNED else _converted(owner, arguments))
    to_device = target.place is Place.DEVICE
    if to_device and owner.place in {Place.PINNED, Place.PAGEABLE}:
        sources = frozenset(tensor for tensor in tensors(owners) if tensor.place is not Place.DEVICE)
        judge_upload(frame, sources, free, min(target.sure, owner.sure), node)
        return value(Tensor(Place.DEVICE, target.sure, owner.mask))
    if to_device:
        return value(Tensor(Place.DEVICE, max(target.sure, owner.sure) if sure else target.sure, owner.mask))
    if owner.place in {Place.PINNED, Place.PAGEABLE}:
        return value(owner)
    if sure is not None and free is False:
        frame.report("pull", node, sure)
    place = Place.PINNED if free is not False else Place.PAGEABLE
    return value(Tensor(place, Sure.LIKELY, owner.mask))


def _converted(owner: Tensor, arguments: Arguments) -> Tensor:
    """A conversion of pinned memory gives pageable memory, unless there was nothing to convert."""
    return replace(owner, buffer=None, place=Place.PAGEABLE) if arguments.everything() else owner


def judge_upload(frame: Frame, source: Value, free: bool | None, sure: Sure, node: ast.AST) -> None:
    """A copy from the host to the device, which waits unless it is ``non_blocking`` and its source pinned."""
    for tensor in tensors(source):
        if tensor.buffer is not None and free is not False:
            frame.effect("upload", tensor.buffer, node)
    pageable = any(tensor.place is Place.PAGEABLE and tensor.sure > Sure.POSSIBLE for tensor in tensors(source))
    pinned = any(tensor.place is Place.PINNED for tensor in tensors(source))
    if free is False:
        frame.report("upload_blocking", node, sure)
    elif pageable and not pinned:
        frame.report("upload_pageable", node, Sure.POSSIBLE if free is None else min(sure, Sure.LIKELY))


def _copied(frame: Frame, owner: Tensor, sure: Sure | None, arguments: Arguments, node: ast.Call) -> Value:
    """``dst.copy_(src)``."""
    source = arguments.get(0, "src") or UNKNOWN
    free = _is_true(arguments.get(1, "non_blocking"))
    from_host, from_device = is_host(source) and bool(tensors(source)), _surely_device(source)
    if owner.place is Place.DEVICE and from_host:
        judge_upload(frame, source, free, min(sure or Sure.POSSIBLE, *(t.sure for t in tensors(source))), node)
    elif owner.place in {Place.PINNED, Place.PAGEABLE} and from_device is not None:
        if free is False:
            frame.report("download_blocking", node, min(from_device, owner.sure))
        elif owner.place is Place.PAGEABLE and free:
            frame.report("download_pageable", node, min(from_device, owner.sure))
    return value(owner)


def _surely_device(of: Value) -> Sure | None:
    return on_device(of) if any(tensor.place is Place.DEVICE for tensor in tensors(of)) else None


# ---- new tensors


def _fresh(frame: Frame, tensor: Tensor, node: ast.AST) -> Tensor:
    """New pinned memory is staging memory that nothing reads yet."""
    if tensor.place is not Place.PINNED:
        return tensor
    named = replace(tensor, buffer=f"{frame.source.name}:{getattr(node, 'lineno', 0)}")
    frame.effect("fresh", named.buffer, node)
    return named


def place_of(frame: Frame, arguments: Arguments, default: Device | None) -> Device | None:
    """Where a constructor allocates: ``device=``, else the default."""
    given = arguments.keywords.get("device")
    if given is None:
        return default
    found = device_of(given)
    return found if found is not None or not given <= NONE else default


def _made(frame: Frame, arguments: Arguments, node: ast.Call, like: Tensor | None, copies: bool) -> Value:
    """A new tensor.

    Args:
        frame: where.
        arguments: of the constructor.
        node: the call.
        like: the tensor whose device it takes, for ``zeros_like`` and its kind.
        copies: it is filled with data of the host.
    """
    default = frame.default_device or Device(Place.PAGEABLE, Sure.LIKELY)
    if like is not None:
        default = Device(like.place if like.place is not Place.PINNED else Place.PAGEABLE, like.sure)
    found = place_of(frame, arguments, default)
    pinned = arguments.keywords.get("pin_memory")
    data = arguments.get(0, "data") or UNKNOWN
    mask = _is_bool(node) or (like is not None and like.mask and "dtype" not in arguments.keywords)
    if found is None or _is_empty(node):
        return value(Tensor(Place.UNKNOWN, Sure.POSSIBLE, mask))
    if copies and found.place is Place.DEVICE:
        return _from_host(frame, data, found, mask, arguments, node)
    if found.place is Place.DEVICE and like is None and not copies:
        _judge_size(frame, arguments, node)
    if found.place is Place.PAGEABLE and pinned is not None and _is_true(pinned) is not False:
        return value(_fresh(frame, Tensor(Place.PINNED, Sure.CERTAIN, mask), node))
    if copies and found.place is Place.PAGEABLE and "device" not in arguments.keywords:
        elements_on_device = _surely_inside(data)
        if elements_on_device is not None and not tensors(data):
            frame.report("number", node, elements_on_device)
    return value(Tensor(found.place, found.sure, mask))


def _is_empty(node: ast.Call) -> bool:
    """``torch.zeros(0)`` has nothing to copy or to wait for."""
    first = node.args[0] if node.args else None
    return isinstance(first, ast.Constant) and type(first.value) is int and first.value == 0 and len(node.args) == 1


def _is_bool(node: ast.Call) -> bool:
    for keyword in node.keywords:
        if keyword.arg == "dtype":
            return isinstance(keyword.value, ast.Attribute | ast.Name) and ast.unparse(keyword.value) in {
                "torch.bool",
                "bool",
            }
    return False


def _surely_inside(of: Value) -> Sure | None:
    """Device tensors in a list."""
    found = [_surely_device(atom.element) for atom in of if isinstance(atom, Items)]
    known = [sure for sure in found if sure is not None]
    return max(known) if known else None


def _judge_size(frame: Frame, arguments: Arguments, node: ast.Call) -> None:
    """``torch.arange(device_tensor)``: the size is asked for."""
    for of in arguments.positional:
        sure = _surely_device(of)
        if sure is not None:
            frame.report("number", node, sure)
            return


def _from_host(frame: Frame, data: Value, found: Device, mask: bool, arguments: Arguments, node: ast.Call) -> Value:
    """``torch.tensor(list, device="cuda")``: an upload without a pinned source, that waits."""
    made = value(Tensor(Place.DEVICE, found.sure, mask))
    if on_device(data) is not None:
        return made  # from device to device, or nobody knows
    if _surely_inside(data) is not None:
        frame.report("number", node, _surely_inside(data) or Sure.LIKELY)
    elif data:
        frame.report("constructor", node, found.sure)
    else:
        frame.report("constructor", node, min(found.sure, Sure.LIKELY if _is_tensor_call(node) else Sure.POSSIBLE))
    return made


def _is_tensor_call(node: ast.Call) -> bool:
    """``torch.tensor`` is for data of the host; ``as_tensor`` may get a tensor."""
    return ast.unparse(node.func).endswith(".tensor")


# ---- functions of torch


def function(frame: Frame, name: str, dotted: str, arguments: Arguments, node: ast.Call) -> Value:
    """What ``torch.name(...)`` gives."""
    if name in facts.FACTORIES:
        return _made(frame, arguments, node, None, copies=False)
    if name in facts.FROM_HOST:
        return _from_data(frame, arguments, node)
    if name in facts.ON_HOST:
        buffers = [
            atom.buffer for of in arguments.positional[:1] for atom in of if isinstance(atom, Host) and atom.buffer
        ]
        place = Place.PINNED if buffers else Place.PAGEABLE
        return value(Tensor(place, Sure.CERTAIN, buffer=buffers[0] if buffers else None))
    if name in facts.NO_TENSOR:
        return UNKNOWN
    first = arguments.positional[0] if arguments.positional else UNKNOWN
    if name in facts.LIKE and tensors(first):
        return join(*(_made(frame, arguments, node, like, copies=False) for like in tensors(first)))
    return _computed(frame, name, dotted, arguments, node)


def _from_data(frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """``torch.tensor(data)``, and ``as_tensor`` of what may be a tensor already."""
    data = arguments.get(0, "data") or arguments.get(0, "obj") or UNKNOWN
    given = tensors(data)
    if given and "device" not in arguments.keywords and frame.default_device is None:
        return (
            data
            if not ast.unparse(node.func).endswith(".tensor")
            else frozenset(replace(t, buffer=None) for t in given)
        )
    return _made(frame, arguments, node, None, copies=True)


def _computed(frame: Frame, name: str, dotted: str, arguments: Arguments, node: ast.Call) -> Value:
    flat = [*arguments.everything(), *(a.element for of in arguments.everything() for a in of if isinstance(a, Items))]
    out = arguments.keywords.get("out")
    result = computed(flat)
    if result is None:
        return _made_by_kernel(dotted, arguments)
    sure = on_device(result)
    if dotted.startswith("torch.ops.") and sure is None:  # it may give a view of host memory that is a device tensor
        return value(Tensor(Place.UNKNOWN, Sure.POSSIBLE))
    if name in facts.HOST_RESULT:
        return _host_result(frame, sure, node)
    _judge_shape(frame, name, sure, arguments, node, from_method=False)
    if out is not None and tensors(out):
        for tensor in tensors(out):
            if tensor.buffer is not None:
                frame.effect("write", tensor.buffer, node)
        return out
    masked = name in facts.MASKS or (name in facts.KEEPS_MASK and all(t.mask for of in flat for t in tensors(of)))
    shaped = [
        _shaped(name, replace(tensor, mask=masked), _without_first(arguments), node) for tensor in tensors(result)
    ]
    return join(*shaped)


def _without_first(arguments: Arguments) -> Arguments:
    """The arguments as the method of the same name has them."""
    return Arguments(arguments.positional[1:], arguments.keywords, arguments.open)


def _made_by_kernel(dotted: str, arguments: Arguments) -> Value:
    """A function that computes, of arguments that are not known: some tensor."""
    if dotted.startswith(facts.COMPUTES):
        return UNKNOWN
    return value(Tensor(Place.UNKNOWN, Sure.POSSIBLE)) if arguments.positional else UNKNOWN


# ---- shapes that depend on data


def _judge_shape(
    frame: Frame, name: str, sure: Sure | None, arguments: Arguments, node: ast.Call, from_method: bool
) -> None:
    if sure is None:
        return
    count = len(arguments.positional) + (1 if from_method else 0)
    if name in facts.WAITS_INSIDE:
        frame.report("inside", node, sure)
    elif name in facts.SHAPE_FROM_DATA or (
        name == "where" and count == 1 and not arguments.keywords and not arguments.open
    ):
        frame.report("shape", node, sure)
    elif name == "repeat_interleave" and "output_size" not in arguments.keywords:
        repeats = arguments.get(0 if from_method else 1, "repeats")
        given = _surely_device(repeats) if repeats else (sure if not from_method and count == 1 else None)
        if given is not None:
            frame.report("repeat_interleave", node, min(sure, given))
    elif name == "one_hot" and count == 1 and "num_classes" not in arguments.keywords:
        frame.report("shape", node, sure)
    elif name == "full" or name in {"narrow", "split"}:
        _judge_numbers(frame, arguments, node)


def _judge_numbers(frame: Frame, arguments: Arguments, node: ast.Call) -> None:
    """Sizes and offsets are numbers of the host."""
    for of in arguments.positional[1:]:
        sure = _surely_device(of)
        if sure is not None:
            frame.report("number", node, sure)
            return
