"""Stage 5: hidden waits. The host waits nowhere in a hot path, unless it is allowed to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mrv2.checks.findings import JSON, Finding, RunVerdict, combine, verdict_of
from mrv2.checks.hot_path import HotPathError
from mrv2.checks.memory import MemoryBoundError
from mrv2.checks.report.identity import spot
from mrv2.checks.sync.memory import MemoryWatch
from mrv2.checks.sync.settings import Settings, find_settings
from mrv2.checks.sync.virtual import install, staging_taken
from mrv2.checks.sync.watch import Watch
from mrv2.checks.virtual.runs import run_program
from mrv2.fuzz.programs import MODEL, RunnerProgram
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget, own_settings
from mrv2.fuzz.workload import Trace
from mrv2.refrunner.models.checkpoint import load_checkpoint

from .base import Budget, Progress, StageResult
from .counting import Counting
from .further import further_workloads
from .on_cuda import ON_CUDA, run_on_cuda
from .traces import missing_features, trace_findings
from .workloads import quick_workload

NEEDED = (Feature.CHUNKED_PREFILL, Feature.PREEMPTION, Feature.ABORT)
# A busy device, and one that keeps up: a program may ask how far it is, and go another way.
SCHEDULES = ("late", "early")
NEW_TOKENS = 6
_OUR_LIMITS = ("UnsupportedOperationError", "VirtualDeviceError")


class Sync:
    """Drives the quick workload and watches the hot paths; then those with drafts and grammars, busy only.

    They are those that the target names itself, or else those of the project that the current folder belongs to.
    Always on the tiny model: what waits does not depend on weights.

    Args:
        device: ``"virtual"``, busy and idle, or ``"cuda"``, this machine's GPU as it comes.
    """

    name = "sync"

    def __init__(self, device: str = "virtual") -> None:
        self._device = device

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        """See :class:`Stage`.

        Raises:
            HotPathError: the settings of the project mean nothing, or name what is not there.
        """
        missing = missing_features(target, NEEDED)
        if missing:
            return StageResult(RunVerdict.INCONCLUSIVE, f"the target lacks: {', '.join(missing)}")
        settings = settings_of(target, Path.cwd())
        if not settings.hot_paths:
            return StageResult(
                RunVerdict.INCONCLUSIVE,
                "no hot path is named: write hot_paths = [...] into [tool.mrv2] of pyproject.toml",
            )
        vocab_size = load_checkpoint(MODEL).config.vocab_size
        workload, further = (
            quick_workload(vocab_size, budget.seed + 3, NEW_TOKENS),
            further_workloads(target, vocab_size),
        )
        first, *others = (ON_CUDA,) if self._device == ON_CUDA else SCHEDULES
        asked = [(first, "", workload), *((schedule, "", workload) for schedule in others)]
        asked += [(first, name, workload) for name, workload in further.items()]
        progress.start(len(asked))
        drives = []
        for schedule, name, workload in asked:
            drives.append(_drive(RunnerProgram(target, workload), settings, schedule, name))
            progress.advance()
        return _result(settings, drives)


def settings_of(target: RunnerTarget, folder: Path) -> Settings:
    """The hot paths of a target: its own, or those of the project that a folder belongs to.

    Raises:
        HotPathError: the settings of the project cannot be read, or mean nothing.
    """
    return own_settings(target) or find_settings(folder)[0]


@dataclass(frozen=True)
class _Drive:
    """A workload under one schedule.

    Attributes:
        schedule: its name, and that of a workload that only some targets can do.
        error: why the runner could not be built, if so.
        worked: how much it gave the device to do: operations, or on a real one bytes that it allocated.
        trace: what the workload saw; None if the runner could not be built.
        watch: of hot paths.
        memory: of regions with a bound.
        waits: waits, and memory beyond a bound.
    """

    schedule: str
    error: str | None
    worked: int
    trace: Trace | None
    watch: Watch
    memory: MemoryWatch
    waits: tuple[Finding, ...]

    @property
    def obstacle(self) -> str | None:
        """Why this run says nothing about the target, if so."""
        if self.trace is None:
            return f"the target cannot be built for device 'cuda': {self.error}"
        crash = self.trace.crash
        if crash and crash.error.startswith(_OUR_LIMITS):
            return f"the virtual device cannot run the target: {crash.error}"
        if not self.worked:
            return "the target enqueued nothing on the device"
        try:
            self.watch.require_entered()
            self.memory.require_entered()
        except (HotPathError, MemoryBoundError) as error:
            return error.subject
        return None

    @property
    def findings(self) -> Iterator[Finding]:
        """Waits, and what else went wrong while they were looked for."""
        yield from self.waits
        if self.trace is not None:
            yield from trace_findings(self.trace)


def _drive(program: RunnerProgram, settings: Settings, schedule: str, name: str) -> _Drive:
    shown = f"{schedule}, {name}" if name else schedule
    if schedule == ON_CUDA:
        return _on_cuda(program, settings, shown)
    return _on_virtual(program, settings, schedule, shown)


def _on_virtual(program: RunnerProgram, settings: Settings, schedule: str, shown: str) -> _Drive:
    counted = Counting()
    with Watch(settings) as watch, MemoryWatch(settings.memory) as memory:
        run = run_program(program, schedule, judge=counted, hooks=(install(watch), memory.hook(), staging_taken))
    waits = (*watch.findings, *memory.findings)
    return _Drive(shown, run.error, counted.enqueued.total(), program.trace, watch, memory, waits)


def _on_cuda(program: RunnerProgram, settings: Settings, shown: str) -> _Drive:
    run = run_on_cuda(program, settings, races=False)
    audit, watch = run.audit, run.audit.watch
    assert watch is not None  # waits were asked for
    return _Drive(shown, run.error, audit.allocated, program.trace, watch, audit.memory, tuple(audit.waits))


def _result(settings: Settings, drives: Sequence[_Drive]) -> StageResult:
    found = [*_merged(drives), *_unused(drives)]
    obstacle = next((drive.obstacle for drive in drives if drive.obstacle), None)
    entries = sum(drives[0].watch.entries.values())
    allowed = f", {len(settings.allowances)} allowed" if settings.allowances else ""
    verdicts = [verdict_of(found)]
    also = ", ".join(drive.schedule.partition(", ")[2] for drive in drives if ", " in drive.schedule)
    likewise = f"; {also}: likewise" if also else ""
    summary = f"{', '.join(settings.hot_paths)}: entered {entries} times, no hidden wait{allowed}{likewise}"
    if found:
        summary = found[0].title
    if obstacle:
        verdicts, summary = [RunVerdict.INCONCLUSIVE, *([verdict_of(found)] if found else [])], obstacle
    return StageResult(combine(verdicts), summary, tuple(found), _metrics(drives), _coverage(settings, drives))


def _merged(drives: Iterable[_Drive]) -> Iterator[Finding]:
    """Each finding once, with the schedules that showed it."""
    found: dict[tuple[object, ...], tuple[Finding, list[JSON]]] = {}
    for drive in drives:
        for finding in drive.findings:
            found.setdefault(spot(finding), (finding, []))[1].append(drive.schedule)
    for finding, schedules in found.values():
        yield replace(finding, evidence={**finding.evidence, "schedules": schedules})


def _unused(drives: Sequence[_Drive]) -> Iterator[Finding]:
    """Allowances that no schedule needed."""
    times = Counter(finding.fingerprint() for drive in drives for finding in drive.watch.unused())
    for finding in drives[0].watch.unused():
        if times[finding.fingerprint()] == len(drives):
            yield finding


def _metrics(drives: Sequence[_Drive]) -> dict[str, JSON]:
    return {
        "waits by schedule": {drive.schedule: len(drive.watch.findings) for drive in drives},
        "bytes allocated" if drives[0].schedule == ON_CUDA else "operations": drives[0].worked,
    }


def _coverage(settings: Settings, drives: Sequence[_Drive]) -> dict[str, JSON]:
    return {
        "model": MODEL,
        "schedules": [drive.schedule for drive in drives],
        "hot paths": dict(drives[0].watch.entries),
        "memory bounds": dict(drives[0].memory.entries),
        "allowances": [f"{allowance.code} at {allowance.site}" for allowance in settings.allowances],
    }
