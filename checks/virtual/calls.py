"""One call of an ATen operator: its arguments with plain tensors in them, what it touches, and its deferred work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..events import ByteRange
from .inference import Operator
from .layouts import Layout
from .tensor import DeviceTensor, face_of

#: Operators that index: their first argument is a table, the second a list of indices.
INDEXING = frozenset({"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"})
#: Operators that touch, of one argument, only what an index names: (argument read in part, argument written in part).
PARTIAL: dict[str, tuple[int | None, int | None]] = {
    "aten::index": (0, None), "aten::index_select": (0, None), "aten::gather": (0, None), "aten::take": (0, None),
    "aten::embedding": (0, None), "aten::index_put_": (None, 0), "aten::_index_put_impl_": (None, 0),
    "aten::scatter_": (None, 0), "aten::scatter_add_": (None, 0), "aten::scatter_reduce_": (None, 0),
    "aten::index_copy_": (None, 0), "aten::index_add_": (None, 0), "aten::index_fill_": (None, 0),
    "aten::put_": (None, 0),
}  # fmt: skip
Ranges: TypeAlias = tuple[ByteRange, ...]
#: Which tensor arguments share bytes: two positions, and the distance of their first bytes.
Overlaps: TypeAlias = tuple[tuple[int, int, int], ...]
#: Calls with more tensors than this are lists of unrelated ones.
MAX_COMPARED = 8
_NUMBERS = frozenset({int, float, bool})
_CONSTANTS = frozenset({type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format})
_MANY = frozenset({list, tuple, torch.Size})


class Call:
    """One call of an operator, with the plain tensors in place of the device's.

    Attributes:
        operator: which.
        args: positional arguments as the kernel gets them, later.
        kwargs: keyword arguments as the kernel gets them, later.
        tensors: all tensor arguments as the program gave them, in order.
        plain: the same tensors as the kernel gets them.
        on_device: whether a device tensor is among them.
        key: equal for calls that touch memory in the same way and return the same shapes; None if that cannot be told.
        overlaps: which of its device tensors share bytes; only of operators that write.
    """

    __slots__ = ("_parts", "args", "key", "kwargs", "on_device", "operator", "overlaps", "plain", "tensors")

    def __init__(self, operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.operator = operator
        tensors: list[Tensor] = []
        plain: list[Tensor] = []
        self.tensors, self.plain = tensors, plain
        self.on_device = False
        self._parts: list[Any] | None = [operator]
        self.args: list[Any] = []
        places = operator.scalar_places
        for index, value in enumerate(args):
            if type(value) is DeviceTensor and self._parts is not None:  # as ``_take`` would, but for its own cost
                face = face_of(value)
                self.on_device = True
                tensors.append(value)
                plain.append(face.raw)
                self._parts.append(face.layout)
                self.args.append(face.raw)
            else:
                self.args.append(self._take(value, index in places))
        if kwargs:
            self.kwargs = {name: self._take_named(name, value) for name, value in kwargs.items()}
        else:
            self.kwargs = kwargs
        self.overlaps: Overlaps = ()
        if operator.mutates and 1 < len(self.tensors) <= MAX_COMPARED:
            self.overlaps = _overlaps(self.tensors)
            if self.overlaps and self._parts is not None:
                self._parts.append(self.overlaps)
        self.key: tuple[Any, ...] | None = None if self._parts is None else tuple(self._parts)

    def _take(self, value: Any, scalar: bool = False) -> Any:
        kind = type(value)
        parts = self._parts
        if kind is DeviceTensor:
            face = face_of(value)
            self.on_device = True
            self.tensors.append(value)
            self.plain.append(face.raw)
            if parts is not None:
                parts.append(face.layout)
            return face.raw
        if kind in _NUMBERS:
            # Of a scalar operand only the type matters, or a program that counts up would never meet its key again.
            if parts is not None:
                parts.append(kind)
                if not scalar:
                    parts.append(value)
            return value
        if kind in _CONSTANTS:
            if parts is not None:
                parts.append(value)
            return value
        if kind in _MANY:
            if parts is not None:
                parts.append(len(value))
            return [self._take(item, scalar) for item in value]
        self._parts = None
        if isinstance(value, Tensor):
            self.tensors.append(value)
            self.plain.append(value)
        return value

    def _take_named(self, name: str, value: Any) -> Any:
        if self._parts is not None:
            self._parts.append(name)
        return self._take(value, name in self.operator.scalars)

    def device_writes(self) -> list[int]:
        """Positions of the device tensors that it writes."""
        written = self.written() if self.operator.mutates else ()
        return [
            index
            for index, (tensor, raw) in enumerate(zip(self.tensors, self.plain, strict=True))
            if type(tensor) is DeviceTensor and any(raw is other for other in written)
        ]

    def take_generator(self) -> Any:
        """The generator that it was given; the kernel draws from another one."""
        generator = self.kwargs.get("generator")
        if generator is not None:
            self.kwargs = {**self.kwargs, "generator": None}
        return generator

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Let the kernel get another tensor in the place of one."""
        self.plain = [new if tensor is old else tensor for tensor in self.plain]
        self.args = [_replaced(value, old, new) for value in self.args]
        self.kwargs = {name: _replaced(value, old, new) for name, value in self.kwargs.items()}

    def written(self) -> list[Tensor]:
        """The plain tensors that it writes."""
        found: list[Tensor] = []
        for index, name in self.operator.writes:
            value = self.args[index] if index < len(self.args) else self.kwargs.get(name)
            if isinstance(value, Tensor):
                found.append(value)
            elif value is not None:
                found.extend(value)
        return found

    def indexes_from_host(self) -> bool:
        """Whether an index is a host tensor, which is uploaded from pageable memory first."""
        if self.operator.schema_name not in INDEXING:
            return False
        count = sum(index is not None for index in self.args[1])
        return any(type(index) is not DeviceTensor for index in self.tensors[1 : 1 + count])

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument as the kernel gets it, by its place or its name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def on_device_at(self, position: int) -> bool:
        """Whether a positional argument is a tensor of the device."""
        value = self.args[position] if position < len(self.args) else None
        return any(
            raw is value and type(tensor) is DeviceTensor for tensor, raw in zip(self.tensors, self.plain, strict=True)
        )


def _overlaps(tensors: Sequence[Tensor]) -> Overlaps:
    """Pairs of tensors that share bytes, and how many bytes the second begins after the first."""
    found: list[tuple[int, int, int]] = []
    extents: list[tuple[int, int]] = []
    for index, tensor in enumerate(tensors):
        if type(tensor) is not DeviceTensor:
            extents.append((0, 0))
            continue
        face = tensor._face
        low = face.address
        high = low + face.layout.span
        for other, (begin, end) in enumerate(extents):
            if low < end and begin < high:
                found.append((other, index, low - begin))
        extents.append((low, high))
    return tuple(found)


def _replaced(value: Any, old: Tensor, new: Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    return value


class Touched:
    """Which tensor arguments a call reads, writes, and reads or writes in part (``partly``), by their positions."""

    __slots__ = ("partly", "reads", "some_reads", "some_writes", "writes")

    def __init__(self, call: Call) -> None:
        operator = call.operator
        written = call.written() if operator.mutates else ()
        partial_read, partial_write = PARTIAL.get(operator.schema_name, (None, None))
        found: tuple[list[int], ...] = ([], [], [], [])
        for index, (tensor, raw) in enumerate(zip(call.tensors, call.plain, strict=True)):
            if type(tensor) is not DeviceTensor:
                continue
            write = any(raw is other for other in written)
            if operator.metadata and not write:
                continue
            in_part = index == (partial_write if write else partial_read) or not face_of(tensor).layout.exact
            found[2 * in_part + write].append(index)
        self.reads, self.writes, self.some_reads, self.some_writes = map(tuple, found)
        self.partly = bool(self.some_reads or self.some_writes)


def ranges_of(call: Call, indices: tuple[int, ...]) -> Ranges:
    """The bytes of some of the tensor arguments."""
    if not indices:
        return ()
    tensors = call.tensors
    found = tensors[indices[0]]._face.ranges  # type: ignore[attr-defined]
    for index in indices[1:]:
        found += tensors[index]._face.ranges  # type: ignore[attr-defined]
    return found  # type: ignore[no-any-return]


def kernel(call: Call, targets: list[Tensor]) -> Callable[[], object]:
    """The deferred work of a call: results go to memory that was allocated when it was enqueued."""
    operator = call.operator
    if not targets:
        return partial(operator.compute, *call.args, **call.kwargs)
    if len(targets) == 1 and operator.returns_one:
        if operator.compute_into is not None:
            return partial(operator.compute_into, *call.args, **call.kwargs, out=targets[0])
        return partial(_compute_one, targets[0], operator.compute, call.args, call.kwargs)
    return partial(_compute_many, targets, operator.compute, call.args, call.kwargs, call.plain)


def _compute_one(target: Tensor, compute: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    target.copy_(compute(*args, **kwargs))


def _compute_many(
    targets: list[Tensor], compute: Any, args: list[Any], kwargs: dict[str, Any], given: list[Tensor]
) -> None:
    results = (item for item in compute(*args, **kwargs) if isinstance(item, Tensor))
    fresh = (item for item in results if not any(item is tensor for tensor in given))
    for target, item in zip(targets, fresh, strict=True):
        target.copy_(item)


def kernel_now(call: Call, box: list[Any]) -> Callable[[], None]:
    """The work of a call whose results nobody can foresee; they, or what it raised, go into a box."""
    compute, args, kwargs = call.operator.compute, call.args, call.kwargs

    def run() -> None:
        try:
            box.append(compute(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised by the caller, who waits for it
            box.append(error)

    return run


def outcome_of(box: list[Any]) -> Any:
    """What :func:`kernel_now` has put into its box, which is empty then.

    Raises:
        Exception: what the work raised. In a variable of a frame that it goes through it would make a cycle, and keep
            the variables of the program.
    """
    if isinstance(box[-1], Exception):
        raise box.pop()
    return box.pop()


def kernel_aside(
    call: Call, written: Sequence[Tensor], finish: Callable[[list[Tensor], Any], None]
) -> Callable[[], None]:
    """The work of a call that may resize what it writes: it writes to copies, whose memory is nobody's.

    Args:
        call: the call.
        written: plain tensors.
        finish: gets the copies, in their order, and what the operator returned.
    """
    compute, args, kwargs = call.operator.compute, call.args, call.kwargs

    def run() -> None:
        given, named, copies = list(args), dict(kwargs), [tensor.clone() for tensor in written]
        for old, new in zip(written, copies, strict=True):
            given = [_replaced(value, old, new) for value in given]
            named = {name: _replaced(value, old, new) for name, value in named.items()}
        finish(copies, compute(*given, **named))

    return run


class Recipe:
    """What is the same for all calls of one key.

    Attributes:
        outputs: layout of each output that is fresh memory, position of each that is an argument, or a plain value.
        touched: which arguments it touches; None for a view.
    """

    __slots__ = ("outputs", "touched")

    def __init__(self, outputs: tuple[Layout | int | object, ...], touched: Touched | None) -> None:
        self.outputs = outputs
        self.touched = touched
