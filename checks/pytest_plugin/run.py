"""One run of one test, on the virtual device or on CUDA."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from ..findings import Finding, Site, Verdict
from ..happens_before.finding_json import finding_from_json, finding_to_json
from ..report.baseline import Baseline
from ..report.identity import identity, spot
from ..report.plain import plain
from .options import Mode, Plan

if TYPE_CHECKING:
    from ..cuda.audit import CudaAudit
    from ..sync.settings import Settings
    from ..sync.virtual import Trap
    from ..virtual import VirtualDevice

#: What calls a test.
_AROUND = ("_pytest/", "pluggy/")


@dataclass(frozen=True)
class Judged:
    """A finding of a test.

    Attributes:
        finding: what was found.
        mode: what it does to the test.
        accepted: why the baseline accepts it, if it does.
    """

    finding: Finding
    mode: Mode
    accepted: str | None = None

    @property
    def fails(self) -> bool:
        """Whether its test must fail; what is only suspected is told."""
        return self.mode is Mode.ERROR and self.accepted is None and self.finding.verdict is Verdict.VIOLATION

    def as_json(self) -> Any:
        """To travel with a report from a worker."""
        return [plain(finding_to_json(self.finding)), self.mode.value, self.accepted]

    @classmethod
    def from_json(cls, value: Any) -> Judged:
        """The inverse."""
        finding, mode, accepted = value
        return cls(finding_from_json(finding), Mode(mode), accepted)


@dataclass(frozen=True)
class TestName:
    """The name of a test function, to know its frames in a stack by.

    Attributes:
        file: its module, as stacks have it.
        function: without class and parameters.
    """

    __test__ = False  # for pytest, which would collect it from a module that imports it

    file: str
    function: str

    def outside(self, stack: tuple[Site, ...]) -> tuple[tuple[Site, ...], int | None]:
        """The part of a stack that the test called, and the line at which it did.

        What is around a test differs from test to test, and from one pytest to the next: a fingerprint must not
        depend on it. Of a stack that begins in the test itself one frame is left.
        """
        for index, site in enumerate(stack):
            if site.file == self.file and self._holds(site.function.split(".")):
                return stack[: max(index, 1)], site.line
        around = next((index for index, site in enumerate(stack) if site.file.startswith(_AROUND)), len(stack))
        return stack[: max(around, 1)], None

    def _holds(self, path: list[str]) -> bool:
        """Whether a qualified name is the test's or that of a function in it, which a thread may have been given."""
        return path[-1] == self.function or (self.function, "<locals>") in pairwise(path)

    def trimmed(self, finding: Finding) -> Finding:
        """A finding without the frames around the test; the lines of the test become evidence."""
        (where, line), (other, against) = self.outside(finding.where), self.outside(finding.other)
        allocation, _ = self.outside(finding.allocation)
        lines = {"line of the test": line, "against line": against}
        evidence = {**finding.evidence, **{name: number for name, number in lines.items() if number is not None}}
        return replace(finding, where=where, other=other, allocation=allocation, evidence=evidence)


def _seen(finding: Finding) -> tuple[object, ...]:
    return identity(finding), *spot(finding)


class TestRun:
    """A virtual device, or what watches a real one, open from the setup of a test to the end of its teardown.

    Args:
        name: of the test.
        plan: how the test is checked.
        settings: hot paths, allowances and bounds; empty where waits are not looked for.
        schedule: of the device, as text.
        baseline: accepted findings.

    Raises:
        CheckError: the device cannot be opened, or a name in the settings names nothing.
    """

    __test__ = False  # for pytest, which would collect it from a module that imports it

    def __init__(self, name: TestName, plan: Plan, settings: Settings, schedule: str, baseline: Baseline) -> None:
        self._name = name
        self.plan = plan
        self._reasons = baseline.reasons
        self._told: set[tuple[object, ...]] = set()
        self._scope = ExitStack()
        self._trap: Trap | CudaAudit = self._scope.enter_context(_trap(plan, settings, schedule))

    @property
    def device(self) -> VirtualDevice | None:
        """The virtual device; None if the test runs on CUDA."""
        return getattr(self._trap, "device", None)

    def take(self) -> list[Judged]:
        """What was found and not yet taken."""
        plan = self.plan
        found = _found(self._trap, plan)
        found = [(self._name.trimmed(finding), mode) for finding, mode in found if mode is not Mode.OFF]
        found = [(finding, mode) for finding, mode in found if _seen(finding) not in self._told]
        self._told.update(_seen(finding) for finding, _ in found)
        return [Judged(finding, mode, self._reasons.get((identity(finding), finding.code))) for finding, mode in found]

    def close(self) -> None:
        """Close the device and undo all patches."""
        self._scope.close()

    def coverage(self) -> dict[str, Any]:
        """What was judged, as JSON.

        Returns:
            Which hot paths and bounded regions were entered how often, which allowances were used, and which kernels
            went where nobody could follow them.
        """
        unseen = dict(getattr(self._trap, "unseen", {}))
        watch = self._trap.watch
        if watch is None or self.plan.sync is Mode.OFF:
            return {"unseen": unseen}
        unused = iter(watch.unused())
        allowances = [
            [f"{allowance.code} at {allowance.site}", uses, None if uses else finding_to_json(next(unused))]
            for allowance, uses in watch.uses.items()
        ]
        entries = {**watch.entries, **self._trap.memory.entries}
        return {"entries": entries, "allowances": plain(allowances), "unseen": unseen}


def _trap(plan: Plan, settings: Settings, schedule: str) -> AbstractContextManager[Trap | CudaAudit]:
    if plan.device == "cuda":
        from ..cuda.audit import cuda_audit

        return cuda_audit(settings, waits=plan.sync is not Mode.OFF, races=plan.race is not Mode.OFF)
    from ..sync.virtual import sync_trap

    return sync_trap(settings, schedule)


def _found(trap: Trap | CudaAudit, plan: Plan) -> list[tuple[Finding, Mode]]:
    """All findings so far, with what they do to the test."""
    if plan.device == "cuda":
        audit = cast("CudaAudit", trap)
        waits, races = audit.waits, audit.races
    else:
        virtual = cast("Trap", trap)
        waits, races = [*virtual.watch.findings, *virtual.memory.findings], virtual.device.findings
    return [*((finding, plan.sync) for finding in waits), *((finding, plan.race) for finding in races)]
