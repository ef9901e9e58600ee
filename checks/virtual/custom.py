"""Operators that are not torch's own: what they do, in Python, and what they touch.

A compiled extension has no kernel for the virtual device, and its schema does not say which bytes it reads in place. So
each such operator is declared once, by the tests of the program that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..events import OperationKind
from ..sync.waits import WaitKind
from .calls import Call, Ranges, kernel, kernel_now, outcome_of
from .errors import UnsupportedOperationError, VirtualDeviceError
from .inference import OWN_NAMESPACES, Fresh, Operator, Value, infer
from .layouts import tensor_ranges
from .tensor import DeviceTensor
from .threads import below_modes

if TYPE_CHECKING:
    from .runtime import Runtime


@dataclass(frozen=True)
class CustomOperator:
    """A declared operator; see ``register_op``."""

    twin: Callable[..., Any]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    syncs: bool


_declared: dict[str, CustomOperator] = {}
_libraries: list[torch.library.Library] = []


def register_op(
    name: str, twin: Callable[..., Any], *, reads: Sequence[str], writes: Sequence[str], syncs: bool = False
) -> None:
    """Declare an operator that torch does not bring along.

    Args:
        name: ``"namespace::operator"``, as in ``torch.ops.namespace.operator``. If no extension has defined it, it is
            defined here, with the arguments of the twin, whose annotations must then be complete.
        twin: computes the same on CPU tensors. What it returns must follow from shapes alone, or ``syncs`` be true. Of
            an operator that neither reads nor writes, the twin runs at the call, and gets what the program gave.
        reads: names of the tensor arguments whose memory it reads.
        writes: names of the tensor arguments whose memory it writes.
        syncs: whether the host waits for it.

    Raises:
        VirtualDeviceError: the name is not one, or the operator has no such arguments.
    """
    namespace, separator, short = name.partition("::")
    if not (separator and namespace.isidentifier() and short.isidentifier()) or namespace in OWN_NAMESPACES:
        raise VirtualDeviceError(
            f"operator {name!r}",
            "its name has the form namespace::operator, and the namespace is not torch's",
            "the name is how a call is recognised",
            "register_op('my_kernels::rotary', ...)",
        )
    if not hasattr(getattr(torch.ops, namespace), short):
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(short + torch.library.infer_schema(twin, mutates_args=tuple(writes)))
        _libraries.append(library)
    packet = getattr(getattr(torch.ops, namespace), short)
    known = {argument.name for overload in packet.overloads() for argument in _arguments(packet, overload)}
    unknown = sorted({*reads, *writes} - known)
    if unknown:
        raise VirtualDeviceError(
            f"arguments {', '.join(unknown)} of {name}",
            f"reads and writes name arguments of the operator, which are {', '.join(sorted(known))}",
            "memory that nobody is told about is memory whose races nobody sees",
            "the names of the operator's schema",
        )
    _declared[name] = CustomOperator(twin, tuple(reads), tuple(writes), syncs)


def _arguments(packet: Any, overload: str) -> Any:
    return getattr(packet, overload)._schema.arguments


def declared_op(name: str) -> CustomOperator:
    """The declaration of an operator.

    Raises:
        UnsupportedOperationError: there is none; says how to write it.
    """
    found = _declared.get(name)
    if found is None:
        raise UnsupportedOperationError(
            f"operator {name}",
            "an operator of an extension is declared before the virtual device can run it",
            "its compiled kernel is for a real device, and its schema does not say which bytes it reads",
            f"mrv2.checks.virtual.register_op({name!r}, twin, reads=(...), writes=(...)), where twin is a Python "
            "function that computes the same on CPU tensors",
        )
    return found


class DeclaredCalls:
    """Runs calls of declared operators on a device."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def run(self, operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """One call, with the program's tensors; on plain host memory it is the extension's own."""
        with below_modes():
            call = Call(operator, args, kwargs)
            pinned = [self._runtime.copies.alias(tensor) is not None for tensor in call.tensors]
        if not (call.on_device or any(pinned)) and operator.schema_name not in _declared:
            return operator.func(*args, **kwargs)
        declared = declared_op(operator.schema_name)
        if not (declared.reads or declared.writes):
            return declared.twin(*args, **kwargs)
        operator.compute, operator.compute_into = declared.twin, None
        with below_modes(), self._runtime.lock:
            self._runtime.memory.settle()
            reads, writes = (self._ranges(call, names) for names in (declared.reads, declared.writes))
            self._replace_host_tensors(call)
            return self._wait(call, reads, writes) if declared.syncs else self._defer(call, reads, writes)

    def _ranges(self, call: Call, names: Sequence[str]) -> Ranges:
        """The bytes of some of the arguments; only memory that the device can reach has any."""
        found: Ranges = ()
        wanted = _named(call, names)
        for tensor, plain in zip(call.tensors, call.plain, strict=True):
            if any(plain is other for other in wanted) and self._runtime.find_block(plain.data_ptr()) is not None:
                found += tensor._face.ranges if type(tensor) is DeviceTensor else tensor_ranges(plain)
        return found

    def _replace_host_tensors(self, call: Call) -> None:
        """The device reads pinned memory in place and later; of pageable memory it gets a copy, made now."""
        for tensor in call.tensors:
            if type(tensor) is not DeviceTensor:
                alias = self._runtime.copies.alias(tensor)
                call.replace(tensor, tensor.detach().clone() if alias is None else alias)

    def _wait(self, call: Call, reads: Ranges, writes: Ranges) -> Any:
        runtime, name = self._runtime, call.operator.name
        runtime.captures.refuse_wait(name)
        box: list[Any] = []
        run = kernel_now(call, box)
        operation = runtime.launch(runtime.current_queue(), name, OperationKind.KERNEL, run, reads, writes)
        runtime.order.wait_for_operation(operation, WaitKind.CUSTOM)
        return runtime.operators.given_back(call, outcome_of(box))

    def _defer(self, call: Call, reads: Ranges, writes: Ranges) -> Any:
        """Shapes come from the twin itself, run without data."""
        runtime = self._runtime
        outputs = infer(call.operator.compute, call.args, call.kwargs)
        results: list[Any] = []
        fresh: list[DeviceTensor] = []
        for output in outputs:
            if isinstance(output, Fresh):
                fresh.append(runtime.operators.empty(output.layout))
                results.append(fresh[-1])
            else:
                results.append(output.value if isinstance(output, Value) else call.tensors[output.index])
        for made in fresh:
            writes += made._face.ranges
        run = kernel(call, [made._face.raw for made in fresh])
        runtime.launch(runtime.current_queue(), call.operator.name, OperationKind.KERNEL, run, reads, writes)
        return call.operator.returned(results)


def _named(call: Call, names: Sequence[str]) -> list[Tensor]:
    """The plain tensors that some of the arguments of a call are, or hold."""
    arguments = call.operator.func._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, call.args, strict=False)} | call.kwargs
    found: list[Tensor] = []
    for name in names:
        value = given.get(name)
        found += [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, Tensor)]
    return found
