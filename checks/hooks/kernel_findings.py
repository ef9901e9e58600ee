"""What is wrong with a kernel itself, as findings of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..codes import CODES
from ..findings import JSON, Finding, Site
from .kernel_conflicts import Conflict
from .kernel_faults import NEAR, KernelFault, conflict_fault, nan_fault, stray_fault
from .kernel_log import StrayLanes
from .runtime import Block, Runtime


@dataclass(slots=True)
class KernelReport:
    """Writes the findings of one launch while it runs.

    Attributes:
        runtime: the device.
        name: of the operation.
        grid: extents of the launch.
        blocks: the memory that its arguments point into.
        confined: whether it touches nothing but what its arguments lead to.
    """

    runtime: Runtime
    name: str
    grid: tuple[int, int, int]
    blocks: Sequence[Block]
    confined: Callable[[], bool]

    def stray(self, stray: StrayLanes) -> None:
        """Lanes outside of all memory, which were masked off."""
        self._report(stray_fault(self.name, self.grid, stray), self._nearest(stray.low, stray.high))

    def conflict(self, conflict: Conflict, sites: list[Site]) -> None:
        """Two programs that touch the same bytes."""
        fault = conflict_fault(self.name, self.grid, conflict, sites)
        self._report(fault, self.runtime.find_block(conflict.low))

    def nan(self, site: Site, count: int) -> None:
        """NaNs that reached an argmax or argmin."""
        self._report(nan_fault(self.name, site, count), None)

    def _report(self, fault: KernelFault, block: Block | None) -> None:
        operation = self.runtime.running
        assert operation is not None
        facts: dict[str, JSON] = {"kernel": self.name, "grid": list(self.grid), **fault.evidence}
        if block is not None and fault.span is not None:
            facts["block"] = {"space": block.space.value, "size": block.size, "label": block.label}
            facts["bytes"] = [bound - block.base for bound in fault.span]
        finding = Finding(
            code=fault.code,
            verdict=fault.verdict,
            soundness=CODES[fault.code].soundness,
            title=fault.title,
            where=(fault.site, *(Site(*frame) for frame in operation.stack)),
            other=fault.other,
            allocation=() if block is None else tuple(Site(*frame) for frame in block.stack),
            evidence=facts,
            remedy=fault.remedy,
            step=operation.step,
        )
        self.runtime.sink.report(finding)

    def _nearest(self, low: int, high: int) -> Block | None:
        """The argument that a stray range is closest to; addresses themselves change from run to run.

        What a kernel strays to from a pointer that it loaded lies near an argument by chance only.
        """
        if not self.confined():
            return None
        distances = [(max(block.base - high, low - block.base - block.size, 0), block) for block in self.blocks]
        distance, block = min(distances, key=lambda pair: pair[0], default=(NEAR, None))
        return block if distance < NEAR else None
