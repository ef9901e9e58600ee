"""One feature set in one environment: its trace is run, and everything that it showed is judged.

Environments: ``"cpu"``, the plain CPU with kernels compiled for it, without graphs, since it has none; schedules of the
virtual device; and ``"cuda"``, a GPU, watched by the race recorder. On a device the runner shows nothing while it runs,
since each look synchronises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mrv2.checks import triton_cpu
from mrv2.checks.cuda.recorder import race_recorder
from mrv2.checks.findings import JSON, Finding, Verdict
from mrv2.checks.virtual.runs import run_program
from mrv2.fuzz.targets.protocols import RunnerTarget
from mrv2.fuzz.workload import Driver, RequestResult, Trace, Workload, close

from .factors import FeatureSet
from .judge import Tally, judge_of
from .runners import RecordingRunner, SessionRunner
from .traces import workload_of

CPU, CUDA = "cpu", "cuda"
#: ``"starve"`` holds back the main stream in every other set and the copy stream in the rest.
ENVIRONMENTS = (CPU, "late", "random:1", "starve")
#: More are counted, not kept: the first few tell, and a broken runner would fill the disk.
KEPT_FAILURES = 10


@dataclass(frozen=True)
class Outcome:
    """What became of a feature set in an environment.

    Attributes:
        number: of the set.
        environment: where it ran.
        steps: executed.
        requests: that got an answer.
        tally: of the comparison with the oracle.
        counts: preemptions, resumptions, aborts, chunks of prefill, streaming updates, requests that found a prefix in
            the cache, blocks copied on write, and steps without a new request in which each computes one token.
        failures: everything that is wrong, in words.
        suspects: races on a GPU that are there if a kernel, guided by data, read what it may read.
        results: tokens and log-probabilities by request.
        reports: on drawn tokens by request, and on tokens of prompts.
    """

    number: int
    environment: str
    steps: int
    requests: int
    tally: Tally
    counts: Mapping[str, int]
    failures: tuple[str, ...]
    results: Mapping[str, RequestResult] = field(repr=False)
    suspects: tuple[str, ...] = ()
    reports: tuple[Mapping[str, object], Mapping[str, object]] = field(default=({}, {}), repr=False)

    def as_json(self) -> dict[str, JSON]:
        """All but the tokens, and of the failures the first ones, as JSON values."""
        return {
            "set": self.number,
            "environment": self.environment,
            "steps": self.steps,
            "requests": self.requests,
            "tokens": self.tally.tokens,
            "near ties": self.tally.near_ties,
            "reports": self.tally.reports,
            "largest logprob error over its bound": self.tally.largest_ratio,
            **self.counts,
            "suspects": len(self.suspects),
            "failures": len(self.failures),
            "first failures": list(self.failures[:KEPT_FAILURES]),
        }


class _Program:
    """Builds a runner and drives the workload through it; on a virtual device if called inside of one."""

    def __init__(self, target: RunnerTarget, models: Mapping[str, JSON], workload: Workload, *, look: bool) -> None:
        self._target = target
        self._models = models
        self._workload = workload
        self._look = look
        self.trace = Trace()
        self.recorder: RecordingRunner | None = None
        self.updates = 0

    def __call__(self) -> None:
        sessions = {item.request_id: item.continues for item in self._workload.requests if item.continues}
        runner = self._target.build({**self._models, **self._workload.capacities})
        session = SessionRunner(runner, sessions)
        self.recorder = RecordingRunner(session)
        driver = Driver(self.recorder, self._workload, check_invariants=self._look)
        self.trace = driver.run()
        if not self.trace.crash:
            self.trace.broken += [(len(self.trace.steps) - 1, finding) for finding in runner.invariants()]
        close(self.recorder, self.trace)
        self.updates = session.updates


def run_feature_set(target: RunnerTarget, features: FeatureSet, environment: str, steps: int) -> Outcome:
    """Run a feature set in an environment and judge everything that it showed.

    Args:
        steps: to execute at least.
    """
    return run_workload(target, features, environment, workload_of(features, steps))


def run_workload(target: RunnerTarget, features: FeatureSet, environment: str, workload: Workload) -> Outcome:
    """The same with a workload of the caller's, for the set's model."""
    on_cpu = environment == CPU
    device = {"device": "cpu", "graph_mode": "eager"} if on_cpu else {"device": "cuda"}
    placed = replace(workload, capacities={**workload.capacities, **device})
    program = _Program(target, features.models, placed, look=on_cpu)
    return _outcome(features, environment, workload, program, _look(program, environment, features.number))


@dataclass(frozen=True)
class _Seen:
    """What was found about order and memory while a program ran: what is wrong, and what may be."""

    failures: list[str]
    suspects: tuple[str, ...] = ()


def _look(program: _Program, environment: str, number: int) -> _Seen:
    """Run it there."""
    if environment == CPU:
        return _on_cpu(program)
    if environment == CUDA:
        return _on_gpu(program)
    return _on_device(program, _schedule(environment, number))


def _schedule(environment: str, number: int) -> str:
    return f"starve:{number % 2}" if environment == "starve" else environment


def _on_cpu(program: _Program) -> _Seen:
    with triton_cpu.enabled() as session:
        program()
    return _Seen([_words(finding) for finding in session.findings])


def _on_gpu(program: _Program) -> _Seen:
    """There nobody sees which rows a gather reads, so it may be any; the virtual device, which sees all, decides."""
    with race_recorder() as recorder:
        program()
    found = recorder.findings
    certain = [_words(finding) for finding in found if finding.verdict is Verdict.VIOLATION]
    return _Seen(certain, tuple(_words(finding) for finding in found if finding.verdict is not Verdict.VIOLATION))


def _on_device(program: _Program, schedule: str) -> _Seen:
    run = run_program(program, schedule)
    return _Seen([_words(finding) for finding in run.findings] + ([run.ending] if run.ending else []))


def _words(finding: Finding) -> str:
    places = [f"{site.file}:{site.line} ({site.function})" for site in finding.where[:1]]
    return f"{finding.code} {finding.title} {' '.join(places)} {dict(finding.evidence)}"[:600]


def _outcome(features: FeatureSet, environment: str, workload: Workload, program: _Program, seen: _Seen) -> Outcome:
    trace, recorder = program.trace, program.recorder
    tally = Tally()
    failures = [*seen.failures, *_faults(trace)]
    if recorder is not None:
        tally = judge_of(str(features.values["model"])).judge(workload, trace, recorder.reports, recorder.prompts)
        failures += [f"request {name}: {fault}" for name, fault in recorder.faults.items()]
    return Outcome(
        number=features.number,
        environment=environment,
        steps=len(trace.steps),
        requests=sum(bool(result.token_ids) for result in trace.results.values()),
        tally=tally,
        counts={**trace.counts, "updates": program.updates, **_seen(trace)},
        failures=(*failures, *tally.failures),
        suspects=seen.suspects,
        results=trace.results,
        reports=({}, {}) if recorder is None else (recorder.reports, recorder.prompts),
    )


def _seen(trace: Trace) -> dict[str, int]:
    steps = trace.steps
    return {
        "prefixes found": sum(request.num_computed_tokens > 0 for step in steps for request in step.new),
        "blocks copied": sum(len(step.block_copies) for step in steps),
        "steps without prefill": sum(
            not step.new and bool(step.scheduled) and set(step.scheduled.values()) == {1} for step in steps
        ),
    }


def _faults(trace: Trace) -> list[str]:
    crashes = [crash for crash in (trace.crash, *trace.faults) if crash]
    broken = [f"step {step}: {_words(finding)}" for step, finding in trace.broken]
    return [*(f"step {crash.step}: {crash.error} at {crash.where[:3]}" for crash in crashes), *broken]
