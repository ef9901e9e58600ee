"""What a step spends its time on, by name: ranges that a profiler, Nsight Systems or a clock can see.

Nobody looks in production, so a range then costs a call and a shared empty context, about 0.1 µs. While a
``torch.profiler`` is active it is a ``record_function``; further observers are switched on with :func:`observed`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from types import TracebackType
from typing import Protocol

import torch
from torch.autograd import profiler

from .errors import ConfigurationError


class Phase(StrEnum):
    """The parts of a step; their values are the names in a trace. Where ranges nest, time is the innermost one's."""

    #: One turn of the engine's loop, around all others.
    STEP = "mrv2.step"
    #: Which requests advance, and what an output changes about that.
    SCHEDULER = "mrv2.scheduler"
    #: Rows taken and freed, blocks appended, counters advanced.
    STATE_UPDATE = "mrv2.state_update"
    #: What changed, packed into pinned memory, and its copy to the device.
    STAGING = "mrv2.staging"
    #: Kernels that scatter what was uploaded and gather the batch.
    INPUT_PREP = "mrv2.input_prep"
    #: The model, up to the logits.
    FORWARD = "mrv2.forward"
    #: From the logits to tokens and log-probabilities.
    SAMPLER = "mrv2.sampler"
    #: Drafts for the next step.
    DRAFTING = "mrv2.drafting"
    #: Copies to the host are enqueued, and what arrived becomes an output.
    DOWNLOAD = "mrv2.download"
    #: The host waits for the device.
    WAIT = "mrv2.wait"


class Observer(Protocol):
    """Is told of every range; calls nest, and come from whichever thread runs the step."""

    def begin(self, phase: Phase) -> None:
        """A range begins."""
        ...

    def end(self, phase: Phase) -> None:
        """The range that began last ends, also if by an exception."""
        ...


_observers: list[Observer] = []
_UNSEEN: AbstractContextManager[None] = nullcontext()


def phase(which: Phase) -> AbstractContextManager[object]:
    """The range of a phase; does nothing unless somebody looks."""
    if not _observers and not profiler._is_profiler_enabled:
        return _UNSEEN
    return _Range(which)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Scope in which an observer is told of every range in this process that begins in it."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


class _Range:
    """A range that somebody looks at; who does is settled when it begins."""

    def __init__(self, which: Phase) -> None:
        self._which = which
        self._told = tuple(_observers)
        self._recorded = profiler.record_function(which.value) if profiler._is_profiler_enabled else None

    def __enter__(self) -> None:
        if self._recorded is not None:
            self._recorded.__enter__()
        for observer in self._told:
            observer.begin(self._which)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for observer in reversed(self._told):
            observer.end(self._which)
        if self._recorded is not None:
            self._recorded.__exit__(kind, error, trace)


class HostClock:
    """The host's own time in each phase, without that of phases inside it; for one thread.

    Attributes:
        nanoseconds: by phase, summed over all ranges that have ended or were interrupted by an inner one.
        entries: ranges begun, by phase.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        """Start at zero.

        Args:
            now: the time in ns.
        """
        self.nanoseconds: Counter[Phase] = Counter()
        self.entries: Counter[Phase] = Counter()
        self._now = now
        self._open: list[Phase] = []
        self._since = 0

    def begin(self, phase: Phase) -> None:
        """The time up to now is the outer phase's."""
        self._charge()
        self.entries[phase] += 1
        self._open.append(phase)

    def end(self, phase: Phase) -> None:
        """The time since the last call is this phase's."""
        self._charge()
        self._open.pop()

    def _charge(self) -> None:
        now = self._now()
        if self._open:
            self.nanoseconds[self._open[-1]] += now - self._since
        self._since = now


class NvtxRanges:
    """Ranges that Nsight Systems shows, on the thread that runs the step."""

    def __init__(self) -> None:
        """Check that there is a CUDA device.

        Raises:
            ConfigurationError: there is none.
        """
        if not torch.cuda.is_available():
            raise ConfigurationError(
                "NvtxRanges",
                "NVTX ranges are made on a machine with CUDA",
                "a torch without CUDA has no NVTX, and Nsight Systems would have nothing to show",
                "torch.profiler, which sees the same phases on every machine",
            )

    def begin(self, phase: Phase) -> None:
        """Push a range."""
        torch.cuda.nvtx.range_push(phase.value)

    def end(self, phase: Phase) -> None:
        """Pop it."""
        torch.cuda.nvtx.range_pop()
