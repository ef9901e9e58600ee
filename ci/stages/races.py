"""Stage 4: races on the virtual device. Whatever the device's load, no access without an order, and the same tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mrv2.checks.events import LaneKind, OperationKind, Stack, SyncKind, plain_name
from mrv2.checks.findings import JSON, Finding, RunVerdict, Soundness, Verdict, combine, verdict_of
from mrv2.checks.happens_before import HappensBefore
from mrv2.checks.virtual import VirtualDeviceError
from mrv2.checks.virtual.runs import Run, run_program
from mrv2.checks.virtual.schedules import Schedule, expand
from mrv2.checks.virtual.uninitialised import find_uninitialised
from mrv2.fuzz.programs import MODEL, RunnerProgram
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget
from mrv2.fuzz.workload import Trace, Workload, run_target
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle

from .base import Budget, Progress, Silent, StageResult
from .runner_oracle import RunnerAgainstOracle
from .traces import missing_features, trace_findings, unexercised
from .workloads import quick_workload

NEEDED = (Feature.CHUNKED_PREFILL, Feature.PREEMPTION, Feature.ABORT, Feature.SEEDED_SAMPLING)
FIRST = "late"
OTHERS = "early,random:0,random:1,starve"
# Order does not depend on how much is generated, and kernels are interpreted here.
NEW_TOKENS = 6
_OUR_LIMITS = ("UnsupportedOperationError", "VirtualDeviceError")


class Races:
    """Drives the quick workload on a virtual device under several schedules of it.

    Always on the tiny model, whatever the other stages use: order does not depend on weights. The runner's tokens on
    the plain CPU are judged by the oracle, and those of each schedule must be the same, and the same again whatever
    fresh memory of the device holds.
    """

    name = "races"

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        """See :class:`Stage`."""
        missing = missing_features(target, NEEDED)
        if missing:
            return StageResult(RunVerdict.INCONCLUSIVE, f"the target lacks: {', '.join(missing)}")
        checkpoint = load_checkpoint(MODEL)
        vocab_size = checkpoint.config.vocab_size
        workload = quick_workload(vocab_size, budget.seed + 2, NEW_TOKENS)
        progress.start(3 + len(expand(OTHERS)))
        reference, findings = _on_cpu(target, workload, Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors)))
        progress.advance()
        program = RunnerProgram(target, workload)
        drives = [*_drives(program, budget.seed, progress)]
        obstacle = next((drive.obstacle for drive in drives if drive.obstacle), None)
        if obstacle:
            return StageResult(RunVerdict.INCONCLUSIVE, obstacle, coverage=_coverage(drives))
        undecided = [f"not exercised: {what}" for what in unexercised(reference, workload)]
        try:
            findings += find_uninitialised(program)
        except VirtualDeviceError as error:
            undecided.append(f"{error.subject}: {error.rule}")
        progress.advance()
        return _result(reference, findings, drives, undecided)


class Counting(HappensBefore):
    """The judge, who also counts what there was to judge."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: list[str] = []
        self.enqueued: Counter[tuple[OperationKind, str]] = Counter()
        self.syncs: Counter[str] = Counter()

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :class:`EventSink`."""
        self.lanes.append(plain_name(name) if kind is LaneKind.STREAM else kind.value)
        return super().lane(kind, name)

    def operation(
        self,
        lane: int,
        kind: OperationKind,
        name: str,
        stack: Stack,
        *,
        issuer: int | None = None,
        step: int | None = None,
        open: bool = False,  # noqa: A002 - the contract's name
    ) -> int:
        """See :class:`EventSink`."""
        if issuer is not None and kind is not OperationKind.MARKER:
            self.enqueued[kind, name] += 1
        return super().operation(lane, kind, name, stack, issuer=issuer, step=step, open=open)

    def sync(self, lane: int, kind: SyncKind, name: str, stack: Stack, *, step: int | None = None) -> int:
        """See :class:`EventSink`."""
        self.syncs[kind.value] += 1
        return super().sync(lane, kind, name, stack, step=step)


@dataclass(frozen=True)
class _Drive:
    """The workload under one schedule; no trace if the runner could not be built."""

    run: Run
    counted: Counting
    trace: Trace | None
    findings: tuple[Finding, ...]

    @property
    def obstacle(self) -> str | None:
        """Why this run says nothing about the target, if so."""
        if self.trace is None:
            return f"the target cannot be built for device 'cuda': {self.run.error}"
        crash = self.trace.crash
        if crash and crash.error.startswith(_OUR_LIMITS):
            return f"the virtual device cannot run the target: {crash.error}"
        return None if self.counted.enqueued else "the target enqueued nothing on the device"


def _on_cpu(target: RunnerTarget, workload: Workload, oracle: Oracle) -> tuple[Trace, list[Finding]]:
    """The workload on the plain CPU, judged by the oracle."""
    trace = run_target(target, {"model": MODEL}, workload)
    judge = RunnerAgainstOracle(MODEL, workload.vocab_size, oracle)
    return trace, [*trace_findings(trace), *judge.judge(workload, trace, Silent()).findings]


def _drives(program: RunnerProgram, seed: int, progress: Progress) -> Iterator[_Drive]:
    """One run for each schedule; which streams there are to starve is known after the first."""
    first = _drive(program, Schedule(FIRST, seed))
    progress.advance()
    yield first
    if first.obstacle:
        return
    others = expand(OTHERS, streams=first.run.streams, seed=seed)
    progress.start(3 + len(others))
    for schedule in others:
        yield _drive(program, schedule)
        progress.advance()


def _drive(program: RunnerProgram, schedule: Schedule) -> _Drive:
    counted = Counting()
    run = run_program(program, schedule, judge=counted)
    findings = list(run.findings)
    if program.trace is not None:
        findings += trace_findings(program.trace)
    return _Drive(run, counted, program.trace, tuple(findings))


def _result(
    reference: Trace, findings: list[Finding], drives: Sequence[_Drive], undecided: Sequence[str]
) -> StageResult:
    found = [*findings, *_merged(drives), *_differences(reference, drives)]
    steps = len(reference.steps)
    summary = f"{len(drives)} schedules of {steps} steps on the {MODEL} model: no race, and the tokens of the oracle"
    verdicts = [verdict_of(found)]
    if found:
        summary = found[0].title
    elif undecided:
        verdicts, summary = [RunVerdict.INCONCLUSIVE], "; ".join(undecided)
    return StageResult(combine(verdicts), summary, tuple(found), _metrics(drives), _coverage(drives))


def _merged(drives: Iterable[_Drive]) -> Iterator[Finding]:
    """Each finding once, with the schedules that showed it: a race shows in all of them, what it causes in some.

    So those that show in more of them come first: the cause before what follows from it. Two accesses of one run may
    make the same finding; its schedule counts once.
    """
    found: dict[str, tuple[Finding, dict[str, None]]] = {}
    for drive in drives:
        for finding in drive.findings:
            found.setdefault(finding.fingerprint(), (finding, {}))[1][str(drive.run.schedule)] = None
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
                    title=f"tokens of request {name} are others under {drive.run.schedule.base}",
                    evidence={
                        "schedule": str(drive.run.schedule),
                        "expected": list(expected.token_ids),
                        "observed": list(observed.token_ids) if observed else None,
                    },
                    remedy="repair the races reported with it",
                )
                break


def _metrics(drives: Sequence[_Drive]) -> dict[str, JSON]:
    return {
        "findings by schedule": {str(drive.run.schedule): len(drive.findings) for drive in drives},
        "operations": drives[0].counted.enqueued.total(),
    }


def _coverage(drives: Sequence[_Drive]) -> dict[str, JSON]:
    """What the first schedule saw; the others see the same."""
    counted = drives[0].counted
    kernels = {name: times for (kind, name), times in counted.enqueued.items() if kind is OperationKind.KERNEL}
    copies = Counter(kind.value for kind, _ in counted.enqueued.elements() if kind is not OperationKind.KERNEL)
    return {
        "model": MODEL,
        "schedules": [str(drive.run.schedule) for drive in drives],
        "lanes": list(counted.lanes),
        "kernels": kernels,
        "copies": dict(copies),
        "synchronisations": dict(counted.syncs),
    }
