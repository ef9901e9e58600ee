"""What is wrong with a kernel itself, as findings, for launches on plain memory of the CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..codes import CODES
from ..findings import JSON, Finding, Site
from ..hooks.kernel_conflicts import Conflict
from ..hooks.kernel_faults import NEAR, KernelFault, conflict_fault, nan_fault, stray_fault
from ..hooks.kernel_log import StrayLanes
from ..libraries import is_library
from .memory import Argument, Memory

#: Frames of the launching program that are worth showing.
_DEPTH = 16


@dataclass(frozen=True)
class LaunchReport:
    """Writes the findings of one launch.

    Attributes:
        kernel: its name.
        grid: extents of the launch.
        memory: that its arguments point into.
    """

    kernel: str
    grid: tuple[int, int, int]
    memory: Memory

    def stray(self, stray: StrayLanes) -> Finding:
        """Lanes outside of all memory, which were left out."""
        return self._finding(stray_fault(self.kernel, self.grid, stray))

    def conflict(self, conflict: Conflict, sites: Sequence[Site]) -> Finding:
        """Two programs that touch the same bytes."""
        return self._finding(conflict_fault(self.kernel, self.grid, conflict, sites))

    def nan(self, site: Site, count: int) -> Finding:
        """NaNs that reached an argmax or argmin."""
        return self._finding(nan_fault(self.kernel, site, count))

    def _finding(self, fault: KernelFault) -> Finding:
        facts: dict[str, JSON] = {"kernel": self.kernel, "grid": list(self.grid), **fault.evidence}
        argument = None if fault.span is None else self._nearest(*fault.span)
        if argument is not None and fault.span is not None:
            facts["argument"] = argument.name
            facts["bytes"] = [bound - argument.low for bound in fault.span]
            facts["size"] = argument.high - argument.low
        return Finding(
            code=fault.code,
            verdict=fault.verdict,
            soundness=CODES[fault.code].soundness,
            title=fault.title,
            where=(fault.site, *launching_lines()),
            other=fault.other,
            evidence=facts,
            remedy=fault.remedy,
        )

    def _nearest(self, low: int, high: int) -> Argument | None:
        """The argument that a range is in, or closest to; addresses themselves change from run to run."""
        distances = [(max(found.low - high, low - found.high, 0), found) for found in self.memory.arguments()]
        distance, argument = min(distances, key=lambda pair: pair[0], default=(NEAR, None))
        return argument if distance < NEAR else None


def launching_lines() -> tuple[Site, ...]:
    """Where the program launched the kernel, innermost call first."""
    return tuple(_frames(sys._getframe(1)))[:_DEPTH]


def _frames(frame: Any) -> Iterator[Site]:
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
