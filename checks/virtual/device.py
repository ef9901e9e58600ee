"""``virtual_device``: the way in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ..events import EventSink
from ..findings import Finding
from .install import installed
from .memory import POISON
from .runtime import Runtime
from .schedules import Schedule, Scheduler, start_scheduler


class VirtualDevice:
    """An open virtual device.

    Attributes:
        runtime: the machinery, for hooks and frontends.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @property
    def findings(self) -> list[Finding]:
        """What has been found so far, in an order that does not depend on the schedule."""
        with self.runtime.lock:
            if self.runtime.active:
                self.runtime.memory.settle()
            found: list[Finding] = getattr(self.runtime.sink, "findings", [])
        return list(found)

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
    poison: int = POISON,
    sink: EventSink | None = None,
    hooks: tuple[Callable[[Runtime], Callable[[], None]], ...] = (),
) -> Iterator[VirtualDevice]:
    """Run code that says ``device="cuda"`` on a virtual asynchronous device.

    Args:
        schedule: when the device runs what; see :mod:`mrv2.checks.virtual.schedules`.
        seed: of the schedule.
        trace: file to write the events to, as JSON lines.
        poison: byte that memory holds before it is written; a program whose result depends on it reads
            uninitialised memory.
        sink: judges the events, in the place of the happens-before checker.
        hooks: installers beyond the standard ones, each of which returns its undo.

    Raises:
        VirtualDeviceError: a virtual device is open already.
    """
    scheduler = start_scheduler(schedule, seed)
    if sink is None:
        from ..happens_before.core import HappensBefore

        sink = HappensBefore()
    runtime = Runtime(sink, scheduler, poison=poison)
    with installed(runtime, (*_standard_hooks(), *hooks)):
        yield VirtualDevice(runtime)


def _standard_hooks() -> tuple[Callable[[Runtime], Callable[[], None]], ...]:
    """What watches the program beside torch itself; imported late, since Triton is heavy."""
    from ..hooks import numpy_alias, triton_launch

    return numpy_alias.install, triton_launch.install
