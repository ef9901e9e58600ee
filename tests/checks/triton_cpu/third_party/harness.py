"""Runs the launches of a case interpreted and compiled, from the same memory, and compares all of it."""

from __future__ import annotations

import contextlib
import enum
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from triton.compiler import CompilationError
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from mrv2.checks.hooks.patching import Patches
from mrv2.checks.triton_cpu.autotune import run_first_config
from mrv2.checks.triton_cpu.errors import Unsupported
from mrv2.checks.triton_cpu.launcher import CompiledKernel, compiled, pack_blocks
from mrv2.checks.triton_cpu.log import LaunchResult
from mrv2.checks.triton_cpu.variants import Binder, extents

from .reference import completed, interpret


class Verdict(enum.Enum):
    """What came of a launch."""

    IDENTICAL = "identical"  # to the interpreter
    COMPLETED = "identical to the completed interpreter"
    NO_REFERENCE = "not interpreted"
    REFUSED = "refused"
    REJECTED = "rejected by Triton"  # its own front end does not compile it
    DIFFERENT = "different"


@dataclass(frozen=True)
class Launch:
    """What came of one launch.

    Attributes:
        module: that defines the kernel.
        kernel: its function's name.
        programs: size of the grid.
        verdict: in short.
        detail: the tensors that differ; the operation that was refused; why the stock interpreter is no reference.
        report: what the compiled launch reports: strays, conflicts between programs, a failed assertion.
        backward: what is different if the programs run in reverse order.
        changed: whether any byte was changed: a launch that does nothing shows nothing.
        speed_up: of the compiled launch, accesses checked and logged, over the interpreter; None if it did not run.
    """

    module: str
    kernel: str
    programs: int
    verdict: Verdict
    detail: str
    report: str
    backward: str
    changed: bool
    speed_up: float | None


class Memory:
    """The storages that a launch can reach, and their bytes at one time."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        self._views = [torch.empty(0, dtype=torch.uint8).set_(storage).numpy() for storage in storages.values()]
        self.bytes = self.take()

    def take(self) -> list[bytes]:
        """The bytes now."""
        return [view.tobytes() for view in self._views]

    def become(self, content: list[bytes]) -> None:
        """Write these bytes."""
        for view, octets in zip(self._views, content, strict=True):
            view[:] = np.frombuffer(octets, np.uint8)

    def restore(self) -> None:
        """Write the bytes of the beginning."""
        self.become(self.bytes)

    def difference(self, content: list[bytes]) -> str:
        """Which bytes are not these; empty if none."""
        for number, (view, octets) in enumerate(zip(self._views, content, strict=True)):
            where = np.flatnonzero(view != np.frombuffer(octets, np.uint8))
            if len(where):
                return f"{len(where)} of {len(view)} bytes of tensor {number} differ, from byte {where[0]} on"
        return ""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments: plain, in tuples, or as the base of a descriptor."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(getattr(value, "base", None), torch.Tensor):
        yield value.base


class Comparison:
    """Runs each launch of a kernel three times: interpreted, compiled, and compiled with its programs in reverse order.

    All begin with the same memory, which keeps what the interpreter made of it, so that a difference does not spoil the
    launches after it.
    """

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    @contextlib.contextmanager
    def watching(self, reached: list[torch.Tensor]) -> Iterator[None]:
        """Within this scope launches are compared.

        Args:
            reached: tensors besides the arguments that launches may change; may grow meanwhile.
        """
        patches = Patches()

        def run(kernel: JITFunction, /, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            self.launches.append(Thrice(kernel, grid, args, kwargs, reached).run())

        patches.set(JITFunction, "run", run)
        patches.set(Autotuner, "run", _run_first_configuration)
        try:
            yield
        finally:
            patches.undo()


def _run_first_configuration(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    return run_first_config(tuner, args, kwargs)


class Thrice:
    """One launch, to be run in all ways."""

    def __init__(
        self, kernel: JITFunction, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reached: Iterable[Any]
    ) -> None:
        self._kernel, self._args, self._kwargs = kernel, args, kwargs
        self._grid = extents(grid(dict(zip(kernel.arg_names, args, strict=False)) | kwargs) if callable(grid) else grid)
        self._tensors = [*tensors_in(args), *tensors_in(tuple(kwargs.values())), *reached]
        self._memory = Memory(self._tensors)
        self._reference = self._memory.bytes
        self._interpreted = self._compiled = 0.0

    def run(self) -> Launch:
        """Run it and compare."""
        start = time.perf_counter()
        verdict, why = self._interpret()
        self._interpreted = time.perf_counter() - start
        self._reference = self._memory.take()
        self._memory.restore()
        try:
            kernel, words = self._build()
        except Unsupported as error:
            return self._outcome(Verdict.REFUSED, str(error))
        except CompilationError as error:
            return self._outcome(Verdict.REJECTED, str(error).strip().rpartition("\n")[2])
        return self._judged(verdict, why, kernel, words)

    def _interpret(self) -> tuple[Verdict, str]:
        try:
            interpret(self._kernel, self._grid, self._args, self._kwargs)
        except interpreter.InterpreterError as stock:
            why = f"stock: {stock}"
            self._memory.restore()
            try:
                self._interpret_completed()
            except interpreter.InterpreterError as error:
                self._memory.restore()
                return Verdict.NO_REFERENCE, str(error)
            return Verdict.COMPLETED, why
        return Verdict.IDENTICAL, ""

    def _interpret_completed(self) -> None:
        with completed(self._kernel):
            interpret(self._kernel, self._grid, self._args, self._kwargs)

    def _build(self) -> tuple[CompiledKernel, list[Any]]:
        binder = Binder(self._kernel)
        call = binder.bind(self._args, self._kwargs)
        return compiled(binder.variant(call), truncate_bf16=True), call.words

    def _judged(self, verdict: Verdict, why: str, kernel: CompiledKernel, words: list[Any]) -> Launch:
        start = time.perf_counter()
        report = self._run(kernel, words, step=1)
        self._compiled = time.perf_counter() - start
        forward = self._memory.take()
        if verdict is Verdict.NO_REFERENCE:
            self._reference = forward
        verdict, why = self._compared(verdict, why, forward)
        self._memory.restore()
        backwards = self._run(kernel, words, step=-1)
        difference = self._memory.difference(forward)
        return self._outcome(verdict, why, report, difference or (backwards if backwards.startswith("error") else ""))

    def _compared(self, verdict: Verdict, why: str, forward: list[bytes]) -> tuple[Verdict, str]:
        difference = self._memory.difference(self._reference)
        if difference and verdict is Verdict.IDENTICAL:  # the interpreter may have run it wrong
            verdict, why = Verdict.COMPLETED, f"stock: {difference}"
            self._memory.restore()
            with contextlib.suppress(interpreter.InterpreterError):
                self._interpret_completed()
            self._reference = self._memory.take()
            self._memory.become(forward)
            difference = self._memory.difference(self._reference)
        return (Verdict.DIFFERENT, difference) if difference else (verdict, why)

    def _run(self, kernel: CompiledKernel, words: list[Any], *, step: int) -> str:
        """Run compiled; returns what the launch reports."""
        storages = (tensor.untyped_storage() for tensor in self._tensors)
        blocks = pack_blocks((storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages)
        order = np.ascontiguousarray(np.arange(math.prod(self._grid), dtype=np.int32)[::step])
        return _report(kernel.launch(kernel.pack(words), self._grid, blocks=blocks, order=order))

    def _outcome(self, verdict: Verdict, detail: str, report: str = "", backward: str = "") -> Launch:
        self._memory.become(self._reference)
        return Launch(
            self._kernel.fn.__module__,
            self._kernel.fn.__name__,
            math.prod(self._grid),
            verdict,
            detail,
            report,
            backward,
            self._memory.bytes != self._reference,
            self._interpreted / self._compiled if self._compiled else None,
        )


def _report(result: LaunchResult) -> str:
    """What a launch reports that no kernel of the test should do."""
    error = result.error()
    if error is not None:
        return f"error: {error}"
    strays = result.stray_lanes()
    if strays:
        return f"{len(strays)} strays, the first {strays[0]}"
    conflicts, lines = result.conflicts()
    pairs = {(lines[conflict.earlier.site].line, lines[conflict.later.site].line) for conflict in conflicts}
    return f"conflicts between the lines {sorted(pairs)}" if pairs else ""
