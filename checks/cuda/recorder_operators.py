"""ATen operators on a real device: what each is about to touch is told, and then it is called.

An operator is told before it is called, so that a wait inside of it comes after it. What its results lie in is known
only afterwards: until then it is open. Host operators on pinned memory pass through here as well: they are accesses of
the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..events import ByteRange, OperationKind, Space, Stack
from ..semantics import COPIES, CopyRule, Direction, HostMemory, HostRead, Waits
from ..virtual.calls import PARTIAL
from ..virtual.copies import copy_rule, owned_by_allocator
from ..virtual.inference import Operator, operator_of
from ..virtual.layouts import intern_layout, layout_of
from ..virtual.queues import Queue, Work
from ..virtual.stacks import program_stack
from .journal import Entry
from .recorder_memory import Block
from .recorder_plain import MORE, Handler, copy_handler, is_plain, plain_handler

if TYPE_CHECKING:
    from .recorder_runtime import CudaRuntime

_aten = torch.ops.aten


#: How bytes are touched; possible accesses touch some of them.
_READ, _WRITE, _POSSIBLE_READ, _POSSIBLE_WRITE = range(4)


class Touched:
    """What one operator touches, as little of it as must be known at the call.

    Attributes:
        pieces: how, the first address, and one past the last or the layout.
        made: blocks that it allocates for its results; None if they are told by themselves.
        kind: what it is.
        protected: whether the host allocator waits for it.
        waits: whether it makes the host wait for the stream.
    """

    kind = OperationKind.KERNEL
    protected = False
    waits = False

    def __init__(self) -> None:
        self.made: list[Block] | None = []
        self.pieces: list[tuple[int, int, Any]] = []

    def add(self, tensor: Tensor, how: int) -> None:
        """A tensor is touched."""
        low = tensor.data_ptr()
        if tensor.is_contiguous():
            self.pieces.append((how, low, low + tensor.nbytes))
        else:
            self.pieces.append((how, low, (tensor.shape, tensor.stride(), tensor.dtype)))

    def work(self, name: str) -> Work:
        """As an operation, with all bytes of all tensors."""
        found: tuple[list[ByteRange], ...] = ([], [], [], [])
        for how, low, end in self.pieces:
            if type(end) is int:
                if low < end:
                    found[how].append((low, end))
            else:
                layout = intern_layout(*end)
                found[how if layout.exact else how | _POSSIBLE_READ].extend(layout.ranges(low))
        reads, writes, some_reads, some_writes = found
        return Work(name, self.kind, None, reads, writes, some_reads, some_writes, True, self.protected, False)


class Operators:
    """Tells of operator calls.

    Args:
        runtime: the recorder.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = self.runtime = runtime
        self._is_on_device, self._base_of = runtime.backend.is_on_device, runtime.backend.base_of
        self._known = runtime.memory.storages
        special: tuple[tuple[Any, Callable[[Any, Any, Any], Any]], ...] = (
            (_aten.copy_.default, copy_handler(self, self._copy)),
            (_aten._to_copy.default, self._to_copy),
            (_aten._foreach_copy_.default, self._foreach_copy),
            (_aten.record_stream.default, self._record_stream),
        )
        #: By identity: to hash an operator would take a call of torch's Python.
        self.handlers: dict[int, Handler] = {id(func): handler for func, handler in special}

    def handler_of(self, func: Any) -> Handler:
        """What is called for an operator of the program's, with it and its arguments."""
        handler = self.handlers[id(func)] = self._new_handler(func)
        return handler

    def _new_handler(self, func: Any) -> Handler:
        operator = operator_of(func)
        if operator.composite:
            return functools.partial(self._decompose, operator)
        if operator.view or operator.asks:
            return _call_only
        general = functools.partial(self._call, operator)
        return plain_handler(self, operator, general) if is_plain(operator) else general

    def _decompose(self, operator: Operator, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """In inference mode composite operators arrive whole, and some of them look like views but are not."""
        if not self._runtime.active:
            return func(*args, **kwargs)
        with self._runtime.thread_mode():
            result = func.decompose(*args, **kwargs)
        return self._call(operator, func, args, kwargs) if result is NotImplemented else result

    def _call(self, operator: Operator, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if not self._runtime.active:
            return func(*args, **kwargs)
        tensors = tensors_in(args, kwargs)
        is_on_device = self._is_on_device
        for tensor in tensors:
            if is_on_device(tensor):
                return self._on_device(operator, func, args, kwargs, tensors)
        device = kwargs.get("device") if operator.factory else None
        if device is not None and torch.device(device).type == "cuda":
            return self._on_device(operator, func, args, kwargs, tensors)
        return self._on_host(operator, func, args, kwargs, tensors)

    # Host

    def _on_host(
        self, operator: Operator, func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        """On tracked memory it is an access of the host."""
        runtime = self._runtime
        if not operator.metadata:
            written = self._written(operator, args, kwargs)
            for tensor in tensors:
                if tensor.layout is torch.strided and runtime.find_block(tensor.data_ptr()) is not None:
                    ranges = layout_of(tensor).ranges(tensor.data_ptr())
                    runtime.host_access(ranges, write=id(tensor) in written, name=operator.name)
        result = func(*args, **kwargs)
        if kwargs.get("pin_memory") or operator.schema_name in _PINNING:
            runtime.memory.made(result, runtime.current_queue(), program_stack(), pinned=True)
        return result

    # Device

    def _on_device(
        self, operator: Operator, func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        stack, touched = program_stack(), Touched()
        if not operator.allocates and not operator.metadata:
            self._touch_arguments(touched, operator, args, kwargs, tensors, stack)
        return self._run(operator, func, args, kwargs, touched, stack)

    def _touch_arguments(
        self, touched: Touched, operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Tensor],
        stack: Stack,
    ) -> None:  # fmt: skip
        """What it reads and writes of its arguments."""
        is_on_device, base_of, known = self._is_on_device, self._base_of, self._known
        written = self._written(operator, args, kwargs) if operator.mutates else ()
        partial_read, partial_write = PARTIAL.get(operator.schema_name, _WHOLE)
        for index, tensor in enumerate(tensors):
            if not is_on_device(tensor):
                self._read_at_call(tensor, operator.name, stack)
                continue
            if tensor.layout is not torch.strided:
                continue
            if base_of(tensor) not in known:
                self._runtime.memory.seen(tensor, stack)
            if id(tensor) in written:
                touched.add(tensor, _POSSIBLE_WRITE if index == partial_write else _WRITE)
            else:
                touched.add(tensor, _POSSIBLE_READ if index == partial_read else _READ)

    def _read_at_call(self, tensor: Tensor, name: str, stack: Stack) -> None:
        """A host tensor among device tensors: a 0-dim operand, or an index."""
        if tensor.layout is torch.strided and self._runtime.memory.seen(tensor, stack) is not None:
            self._runtime.host_access(layout_of(tensor).ranges(tensor.data_ptr()), write=False, name=name)

    def _written(self, operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> set[int]:
        """Identities of the tensors that it writes."""
        found: set[int] = set()
        for index, name in operator.writes:
            value = args[index] if index < len(args) else kwargs.get(name)
            if isinstance(value, Tensor):
                found.add(id(value))
            elif value is not None:
                found.update(map(id, value))
        return found

    def _run(
        self, operator: Operator, func: Any, args: Sequence[Any], kwargs: dict[str, Any], touched: Touched, stack: Stack
    ) -> Any:
        """Write it down, call it, write down its results."""
        runtime = self._runtime
        queue = runtime.current_queue()
        if operator.allocates:
            touched.made = None
            result = func(*args, **kwargs)
            self._add_results(touched, operator, result, queue, stack)
            return result
        if queue.capture is not None:
            return self._captured(operator, func, args, kwargs, touched, queue, stack)
        sink, here, pace = runtime.sink, runtime.here, runtime.pace
        entry = Entry((self._judge, None, operator.name, touched, stack, runtime.host_lane(), runtime.step))
        sink.add(entry)
        if pace is not None:
            pace.before(stack, runtime.backend)
        outer, here.inside = here.inside, operator.name
        try:
            result = func(*args, **kwargs)
            if not operator.mutates or operator.takes_out:
                self._add_results(touched, operator, result, queue, stack)
        finally:
            here.inside = outer
            entry[1] = queue.lane
        if touched.waits:
            runtime.order.waited_inside(queue, operator.name)
        if pace is not None:
            pace.after(runtime.backend)
        sink.flush_if_long()
        return result

    def _judge(self, lane: int, name: str, touched: Touched, stack: Stack, issuer: int, step: int | None) -> None:
        for block in touched.made or ():
            self._runtime.memory.tell(block)
        self._runtime.judge(lane, touched.work(name), stack, issuer, step)

    def _captured(
        self, operator: Operator, func: Any, args: Sequence[Any], kwargs: dict[str, Any], touched: Touched,
        queue: Queue, stack: Stack,
    ) -> Any:  # fmt: skip
        """It becomes part of a graph, and is not enqueued."""
        touched.made = None
        with self._runtime.inside(operator.name):
            result = func(*args, **kwargs)
        if not operator.mutates or operator.takes_out:
            self._add_results(touched, operator, result, queue, stack)
        if queue.capture is not None and not queue.capture.lost:
            queue.capture.add(queue, touched.work(operator.name))
        return result

    def _add_results(self, touched: Touched, operator: Operator, result: Any, queue: Queue, stack: Stack) -> None:
        """Results lie in memory of their own, which becomes known."""
        memory, is_on_device = self._runtime.memory, self._is_on_device
        for tensor in (result,) if isinstance(result, Tensor) else result if isinstance(result, (list, tuple)) else ():
            if isinstance(tensor, Tensor) and is_on_device(tensor) and tensor.layout is torch.strided:
                if self._base_of(tensor) not in self._known:
                    if operator.declared:  # it may give a view of memory that is known
                        memory.made(tensor, queue, stack, pinned=False, made=touched.made)
                    else:
                        memory.add(tensor, Space.DEVICE, queue, stack, touched.made)
                touched.add(tensor, _WRITE)

    def take_results(self, entry: Entry, operator: Operator, result: Any, queue: Queue, stack: Stack) -> None:
        """Add several results, or none, to what a call that is written down already touches."""
        touched = Touched()
        self._add_results(touched, operator, result, queue, stack)
        entry[MORE] = touched.made
        for _, low, end in touched.pieces:
            entry += (True, low, end)

    # Copies

    def _copy(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        target, source = args[0], args[1]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        return self._copying(func, args, kwargs, [(target, source)], non_blocking)

    def _foreach_copy(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        return self._copying(func, args, kwargs, list(zip(args[0], args[1], strict=True)), non_blocking)

    def _copying(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], pairs: list[tuple[Tensor, Tensor]],
        non_blocking: bool,
    ) -> Any:  # fmt: skip
        """Values go from the second to the first of each pair."""
        runtime, operator = self._runtime, operator_of(func)
        is_on_device = runtime.backend.is_on_device
        if not any(is_on_device(target) or is_on_device(source) for target, source in pairs):
            return self._on_host(operator, func, args, kwargs, tensors_in(args, kwargs))
        stack, touched = program_stack(), Touched()
        for target, source in pairs:
            self._add_copy(touched, target, source, non_blocking, stack)
        return self._run(operator, func, args, kwargs, touched, stack)

    def _add_copy(self, touched: Touched, target: Tensor, source: Tensor, non_blocking: bool, stack: Stack) -> None:
        if target.layout is not torch.strided or source.layout is not torch.strided:
            return  # nor is any other operator followed through the parts of a sparse tensor
        seen, is_on_device = self._runtime.memory.seen, self._is_on_device
        to_block, from_block = seen(target, stack), seen(source, stack)
        if not is_on_device(source):
            self._add_upload(touched, source, target, from_block, non_blocking)
            touched.add(target, _WRITE)
        elif is_on_device(target):
            touched.kind = OperationKind.COPY_ON_DEVICE
            touched.add(source, _READ)
            touched.add(target, _WRITE)
        else:
            touched.add(source, _READ)
            self._add_download(touched, target, source, to_block, non_blocking)

    def _add_upload(
        self, touched: Touched, source: Tensor, target: Tensor, block: Block | None, non_blocking: bool
    ) -> None:
        """The host side is read now, or when the copy runs, by the table of copies."""
        touched.kind = OperationKind.COPY_TO_DEVICE
        if block is None:
            return
        rule = _rule(Direction.UPLOAD, True, source, target, non_blocking)
        if rule.source is HostRead.AT_CALL:
            ranges = layout_of(source).ranges(source.data_ptr())
            self._runtime.host_access(ranges, write=False, name="aten.copy_")
            return
        touched.waits |= rule.waits is Waits.ALWAYS
        self._add_protection(touched, block, source)
        touched.add(source, _READ)

    def _add_download(
        self, touched: Touched, target: Tensor, source: Tensor, block: Block | None, non_blocking: bool
    ) -> None:
        touched.kind = OperationKind.COPY_TO_HOST
        rule = _rule(Direction.DOWNLOAD, block is not None, target, source, non_blocking)
        touched.waits |= rule.waits is Waits.ALWAYS
        if block is not None:
            self._add_protection(touched, block, target)
            touched.add(target, _WRITE)

    def _add_protection(self, touched: Touched, block: Block, host: Tensor) -> None:
        """The host allocator may learn of the copy; then a dropped block waits for all that the stream has by then."""
        touched.protected = owned_by_allocator(block, host)
        if touched.protected:
            block.record(self._runtime.current_queue())

    def _to_copy(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A new tensor with the values of one, perhaps on the other side."""
        runtime, operator, source = self._runtime, operator_of(func), args[0]
        is_on_device, device = runtime.backend.is_on_device, kwargs.get("device")
        here = is_on_device(source)
        there = here if device is None else torch.device(device).type == "cuda"
        if here == there:
            return self._call(operator, func, args, kwargs)
        non_blocking = bool(kwargs.get("non_blocking", False))
        stack, touched = program_stack(), Touched()
        if there:
            return self._uploaded(operator, func, args, kwargs, touched, stack)
        runtime.memory.seen(source, stack)
        touched.kind = OperationKind.COPY_TO_HOST
        touched.add(source, _READ)
        touched.waits = not non_blocking
        if not non_blocking:
            return self._run(operator, func, args, kwargs, touched, stack)
        return self._downloaded(operator, func, args, kwargs, touched, stack)

    def _uploaded(
        self, operator: Operator, func: Any, args: Sequence[Any], kwargs: dict[str, Any], touched: Touched, stack: Stack
    ) -> Any:
        """``host.to("cuda")``: the new tensor lies as the source does, so the source alone decides how it is read."""
        runtime, source = self._runtime, args[0]
        block = runtime.memory.seen(source, stack)
        self._add_upload(touched, source, source, block, bool(kwargs.get("non_blocking", False)))
        return self._run(operator, func, args, kwargs, touched, stack)

    def _downloaded(
        self, operator: Operator, func: Any, args: Sequence[Any], kwargs: dict[str, Any], touched: Touched, stack: Stack
    ) -> Any:
        """``x.to("cpu", non_blocking=True)``: the new tensor is pinned, and the copy is pending when it is returned."""
        runtime = self._runtime
        queue = runtime.current_queue()
        touched.protected = True
        if queue.capture is None:
            runtime.pace_before(stack)
        entry = Entry((self._judge, None, operator.name, touched, stack, runtime.host_lane(), runtime.step))
        if queue.capture is None:
            runtime.sink.add(entry)
        else:
            touched.made = None
        try:
            with runtime.inside(operator.name):
                result = func(*args, **kwargs)
            block = runtime.memory.made(result, queue, stack, pinned=True, made=touched.made)
            if block is not None:
                block.record(queue)
            touched.add(result, _WRITE)
        finally:
            entry[1] = queue.lane
        if queue.capture is None:
            runtime.pace_after()
        elif not queue.capture.lost:
            queue.capture.add(queue, touched.work(operator.name))
        return result

    def _record_stream(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Memory is kept until a stream has passed this point; of a view of pinned memory torch says nothing."""
        runtime = self._runtime
        result = func(*args, **kwargs)
        block = runtime.find_block(args[0].data_ptr())
        if block is not None and block.queue is not None:
            block.record(runtime.queue_of(address_of_stream(args[1])))
        return result


def _rule(direction: Direction, pinned: bool, host: Tensor, device: Tensor, non_blocking: bool) -> CopyRule:
    """The row of the table; for a host side without gaps the rest does not matter."""
    if host.is_contiguous():
        return COPIES[direction, HostMemory.PINNED if pinned else HostMemory.PAGEABLE, True, non_blocking]
    return copy_rule(direction, pinned, layout_of(host), layout_of(device), non_blocking)


def _call_only(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A view touches nothing, nor does a question about how a tensor lies."""
    return func(*args, **kwargs)


_PINNING = frozenset({"aten::_pin_memory", "aten::pin_memory"})
_WHOLE = (None, None)


def address_of_stream(stream: Any) -> int:
    """The address of a stream of either class."""
    address = getattr(stream, "cuda_stream", None)
    if address is None:
        made: Any = torch.cuda.Stream
        address = made(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        ).cuda_stream
    return int(address)


def tensors_in(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """All tensors among some arguments, in order, those in lists included."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, Tensor))
    return found


class RecordingMode(TorchDispatchMode):
    """Tells a recorder of every operator of its thread."""

    def __init__(self, operators: Operators) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators = operators
        self._handlers = operators.handlers

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch wraps the method below, imports its whole compiler and adds to every call."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operator was called, on either side."""
        handler = self._handlers.get(id(func)) or self._operators.handler_of(func)
        return handler(func, args, kwargs or {})
