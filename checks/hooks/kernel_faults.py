"""What can be wrong with a kernel itself, wherever it runs: the words for it, without the memory that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..findings import JSON, Site, Verdict
from .kernel_conflicts import Conflict
from .kernel_log import KernelAccess, StrayLanes, grid_index

#: Beyond this distance a piece of memory says nothing about a stray address.
NEAR = 1 << 20


@dataclass(frozen=True)
class KernelFault:
    """A fault of a kernel.

    Attributes:
        code: of the finding.
        title: names the kernel and the rule.
        site: the line of the kernel.
        remedy: what to write instead.
        other: the line that it is in conflict with.
        span: addresses [low, high) that it is about; None if it is about none.
        evidence: what was measured.
        verdict: whether it is sure to be wrong.
    """

    code: str
    title: str
    site: Site
    remedy: str
    other: tuple[Site, ...] = ()
    span: tuple[int, int] | None = None
    evidence: Mapping[str, JSON] = field(default_factory=dict)
    verdict: Verdict = Verdict.VIOLATION


def stray_fault(kernel: str, grid: tuple[int, int, int], stray: StrayLanes) -> KernelFault:
    """Lanes outside of all memory, which were left out."""
    return KernelFault(
        "MRV212",
        f"{kernel} {stray.kind.verb} outside of all memory",
        stray.site,
        "mask the lanes that lie beyond the tensor, and check the index that they are computed from",
        span=(stray.low, stray.high),
        evidence={"program": list(grid_index(stray.program, grid)), "lanes": stray.lanes},
    )


def conflict_fault(kernel: str, grid: tuple[int, int, int], conflict: Conflict, sites: Sequence[Site]) -> KernelFault:
    """Two programs that touch the same bytes."""
    earlier, later = conflict.earlier, conflict.later
    title = f"{kernel}: one program {later.kind.verb} what another {earlier.kind.verb}"
    remedy = "give each program bytes of its own, resolve duplicates before the launch, or use atomics for both"
    if not conflict.judged:
        title = f"{kernel}: not judged, too many accesses of several programs to the same bytes, such as these two"
        remedy = "launch fewer programs on less memory to have all of them judged"
    return KernelFault(
        "MRV211",
        title,
        sites[later.site],
        remedy,
        (sites[earlier.site],),
        (conflict.low, conflict.high),
        {"first": _side(earlier, grid, sites), "second": _side(later, grid, sites)},
        Verdict.VIOLATION if conflict.judged else Verdict.SUSPECT,
    )


def nan_fault(kernel: str, site: Site, count: int) -> KernelFault:
    """NaNs that reached an argmax or argmin."""
    return KernelFault(
        "MRV310",
        f"{kernel}: a NaN reaches an argmax or argmin",
        site,
        "replace NaNs before it (tl.where(x == x, x, -inf)), or find out where they come from",
        evidence={"NaNs": count},
        verdict=Verdict.SUSPECT,
    )


def _side(access: KernelAccess, grid: tuple[int, int, int], sites: Sequence[Site]) -> JSON:
    site = sites[access.site]
    return {
        "program": list(grid_index(access.program, grid)),
        "access": access.kind.verb,
        "line": f"{Path(site.file).name}:{site.line}",
    }
