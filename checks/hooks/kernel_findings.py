"""What is wrong with a kernel itself, as findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..codes import CODES
from ..findings import JSON, Finding, Site, Verdict
from .kernel_conflicts import Conflict
from .kernel_log import AccessKind, KernelAccess
from .runtime import Block, Runtime

#: Beyond this distance a block says nothing about a stray address.
_NEAR = 1 << 20


@dataclass(frozen=True)
class KernelReport:
    """Writes the findings of one launch while it runs.

    Attributes:
        runtime: the device.
        name: of the operation.
        grid: extents of the launch.
        blocks: the memory that its arguments point into.
    """

    runtime: Runtime
    name: str
    grid: tuple[int, int, int]
    blocks: Sequence[Block]

    def stray(self, kind: AccessKind, site: Site, program: int, low: int, high: int, lanes: int) -> None:
        """Lanes outside of all memory, which were masked off; [low, high) is the hull of their bytes."""
        block = self._nearest(low, high)
        evidence: dict[str, JSON] = {"program": self._index(program), "lanes": lanes}
        remedy = "mask the lanes that lie beyond the tensor, and check the index that they are computed from"
        title = f"{self.name} {kind.verb} outside of all memory"
        self._report("MRV212", title, site, (), block, (low, high), evidence, remedy)

    def conflict(self, conflict: Conflict, sites: list[Site]) -> None:
        """Two programs that touch the same bytes."""
        earlier, later = conflict.earlier, conflict.later
        evidence: dict[str, JSON] = {"first": self._side(earlier, sites), "second": self._side(later, sites)}
        remedy = "give each program bytes of its own, resolve duplicates before the launch, or use atomics for both"
        title = f"{self.name}: one program {later.kind.verb} what another {earlier.kind.verb}"
        block = self.runtime.find_block(conflict.low)
        where, other = sites[later.site], (sites[earlier.site],)
        self._report("MRV211", title, where, other, block, (conflict.low, conflict.high), evidence, remedy)

    def nan(self, site: Site, count: int) -> None:
        """NaNs that reached an argmax or argmin."""
        title = f"{self.name}: a NaN reaches an argmax or argmin"
        remedy = "replace NaNs before it (tl.where(x == x, x, -inf)), or find out where they come from"
        self._report("MRV310", title, site, (), None, (0, 0), {"NaNs": count}, remedy, Verdict.SUSPECT)

    def _report(
        self, code: str, title: str, where: Site, other: tuple[Site, ...], block: Block | None,
        span: tuple[int, int], evidence: dict[str, JSON], remedy: str, verdict: Verdict = Verdict.VIOLATION,
    ) -> None:  # fmt: skip
        operation = self.runtime.running
        assert operation is not None
        facts: dict[str, JSON] = {"kernel": self.name, "grid": list(self.grid), **evidence}
        if block is not None:
            facts["block"] = {"space": block.space.value, "size": block.size, "label": block.label}
            facts["bytes"] = [bound - block.base for bound in span]
        finding = Finding(
            code=code,
            verdict=verdict,
            soundness=CODES[code].soundness,
            title=title,
            where=(where, *(Site(*frame) for frame in operation.stack)),
            other=other,
            allocation=() if block is None else tuple(Site(*frame) for frame in block.stack),
            evidence=facts,
            remedy=remedy,
            step=operation.step,
        )
        self.runtime.sink.report(finding)

    def _index(self, program: int) -> list[int]:
        """Grid index of a program."""
        _, y, z = self.grid
        return [program // (y * z), program // z % y, program % z]

    def _side(self, access: KernelAccess, sites: list[Site]) -> JSON:
        site = sites[access.site]
        return {
            "program": self._index(access.program),
            "access": access.kind.verb,
            "line": f"{Path(site.file).name}:{site.line}",
        }

    def _nearest(self, low: int, high: int) -> Block | None:
        """The argument that a stray range is closest to; addresses themselves change from run to run."""
        distances = [(max(block.base - high, low - block.base - block.size, 0), block) for block in self.blocks]
        distance, block = min(distances, key=lambda pair: pair[0], default=(_NEAR, None))
        return block if distance < _NEAR else None
