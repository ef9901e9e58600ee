"""ATen operators on device tensors: told to the sink at once, run later.

Host operators on tracked memory pass through here as well: they are accesses of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..events import ByteRange, OperationKind
from ..semantics import NOT_WAITING_OPERATORS, WAITING_OPERATORS, isin_waits
from .inference import Fresh, NoPlan, Operator, Resized, Same, Value, operator_of, plan
from .layouts import Layout, layout_of, tensor_ranges
from .queues import below_modes
from .tensor import DEVICE, DeviceTensor, Face, face_of, plain_face, wrap

if TYPE_CHECKING:
    from .runtime import Runtime

_aten = torch.ops.aten
_INDEXING = frozenset({"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"})
#: Operators that touch, of one argument, only what an index names: (argument read in part, argument written in part).
_PARTIAL: dict[str, tuple[int | None, int | None]] = {
    "aten::index": (0, None), "aten::index_select": (0, None), "aten::gather": (0, None), "aten::take": (0, None),
    "aten::embedding": (0, None), "aten::index_put_": (None, 0), "aten::index_put": (None, None),
    "aten::_index_put_impl_": (None, 0), "aten::scatter_": (None, 0), "aten::scatter_add_": (None, 0),
    "aten::scatter_reduce_": (None, 0), "aten::index_copy_": (None, 0), "aten::index_add_": (None, 0),
    "aten::index_fill_": (None, 0), "aten::put_": (None, 0),
}  # fmt: skip


class Call:
    """One call of an operator, with the plain tensors in place of the device's.

    Attributes:
        operator: which.
        args, kwargs: as the kernel gets them, later.
        tensors: all tensor arguments as the program gave them, in order.
        plain: the same tensors as the kernel gets them.
        on_device: whether the work is the device's.
    """

    __slots__ = ("args", "kwargs", "on_device", "operator", "plain", "tensors")

    def __init__(self, operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.operator = operator
        self.tensors: list[Tensor] = []
        self.plain: list[Tensor] = []
        self.on_device = False
        self.args = [self._plain(value) for value in args]
        self.kwargs = {name: self._plain(value) for name, value in kwargs.items()}

    def _plain(self, value: Any) -> Any:
        if type(value) is DeviceTensor:
            face = face_of(value)
            self.on_device = True
            self.tensors.append(value)
            self.plain.append(face.raw)
            return face.raw
        if isinstance(value, Tensor):
            self.tensors.append(value)
            self.plain.append(value)
            return value
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return [self._plain(item) for item in value]
        return value


class Operators:
    """Sends operator calls where their work is done."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        #: Set around the decomposition of a composite operator on device tensors: what it allocates is the device's.
        self._inside_device_call = False
        self._special: dict[Any, Callable[[Call], Any]] = {
            _aten.copy_.default: self._copy,
            _aten._to_copy.default: self._to_copy,
            _aten.is_pinned.default: lambda call: self._runtime.copies.is_pinned(call.plain[0]),
            _aten._pin_memory.default: lambda call: self._runtime.copies.pin(call.plain[0]),
            _aten.pin_memory.default: lambda call: self._runtime.copies.pin(call.plain[0]),
            _aten.resize_.default: self._resize,
            _aten._foreach_copy_.default: self._foreach_copy,
        }

    def dispatch(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """One operator call, from either mode; returns what the program gets."""
        operator = operator_of(func)
        with below_modes():
            call = Call(operator, args, kwargs)
            target = kwargs.get("device")
            if target is not None and operator.factory:
                call.on_device = target.type == "cuda" or (target.type == "cpu" and self._meant_for_device(call))
            special = self._special.get(func)
            if special is not None:
                return special(call)
            if not operator.composite:
                return self._on_device(call) if call.on_device else self._on_host(call)
        if not call.on_device and not self._runtime.memory.pinned_blocks:
            with below_modes():
                return func(*args, **kwargs)
        return self._decompose(func, args, kwargs, call.on_device)

    def _decompose(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], on_device: bool) -> Any:
        """In inference mode composite operators arrive whole, and some of them look like views but are not."""
        from .install import DispatchMode

        outer, self._inside_device_call = self._inside_device_call, on_device
        try:
            with DispatchMode(self._runtime):
                return func.decompose(*args, **kwargs)
        finally:
            self._inside_device_call = outer

    def _meant_for_device(self, call: Call) -> bool:
        """C++ allocates helpers like its argument, which it takes to be on the CPU; the argument knows better."""
        return self._inside_device_call or self._runtime.inside_device_call()

    # Host

    def _on_host(self, call: Call) -> Any:
        operator = call.operator
        if operator.factory and call.kwargs.get("pin_memory"):
            kwargs = {**call.kwargs, "pin_memory": False}
            made = operator.func(*call.args, **kwargs)
            return self._runtime.copies.pinned_like(made, fill=not operator.allocates)
        if self._runtime.memory.pinned_blocks and not operator.view and not operator.metadata:
            written = operator.written(call.args, call.kwargs)
            for tensor in call.plain:
                if tensor.layout is torch.strided and self._runtime.find_block(tensor.data_ptr()) is not None:
                    write = any(tensor is other for other in written)
                    self._runtime.host_access(tensor_ranges(tensor), write=write, name=operator.name)
        return operator.func(*call.args, **call.kwargs)

    # Device

    def _on_device(self, call: Call) -> Any:
        operator = call.operator
        if operator.factory:
            self._aim_factory(call)
        if operator.changes_shape:
            return self._change_shape(call)
        if operator.view:
            return self._view(call)
        waits = self._waits(call)
        self._check_devices(call)
        self._freeze_host_scalars(call)
        if waits:
            return self._run_now(call)
        try:
            outputs = plan(operator, call.args, call.kwargs, call.plain)
        except NoPlan:
            return self._run_now(call, without_meta=True)
        return self._defer(call, outputs)

    def _aim_factory(self, call: Call) -> None:
        if call.kwargs.pop("pin_memory", False):
            raise RuntimeError("Only dense CPU tensors can be pinned")
        if "device" in call.kwargs:
            call.kwargs["device"] = torch.device("cpu")

    def _waits(self, call: Call) -> bool:
        """Whether the host waits for the stream, by the nature of the operator or of its arguments."""
        operator = call.operator
        name = operator.schema_name
        if name in _INDEXING:
            return _indexing_waits(call)
        if name == "aten::repeat_interleave":
            return operator.waits and len(call.args) < 2 and call.kwargs.get("output_size") is None
        if name == "aten::isin" and len(call.plain) == 2:
            return isin_waits(call.plain[0].numel(), call.plain[1].numel())
        return (operator.waits and name not in NOT_WAITING_OPERATORS) or name in WAITING_OPERATORS

    def _check_devices(self, call: Call) -> None:
        """C++ takes all tensors to be on the CPU, so a mixture must be refused here."""
        if call.operator.metadata:
            return
        for tensor in call.tensors:
            if type(tensor) is not DeviceTensor and tensor.dim() > 0 and call.operator.schema_name not in _INDEXING:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                    f"(when checking arguments of {call.operator.name})"
                )

    def _freeze_host_scalars(self, call: Call) -> None:
        """A host tensor among device tensors is read at the call, a 0-dim one as well as an index."""
        for index, tensor in enumerate(call.tensors):
            if type(tensor) is DeviceTensor:
                continue
            if self._runtime.memory.pinned_blocks:
                self._runtime.host_access(tensor_ranges(tensor), write=False, name=call.operator.name)
            frozen = tensor.detach().clone()
            call.plain[index] = frozen
            call.args = [_replaced(value, tensor, frozen) for value in call.args]
            call.kwargs = {name: _replaced(value, tensor, frozen) for name, value in call.kwargs.items()}

    def _view(self, call: Call) -> Any:
        """Views are metadata: made at once, over the same bytes."""
        source = next(tensor for tensor in call.tensors if type(tensor) is DeviceTensor)
        owner = face_of(source).owner
        result = call.operator.func(*call.args, **call.kwargs)
        if isinstance(result, Tensor):
            return wrap(result, owner, self._runtime)
        return type(result)(wrap(item, owner, self._runtime) for item in result)

    def _change_shape(self, call: Call) -> Any:
        """``squeeze_`` and the like: the tensor gets a new plain face, since pending work needs the old one."""
        tensor = call.tensors[0]
        assert type(tensor) is DeviceTensor
        face = face_of(tensor)
        raw = plain_face(face.raw)
        call.operator.func(raw, *call.args[1:], **call.kwargs)
        call.operator.func(tensor, *call.args[1:], **call.kwargs)
        tensor._face = Face(raw, layout_of(raw), face.owner, self._runtime)
        return tensor

    def _defer(self, call: Call, outputs: Sequence[Any]) -> Any:
        operator = call.operator
        for output in outputs:
            if isinstance(output, Resized):
                self._reshape(call, output.index, output.layout)
        results = [self._result(call, output) for output in outputs]
        if not operator.allocates:
            fresh = [r for r, o in zip(results, outputs, strict=True) if isinstance(o, Fresh)]
            self._enqueue(call, fresh, None)
        return self._returned(operator, results)

    def _result(self, call: Call, output: Any) -> Any:
        if isinstance(output, Fresh):
            return self.empty(output.layout)
        if isinstance(output, Value):
            return output.value
        assert isinstance(output, Same | Resized)
        return call.tensors[output.index]

    def _returned(self, operator: Operator, results: list[Any]) -> Any:
        if operator.returns_one:
            return results[0]
        if operator.returns_nothing:
            return None
        return results if operator.returns_list else tuple(results)

    def _run_now(self, call: Call, *, without_meta: bool = False) -> Any:
        """The outputs are known only when it has run: enqueue it and wait for the stream."""
        operator = call.operator
        box: list[Any] = []
        captures = self._runtime.captures
        if _indexes_from_host(call):
            captures.refuse_copy(self._runtime.current_queue(), operator.name, survives=True)
        captures.refuse_wait(operator.name)
        operation = self._enqueue(call, [], box)
        self._runtime.wait_for_operation(operation)
        result = box.pop()
        if isinstance(result, Exception):
            raise result
        if without_meta:
            self._runtime.without_meta[operator.name] += 1
        if operator.mutates:
            written = operator.written(call.args, call.kwargs)
            results = [next(t for t, p in zip(call.tensors, call.plain, strict=True) if p is w) for w in written]
            return self._returned(operator, results)
        if isinstance(result, (list, tuple)):
            return type(result)(self._adopt(item) for item in result)
        return self._adopt(result)

    def _adopt(self, item: Any) -> Any:
        """Device memory with the values that a kernel has already computed."""
        if not isinstance(item, Tensor):
            return item
        made = self.empty(layout_of(item))
        face_of(made).raw.copy_(item)
        return made

    def _enqueue(self, call: Call, fresh: list[DeviceTensor], box: list[Any] | None) -> Any:
        operator = call.operator
        reads, writes, some_reads, some_writes = _accesses(call)
        for made in fresh:
            writes += face_of(made).ranges()
        generator = call.kwargs.get("generator")
        if generator is not None:
            call.kwargs["generator"] = None
        run = _kernel(call, [face_of(made).raw for made in fresh], box)
        prepare = self._runtime.generators.seeded(run, generator) if operator.random else None
        return self._runtime.enqueue(
            operator.name, OperationKind.KERNEL, run, reads, writes,
            possible_reads=some_reads, possible_writes=some_writes, prepare=prepare,
        )  # fmt: skip

    def empty(self, layout: Layout) -> DeviceTensor:
        """Fresh device memory, owned by the current stream; called below the modes."""
        with self._runtime.lock:
            self._runtime.memory.settle()
            raw, owner = self._runtime.memory.allocate_device(layout, self._runtime.current_queue())
            return wrap(raw, owner, self._runtime, layout)

    # Special operators

    def _copy(self, call: Call) -> Any:
        if not call.on_device:
            return self._on_host(call)
        target, source = call.tensors
        non_blocking = call.args[2] if len(call.args) > 2 else call.kwargs.get("non_blocking", False)
        return self._runtime.copies.copy(target, source, non_blocking)

    def _foreach_copy(self, call: Call) -> Any:
        if not call.on_device:
            return self._on_host(call)
        count = len(call.args[0])
        non_blocking = call.args[2] if len(call.args) > 2 else call.kwargs.get("non_blocking", False)
        for target, source in zip(call.tensors[:count], call.tensors[count:], strict=True):
            self._runtime.copies.copy(target, source, non_blocking)
        return None

    def _to_copy(self, call: Call) -> Any:
        """Between the sides it is a copy; C++ asks for the CPU when it means the device of its argument."""
        source = call.tensors[0]
        target = call.kwargs.get("device")
        if type(source) is DeviceTensor:
            call.kwargs.pop("device", None)
            return self._on_device(call)
        if target is None or target.type != "cuda":
            return self._on_host(call)
        return self._runtime.copies.upload(
            source,
            call.kwargs.get("dtype"),
            non_blocking=call.kwargs.get("non_blocking", False),
            memory_format=call.kwargs.get("memory_format") or torch.preserve_format,
        )

    def _resize(self, call: Call) -> Any:
        if not call.on_device:
            return self._on_host(call)
        size = torch.Size(call.args[1])
        model = torch.empty(size, dtype=call.plain[0].dtype, device="meta")
        self._reshape(call, 0, layout_of(model))
        return call.tensors[0]

    def _reshape(self, call: Call, index: int, layout: Layout) -> None:
        """Give a tensor another shape, in fresh memory if its own is too small."""
        tensor = call.tensors[index]
        assert type(tensor) is DeviceTensor
        old = face_of(tensor)
        made = self.empty(layout)
        new = face_of(made)
        common = min(old.layout.nbytes, layout.nbytes) // layout.dtype.itemsize
        if common and old.layout.contiguous:
            target, source = new.raw.view(-1)[:common], old.raw.view(-1)[:common]
            faces = [Face(raw, layout_of(raw), None, self._runtime) for raw in (target, source)]
            self._runtime.copies._on_device(faces[0], faces[1])
        Tensor.data.__set__(tensor, new.raw)  # type: ignore[attr-defined]
        tensor._face = new
        call.args = [_replaced(value, old.raw, new.raw) for value in call.args]
        call.kwargs = {name: _replaced(value, old.raw, new.raw) for name, value in call.kwargs.items()}
        call.plain[index] = new.raw


def _indexing_waits(call: Call) -> bool:
    """Indexing by the rows of the table of synchronous calls: masks and host indices wait, and so do host values."""
    indices = [index for index in call.args[1] if index is not None]
    masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
    if _indexes_from_host(call):
        return True
    if call.operator.schema_name == "aten::index":
        return bool(masks)
    value = call.tensors[-1]
    on_host = type(value) is not DeviceTensor
    fills_mask = len(indices) == 1 and bool(masks) and call.plain[-1].numel() == 1
    # A mask filled with one value needs no indices; the value itself is free on the host and a wait on the device.
    # Everywhere else a host value is uploaded from pageable memory first.
    return not on_host if fills_mask else bool(masks) or on_host


def _indexes_from_host(call: Call) -> bool:
    """Whether an index is a host tensor, which is uploaded from pageable memory first."""
    if call.operator.schema_name not in _INDEXING:
        return False
    count = sum(index is not None for index in call.args[1])
    return any(type(index) is not DeviceTensor for index in call.tensors[1 : 1 + count])


def _accesses(call: Call) -> tuple[tuple[ByteRange, ...], tuple[ByteRange, ...], list[ByteRange], list[ByteRange]]:
    """Ranges that a call surely reads, surely writes, and reads or writes in part."""
    operator = call.operator
    reads: tuple[ByteRange, ...] = ()
    writes: tuple[ByteRange, ...] = ()
    some: tuple[list[ByteRange], list[ByteRange]] = ([], [])
    written = operator.written(call.args, call.kwargs) if operator.mutates else ()
    partial = _PARTIAL.get(operator.schema_name, (None, None))
    for index, (tensor, raw) in enumerate(zip(call.tensors, call.plain, strict=True)):
        if type(tensor) is not DeviceTensor:
            continue
        face = tensor._face
        write = any(raw is other for other in written)
        if not write and operator.metadata:
            continue
        if index == partial[write] or not face.layout.exact:
            some[write].extend(face.ranges())
        elif write:
            writes += face.ranges()
        else:
            reads += face.ranges()
    return reads, writes, *some


def _kernel(call: Call, targets: list[Tensor], box: list[Any] | None) -> Callable[[], None]:
    """The deferred work of a call: results go to memory that was allocated when it was enqueued."""
    func, args, kwargs = call.operator.func, call.args, call.kwargs
    if box is not None:

        def run_now() -> None:
            try:
                box.append(func(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - raised by the caller, who waits for it
                box.append(error)

        return run_now
    if not targets:
        return lambda: func(*args, **kwargs)
    if len(targets) == 1 and call.operator.returns_one:
        target = targets[0]

        def run_one() -> None:
            target.copy_(func(*args, **kwargs))

        return run_one

    def run() -> None:
        results = (item for item in func(*args, **kwargs) if isinstance(item, Tensor))
        fresh = (item for item in results if not any(item is plain for plain in call.plain))
        for target, item in zip(targets, fresh, strict=True):
            target.copy_(item)

    return run


def _replaced(value: Any, old: Tensor, new: Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    return value


def needs_device(device: Any) -> bool:
    """Whether a ``device=`` argument names the virtual device."""
    return device is not None and (device == DEVICE or torch.device(device).type == "cuda")
