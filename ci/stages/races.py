"""Stage 4: races. Whatever the device's load, no access without an order, and the same tokens.

The quick workload is driven in several schedules. Those with drafts and grammars, which a target may know, are driven
in two, as busy a device as can be and an idle one: the verdict on order is the same in all in which a program takes the
same way, and what it polls answers no in the one and yes in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mrv2.checks.events import OperationKind
from mrv2.checks.findings import JSON, Finding, RunVerdict, Soundness, Verdict, combine, verdict_of
from mrv2.checks.report.identity import spot
from mrv2.checks.sync.settings import Settings
from mrv2.checks.virtual import VirtualDeviceError
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.schedules import Schedule, expand
from mrv2.checks.virtual.uninitialised import find_uninitialised
from mrv2.fuzz.feature_sets.judge import chances_of
from mrv2.fuzz.programs import MODEL, RunnerProgram
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget
from mrv2.fuzz.workload import Trace, Workload, run_target
from mrv2.refrunner.models.checkpoint import load_checkpoint

from .base import Budget, Progress, Silent, StageResult
from .counting import Counting
from .further import further_workloads, unexercised_further
from .on_cuda import ON_CUDA, run_on_cuda
from .runner_oracle import RunnerAgainstOracle, knows_grammars, tiny_oracle
from .traces import missing_features, trace_findings, unexercised
from .workloads import quick_workload

NEEDED = (Feature.CHUNKED_PREFILL, Feature.PREEMPTION, Feature.ABORT, Feature.SEEDED_SAMPLING)
FIRST, IDLE = "late", "early"
OTHERS = "early,random:0,random:1,starve"
# Order does not depend on how much is generated, and kernels are interpreted here.
NEW_TOKENS = 6
_OUR_LIMITS = ("UnsupportedOperationError", "VirtualDeviceError")


class Races:
    """Drives the quick workload on a device, a virtual one under several schedules of it.

    Always on the tiny model, whatever the other stages use: order does not depend on weights. The runner's tokens on
    the plain CPU are judged by the oracle, and those of each schedule must be the same, and the same again whatever
    fresh memory of the device holds. A real device rounds in its own way, so that its tokens are the oracle's to judge;
    and what its fresh memory holds is nobody's choice.

    Args:
        device: ``"virtual"``, or ``"cuda"``, this machine's GPU, in the one order that it has.
    """

    name = "races"

    def __init__(self, device: str = "virtual") -> None:
        self._device = device

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        """See :class:`Stage`."""
        missing = missing_features(target, NEEDED)
        if missing:
            return StageResult(RunVerdict.INCONCLUSIVE, f"the target lacks: {', '.join(missing)}")
        checkpoint = load_checkpoint(MODEL)
        vocab_size = checkpoint.config.vocab_size
        workload = quick_workload(vocab_size, budget.seed + 2, NEW_TOKENS)
        further = further_workloads(target, vocab_size)
        judge = RunnerAgainstOracle(MODEL, vocab_size, tiny_oracle(checkpoint, with_grammars=knows_grammars(target)))

        def trial(workload: Workload, name: str = "") -> _Trial:
            trace = run_target(target, {"model": MODEL}, workload)
            return _Trial(RunnerProgram(target, workload), judge, trace, name)

        if self._device == ON_CUDA:
            progress.start(1 + len(further))
            first = trial(workload).on_cuda()
            progress.advance()
        else:
            progress.start(3 + len(expand(OTHERS)) + len(further))
            first = trial(workload).on_virtual(budget.seed, progress, len(further))
        return _with_further(first, _further(trial, further, self._device, budget.seed, progress))


def _further(
    trial: Callable[[Workload, str], _Trial],
    workloads: Mapping[str, Workload],
    device: str,
    seed: int,
    progress: Progress,
) -> Iterator[tuple[str, StageResult]]:
    for name, workload in workloads.items():
        one = trial(workload, name)
        yield name, one.on_cuda() if device == ON_CUDA else one.busy_and_idle(seed)
        progress.advance()


def _with_further(first: StageResult, further: Iterable[tuple[str, StageResult]]) -> StageResult:
    """One result of all workloads; the first line that is no praise is the summary."""
    results = dict(further)
    every = [first, *results.values()]
    wrong = next((result for result in every if result.verdict is not RunVerdict.PASS), None)
    also = f"; {', '.join(results)}: likewise" if results else ""
    findings = {finding.fingerprint(): finding for result in every for finding in result.findings}
    return StageResult(
        combine([result.verdict for result in every]),
        first.summary + also if wrong is None else wrong.summary,
        tuple(findings.values()),
        {**first.metrics, "further": {name: dict(result.metrics) for name, result in results.items()}},
        {**first.coverage, "further": {name: dict(result.coverage) for name, result in results.items()}},
    )


@dataclass(frozen=True)
class _Trial:
    """A workload that is to be driven on a device.

    Attributes:
        program: builds the target there, and drives it.
        judge: knows the right tokens.
        reference: what the workload saw on the plain CPU.
        name: of one that only some targets can do.
    """

    program: RunnerProgram
    judge: RunnerAgainstOracle
    reference: Trace
    name: str

    def on_virtual(self, seed: int, progress: Progress, others: int) -> StageResult:
        """In several schedules, and with other bytes in fresh memory; so many other workloads are still to come."""
        findings = self._judged(self.reference)
        progress.advance()
        drives = [*_drives(self.program, seed, progress, others)]
        obstacle = next((drive.obstacle for drive in drives if drive.obstacle), None)
        if obstacle:
            return StageResult(RunVerdict.INCONCLUSIVE, obstacle, coverage=_coverage(drives))
        undecided = self._unexercised()
        try:
            findings += find_uninitialised(self.program)
        except VirtualDeviceError as error:
            undecided.append(f"{error.subject}: {error.rule}")
        progress.advance()
        found = [*findings, *_merged(drives), *_differences(self.reference, drives)]
        return _result(f"{len(drives)} schedules of", self.reference, found, drives, undecided)

    def busy_and_idle(self, seed: int) -> StageResult:
        """In two schedules."""
        drives = [_drive(self.program, Schedule(kind, seed))[0] for kind in (FIRST, IDLE)]
        obstacle = next((drive.obstacle for drive in drives if drive.obstacle), None)
        if obstacle:
            return StageResult(RunVerdict.INCONCLUSIVE, f"{self.name}: {obstacle}", coverage=_coverage(drives))
        found = [*self._judged(self.reference), *_merged(drives), *_differences(self.reference, drives)]
        return _result(f"{self.name}, {len(drives)} schedules of", self.reference, found, drives, self._unexercised())

    def on_cuda(self) -> StageResult:
        """Once, on this machine's GPU."""
        drive, unseen = _on_cuda(self.program)
        if drive.obstacle:
            return StageResult(RunVerdict.INCONCLUSIVE, drive.obstacle, coverage=_coverage([drive]))
        assert drive.trace is not None  # there is no obstacle
        undecided = [
            f"not judged: {name}, launched {times} times, loads addresses from memory"
            for name, times in unseen.items()
        ]  # fmt: skip
        findings = [*_merged([drive]), *self._wrong(drive.trace)]
        return _result("on a GPU,", self.reference, findings, [drive], [*self._unexercised(), *undecided])

    def _judged(self, trace: Trace) -> list[Finding]:
        """What is wrong with a trace, its tokens among it."""
        return [*trace_findings(trace), *self._wrong(trace)]

    def _wrong(self, trace: Trace) -> tuple[Finding, ...]:
        workload = self.program.workload
        chances = chances_of(self.program.target, MODEL, workload.capacities, trace)
        return tuple(self.judge.judge(workload, trace, Silent(), chances).findings)

    def _unexercised(self) -> list[str]:
        workload = self.program.workload
        missing = (
            unexercised_further(self.name, workload, self.reference)
            if self.name
            else unexercised(self.reference, workload)
        )
        return [f"not exercised: {what}" for what in missing]


@dataclass(frozen=True)
class _Drive:
    """The workload under one schedule.

    Attributes:
        schedule: its name.
        error: why the runner could not be built, if so.
        counted: the judge.
        trace: what the workload saw; None if the runner could not be built.
        findings: races, and what else went wrong.
    """

    schedule: str
    error: str | None
    counted: Counting
    trace: Trace | None
    findings: tuple[Finding, ...]

    @property
    def obstacle(self) -> str | None:
        """Why this run says nothing about the target, if so."""
        if self.trace is None:
            return f"the target cannot be built for device 'cuda': {self.error}"
        crash = self.trace.crash
        if crash and crash.error.startswith(_OUR_LIMITS):
            return f"the virtual device cannot run the target: {crash.error}"
        return None if self.counted.enqueued else "the target enqueued nothing on the device"


def _drives(program: RunnerProgram, seed: int, progress: Progress, others_to_come: int) -> Iterator[_Drive]:
    """One run for each schedule; which streams there are to starve is known after the first."""
    first, streams = _drive(program, Schedule(FIRST, seed))
    progress.advance()
    yield first
    if first.obstacle:
        return
    others = expand(OTHERS, streams=streams, seed=seed)
    progress.start(3 + len(others) + others_to_come)
    for schedule in others:
        yield _drive(program, schedule)[0]
        progress.advance()


def _drive(program: RunnerProgram, schedule: Schedule) -> tuple[_Drive, int]:
    """A run, and how many streams there were in it."""
    counted = Counting()
    run = run_program(program, schedule, judge=counted)
    found = _with_trace(run.findings, program.trace)
    return _Drive(str(run.schedule), run.error, counted, program.trace, found), run.streams


def _on_cuda(program: RunnerProgram) -> tuple[_Drive, Mapping[str, int]]:
    """The run on a real device, and which kernels could not be judged, with how often they were launched."""
    run = run_on_cuda(program, Settings(), races=True)
    found = _with_trace(tuple(run.audit.races), program.trace)
    return _Drive(ON_CUDA, run.error, run.counted, program.trace, found), run.audit.unseen


def _with_trace(races: tuple[Finding, ...], trace: Trace | None) -> tuple[Finding, ...]:
    return races if trace is None else (*races, *trace_findings(trace))


def _result(
    how: str, reference: Trace, found: list[Finding], drives: Sequence[_Drive], undecided: Sequence[str]
) -> StageResult:
    summary = f"{how} {len(reference.steps)} steps on the {MODEL} model: no race, and the tokens of the oracle"
    verdicts = [verdict_of(found)]
    if found:
        summary = found[0].title
    elif undecided:
        verdicts, summary = [RunVerdict.INCONCLUSIVE], "; ".join(undecided)
    return StageResult(combine(verdicts), summary, tuple(found), _metrics(drives), _coverage(drives))


def _merged(drives: Iterable[_Drive]) -> Iterator[Finding]:
    """Each finding once, with the schedules that showed it: a race shows in all of them, what it causes in some.

    So those that show in more of them come first: the cause before what follows from it. Two accesses of one run may
    make the same finding; its schedule counts once. Two lines of one function are two findings.
    """
    found: dict[tuple[object, ...], tuple[Finding, dict[str, None]]] = {}
    for drive in drives:
        for finding in drive.findings:
            found.setdefault(spot(finding), (finding, {}))[1][drive.schedule] = None
    for finding, schedules in sorted(found.values(), key=lambda entry: -len(entry[1])):
        yield replace(finding, evidence={**finding.evidence, "schedules": [*schedules]})


def _differences(reference: Trace, drives: Iterable[_Drive]) -> Iterator[Finding]:
    """The first request of each schedule whose tokens are not those of the plain CPU."""
    for drive in drives:
        assert drive.trace is not None
        for name, expected in reference.results.items():
            observed = drive.trace.results.get(name)
            if observed is None or observed.token_ids != expected.token_ids:
                yield Finding(
                    code="MRV309",
                    verdict=Verdict.VIOLATION,
                    soundness=Soundness.SOUND,
                    title=f"tokens of request {name} are others under {drive.schedule.partition('@')[0]}",
                    evidence={
                        "schedule": drive.schedule,
                        "expected": list(expected.token_ids),
                        "observed": list(observed.token_ids) if observed else None,
                    },
                    remedy="repair the races reported with it",
                )
                break


def _metrics(drives: Sequence[_Drive]) -> dict[str, JSON]:
    return {
        "findings by schedule": {drive.schedule: len(drive.findings) for drive in drives},
        "operations": drives[0].counted.enqueued.total(),
    }


def _coverage(drives: Sequence[_Drive]) -> dict[str, JSON]:
    """What the first schedule saw; the others see the same."""
    counted = drives[0].counted
    kernels = {name: times for (kind, name), times in counted.enqueued.items() if kind is OperationKind.KERNEL}
    copies = Counter(kind.value for kind, _ in counted.enqueued.elements() if kind is not OperationKind.KERNEL)
    return {
        "model": MODEL,
        "schedules": [drive.schedule for drive in drives],
        "lanes": list(counted.lanes),
        "kernels": kernels,
        "copies": dict(copies),
        "synchronisations": dict(counted.syncs),
    }
