"""The cases of the fuzzer on a real device: compiled kernels, and streams that are held back where a schedule deviates.

On a GPU nobody decides which stream runs when, but a stream can be parked. Each deviation of a script's schedule parks
the current stream before the operation of that number, so what the program forgot to order overtakes it. The race
recorder judges the order, and the oracle what came out. What a kernel guided by data may read is only suspected there,
and left to the virtual device, which sees it.
"""

from __future__ import annotations

from collections.abc import Iterable

from mrv2.checks.cuda.backend import Backend
from mrv2.checks.cuda.recorder import race_recorder
from mrv2.checks.events import Stack
from mrv2.checks.findings import Verdict
from mrv2.fuzz.targets.protocols import RunnerTarget

from .case import CaseOutcome, Program, outcome_of
from .script import Script

#: Clock cycles to park a stream for: about a millisecond, in which a host does hundreds of calls.
PARKED_CYCLES = 2_000_000


class DrawnPace:
    """Parks the current stream before some operations; a :class:`mrv2.checks.cuda.stretch.Pace`.

    Args:
        moments: numbers of the operations, in the order in which the host asks for them.

    Attributes:
        parked: how often.
    """

    def __init__(self, moments: Iterable[int]) -> None:
        self._moments = frozenset(moments)
        self._count = 0
        self.parked = 0

    def before(self, stack: Stack, backend: Backend) -> None:
        """See :class:`mrv2.checks.cuda.stretch.Pace`."""
        if self._count in self._moments:
            self.parked += 1
            backend.sleep(PARKED_CYCLES)
        self._count += 1

    def after(self, backend: Backend) -> None:
        """See :class:`mrv2.checks.cuda.stretch.Pace`."""


def run_case_on_gpu(target: RunnerTarget, script: Script) -> tuple[CaseOutcome, int]:
    """Run a script on the current CUDA device, and judge what it showed; relations are left out.

    Returns:
        the outcome, and how often a stream was parked.

    Raises:
        Refused: the target refuses its settings.
        CheckError: there is no CUDA device.
    """
    deviations = script.schedule.deviations if script.schedule else ()
    pace = DrawnPace(deviation.moment for deviation in deviations)
    program = Program(target, script, "cuda")
    with race_recorder(pace=pace) as recorder:
        program()
    certain = tuple(finding for finding in recorder.findings if finding.verdict is Verdict.VIOLATION)
    return outcome_of(program, certain), pace.parked
