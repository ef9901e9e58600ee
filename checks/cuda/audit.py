"""Waits, bounds on memory and races of one run on a real CUDA device: the trap and the recorder, side by side.

with cuda_audit(read_settings(Path("pyproject.toml")), races=True) as audit:
run_the_program()
audit.waits, audit.races
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from ..events import EventSink
from ..findings import Finding
from ..sync.memory import MemoryWatch
from ..sync.settings import Settings
from ..sync.watch import Watch
from .device import CudaDevice, Device
from .memory_account import Allocator, CachingAllocator, CudaAccount
from .recorder import RaceRecorder, race_recorder
from .sync_trap import CudaTrap, cuda_sync_trap, require_cuda


@dataclass
class CudaAudit:
    """What watches a program on CUDA.

    Attributes:
        allocator: of the device.
        trap: of waits; None if they are not looked for.
        memory: judges bounds on memory.
        recorder: of races; None if they are not looked for.
        number: of the runner's step.
    """

    allocator: Allocator
    trap: CudaTrap | None
    memory: MemoryWatch
    recorder: RaceRecorder | None
    number: int | None = None

    def __post_init__(self) -> None:
        self._given = self.allocator.figures()[1]

    def step(self, number: int | None) -> None:
        """Say which step of the runner begins; what is found from now on carries its number."""
        self.number = number
        if self.trap is not None:
            self.trap.step = number
        if self.recorder is not None:
            self.recorder.step(number)

    @property
    def allocated(self) -> int:
        """Bytes of the device that the program was given meanwhile, also if it has given them back."""
        return self.allocator.figures()[1] - self._given

    @property
    def watch(self) -> Watch | None:
        """What knows of hot paths."""
        return None if self.trap is None else self.trap.watch

    @property
    def waits(self) -> list[Finding]:
        """Waits in hot paths, and regions that took too much memory; those in captures the recorder tells, if any."""
        if self.trap is None:
            return self.memory.findings
        waits = self.trap.findings if self.recorder is None else self.trap.watch.findings
        return [*waits, *self.memory.findings]

    @property
    def races(self) -> list[Finding]:
        """Races, and what else the recorder finds."""
        return [] if self.recorder is None else self.recorder.findings

    @property
    def unseen(self) -> Mapping[str, int]:
        """Kernels whose accesses were not judged, and how often they were launched."""
        return {} if self.recorder is None else self.recorder.unseen


@contextlib.contextmanager
def cuda_audit(
    settings: Settings | None = None, *, waits: bool = True, races: bool = False, sink: EventSink | None = None
) -> Iterator[CudaAudit]:
    """Watch what runs on CUDA meanwhile.

    Beside the recorder, which takes time in each call, the trap tells of no wait that only its time would show (MRV108,
    and MRV102 of small pageable uploads).

    Args:
        settings: hot paths, allowances and bounds on memory named from outside; those in code need none.
        waits: whether to look for waits in hot paths, and to judge bounds on memory.
        races: whether to look for races, at the price of an audit run.
        sink: judges what the recorder tells, in the place of the happens-before checker.

    Raises:
        CheckError: there is no CUDA device, or another watch is open.
        HotPathError: a name in the settings names nothing.
        NativeWarningsError: this build of torch hides waits of C++ operators.
    """
    require_cuda("cuda_audit")
    bounds = settings.memory if settings is not None and waits else ()
    with contextlib.ExitStack() as stack:
        device = cast("Device", _Timeless(CudaDevice())) if races else CudaDevice()
        trap = stack.enter_context(cuda_sync_trap(settings, device=device)) if waits else None
        memory = stack.enter_context(MemoryWatch(bounds))
        recorder = stack.enter_context(race_recorder(sink=sink)) if races else None
        audit = CudaAudit(CachingAllocator(torch.cuda.current_device()), trap, memory, recorder)
        if waits:
            stack.callback(memory.attach(CudaAccount(audit.allocator, lambda: audit.number)))
        yield audit


class _Timeless:
    """A device of which no time is known: what a call takes under a recorder says nothing of the device.

    It is never asked how far it has come either, for the recorder would take that for a poll of the program's.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def now_ns(self) -> int:
        """No time passes."""
        return 0

    def busy(self) -> bool:
        """Nobody knows."""
        return False
