"""Launches of Triton kernels: put on the stream like any other operation, interpreted when their turn comes.

What a kernel touches is known only when it runs: exact bytes of every lane that is not masked off. They are told then,
and with them what the kernel itself did wrong: lanes outside of all memory, and programs that conflict.

A pinned host tensor is a legal argument, as on a real GPU, which reads it in place; pageable memory is refused. The
addresses and numbers of the arguments are taken at the launch, and no tensor is kept: what the program drops while the
launch is pending is dropped.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, mangle_type
from triton.tools.tensor_descriptor import TensorDescriptor

from ..events import OperationKind
from ..libraries import is_library, portable_path
from .kernel_conflicts import conflicts
from .kernel_findings import KernelReport
from .kernel_log import KernelLog
from .patching import Patches
from .runtime import Block, Runtime
from .triton_language import Function, interpreted_language, rewritten
from .triton_tap import Tap


def install(runtime: Runtime) -> Callable[[], None]:
    """Send the launches of all Triton kernels to a device; returns the undo.

    Launches that Triton would interpret anyway (``TRITON_INTERPRET``) and that have only plain CPU tensors stay with
    Triton.
    """
    patches = Patches()
    interpreted_run, autotuned_run = InterpretedFunction.run, Autotuner.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if not warmup:
            _launch(runtime, self, grid, args, kwargs)

    def run_interpreted(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if _plain(runtime, args, kwargs):
            interpreted_run(self, *args, grid=grid, warmup=warmup, **kwargs)
        else:
            run(self, *args, grid=grid, warmup=warmup, **kwargs)

    def run_autotuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(_innermost(self), InterpretedFunction) and _plain(runtime, args, kwargs):
            return autotuned_run(self, *args, **kwargs)
        return _run_first_config(self, args, kwargs)

    patches.set(JITFunction, "run", run)
    patches.set(InterpretedFunction, "run", run_interpreted)
    patches.set(Autotuner, "run", run_autotuned)
    return patches.undo


# The launch


def _launch(runtime: Runtime, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    signature = _signature(kernel.fn)
    bound = signature.bind(args, kwargs)
    values = bound.arguments
    size = tuple(int(extent) for extent in (grid(dict(values)) if callable(grid) else grid))
    with torch._C.DisableTorchFunction():
        blocks = _blocks(runtime, values, signature.constexprs)
        values.update({name: _converted(value) for name, value in values.items() if name not in signature.constexprs})
    x, y, z = size + (1,) * (3 - len(size))
    if x * y * z > 0:
        report = KernelReport(runtime, f"triton:{kernel.__name__}", (x, y, z), blocks)
        launch = _Launch(report, rewritten(kernel.fn), bound)
        runtime.enqueue(report.name, OperationKind.KERNEL, launch.run, open=True, blocks=blocks)


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


def _blocks(runtime: Runtime, values: Mapping[str, Any], constexprs: frozenset[str]) -> list[Block]:
    """The memory that the arguments point into.

    Raises:
        ValueError: a GPU could not follow a pointer; in Triton's own words.
    """
    found: dict[int, Block] = {}
    for index, (name, value) in enumerate(values.items()):
        for pointer in () if name in constexprs else _pointers(value):
            block = _target(runtime, pointer)
            if block is not None:
                found[block.base] = block
            elif pointer.data_ptr():
                raise ValueError(f"Pointer argument (at {index}) cannot be accessed from Triton (cpu tensor?)")
    return list(found.values())


def _pointers(value: Any) -> Iterator[Any]:
    """The tensors in an argument, or what Triton takes for one."""
    if hasattr(value, "data_ptr"):
        yield value
    elif isinstance(value, TensorDescriptor):
        yield value.base
    elif isinstance(value, tuple):
        yield from itertools.chain.from_iterable(map(_pointers, value))


def _target(runtime: Runtime, pointer: Any) -> Block | None:
    """The block that a pointer points into; an empty tensor points to nothing."""
    address = pointer.data_ptr()
    return runtime.find_block(address) if address else None


def _plain(runtime: Runtime, args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a launch has tensors, and all of them are in plain host memory."""
    with torch._C.DisableTorchFunction():
        pointers = [item for value in (*args, *kwargs.values()) for item in _pointers(value) if item.data_ptr()]
        return bool(pointers) and all(_target(runtime, pointer) is None for pointer in pointers)


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


def _run_first_config(tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch with the first configuration that the kernel's own pruning leaves; timing them would mean nothing."""
    named = dict(zip(tuner.arg_names, args, strict=False))
    configs = tuner.configs
    if len(configs) > 1 and tuner.early_config_prune is not None:
        configs = tuner.early_config_prune(configs, named, **kwargs)
    config = tuner.best_config = configs[0]
    if config.pre_hook is not None:
        config.pre_hook({**named, **kwargs, **config.all_kwargs()})
    return tuner.fn.run(*args, **kwargs, **config.all_kwargs())


# The run


class KernelError(RuntimeError):
    """A program of a kernel failed; says which, and in which line of the kernel."""

    def __init__(self, error: Exception, program: tuple[int, ...]) -> None:
        lines = traceback.extract_tb(error.__traceback__)
        own = [line for line in lines if not is_library(line.filename)]
        place = f"{portable_path(own[-1].filename)}:{own[-1].lineno}" if own else "an unknown line"
        super().__init__(f"{type(error).__name__} in program {program} at {place}: {error}")


@dataclass(frozen=True)
class _Launch:
    """One launch, to be run once, or at every replay of a graph."""

    report: KernelReport
    function: Function
    arguments: inspect.BoundArguments

    def run(self) -> None:
        """Interpret all programs, and tell what they did, as far as they came."""
        tap = Tap(self.report.runtime.blocks(), self.report.stray)
        try:
            self._interpret(tap)
        finally:
            self._tell(tap.log)

    def _interpret(self, tap: Tap) -> None:
        builder, grid = interpreter.interpreter_builder, self.report.grid
        args, kwargs = self.arguments.args, self.arguments.kwargs
        with interpreted_language(), tap.attached():
            builder.set_grid_dim(*grid)
            for number, index in enumerate(itertools.product(*map(range, grid))):
                builder.set_grid_idx(*index)
                tap.begin(number)
                try:
                    self.function(*args, **kwargs)
                except Exception as error:
                    raise KernelError(error, index) from error

    def _tell(self, log: KernelLog) -> None:
        runtime = self.report.runtime
        operation = runtime.running
        assert operation is not None
        for write in (False, True):
            ranges = log.ranges(write=write)
            if ranges:
                runtime.sink.access(operation.id, ranges, write=write)
        for conflict in conflicts(log):
            self.report.conflict(conflict, log.sites)
