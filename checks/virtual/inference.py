"""What an operator returns, told before it runs: it is tried once per layout, on stand-ins for its arguments.

Small ones are ordinary tensors of ones and zeros. Large ones have no data, and torch's meta kernels tell the shapes:
they are slower than a small computation, and the first of them imports torch's compiler, which takes seconds.

A plan is found by operator, layouts and the arguments on which shapes can depend. Numbers in the place of a scalar
operand (``x * 3.0``) only matter by their type, so a program that counts up does not grow the table.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..hooks.edges import untold
from .kept_frames import imports_keep_no_frames
from .layouts import Layout, layout_of

#: Plans remembered before the table starts anew.
MAX_PLANS = 1 << 16
#: Elements up to which a stand-in has data.
MAX_STAND_IN = 1 << 18
#: Arguments of these types may be given as numbers, whose value no shape depends on.
_SCALAR_TYPES = frozenset({"number", "Optional[number]", "List[number]", "Tensor", "Optional[Tensor]"})
#: Their shape depends on the value of scalar operands.
_SHAPED_BY_SCALARS = frozenset({"aten::arange", "aten::range", "aten::linspace", "aten::logspace", "aten::bucketize"})
#: Operators that are not elementwise but compute into memory of the right shape as it is.
_COMPUTED_IN_PLACE = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "bmm", "addmm", "baddbmm", "cat", "gather", "index_select", "_softmax", "argmax", "linear", "matmul"
    )
)  # fmt: skip
#: Made of other operators, but to be taken as one kernel: each only computes fresh memory from all of its arguments.
#: Many others that look alike may return a view of their argument, or wait for the stream inside.
_ONE_KERNEL = frozenset({"aten::linear", "aten::matmul", "aten::square"})
#: Made of other operators, and cheaper to try than to take apart: they give either views or fresh memory.
_PERHAPS_VIEWS = frozenset(
    f"aten::{name}"
    for name in ("chunk", "contiguous", "expand_as", "flatten", "narrow", "reshape", "tensor_split", "view_as")
)
#: They ask how tensors lie, and read no values.
_QUESTIONS = frozenset(
    f"aten::{name}"
    for name in (
        "is_pinned", "is_set_to", "is_same_size", "_has_same_storage_numel", "_debug_has_internal_overlap",
        "_fused_sdp_choice",
    )
)  # fmt: skip
#: Operators of these are torch's own.
OWN_NAMESPACES = frozenset({"aten", "prim", "prims", "inductor", "profiler", "quantized", "torch_nn"})


class Operator:
    """What a schema says of one overload.

    Attributes:
        name: e.g. ``"aten.add"``, for people.
        schema_name: e.g. ``"aten::add"``.
        declared: it is not torch's own, and has to be declared.
        compute: runs it.
        compute_into: runs it with ``out=``, or None.
        writes: positions and names of the arguments it writes.
        takes_out: it writes to arguments that it may resize.
        view: its outputs are views of its input.
        metadata: of its tensor arguments it reads the shape and the place only.
        asks: that, and it does nothing else.
        composite: it is made of other operators, and has to be taken apart.
        perhaps_view: the same, but its output may be a view of its input; only running it tells.
        shape_from_data: the shape of its output depends on data.
        waits: that, or it returns a number that does.
        random: it draws random numbers.
        changes_shape: it changes the shape of its argument in place.
        allocates: it only allocates.
    """

    def __init__(self, func: Any) -> None:
        schema = func._schema
        arguments = schema.arguments
        self.func = func
        self.compute = func._op
        self.compute_into = _computes_into(func)
        self.schema_name: str = schema.name
        self.declared = schema.name.partition("::")[0] not in OWN_NAMESPACES
        self.name = schema.name.replace("::", ".")
        short = schema.name.rpartition("::")[2]
        self.writes = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
        self.mutates = bool(self.writes)
        self.takes_out = any(a.is_out for a in arguments)
        reads_alias = any(a.alias_info and not a.alias_info.is_write for a in arguments)
        self.view = not self.mutates and (reads_alias or short in ("_unsafe_view", "_reshape_alias"))
        self.asks = schema.name in _QUESTIONS
        self.metadata = short.startswith("new_") or short.endswith("_like") or self.asks
        made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        self.composite = made_of_others and (self.mutates or self.schema_name not in _ONE_KERNEL)
        self.perhaps_view = (
            self.composite and self.view and (self.schema_name in _PERHAPS_VIEWS or func is torch.ops.aten.to.dtype)
        )
        packet = func.overloadpacket  # torch tags not all overloads of an operator
        tags = {tag for name in packet.overloads() for tag in getattr(packet, name).tags}
        self.shape_from_data = torch.Tag.dynamic_output_shape in tags
        self.waits = self.shape_from_data or torch.Tag.data_dependent_output in tags
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.changes_shape = torch.Tag.inplace_view in func.tags
        self.allocates = short.startswith(("empty", "new_empty"))
        self.factory = any(a.name == "pin_memory" for a in arguments)
        scalars = {a.name for a in arguments if str(a.type) in _SCALAR_TYPES}
        self.scalars: frozenset[str] = frozenset() if self.schema_name in _SHAPED_BY_SCALARS else frozenset(scalars)
        self.scalar_places = frozenset(i for i, a in enumerate(arguments) if a.name in self.scalars)
        self.returns_list = len(schema.returns) == 1 and str(schema.returns[0].type).startswith("List[")
        self.returns_one = len(schema.returns) == 1 and not self.returns_list
        self.returns_nothing = not schema.returns

    def returned(self, results: list[Any]) -> Any:
        """What a call returns, from its results in order."""
        if self.returns_one:
            return results[0]
        if self.returns_nothing:
            return None
        return results if self.returns_list else tuple(results)


def _computes_into(func: Any) -> Any:
    """The overload that computes the same into memory it is given, if there is one: it saves a copy.

    Only of operators that surely leave the shape of that memory alone: some losses use it for intermediate results.
    """
    schema = func._schema
    if torch.Tag.pointwise not in func.tags and schema.name not in _COMPUTED_IN_PLACE:
        return None
    if len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor" or schema.is_mutable:
        return None
    wanted = [(argument.name, str(argument.type)) for argument in schema.arguments]
    packet = func.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        arguments = other._schema.arguments
        takes = [(argument.name, str(argument.type)) for argument in arguments[:-1]]
        if arguments and arguments[-1].is_out and arguments[-1].name == "out" and takes == wanted:
            return other._op
    return None


@dataclass(frozen=True)
class Fresh:
    """An output in memory of its own."""

    layout: Layout


@dataclass(frozen=True)
class Same:
    """An output that is the ``index``-th tensor argument."""

    index: int


@dataclass(frozen=True)
class Resized:
    """An output that is the ``index``-th tensor argument, given another shape first."""

    index: int
    layout: Layout


@dataclass(frozen=True)
class Value:
    """An output that is no tensor."""

    value: Any


Output = Fresh | Same | Resized | Value


class NoPlan(Exception):
    """No meta kernel, or one that refused; the operator has to run before its outputs are known."""


_operators: dict[int, Operator] = {}
_plans: dict[Any, tuple[Output, ...]] = {}


def operator_of(func: Any) -> Operator:
    """What is known of an overload."""
    found = _operators.get(id(func))  # hashing it would take a call of torch's Python
    if found is None:
        found = _operators[id(func)] = Operator(func)
    return found


def plan(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], overlaps: Any = ()) -> tuple[Output, ...]:
    """The outputs of a call.

    Args:
        operator: which.
        args: with plain tensors.
        kwargs: with plain tensors.
        overlaps: equal if the same tensors share bytes in the same way.

    Raises:
        NoPlan: only running it would tell.
    """
    key = (overlaps, _key(operator, args, kwargs))
    found = _plans.get(key)
    if found is None:
        aimed = {name: value for name, value in kwargs.items() if name not in ("pin_memory", "device")}
        if "generator" in aimed:
            aimed["generator"] = None
        found = infer(operator.compute, args, aimed if operator.factory else kwargs, operator)
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _plans[key] = found
    return found


def forget_plans() -> None:
    """Forget the outputs of calls: a setting of the process decides them, and has changed."""
    _plans.clear()


def _key(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    parts: list[Any] = [operator]
    places = operator.scalar_places
    for index, value in enumerate(args):
        kind = type(value)
        if isinstance(value, Tensor):
            parts.append(layout_of(value))
        elif index in places:
            parts.append(kind)
        elif kind is list or kind is tuple:
            parts.append(_sequence_key(value))
        else:
            parts += (kind, value)
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            parts += (name, layout_of(value))
        elif name in operator.scalars:
            parts += (name, type(value))
        elif isinstance(value, (list, tuple)):
            parts += (name, _sequence_key(value))
        elif name != "generator":
            parts += (name, type(value), value)
    return tuple(parts)


def _sequence_key(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(layout_of(value) if isinstance(value, Tensor) else (type(value), value) for value in values)


def infer(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any], operator: Operator | None = None
) -> tuple[Output, ...]:
    """The outputs of a function, by running it once on stand-ins for its tensors.

    Args:
        function: what is called.
        args: with plain tensors.
        kwargs: with plain tensors.
        operator: that the function computes, if it is one of torch's.

    Raises:
        NoPlan: it cannot be run so.
    """
    with untold(), imports_keep_no_frames():  # an operator's first call may import hundreds of modules
        if _size_of(args) + _size_of(kwargs.values()) <= MAX_STAND_IN:
            return _on_small_ones(function, args, kwargs, operator)
        return _on_shapes(function, args, kwargs, operator)


def _on_small_ones(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any], operator: Operator | None
) -> tuple[Output, ...]:
    disliked: Exception | None = None
    try:
        for fill in _fills(kwargs):
            try:
                with _same_random_numbers(operator):
                    return _try(function, args, kwargs, torch.device("cpu"), fill)
            except Exception as error:  # noqa: BLE001 - it may have disliked the values
                # With its frames it would make a cycle with this one, and keep the program's variables.
                disliked = error.with_traceback(None)
        # What no values please is refused at the call, by the kernel itself; a meta kernel might let it pass.
        raise NoPlan(str(disliked)) from disliked
    finally:
        del disliked  # its traceback has this frame, and the frames of all callers


def _on_shapes(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any], operator: Operator | None
) -> tuple[Output, ...]:
    if operator is not None and operator.factory:
        kwargs = {**kwargs, "device": torch.device("meta")}
    try:
        return _try(function, args, kwargs, torch.device("meta"), lambda made: None)
    except Exception as error:
        raise NoPlan(str(error)) from error


def _fills(kwargs: Mapping[str, Any]) -> Iterator[Callable[[Tensor], None]]:
    """Values for the stand-ins, one set after the other until one pleases the operator."""
    yield _ones_and_zeros
    yield _identities
    total = kwargs.get("output_size")
    if type(total) is int:
        yield functools.partial(_adding_up, total)


def _adding_up(total: int, made: Tensor) -> None:
    """Lengths that add up to the size that the program states."""
    _ones_and_zeros(made)
    _memory_of(made)[:1] = total


def _ones_and_zeros(made: Tensor) -> None:
    """Zero is an index of any table, and one a probability."""
    _memory_of(made).fill_(1 if made.dtype.is_floating_point else 0)


def _identities(made: Tensor) -> None:
    """An identity can be inverted, and one is a length or a pivot."""
    _memory_of(made).fill_(1)
    if made.dim() >= 2 and made.is_contiguous() and (made.dtype.is_floating_point or made.dtype.is_complex):
        made.copy_(torch.eye(made.shape[-2], made.shape[-1]).expand(made.shape))


def _memory_of(made: Tensor) -> Tensor:
    """All elements in memory, once each: torch fills no tensor whose elements share memory."""
    return torch.empty(0, dtype=made.dtype).set_(made.untyped_storage())


def _try(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device, fill: Callable[[Tensor], None]
) -> tuple[Output, ...]:
    models: list[Tensor] = []
    stand_ins = _StandIns(device, [*_tensors(args), *_tensors(kwargs.values())])

    def model(value: Any) -> Any:
        if isinstance(value, Tensor):
            made = stand_ins.of(value)
            fill(made)
            models.append(made)
            return made
        if isinstance(value, (list, tuple)):
            return [model(item) for item in value]
        return value

    model_args = [model(value) for value in args]
    model_kwargs = {name: model(value) for name, value in kwargs.items()}
    before = [(made.shape, made.stride()) for made in models]
    result = function(*model_args, **model_kwargs)
    results = result if isinstance(result, (list, tuple)) else () if result is None else (result,)
    return tuple(_output(item, models, before) for item in results)


class _StandIns:
    """A stand-in for each tensor; those that share bytes have stand-ins that do, since some operators refuse it."""

    def __init__(self, device: torch.device, tensors: Sequence[Tensor]) -> None:
        self._device = device
        self._made: dict[int, Tensor] = {}
        if device.type == "cpu":
            for together in _sharing(tensors):
                self._make_shared(together)

    def of(self, tensor: Tensor) -> Tensor:
        """The stand-in of a tensor; one object for one tensor."""
        made = self._made.get(id(tensor))
        if made is None:
            shape, stride = tensor.shape, tensor.stride()
            made = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=self._device)
            self._made[id(tensor)] = made
        return made

    def _make_shared(self, tensors: Sequence[Tensor]) -> None:
        base = min(tensor.data_ptr() for tensor in tensors)
        end = max(tensor.data_ptr() + layout_of(tensor).span for tensor in tensors)
        memory = torch.empty(end - base, dtype=torch.uint8).untyped_storage()
        for tensor in tensors:
            offset = (tensor.data_ptr() - base) // tensor.dtype.itemsize
            made = torch.empty(0, dtype=tensor.dtype).set_(memory, offset, tensor.shape, tensor.stride())
            self._made[id(tensor)] = made


def _sharing(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Groups of different tensors of one type that share bytes."""
    groups: list[list[Tensor]] = []
    end, last = 0, None
    for tensor in sorted({id(tensor): tensor for tensor in tensors}.values(), key=lambda tensor: tensor.data_ptr()):
        address, span = tensor.data_ptr(), layout_of(tensor).span
        if address < end and tensor.dtype == last:
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
        end, last = max(end, address + span), tensor.dtype
    return [group for group in groups if len(group) > 1]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _size_of(values: Iterable[Any]) -> int:
    """About how many elements the tensors, and the sizes, among some arguments stand for."""
    total = 0
    for value in values:
        if isinstance(value, Tensor):
            total += value.numel()
        elif isinstance(value, (list, tuple)):
            numbers = [item for item in value if type(item) is int]
            total += math.prod(numbers) + _size_of(item for item in value if isinstance(item, Tensor))
    return total


@contextlib.contextmanager
def _same_random_numbers(operator: Operator | None) -> Iterator[None]:
    """The process's own generator is none of the device's business."""
    if operator is None or not operator.random:
        yield
        return
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def _output(item: Any, models: list[Tensor], before: list[Any]) -> Output:
    if not isinstance(item, Tensor):
        return Value(item)
    for index, made in enumerate(models):
        if made is item:
            if (made.shape, made.stride()) == before[index]:
                return Same(index)
            return Resized(index, layout_of(made))
    if item.layout is not torch.strided or item.is_nested or item.is_quantized:
        raise TypeError("not a dense tensor")
    return Fresh(layout_of(item))
