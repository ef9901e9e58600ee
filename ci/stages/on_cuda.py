"""The stages "races" and "sync" on a real CUDA device: the same workload, once, in the order that the runner asks for.

What only a scheduler can show is not judged here: other orders, and memory that nobody wrote. What a race does to the
data is not needed either, since it is found by happens-before, however the device happens to run.
"""

from __future__ import annotations

from dataclasses import dataclass

from mrv2.checks.cuda.audit import CudaAudit, cuda_audit
from mrv2.checks.sync.settings import Settings
from mrv2.checks.virtual.stacks import calls_program
from mrv2.fuzz.programs import RunnerProgram

from .counting import Counting

#: The device, and what reports say in the place of a schedule: a GPU has one, and nobody to ask for another.
ON_CUDA = "cuda"


@dataclass(frozen=True)
class CudaRun:
    """A program that ran on a real device.

    Attributes:
        error: type and message of what it raised, if it did.
        audit: what watched it.
        counted: judged its races; it has seen nothing if they were not looked for.
    """

    error: str | None
    audit: CudaAudit
    counted: Counting


def run_on_cuda(program: RunnerProgram, settings: Settings, *, races: bool) -> CudaRun:
    """Run a program on this machine's GPU, and look for races, or else for waits.

    Not for both: beside the recorder no time is known, and some waits only show in it.

    Raises:
        CheckError: there is no CUDA device.
        HotPathError: a name in the settings names nothing.
    """
    counted, error = Counting(), None
    with cuda_audit(settings, waits=not races, races=races, sink=counted if races else None) as audit:
        program.number = audit.step
        try:
            _call(program)
        except Exception as raised:  # noqa: BLE001 - the target cannot be built there; a crash of its steps is traced
            error = f"{type(raised).__name__}: {raised}"
    return CudaRun(error, audit, counted)


@calls_program
def _call(program: RunnerProgram) -> None:
    program()
