"""A program run once under one schedule, with everything there is to know about it afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from ..events import EventSink
from ..findings import Finding, Site
from ..happens_before.core import HappensBefore
from ..hooks.masked_lanes import MaskedLanes
from ..libraries import portable_path
from .arguments import check_streams_named, checked_answers
from .device import virtual_device
from .memory import POISON, Poison
from .outcomes import first_difference
from .runtime import Runtime
from .schedules import Decision, Recorder, Schedule, Scheduler
from .stacks import calls_program, raised_stack
from .transcript import Note, Transcript

#: Code that says ``device="cuda"``; what it returns is its data.
Program: TypeAlias = Callable[[], object]

#: Characters of a value in a sentence; it may be a tensor as text, or a long message.
_SHOWN = 200


@dataclass(frozen=True)
class Run:
    """One run of a program.

    Attributes:
        schedule: when the device ran what.
        data: what the program returned, as plain values; None if it raised.
        error: type and message of what the program raised, if it did.
        findings: broken rules; files are named from their outermost package on.
        streams: how many streams the program used, the default stream included.
        recorder: noted the schedule.
        raised_at: the places of the program that the error came through, innermost first.
    """

    schedule: Schedule
    data: object
    error: str | None
    findings: tuple[Finding, ...]
    streams: int
    recorder: Recorder = dataclasses.field(repr=False, compare=False)
    raised_at: tuple[Site, ...] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def ending(self) -> str | None:
        """The error with its places, e.g. ``"KeyError: 'x', at demo.py:3 (load), called at demo.py:9 (main)"``."""
        places = [f"{site.file}:{site.line} ({site.function})" for site in self.raised_at]
        at = f", at {', called at '.join(places)}" if places else ""
        return None if self.error is None else f"{self.error}{at}"

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The same schedule as deviations from ``late``; as many as there were operations that nothing forced."""
        return self.recorder.decisions()

    def same_outcome(self, other: Run) -> bool:
        """Whether data and error are the same; NaN equals itself here."""
        return repr((self.data, self.error)) == repr((other.data, other.error))

    def difference(self, other: Run) -> str:
        """Where data or error first differ, e.g. ``"result[2]: 1.0, and in the other run 0.0"``; empty if nowhere."""
        if self.same_outcome(other):
            return ""
        path, own, others = first_difference(self, other)
        return f"{path}: {_cut(own)}, and in the other run {_cut(others)}"


def run_program(
    program: Program,
    schedule: Schedule | str = "late",
    *,
    note: Note | None = None,
    judge: EventSink | None = None,
    scheduler: Scheduler | None = None,
    poison: Poison = POISON,
    masked_lanes: MaskedLanes = 0,
    hooks: tuple[Callable[[Runtime], Callable[[], None]], ...] = (),
) -> Run:
    """Run a program on a virtual device of its own.

    Args:
        program: is called once. Tensors that it returns are read when it returns, device tensors through a download;
            state that it keeps between calls makes its runs incomparable.
        schedule: when the device runs what. As text it was written by somebody, for this program, so each stream that
            it names must exist; a Schedule may be drawn, or of another program: what it says of further streams does
            nothing.
        note: is called with each entry of the run's transcript.
        judge: the sink; by default the happens-before checker.
        scheduler: decides in the place of the schedule's own.
        poison: what fresh memory holds.
        masked_lanes: what lanes of kernels hold that a load without ``other`` masks off.
        hooks: installers beyond the standard ones, each of which returns its undo.

    Raises:
        KeyboardInterrupt: from the program, too; whatever else it ends with is its outcome.
        VirtualDeviceError: the text of the schedule is none, or names a stream that a program which came to its end
            never made.
    """
    chosen = Schedule.parse(schedule) if isinstance(schedule, str) else schedule
    recorder = Recorder(chosen.scheduler() if scheduler is None else checked_answers(scheduler))
    sink = judge or HappensBefore()
    transcript = Transcript(sink, note) if note else None
    data: object = None
    error: str | None = None
    raised_at: tuple[Site, ...] = ()
    watching = (transcript.observe,) if transcript else ()
    told, watched = transcript or sink, (*watching, *hooks)
    opened = virtual_device(recorder, chosen.seed, sink=told, poison=poison, hooks=watched, masked_lanes=masked_lanes)
    with opened as device:
        try:
            data = _call(program)
        except KeyboardInterrupt:  # somebody at the terminal, as far as anyone can tell
            raise
        # SystemExit and its like too: they end the program, and must not end whoever judges it.
        except BaseException as raised:  # noqa: BLE001 - what wrong data makes a program raise is its outcome
            error = f"{type(raised).__name__}: {raised}"
            raised_at = tuple(Site(portable_path(file), line, name) for file, line, name in raised_stack(raised))
    if isinstance(schedule, str) and error is None:
        check_streams_named(chosen, device.runtime.streams.made)
    findings, streams = tuple(device.findings), len(device.runtime.streams.queues)
    return Run(chosen, data, error, findings, streams, recorder, raised_at)


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@calls_program
def _call(program: Program) -> object:
    return plain(program())


def plain(value: Any) -> object:
    """What a program returned, as values that can be compared and printed; reads tensors, now."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value
