"""Launches of Triton kernels: put on the stream like any other operation, run when their turn comes.

A kernel is compiled for the CPU at its first launch; one that cannot be is interpreted, and a warning says so once. One
that cannot be interpreted either is an error of the launch.

What a kernel touches is known only when it runs: exact bytes of every lane that is not masked off. They are told then,
and with them what the kernel itself did wrong: lanes outside of all memory, and programs that conflict.

A pinned host tensor is a legal argument, as on a real GPU, which reads it in place; pageable memory is refused. The
addresses and numbers of the arguments are taken at the launch, and no tensor is kept: what the program drops while the
launch is pending is dropped.
"""

from __future__ import annotations

import functools
import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, mangle_type

from ..events import KernelRanges, OperationKind
from ..findings import Site
from ..sync.waits import Certainty, WaitKind
from ..triton_cpu.autotune import run_first_config
from ..triton_cpu.errors import Unsupported, without_frames
from ..triton_cpu.fallback import notice
from ..triton_cpu.launcher import CompiledKernel
from ..triton_cpu.log import place_of
from ..triton_cpu.memory import pointers
from ..triton_cpu.prepared import prepared
from ..triton_cpu.variants import extents
from .kernel_conflicts import Conflict, conflicts
from .kernel_findings import KernelReport
from .kernel_lines import RecentLogs
from .loaded_kernels import LoadedKernels
from .masked_lanes import MaskedLanes
from .patching import Patches
from .runtime import Block, Runtime
from .triton_interpreter import interpret_programs
from .triton_language import Function, rewritten
from .triton_tap import Tap


def install(runtime: Runtime, *, compiled: bool = True, masked_lanes: MaskedLanes = 0) -> Callable[[], None]:
    """Send the launches of all Triton kernels to a device; returns the undo.

    Args:
        runtime: the device.
        compiled: kernels are compiled for the CPU, all but those that cannot be; else all are interpreted.
        masked_lanes: what lanes hold that a load without ``other`` masks off.

    Launches that Triton would interpret anyway (``TRITON_INTERPRET``) and that have only plain CPU tensors stay with
    Triton.
    """
    patches, way = Patches(), _Way(compiled, masked_lanes)
    interpreted_run, autotuned_run = InterpretedFunction.run, Autotuner.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if not warmup:
            _launch(runtime, self, grid, args, kwargs, way)

    def run_interpreted(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if _plain(runtime, args, kwargs):
            interpreted_run(self, *args, grid=grid, warmup=warmup, **kwargs)
        else:
            run(self, *args, grid=grid, warmup=warmup, **kwargs)

    def run_autotuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(_innermost(self), InterpretedFunction) and _plain(runtime, args, kwargs):
            return autotuned_run(self, *args, **kwargs)
        return run_first_config(self, args, kwargs)

    patches.set(JITFunction, "run", run)
    patches.set(InterpretedFunction, "run", run_interpreted)
    patches.set(Autotuner, "run", run_autotuned)
    return patches.undo


# The launch

_NUMBERS = frozenset((int, float, bool, type(None)))
_WHOLE = {int}


@dataclass(frozen=True)
class _Way:
    """How kernels run: what ``install`` was told, which a GPU would have loaded by now, what the latest ones did."""

    compiled: bool
    masked_lanes: MaskedLanes
    loaded: LoadedKernels = field(default_factory=LoadedKernels)
    logs: RecentLogs = field(default_factory=RecentLogs)


def _launch(runtime: Runtime, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], way: _Way) -> None:
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    with torch._C.DisableTorchFunction():
        launch = _prepare(runtime, kernel, grid, args, kwargs, way)
        loads = runtime.wait_guard is not None and way.loaded.adds(kernel, args, kwargs)  # also for an empty grid
    if loads:
        runtime.host_waits(WaitKind.MODULE, f"the first launch of {kernel.__name__}", certainty=Certainty.DEPENDS)
    if launch is not None:
        report = launch.report
        runtime.enqueue(report.name, OperationKind.KERNEL, launch.run, open=True, blocks=report.blocks)


def _prepare(
    runtime: Runtime, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], way: _Way
) -> _Compiled | _Interpreted | None:
    """What to run; None if the grid is empty.

    Raises:
        NotRunnable: the kernel can neither be compiled for the CPU nor be interpreted; or only the former, but all are
            to be interpreted.
    """
    if not isinstance(kernel, JITFunction):
        return _interpreted(runtime, kernel, grid, args, kwargs, way)
    known = prepared(kernel)
    if not way.compiled:
        with runtime.lock:
            known.check_interpretable(known.bind(args, kwargs))
        return _interpreted(runtime, kernel, grid, args, kwargs, way)
    call = known.bind(args, kwargs)
    size = _extents(grid, kernel.arg_names, call.values)
    blocks = _blocks(runtime, known.binder.names, call.values, known.constexprs)
    if 0 in size:
        return None
    try:
        with runtime.lock:  # what compiles a kernel, locks and child processes included, is no doing of the program's
            code = known.kernel(call, audit=True)
    except Unsupported as error:
        unsupported = without_frames(error)
    else:
        report = KernelReport(runtime, f"triton:{kernel.__name__}", size, blocks, known.confinement(call))
        return _Compiled(report, code, code.pack(call.words), way)
    with runtime.lock:
        known.check_interpretable(call, unsupported)
    notice(kernel, unsupported)
    return _interpreted(runtime, kernel, grid, args, kwargs, way)


def _interpreted(
    runtime: Runtime, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], way: _Way
) -> _Interpreted | None:
    signature = _signature(kernel.fn)
    values = signature.bind(args, kwargs).arguments
    size = _extents(grid, [*values], [*values.values()])
    blocks = _blocks(runtime, [*values], [*values.values()], signature.constexprs)
    if 0 in size:
        return None
    report = KernelReport(runtime, f"triton:{kernel.__name__}", size, blocks, _confinement(kernel, args, kwargs))
    converted = {name: _converted(value) for name, value in values.items() if name not in signature.constexprs}
    return _Interpreted(report, rewritten(kernel.fn), {**values, **converted}, way)


def _confinement(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], bool]:
    """Tells whether an interpreted kernel touches nothing but what its arguments lead to; no, if nobody can tell."""
    if not isinstance(kernel, JITFunction):
        return lambda: False
    known = prepared(kernel)
    return known.confinement(known.bind(args, kwargs))


def _extents(grid: Any, names: Sequence[str], values: Sequence[Any]) -> tuple[int, int, int]:
    """Three extents of a grid, which may be a function of the arguments; what that one reads, the program reads."""
    if grid.__class__ is tuple and {*map(type, grid)} == _WHOLE:
        return extents(grid)
    with torch._C._EnableTorchFunction():
        return extents(grid(dict(zip(names, values, strict=True))) if callable(grid) else grid)


@dataclass(frozen=True)
class _Signature:
    """How a kernel takes its arguments."""

    parameters: inspect.Signature
    constexprs: frozenset[str]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Values by name, defaults included; options of the launch, such as ``num_warps``, mean nothing here."""
        given = {name: value for name, value in kwargs.items() if name in self.parameters.parameters}
        bound = self.parameters.bind(*args, **given)
        bound.apply_defaults()
        return bound


_signatures: weakref.WeakKeyDictionary[Function, _Signature] = weakref.WeakKeyDictionary()


def _signature(function: Function) -> _Signature:
    found = _signatures.get(function)
    if found is None:
        parameters = inspect.signature(function)
        annotations = {name: str(parameter.annotation) for name, parameter in parameters.parameters.items()}
        constexprs = frozenset(name for name, text in annotations.items() if "constexpr" in text)
        found = _signatures[function] = _Signature(parameters, constexprs)
    return found


def _blocks(runtime: Runtime, names: Sequence[str], values: Sequence[Any], constexprs: frozenset[str]) -> list[Block]:
    """The memory that the arguments point into.

    Raises:
        ValueError: a GPU could not follow a pointer; in Triton's own words.
    """
    found: dict[int, Block] = {}
    for index, value in enumerate(values):
        if value.__class__ in _NUMBERS or names[index] in constexprs:
            continue
        for pointer in (value,) if isinstance(value, torch.Tensor) else pointers(value):
            block = _target(runtime, pointer)
            if block is not None:
                found[block.base] = block
            elif pointer.data_ptr():
                raise ValueError(f"Pointer argument (at {index}) cannot be accessed from Triton (cpu tensor?)")
    return list(found.values())


def _target(runtime: Runtime, pointer: Any) -> Block | None:
    """The block that a pointer points into; an empty tensor points to nothing."""
    address = pointer.data_ptr()
    return runtime.find_block(address) if address else None


def _plain(runtime: Runtime, args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a launch has tensors, and all of them are in plain host memory."""
    with torch._C.DisableTorchFunction():
        found = [item for value in (*args, *kwargs.values()) for item in pointers(value) if item.data_ptr()]
        return bool(found) and all(_target(runtime, pointer) is None for pointer in found)


def _converted(value: Any) -> Any:
    """An argument as the interpreter takes it: addresses and numbers, no tensor."""
    if hasattr(value, "data_ptr"):
        handle = interpreter.TensorHandle(_address(value), _pointer_type(value.dtype))
        return tl.tensor(handle, handle.dtype)
    if isinstance(value, tuple):
        contents = map(_converted, value)
        return type(value)(*contents) if hasattr(value, "_fields") else type(value)(contents)
    return interpreter._implicit_cvt(value)


def _address(value: Any) -> Any:
    return interpreter.np.array([value.data_ptr()], dtype=interpreter.np.uint64)


@functools.cache
def _pointer_type(dtype: Any) -> Any:
    class Example:
        """Something of this type, for Triton to look at."""

        def __init__(self) -> None:
            self.dtype = dtype

        def data_ptr(self) -> int:
            return 0

    return tl.str_to_ty(mangle_type(Example()), None)


# Autotuning


def _innermost(kernel: Any) -> Any:
    while not isinstance(kernel, (JITFunction, InterpretedFunction)):
        kernel = kernel.fn
    return kernel


# The run


@dataclass(frozen=True)
class _Interpreted:
    """A launch in Triton's interpreter, to be run once, or at every replay of a graph."""

    report: KernelReport
    function: Function
    arguments: Mapping[str, Any]
    way: _Way

    def run(self) -> None:
        """Interpret all programs, and tell what they did, as far as they came."""
        grid = self.report.grid
        tap = Tap(self.report.runtime.blocks(), self.report.stray, self.way.masked_lanes)
        try:
            interpret_programs(self.function, self.arguments, grid, range(math.prod(grid)), tap)
        finally:
            _tell(self.report, self.way.logs.add(tap.log), conflicts(tap.log), tap.log.sites)


@dataclass(slots=True)  # a frozen one costs more to make than to run a small kernel
class _Compiled:
    """A launch of machine code, to be run once, or at every replay of a graph."""

    report: KernelReport
    kernel: CompiledKernel
    arguments: bytes
    way: _Way

    def run(self) -> None:
        """Run all programs, and tell what they did, as far as they came."""
        report = self.report
        blocks = report.runtime.packed_blocks()
        result = self.kernel.launch(self.arguments, report.grid, blocks=blocks, masked_lanes=self.way.masked_lanes)
        _tell(report, self.way.logs.add(result), *result.conflicts())
        for lanes in result.stray_lanes():
            report.stray(lanes)
        if result.nan_count:
            report.nan(place_of(result.sites[result.nan_site]), result.nan_count)
        error = result.error()
        try:
            if error is not None:
                raise error
        finally:
            del error  # with this frame it would be a cycle, which keeps the variables of the program


def _tell(
    report: KernelReport, touched: tuple[KernelRanges, KernelRanges], found: Iterable[Conflict], sites: list[Site]
) -> None:
    """Tell the device what a launch read and wrote, and which of its programs were in conflict."""
    runtime = report.runtime
    operation = runtime.running
    assert operation is not None
    for write, ranges in enumerate(touched):
        if ranges:
            runtime.sink.access(operation.id, ranges, write=bool(write))
    for conflict in found:
        report.conflict(conflict, sites)
