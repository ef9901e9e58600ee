"""Runs the launches of a case twice, interpreted and compiled, from the same memory, and compares all of it."""

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
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from mrv2.checks.hooks.patching import Patches
from mrv2.checks.triton_cpu.errors import Unsupported
from mrv2.checks.triton_cpu.launcher import CompiledKernel, compiled, pack_blocks
from mrv2.checks.triton_cpu.log import LaunchResult
from mrv2.checks.triton_cpu.variants import Binder

from .reference import completed, interpret


class Verdict(enum.Enum):
    """What came of a launch."""

    IDENTICAL = "identical"  # to the interpreter
    COMPLETED = "identical to the completed interpreter"
    NO_REFERENCE = "not interpreted"
    REFUSED = "refused"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Launch:
    """One launch, run twice.

    Attributes:
        kernel: its function's name.
        programs: size of the grid.
        detail: the tensors that differ, or the operation that was refused or cannot be interpreted.
        changed: whether the interpreter changed any byte: a launch that does nothing shows nothing.
        seconds: of the interpreter and of the compiled launch; the second includes no build.
    """

    kernel: str
    programs: int
    verdict: Verdict
    detail: str
    changed: bool
    seconds: tuple[float, float]


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
    """Replaces the launch of every kernel by two, interpreted and compiled.

    Memory keeps what the interpreter made of it, so a difference does not spoil the launches after it.

    Args:
        reverse: run the programs of compiled launches in descending order.
    """

    def __init__(self, *, reverse: bool = False) -> None:
        self.launches: list[Launch] = []
        self._reverse = reverse

    @contextlib.contextmanager
    def watching(self, reached: list[torch.Tensor]) -> Iterator[None]:
        """Within this scope launches are compared.

        Args:
            reached: tensors besides the arguments that launches may change; may grow meanwhile.
        """
        patches = Patches()

        def run(kernel: JITFunction, /, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            self.launches.append(_Twice(kernel, grid, args, kwargs, reached, self._reverse).run())

        patches.set(JITFunction, "run", run)
        patches.set(Autotuner, "run", _run_first_configuration)
        try:
            yield
        finally:
            patches.undo()


def _run_first_configuration(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    return tuner.fn.run(*args, **kwargs, **tuner.configs[0].all_kwargs())


class _Twice:
    """One launch, to be run in both ways."""

    def __init__(
        self,
        kernel: JITFunction,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reached: Iterable[torch.Tensor],
        reverse: bool,
    ) -> None:
        self._kernel, self._args, self._kwargs = kernel, args, kwargs
        extents = grid(dict(zip(kernel.arg_names, args, strict=False)) | kwargs) if callable(grid) else grid
        self._grid = (*map(int, extents), 1, 1)[:3]
        self._tensors = [*tensors_in(args), *tensors_in(tuple(kwargs.values())), *reached]
        self._memory = Memory(self._tensors)
        self._reverse = reverse

    def run(self) -> Launch:
        """Interpret, restore memory, run compiled, compare."""
        start = time.perf_counter()
        verdict, why = self._interpret()
        interpreted, reference = time.perf_counter() - start, self._memory.take()
        self._memory.restore()
        try:
            kernel, words = self._build()
        except Unsupported as error:
            self._memory.become(reference)
            return self._launch(Verdict.REFUSED, str(error), reference, (interpreted, 0.0))
        start = time.perf_counter()
        result = self._run(kernel, words)
        seconds = (interpreted, time.perf_counter() - start)
        wrong = _wrong(result) or ("" if verdict is Verdict.NO_REFERENCE else self._memory.difference(reference))
        if verdict is not Verdict.NO_REFERENCE:
            self._memory.become(reference)
        return self._launch(Verdict.DIFFERENT if wrong else verdict, wrong or why, reference, seconds)

    def _interpret(self) -> tuple[Verdict, str]:
        launch = self._kernel, self._grid, self._args, self._kwargs
        try:
            interpret(*launch)
        except interpreter.InterpreterError as stock:
            self._memory.restore()
            try:
                with completed(self._kernel):
                    interpret(*launch)
            except interpreter.InterpreterError as error:
                self._memory.restore()
                return Verdict.NO_REFERENCE, str(error)
            return Verdict.COMPLETED, str(stock)
        return Verdict.IDENTICAL, ""

    def _build(self) -> tuple[CompiledKernel, list[Any]]:
        binder = Binder(self._kernel)
        call = binder.bind(self._args, self._kwargs)
        return compiled(binder.variant(call), truncate_bf16=True), call.words

    def _run(self, kernel: CompiledKernel, words: list[Any]) -> LaunchResult:
        storages = (tensor.untyped_storage() for tensor in self._tensors)
        blocks = pack_blocks((storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages)
        programs = math.prod(self._grid)
        order = np.arange(programs, dtype=np.int32)[::-1].copy() if self._reverse else None
        return kernel.launch(kernel.pack(words), self._grid, blocks=blocks, order=order)

    def _launch(self, verdict: Verdict, detail: str, reference: list[bytes], seconds: tuple[float, float]) -> Launch:
        changed = self._memory.bytes != reference
        return Launch(self._kernel.__name__, math.prod(self._grid), verdict, detail, changed, seconds)


def _wrong(result: LaunchResult) -> str:
    """What a launch reports that no kernel of the test should do."""
    error = result.error()
    if error is not None:
        return str(error)
    if len(result.strays):
        stray = result.strays[0]
        return f"{len(result.strays)} strays, the first at site {result.kernel_sites()[stray['site']]}"
    conflicts = result.conflicts()
    return f"{len(conflicts)} conflicts between programs: {conflicts[0]}" if conflicts else ""
