"""Measures on a device which calls wait, and compares that with the table of rules and with what the trap reports.

A kernel is parked on the stream, and a call made behind it. The call has waited if the kernel is over when it returns;
what seems to have waited is tried again behind a longer kernel, since a slow host looks the same. Each call is made
twice before, so that no kernel is loaded and no library started then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from ..hot_path import hot_path
from ..sync.probes import FREE, WAITING, Call, make_bench
from .device import CudaDevice, Device
from .sync_trap import CudaTrap, cuda_sync_trap, require_cuda
from .sync_warnings import SyncWarnings

#: Lengths of the parked kernel.
PARKS_MS = (20.0, 80.0)
_SAMPLE_CYCLES = 20_000_000


@dataclass(frozen=True)
class Measured:
    """One call, measured.

    Attributes:
        name: of the probe.
        expected: whether it waits by the table of rules.
        waits: whether it waited here.
        warns: whether torch warned of it by itself.
        host_ms: how long the host was in the call, behind the last parked kernel.
        codes: of the findings that the trap reports of it.
    """

    name: str
    expected: bool
    waits: bool
    warns: bool
    host_ms: float
    codes: tuple[str, ...] = ()

    @property
    def as_in_table(self) -> bool:
        """Whether it does what the table of rules says."""
        return self.waits == self.expected

    @property
    def trapped(self) -> bool:
        """Whether the trap reports it if, and only if, it waits."""
        return self.waits == bool(self.codes)


class Park:
    """A kernel that keeps the current stream busy for a known time.

    Args:
        milliseconds: lengths that are tried.
    """

    def __init__(self, milliseconds: Iterable[float] = PARKS_MS) -> None:
        per_ms = _cycles_per_ms()
        self._cycles = [int(length * per_ms) for length in milliseconds]

    def behind(self, prepared: Callable[[], Callable[[], object]]) -> tuple[bool, float]:
        """Make a call behind the parked kernel.

        Args:
            prepared: makes what the call needs, and returns the call.

        Returns:
            whether it waited, and for how many milliseconds the host was in it.
        """
        took = 0.0
        for cycles in self._cycles:
            over, took = self._once(prepared(), cycles)
            if not over:
                return False, took
        return True, took

    def put(self) -> torch.cuda.Event:
        """Park a kernel of the first length; returns an event behind it."""
        return _parked(self._cycles[0])

    def _once(self, call: Callable[[], object], cycles: int) -> tuple[bool, float]:
        torch.cuda.synchronize()
        event = _parked(cycles)
        begin = time.perf_counter()
        kept = call()
        took = time.perf_counter() - begin
        over = bool(event.query())
        del kept
        torch.cuda.synchronize()
        return over, took * 1e3


def _parked(cycles: int) -> torch.cuda.Event:
    event = torch.cuda.Event()
    torch.cuda._sleep(cycles)
    event.record()
    return event


def _cycles_per_ms() -> float:
    """Clock cycles of ``torch.cuda._sleep`` in a millisecond."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000)
    begin.record()
    torch.cuda._sleep(_SAMPLE_CYCLES)
    end.record()
    end.synchronize()
    return float(_SAMPLE_CYCLES / max(begin.elapsed_time(end), 1e-6))


def calibrate(advance: Callable[[], None] = lambda: None, *, device: Device | None = None) -> list[Measured]:
    """Measure all probes on the current device; takes about half a minute on a GPU.

    Args:
        advance: called twice for each probe.
        device: what is measured; the CUDA devices of this machine by default.

    Raises:
        CheckError: there is no CUDA device.
    """
    if device is None:
        require_cuda("mrv2 doctor --calibrate")
        device = CudaDevice()
    park = Park()
    measured = []
    for one in _truth(park, device):
        measured.append(one)
        advance()
    with cuda_sync_trap(device=device) as trap:
        for name in (*WAITING, *FREE):
            run_trapped(park, name, prepare(_call(name)))
            advance()
        codes = codes_of(trap)
    return [replace(one, codes=codes.get(one.name, ())) for one in measured]


def prepare(call: Call) -> Callable[[], object]:
    """A probe on tensors of its own, with something in torch's cache that could be given back."""
    bench = make_bench()
    torch.empty(12 << 20, dtype=torch.uint8, device="cuda")
    return lambda: call(bench)


def run_trapped(park: Park, name: str, call: Callable[[], object]) -> None:
    """Make a call behind the parked kernel, in a hot path of some name; what it raises is the caller's affair."""
    torch.cuda.synchronize()
    park.put()
    with hot_path(name):
        kept = call()
    del kept
    torch.cuda.synchronize()


def codes_of(trap: CudaTrap) -> dict[str, tuple[str, ...]]:
    """The codes of the findings of each hot path, sorted; those of captures belong to none."""
    found: dict[str, set[str]] = {}
    for finding in trap.watch.findings:
        found.setdefault(str(finding.evidence["hot path"]), set()).add(finding.code)
    return {name: tuple(sorted(codes)) for name, codes in found.items()}


def _truth(park: Park, device: Device) -> Iterator[Measured]:
    warned: list[None] = []
    listener = SyncWarnings(lambda: warned.append(None), device.get_sync_mode, device.set_sync_mode)
    listener.arm()
    listener.begin()
    try:
        for name in (*WAITING, *FREE):
            call = _call(name)
            for _ in range(2):
                prepare(call)()
            prepared = prepare(call)
            warned.clear()
            prepared()
            warns = bool(warned)
            waits, took = park.behind(lambda call=call: prepare(call))  # type: ignore[misc]
            yield Measured(name, name in WAITING, waits, warns, round(took, 3))
    finally:
        listener.end()
        listener.disarm()


def _call(name: str) -> Call:
    return WAITING[name] if name in WAITING else FREE[name]
