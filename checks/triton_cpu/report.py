"""What is wrong with a kernel itself, as findings, for launches on plain memory of the CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..codes import CODES
from ..findings import JSON, Finding, Site, Verdict
from ..hooks.kernel_conflicts import Conflict
from ..hooks.kernel_log import KernelAccess
from ..libraries import is_library
from .log import StrayLanes, grid_index
from .memory import Argument, Memory

#: Beyond this distance a tensor says nothing about a stray address.
_NEAR = 1 << 20
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
        evidence: dict[str, JSON] = {"program": list(grid_index(stray.program, self.grid)), "lanes": stray.lanes}
        remedy = "mask the lanes that lie beyond the tensor, and check the index that they are computed from"
        title = f"{self.kernel} {stray.kind.verb} outside of all memory"
        argument = self._nearest(stray.low, stray.high)
        return self._finding("MRV212", title, stray.site, (), argument, (stray.low, stray.high), evidence, remedy)

    def conflict(self, conflict: Conflict, sites: Sequence[Site]) -> Finding:
        """Two programs that touch the same bytes."""
        earlier, later = conflict.earlier, conflict.later
        evidence: dict[str, JSON] = {"first": self._side(earlier, sites), "second": self._side(later, sites)}
        remedy = "give each program bytes of its own, resolve duplicates before the launch, or use atomics for both"
        title = f"{self.kernel}: one program {later.kind.verb} what another {earlier.kind.verb}"
        argument, span = self._nearest(conflict.low, conflict.high), (conflict.low, conflict.high)
        return self._finding(
            "MRV211", title, sites[later.site], (sites[earlier.site],), argument, span, evidence, remedy
        )

    def nan(self, site: Site, count: int) -> Finding:
        """NaNs that reached an argmax or argmin."""
        title = f"{self.kernel}: a NaN reaches an argmax or argmin"
        remedy = "replace NaNs before it (tl.where(x == x, x, -inf)), or find out where they come from"
        return self._finding("MRV310", title, site, (), None, (0, 0), {"NaNs": count}, remedy, Verdict.SUSPECT)

    def _finding(
        self, code: str, title: str, where: Site, other: tuple[Site, ...], argument: Argument | None,
        span: tuple[int, int], evidence: Mapping[str, JSON], remedy: str, verdict: Verdict = Verdict.VIOLATION,
    ) -> Finding:  # fmt: skip
        facts: dict[str, JSON] = {"kernel": self.kernel, "grid": list(self.grid), **evidence}
        if argument is not None:
            facts["argument"] = argument.name
            facts["bytes"] = [bound - argument.low for bound in span]
            facts["size"] = argument.high - argument.low
        return Finding(
            code=code,
            verdict=verdict,
            soundness=CODES[code].soundness,
            title=title,
            where=(where, *launching_lines()),
            other=other,
            evidence=facts,
            remedy=remedy,
        )

    def _side(self, access: KernelAccess, sites: Sequence[Site]) -> JSON:
        site = sites[access.site]
        return {
            "program": list(grid_index(access.program, self.grid)),
            "access": access.kind.verb,
            "line": f"{Path(site.file).name}:{site.line}",
        }

    def _nearest(self, low: int, high: int) -> Argument | None:
        """The argument that a range is in, or closest to; addresses themselves change from run to run."""
        distances = [(max(found.low - high, low - found.high, 0), found) for found in self.memory.arguments()]
        distance, argument = min(distances, key=lambda pair: pair[0], default=(_NEAR, None))
        return argument if distance < _NEAR else None


def launching_lines() -> tuple[Site, ...]:
    """Where the program launched the kernel, innermost call first."""
    return tuple(_frames(sys._getframe(1)))[:_DEPTH]


def _frames(frame: Any) -> Iterator[Site]:
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
