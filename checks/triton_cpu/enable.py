"""Any program's Triton kernels, on the CPU.

Within ``enabled`` a launch whose tensors live in host memory runs compiled for the CPU, in the calling thread, before
the call returns; kernels need no change. Launches with tensors on a GPU go to Triton as ever.

What is checked, and its limits: each access of a kernel must lie in the storage of one of its tensor arguments; lanes
elsewhere are left out and reported (MRV212). A kernel that loads its pointers from memory, or makes them from integers,
may touch anything: its arguments do not tell, so its lanes are not checked, and a wrong pointer crashes the process.
Programs of one launch that touch the same bytes without leave are reported (MRV211), and NaNs that an argmax compares
(MRV310). A kernel that runs in the interpreter, because it cannot be compiled, is checked for the former two.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from ..errors import CheckError
from ..findings import Finding, Site
from ..hooks.kernel_conflicts import Conflict, conflicts
from ..hooks.kernel_log import StrayLanes
from ..hooks.masked_lanes import MaskedLanes, check_masked_lanes
from ..hooks.patching import Patches
from .autotune import run_first_config
from .errors import Unsupported, without_frames
from .fallback import interpret, notice
from .launcher import ANYWHERE, CompiledKernel
from .locks import ForkSafeLock
from .log import place_of
from .memory import Memory, on_cpu
from .prepared import prepared
from .report import LaunchReport
from .variants import Call, extents

Order: TypeAlias = Literal["forward", "reverse"] | int
Grid: TypeAlias = tuple[int, int, int]


@dataclass(eq=False)
class Session:
    """What ``enabled`` yields.

    Attributes:
        check: whether accesses are checked.
        order: of the programs: ascending, descending, or shuffled by a seed.
        masked_lanes: what lanes hold that a load without ``other`` masks off.
        findings: what was wrong with kernels so far, each kind of fault of each pair of lines once.
        interpreted: names of kernels that ran in Triton's interpreter, since they cannot be compiled for the CPU.
    """

    check: bool
    order: Order
    masked_lanes: MaskedLanes
    findings: list[Finding] = field(default_factory=list)
    interpreted: set[str] = field(default_factory=set)
    _seen: set[tuple[Any, ...]] = field(default_factory=set, repr=False)

    def launch(self, function: JITFunction, call: Call, grid: Grid) -> None:
        """Run all programs of a grid.

        Raises:
            ProgramError: an assertion failed, or a program does not end.
            KernelError: a program failed in the interpreter.
            NotRunnable: it can neither be compiled for the CPU nor be interpreted.
        """
        memory = Memory(function.arg_names, call.values) if self.check else None
        try:
            kernel = prepared(function).kernel(call, audit=self.check)
        except Unsupported as error:
            unsupported = without_frames(error)
        else:
            self._run(kernel, call, grid, memory)
            return
        prepared(function).check_interpretable(call, unsupported)
        notice(function, unsupported)
        self.interpreted.add(function.__name__)
        self._interpret(function, call, grid, memory)

    def numbers(self, programs: int) -> NDArray[np.int32] | None:
        """Of the programs, in the order to run them; None if that is ascending."""
        if self.order == "forward":
            return None
        ascending = np.arange(programs, dtype=np.int32)
        if self.order == "reverse":
            return np.ascontiguousarray(ascending[::-1])
        return np.random.default_rng(self.order).permutation(ascending)

    def _run(self, kernel: CompiledKernel, call: Call, grid: Grid, memory: Memory | None) -> None:
        blocks = ANYWHERE if memory is None or kernel.source.from_memory else memory.packed()
        order = self.numbers(grid[0] * grid[1] * grid[2])
        words, lanes = kernel.pack(call.words), self.masked_lanes
        result = kernel.launch(words, grid, blocks=blocks, order=order, masked_lanes=lanes)
        if memory is not None:
            report = LaunchReport(kernel.name, grid, memory)
            self._report(report, result.stray_lanes(), *result.conflicts())
            if result.nan_count:
                self._report_nan(report, place_of(result.sites[result.nan_site]), result.nan_count)
        error = result.error()
        try:
            if error is not None:
                raise error
        finally:
            del error  # with this frame it would be a cycle, which keeps the variables of the program

    def _interpret(self, function: JITFunction, call: Call, grid: Grid, memory: Memory | None) -> None:
        order = self.numbers(grid[0] * grid[1] * grid[2])
        numbers = None if order is None else order.tolist()
        blocks = memory.merged() if memory is not None and prepared(function).confined(call) else None
        lanes = self.masked_lanes
        log, strays = interpret(
            function, call.values, grid, check=self.check, blocks=blocks, order=numbers, masked_lanes=lanes
        )
        if memory is not None:
            self._report(LaunchReport(function.__name__, grid, memory), strays, conflicts(log), log.sites)

    def _report(self, report: LaunchReport, strays: list[StrayLanes], found: list[Conflict], sites: list[Site]) -> None:
        for stray in strays:
            if self._new("MRV212", stray.site, stray.kind):
                self.findings.append(report.stray(stray))
        for conflict in found:
            if self._new("MRV211", sites[conflict.earlier.site], sites[conflict.later.site], conflict.judged):
                self.findings.append(report.conflict(conflict, sites))

    def _report_nan(self, report: LaunchReport, site: Site, count: int) -> None:
        if self._new("MRV310", site):
            self.findings.append(report.nan(site, count))

    def _new(self, *fault: Any) -> bool:
        known = fault in self._seen
        self._seen.add(fault)
        return not known


# The sessions that are open: those of each thread, and of all threads


_lock = ForkSafeLock()
_open: list[Session] = []
_patches = Patches()
_mine = threading.local()


@contextlib.contextmanager
def enabled(*, check: bool = True, order: Order = "forward", masked_lanes: MaskedLanes = 0) -> Iterator[Session]:
    """Run Triton kernels on the CPU within this scope, in all threads; a thread's own scope comes before others'.

    Args:
        check: whether accesses are checked and conflicts found; without, kernels run up to twice as fast, and a wrong
            address crashes the process.
        order: of the programs of a grid: ``"forward"``, ``"reverse"``, or a seed that shuffles them.
        masked_lanes: byte that lanes hold that a load without ``other`` masks off, or a function that gives it for each
            such load of each launch by its line. A GPU promises nothing about them; zero is the interpreter's choice.

    Yields:
        The session; its ``findings`` grow as kernels run.

    Raises:
        CheckError: TRITON_INTERPRET is set, so kernels are not what Triton would compile; or an argument is not one of
            those above.
    """
    _check_arguments(check, order)
    check_masked_lanes(masked_lanes)
    if knobs.runtime.interpret:
        raise CheckError(
            subject="TRITON_INTERPRET",
            rule="it must not be set where kernels are compiled for the CPU",
            reason="it makes Triton itself interpret every kernel that is decorated while it is set",
            remedy="unset it before Triton and the kernels are imported",
        )
    session = Session(check, order, masked_lanes)
    own: list[Session] = _own()
    _enter(session)
    own.append(session)
    try:
        yield session
    finally:
        own.remove(session)
        _leave(session)


def _check_arguments(check: object, order: object) -> None:
    if not isinstance(check, bool):
        raise CheckError(
            subject=f"check={check!r}",
            rule="it must be True or False",
            reason="any other word would count as one of the two, perhaps not the one that was meant",
            remedy="enabled(check=False)",
        )
    seed = isinstance(order, int) and not isinstance(order, bool) and order >= 0
    if order not in ("forward", "reverse") and not seed:
        raise CheckError(
            subject=f"order={order!r}",
            rule="it must be 'forward', 'reverse', or a number, 0 or more, that shuffles",
            reason="programs of a grid run in the order that is asked for",
            remedy="enabled(order='reverse')",
        )


def _own() -> list[Session]:
    if not hasattr(_mine, "sessions"):
        _mine.sessions = []
    found: list[Session] = _mine.sessions
    return found


def _enter(session: Session) -> None:
    with _lock:
        if not _open:
            _install()
        _open.append(session)


def _leave(session: Session) -> None:
    with _lock:
        _open[:] = [other for other in _open if other is not session]
        if not _open:
            _patches.undo()


def _current() -> Session | None:
    own = _own() or _open
    return own[-1] if own else None


# The replacements


def _install() -> None:
    stock_run, stock_tune = JITFunction.run, Autotuner.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        session = _current()
        if session is None or not on_cpu((*args, *kwargs.values())):
            return stock_run(self, *args, grid=grid, warmup=warmup, **kwargs)
        return _launch(session, self, args, kwargs, grid, warmup)

    def tune(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _current() is None or not on_cpu((*args, *kwargs.values())):
            return stock_tune(self, *args, **kwargs)
        return run_first_config(self, args, kwargs)

    run.runs_on_cpu = True  # type: ignore[attr-defined]  # said to kernels that would interpret themselves
    _patches.set(JITFunction, "run", run)
    _patches.set(Autotuner, "run", tune)


def _launch(
    session: Session, function: JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, warmup: bool
) -> None:
    for hook in function.pre_run_hooks:
        hook(*args, **kwargs)
    kernel = prepared(function)
    call = kernel.bind(args, kwargs)
    if warmup:
        with contextlib.suppress(Unsupported):  # said when it is launched
            kernel.kernel(call, audit=session.check)
        return
    size = extents(grid(dict(zip(function.arg_names, call.values, strict=True))) if callable(grid) else grid)
    if 0 not in size:
        session.launch(function, call, size)
