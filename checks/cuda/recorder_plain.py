"""The common call of an operator, without detours: tensors of the device without gaps, in memory that is known.

It costs a few microseconds less than the general way in :mod:`.recorder_operators`, which takes whatever is left over:
a call finds out on its way that it is not a common one, before anything was told.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..events import OperationKind, Stack
from ..virtual.calls import PARTIAL
from ..virtual.copies import owned_by_allocator
from ..virtual.inference import Operator
from ..virtual.layouts import intern_layout
from ..virtual.stacks import stack_above
from .journal import Entry

if TYPE_CHECKING:
    from .recorder_memory import Block
    from .recorder_operators import Operators
    from .recorder_runtime import CudaRuntime

#: Calls an operator, with its overload, arguments and keyword arguments.
Handler: TypeAlias = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
#: Where an entry has the blocks of its results, if they are several, or of its only one.
MORE, _MADE = 5, 6


def is_plain(operator: Operator) -> bool:
    """Whether its calls can be common ones, by its schema."""
    if operator.metadata or operator.allocates or operator.takes_out or operator.declared or operator.factory:
        return False
    if operator.schema_name in PARTIAL:
        return False
    arguments = operator.func._schema.arguments
    return not any("Tensor" in str(argument.type) and "List" in str(argument.type) for argument in arguments)


def plain_handler(operators: Operators, operator: Operator, general: Handler) -> Handler:
    """What is called for an operator.

    Args:
        operators: of the recorder.
        operator: which.
        general: takes the calls that are no common ones.
    """
    runtime, name, fresh = operators.runtime, operator.name, not operator.mutates
    backend, known, queues, here = runtime.backend, runtime.memory.storages, runtime.queues, runtime.here
    is_on_device, base_of, current_stream = backend.is_on_device, backend.base_of, backend.current_stream
    written = frozenset(place for place, _ in operator.writes)
    judge = functools.partial(judge_plain, runtime, name, OperationKind.KERNEL, False)
    add, flush_if_long = runtime.sink.add, runtime.sink.flush_if_long
    strided, getframe, new_block = torch.strided, sys._getframe, runtime.memory.fresh
    compute = operator.compute  # the overload itself would pass its arguments on in Python

    def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        queue = queues.get(current_stream())
        if queue is None or queue.capture is not None or runtime.pace is not None or not runtime.active:
            return general(func, args, kwargs)
        entry = Entry((judge, None, None, here.lane, runtime.step, None, None))
        for place, value in enumerate(args):
            if isinstance(value, Tensor):
                if not is_on_device(value) or value.layout is not strided or not value.is_contiguous():
                    return general(func, args, kwargs)
                low = value.data_ptr()
                if low not in known and base_of(value) not in known:
                    return general(func, args, kwargs)
                entry += (place in written, low, low + value.nbytes)
        if len(entry) == _MADE + 1 or (kwargs and any(isinstance(value, Tensor) for value in kwargs.values())):
            return general(func, args, kwargs)
        entry[2] = stack = stack_above(getframe(2))
        if entry[3] is None:
            entry[3] = runtime.host_lane()
        add(entry)
        outer, here.inside = here.inside, name
        try:
            result = compute(*args, **kwargs)
            if fresh:
                if type(result) is Tensor and is_on_device(result) and result.layout is strided:
                    low = result.data_ptr()
                    if low not in known:
                        entry[_MADE] = new_block(result, queue, stack)
                    add_piece(entry, result, low)
                else:
                    operators.take_results(entry, operator, result, queue, stack)
        finally:
            here.inside = outer
            entry[1] = queue.lane
        flush_if_long()
        return result

    return call


def copy_handler(operators: Operators, general: Handler) -> Handler:
    """What is called for ``aten.copy_``: the common copies are within the device, and from pinned memory without wait.

    Args:
        operators: of the recorder.
        general: takes all others.
    """
    runtime = operators.runtime
    backend, known, here, strided = runtime.backend, runtime.memory.storages, runtime.here, torch.strided
    is_on_device, base_of = backend.is_on_device, backend.base_of
    kinds = OperationKind.COPY_ON_DEVICE, OperationKind.COPY_TO_DEVICE
    on_device, upload, own_upload = (
        functools.partial(judge_plain, runtime, "aten.copy_", kind, protected)
        for kind, protected in ((kinds[0], False), (kinds[1], False), (kinds[1], True))
    )
    add, flush_if_long, getframe = runtime.sink.add, runtime.sink.flush_if_long, sys._getframe
    compute = torch.ops.aten.copy_.default._op

    def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        target, source = args[0], args[1]
        queue = runtime.current_queue()
        if not is_on_device(target) or queue.capture is not None or runtime.pace is not None or not runtime.active:
            return general(func, args, kwargs)
        for tensor in (target, source):
            if tensor.layout is not strided or not tensor.is_contiguous():
                return general(func, args, kwargs)
        low, start = source.data_ptr(), target.data_ptr()
        block = known.get(low) or known.get(base_of(source))
        if block is None or (start not in known and base_of(target) not in known):
            return general(func, args, kwargs)
        if is_on_device(source):
            judge = on_device
        elif len(args) > 2 and args[2] is True:
            if owned_by_allocator(block, source):
                judge = own_upload
                block.record(queue)
            else:
                judge = upload
        else:
            return general(func, args, kwargs)
        entry = Entry((
            judge, None, stack_above(getframe(2)), runtime.host_lane(), runtime.step, None, None,
            False, low, low + source.nbytes, True, start, start + target.nbytes,
        ))  # fmt: skip
        add(entry)
        outer, here.inside = here.inside, "aten.copy_"
        try:
            return compute(*args, **kwargs)
        finally:
            here.inside = outer
            entry[1] = queue.lane
            flush_if_long()

    return call


def add_piece(entry: Entry, tensor: Tensor, low: int) -> None:
    """A result is written, from its first address on."""
    if tensor.is_contiguous():
        entry += (True, low, low + tensor.nbytes)
    else:
        entry += (True, low, (tensor.shape, tensor.stride(), tensor.dtype))


def judge_plain(
    runtime: CudaRuntime, name: str, kind: OperationKind, protected: bool, lane: int, stack: Stack, issuer: int,
    step: int | None, more: list[Block] | None, made: Block | None, *pieces: Any,
) -> None:  # fmt: skip
    """Hand a call on to the sink.

    Args:
        runtime: the recorder.
        name: of the operator.
        kind: what it does.
        protected: whether the host allocator waits for it.
        lane: of the stream.
        stack: where it was called.
        issuer: lane of the host thread.
        step: of the runner.
        more, made: blocks that it allocated, several or one.
        pieces: for each tensor whether it is written, its first address, and one past its last or its layout.
    """
    inner, tell = runtime.sink.inner, runtime.memory.tell
    if made is not None:
        tell(made)
    for block in more or ():
        tell(block)
    number = inner.operation(lane, kind, name, stack, issuer=issuer, step=step)
    for place in range(0, len(pieces), 3):
        write, low, end = pieces[place : place + 3]
        if type(end) is int:
            if low < end:
                inner.access(number, ((low, end),), write=write, protected=protected)
        else:
            layout = intern_layout(*end)
            inner.access(number, layout.ranges(low), write=write, certain=layout.exact)
