"""Waits, bounds on memory and races of one run on a real CUDA device: the trap and the recorder, side by side.

with cuda_audit(read_settings(Path("pyproject.toml")), races=True) as audit:
run_the_program()
audit.waits, audit.races
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from ..findings import Finding
from ..sync.memory import MemoryWatch
from ..sync.settings import Settings
from ..sync.watch import Watch
from .device import CudaDevice, Device
from .memory_account import CachingAllocator, CudaAccount
from .recorder import RaceRecorder, race_recorder
from .sync_trap import CudaTrap, cuda_sync_trap, require_cuda


@dataclass(frozen=True)
class CudaAudit:
    """What watches a program on CUDA.

    Attributes:
        trap: of waits; None if they are not looked for.
        memory: judges bounds on memory.
        recorder: of races; None if they are not looked for.
    """

    trap: CudaTrap | None
    memory: MemoryWatch
    recorder: RaceRecorder | None

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
def cuda_audit(settings: Settings | None = None, *, waits: bool = True, races: bool = False) -> Iterator[CudaAudit]:
    """Watch what runs on CUDA meanwhile.

    Beside the recorder, which takes time in each call, the trap tells of no wait that only its time would show (MRV108,
    and MRV102 of small pageable uploads).

    Args:
        settings: hot paths, allowances and bounds on memory named from outside; those in code need none.
        waits: whether to look for waits in hot paths, and to judge bounds on memory.
        races: whether to look for races, at the price of an audit run.

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
        recorder = stack.enter_context(race_recorder()) if races else None
        if waits:
            account = CudaAccount(CachingAllocator(torch.cuda.current_device()), _step_of(recorder))
            stack.callback(memory.attach(account))
        yield CudaAudit(trap, memory, recorder)


def _step_of(recorder: RaceRecorder | None) -> Callable[[], int | None]:
    return lambda: None if recorder is None else recorder.runtime.step


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
