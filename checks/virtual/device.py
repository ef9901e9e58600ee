"""``virtual_device``: the way in."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from torch import Tensor

from ..events import EventSink
from ..findings import Finding
from ..happens_before.core import HappensBefore
from ..happens_before.recording import Tee
from ..happens_before.trace import TraceWriter
from ..hooks.masked_lanes import MaskedLanes, check_masked_lanes
from ..libraries import portable
from .arguments import (
    Hook,
    check_kernels,
    check_sink,
    check_streams_named,
    check_trace,
    checked_hooks,
    checked_poison,
    checked_scheduler,
)
from .install import installed
from .memory import POISON, Poison
from .runtime import Runtime
from .schedules import Schedule, Scheduler
from .streams import active_runtime
from .tensor import DeviceTensor


class VirtualDevice:
    """An open virtual device.

    Attributes:
        runtime: the machinery, for hooks and frontends.
    """

    def __init__(self, runtime: Runtime, judge: EventSink) -> None:
        self.runtime = runtime
        self._judge = judge

    @property
    def findings(self) -> list[Finding]:
        """What has been found so far, in an order that does not depend on the schedule.

        Files are named from their outermost package on, so that fingerprints are the same on every machine.
        """
        with self.runtime.lock:
            if self.runtime.active:
                self.runtime.memory.settle()
            found: list[Finding] = getattr(self._judge, "findings", [])
        return [portable(finding) for finding in found]

    def step(self, number: int | None) -> None:
        """Say which step of the runner begins; every event from now on carries its number."""
        self.runtime.step = number

    @contextlib.contextmanager
    def at_step(self, number: int) -> Iterator[None]:
        """The same for a block of code."""
        outer = self.runtime.step
        self.runtime.step = number
        try:
            yield
        finally:
            self.runtime.step = outer


@contextlib.contextmanager
def virtual_device(
    schedule: str | Schedule | Scheduler = "late",
    seed: int = 0,
    *,
    trace: Path | str | None = None,
    poison: Poison = POISON,
    sink: EventSink | None = None,
    hooks: tuple[Hook, ...] = (),
    kernels: Literal["compiled", "interpreted"] = "compiled",
    masked_lanes: MaskedLanes = 0,
) -> Iterator[VirtualDevice]:
    """Run code that says ``device="cuda"`` on a virtual asynchronous device.

    Args:
        schedule: when the device runs what; see :mod:`mrv2.checks.virtual.schedules`.
        seed: of the schedule.
        trace: file to write the events to, as JSON lines.
        poison: byte that memory holds before it is written, or a function that gives it for each allocation by its
            number; see :mod:`mrv2.checks.virtual.uninitialised`.
        sink: judges the events, in the place of the happens-before checker.
        hooks: installers beyond the standard ones, each of which returns its undo.
        kernels: how Triton kernels run: compiled for the CPU, all but those that cannot be, or all in Triton's
            interpreter, which is hundreds of times slower and the reference.
        masked_lanes: byte that a kernel's lanes hold that a load without ``other`` masks off, or a function that gives
            it for each such load of each launch by its line, asked as the launch runs. By default they are zero, as in
            Triton's interpreter; a GPU promises nothing, so any byte is as right, and ``poison``'s shows who uses them.

    Raises:
        CheckError: a virtual device is open already, there is no such schedule, the trace cannot be written, or
            another argument is not one of those above; at the end, that the schedule names a stream (``starve:N``,
            ``late+3=N``) which the program never made.
    """
    check_masked_lanes(masked_lanes)
    check_kernels(kernels)
    check_sink(sink)
    check_trace(trace)
    installers = checked_hooks(hooks)
    judge = HappensBefore() if sink is None else sink
    with contextlib.ExitStack() as stack:
        told = judge if trace is None else Tee(judge, stack.enter_context(TraceWriter(Path(trace))))
        runtime = Runtime(told, checked_scheduler(schedule, seed), poison=checked_poison(poison))
        stack.enter_context(installed(runtime, (*_standard_hooks(kernels == "compiled", masked_lanes), *installers)))
        yield VirtualDevice(runtime, judge)
    check_streams_named(schedule, runtime.streams.made)


def _standard_hooks(compiled: bool, masked_lanes: MaskedLanes) -> tuple[Hook, ...]:
    """What watches the program beside torch itself; imported late, since Triton is heavy."""
    from ..hooks import numpy_alias, snapshots, threads

    hooks: tuple[Hook, ...] = (threads.install, numpy_alias.install, snapshots.install)
    if importlib.util.find_spec("triton") is None:
        return hooks
    from ..hooks import triton_launch

    return (*hooks, functools.partial(triton_launch.install, compiled=compiled, masked_lanes=masked_lanes))


def uva_view(tensor: Tensor) -> DeviceTensor:
    """A device tensor over the bytes of a pinned host tensor, as a UVA helper of an engine makes it.

    It keeps the host tensor alive. The twin of such a helper::

        register_op("_C::get_cuda_view_from_cpu_tensor", uva_view, reads=(), writes=())

    Raises:
        VirtualDeviceError: the tensor is not pinned, or no virtual device is open.
    """
    return active_runtime("a view of pinned memory").copies.uva_view(tensor)
