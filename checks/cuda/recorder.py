"""``race_recorder``: races of a program on a real CUDA device, by happens-before and not by luck."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import CheckError
from ..events import EventSink
from ..findings import Finding
from ..happens_before.core import HappensBefore
from ..happens_before.recording import Tee
from ..happens_before.trace import TraceWriter
from ..hooks import numpy_alias, threads
from ..libraries import portable
from ..virtual.streams import is_active
from . import recorder_graphs, recorder_order, recorder_patches
from .backend import Backend, Cuda
from .recorder_operators import Operators, RecordingMode
from .recorder_runtime import CudaRuntime
from .stretch import Pace, Serial, Stretch, StretchedRace, value_of

if TYPE_CHECKING:
    from .recorder_triton import Declared

Part = Callable[[CudaRuntime], Callable[[], Any]]
_open: list[CudaRuntime] = []


class RaceRecorder:
    """An open recorder.

    Attributes:
        runtime: the machinery.
    """

    def __init__(self, runtime: CudaRuntime, judge: EventSink) -> None:
        self.runtime = runtime
        self._judge = judge

    @property
    def findings(self) -> list[Finding]:
        """What has been found so far, named as on every machine; the same as the virtual device gives."""
        with self.runtime.lock:
            self.runtime.sink.flush()
            found: list[Finding] = getattr(self._judge, "findings", [])
        return [portable(finding) for finding in found]

    @property
    def unseen(self) -> Mapping[str, int]:
        """Kernels that went to addresses from memory, and how often: such accesses are not judged."""
        return dict(self.runtime.unseen)

    def step(self, number: int | None) -> None:
        """Say which step of the runner begins; every event from now on carries its number."""
        self.runtime.step = number


@contextlib.contextmanager
def race_recorder(
    *,
    trace: Path | str | None = None,
    sink: EventSink | None = None,
    pace: Pace | None = None,
    effects: Mapping[str, Declared] | None = None,
) -> Iterator[RaceRecorder]:
    """Record what a program asks of the current CUDA device, and judge it by happens-before.

    The program runs on the real device as it would without; what is found does not depend on how it happened to run.
    Judged are operators, copies, frees, Triton launches and graph replays of all threads that start inside, with host
    accesses through torch and numpy. Meant for audit runs: see the README of this folder for the price of each call.

    Args:
        trace: file to write the events to, as JSON lines.
        sink: judges the events, in the place of the happens-before checker.
        pace: when operations happen: ``Stretch`` makes predicted races happen, ``Serial`` none.
        effects: by the name of a Triton kernel, what says of its arguments by name which tensors it reads and writes
            beyond those that the arguments point to; for kernels that load addresses from memory.

    Raises:
        CheckError: there is no CUDA device, a virtual device or a recorder is open, or the trace cannot be written.
    """
    _check()
    backend = Cuda(torch.cuda.current_device())
    with recording(backend, trace=trace, sink=sink, pace=pace, effects=effects or {}) as recorder:
        yield recorder


def standard_parts(effects: Mapping[str, Declared]) -> tuple[Part, ...]:
    """What watches a program on a real device."""
    parts: tuple[Part, ...] = (
        recorder_order.install, recorder_patches.install, recorder_patches.install_streams, recorder_graphs.install,
        threads.install, numpy_alias.install,
    )  # fmt: skip
    if importlib.util.find_spec("triton") is None:
        return parts
    from . import recorder_triton  # imported late, since Triton is heavy

    return (*parts, functools.partial(recorder_triton.install, declared=effects))


@contextlib.contextmanager
def recording(
    backend: Backend,
    *,
    trace: Path | str | None = None,
    sink: EventSink | None = None,
    pace: Pace | None = None,
    effects: Mapping[str, Declared] | None = None,
    parts: tuple[Part, ...] | None = None,
) -> Iterator[RaceRecorder]:
    """A recorder of any backend: what :func:`race_recorder` is, without a look at whether there is a device.

    Args:
        backend: the device.
        trace, sink, pace, effects: as there.
        parts: installers, each of which returns its undo; the standard ones, if none are given.
    """
    judge = HappensBefore() if sink is None else sink
    with contextlib.ExitStack() as stack:
        told = judge if trace is None else Tee(judge, stack.enter_context(TraceWriter(Path(trace))))
        runtime = CudaRuntime(told, backend, pace)
        operators = Operators(runtime)
        runtime.thread_mode = lambda: RecordingMode(operators)
        _open.append(runtime)
        stack.callback(_open.clear)
        for install in standard_parts(effects or {}) if parts is None else parts:
            stack.callback(install(runtime))
        stack.enter_context(runtime.thread_mode())
        stack.callback(runtime.close)
        yield RaceRecorder(runtime, judge)
    if runtime.order.failure is not None:
        raise runtime.order.failure


def _check() -> None:
    if _open:
        raise CheckError(
            "race_recorder inside another",
            "one process has one recorder at a time",
            "both would be told of the same calls",
            "one block, or one after the other",
        )
    if is_active():
        raise CheckError(
            "race_recorder inside of virtual_device",
            "it records a real device",
            "a virtual device judges its program itself",
            "vd.findings of the virtual device, or no virtual device",
        )
    if not torch.cuda.is_available():
        raise CheckError(
            "race_recorder",
            "it needs a CUDA device, and torch.cuda.is_available() is False here",
            "it records what a program asks of a real device",
            "with virtual_device(): ..., which finds the same races without one",
        )


def stretched(program: Callable[[], object], findings: tuple[Finding, ...] | None = None) -> StretchedRace:
    """Make the races of a program happen: its data with the streams parked, and with nothing overtaking.

    Args:
        program: to be called two or three times; returns tensors or plain values.
        findings: races to make happen; those of a first run, if none are given.

    Raises:
        CheckError: as :func:`race_recorder`.
    """
    if findings is None:
        with race_recorder() as recorder:
            program()
        findings = tuple(recorder.findings)
    stretch = Stretch(findings)
    expected = _run(program, Serial())
    return StretchedRace(findings, expected, _run(program, stretch), stretch.parked)


def _run(program: Callable[[], object], pace: Pace) -> Any:
    with race_recorder(pace=pace):
        result = program()
    torch.cuda.synchronize()
    return value_of(result)
