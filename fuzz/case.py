"""Runs one script and judges everything that it showed, by all oracles at once.

* tokens, log-probabilities and reports: the pure-PyTorch oracle;
* order: the happens-before check of the virtual device, and the versions of what the host wrote in pinned memory;
* waits: the sync trap in the hot paths that the target names;
* state: inputs of each step and bookkeeping after each step on the plain CPU, at the end on the virtual device;
* kernels: bounds and conflicts between programs, as Triton on the CPU sees them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from mrv2.checks import triton_cpu
from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON, Finding
from mrv2.checks.libraries import portable
from mrv2.checks.report.identity import identity
from mrv2.checks.sync.settings import Settings
from mrv2.checks.sync.virtual import install
from mrv2.checks.sync.watch import Watch
from mrv2.checks.virtual.runs import Run, run_program
from mrv2.checks.virtual.transcript import Note
from mrv2.fuzz.checked import checked_runner
from mrv2.fuzz.feature_sets.chance import by_chance
from mrv2.fuzz.feature_sets.judge import Chances, Tally, chances_of, judge_of, whole_prompts
from mrv2.fuzz.feature_sets.runners import RecordingRunner, SessionRunner
from mrv2.fuzz.targets.protocols import Feature, Runner, RunnerTarget, SnapshotRunner, own_settings
from mrv2.fuzz.workload import FOUR_PARTS, Crash, RequestResult, Trace, close, is_refusal
from mrv2.refrunner.api import Handle, Step
from mrv2.refrunner.kv_groups import KVGroups
from mrv2.refrunner.models.checkpoint import load_checkpoint

from .relations import RELATIONS, differences
from .script import Arrive, Script
from .script_driver import ScriptDriver, script_workload
from .versions import HostVersions

#: How far the device is behind is the choice of the script and its schedule, and a runner cannot know it.
FULL_QUEUE = "MRV108"


class Refused(CheckError):
    """The target refuses the settings of a script by name; that is no fault of either."""


@dataclass(frozen=True)
class Failure:
    """Something that is wrong.

    Attributes:
        signature: the same for each case that fails in this way, on any machine: findings by code, title and places
            (the happens-before signature of a race), words without their numbers, crashes by type and place.
        text: what was seen.
        distance: from the cause: 0 for a wrong input, 1 for an access or a wait out of order, 2 for wrong bookkeeping,
            3 for a crash, 4 for a wrong token, 5 for a wrong report. Whatever is near may cause what is far.
        refusal: a crash that blames the caller by name, who may be to blame if he is not the one who was drawn.
    """

    signature: str
    text: str
    distance: int
    refusal: bool = False


@dataclass(frozen=True)
class CaseOutcome:
    """What became of a script.

    Attributes:
        failures: everything that is wrong, one for each signature, the nearest to the cause first.
        steps: executed, those of changed scripts included.
        tally: of the comparison with the oracle.
        counts: how often something rare happened.
        results: tokens and log-probabilities by request.
        continued: the whole prompt of each request that went on where another had ended.
        streams: that the device had; 0 on the plain CPU.
        moments: at which a schedule can deviate; 0 likewise.
    """

    failures: tuple[Failure, ...]
    steps: int
    tally: Tally
    counts: Mapping[str, int]
    results: Mapping[str, RequestResult] = field(repr=False)
    continued: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    streams: int = 0
    moments: int = 0


def run_case(target: RunnerTarget, script: Script, note: Note | None = None) -> CaseOutcome:
    """Run a script, and once more if it has a relation, and judge what it showed.

    Args:
        note: is called with each event of the virtual device.

    Raises:
        Refused: the target refuses its settings.
    """
    outcome = _run(target, script, note)
    if script.relation in RELATIONS and not outcome.failures:
        return _related(target, script, outcome, note)
    return outcome


def _related(target: RunnerTarget, script: Script, base: CaseOutcome, note: Note | None) -> CaseOutcome:
    """The outcome of a script with what is wrong with the changed ones, and where they differ from it."""
    relation = RELATIONS[script.relation or ""]
    results: dict[str, RequestResult] = {}
    continued: dict[str, tuple[int, ...]] = {}
    found: list[Failure] = []
    near_ties, steps = base.tally.near_ties, base.steps
    for other in relation.others(script):
        try:
            outcome = _run(target, other.script, note)
        except Refused:
            return replace(base, failures=_each_once(found), steps=steps)
        found += outcome.failures
        near_ties, steps = near_ties + outcome.tally.near_ties, steps + outcome.steps
        results |= {other.names[name]: result for name, result in outcome.results.items()}
        continued |= {other.names[name]: prompt for name, prompt in outcome.continued.items()}
    if results:
        # What goes on where another was aborted, sooner or later, has another prompt, and that is no fault.
        elsewhere = {name for name, prompt in base.continued.items() if continued.get(name) != prompt}
        elsewhere |= _chosen_anew(script, base) if relation.rounds else set()
        compared = {name: result for name, result in base.results.items() if name not in elsewhere}
        differing = differences(compared, results, relation, near_ties)
        found += [_of_words(f"relation {script.relation!r}: {text}") for text in differing]
    return replace(base, failures=_each_once(found), steps=steps)


def _chosen_anew(script: Script, base: CaseOutcome) -> set[str]:
    """Requests whose drafts were accepted by chance: in another batch that may rightly be other ones."""
    if not by_chance(script.settings):
        return set()
    arrivals = [event for event in script.events if isinstance(event, Arrive)]
    drawing = {f"r{index}" for index, event in enumerate(arrivals) if event.sampling.temperature > 0}
    return drawing & base.results.keys()


def _run(target: RunnerTarget, script: Script, note: Note | None) -> CaseOutcome:
    program = Program(target, script)
    if script.schedule is None:
        with triton_cpu.enabled() as session:
            program()
        return outcome_of(program, tuple(map(portable, session.findings)))
    versions = HostVersions()
    with Watch(own_settings(target) or Settings()) as watch:
        run = run_program(program, script.schedule, note=note, hooks=(install(watch), versions.install))
    if program.refusal is not None:
        raise program.refusal
    waits = [finding for finding in watch.findings if finding.code != FULL_QUEUE]
    return outcome_of(program, (*run.findings, *waits), run, versions)


class Program:
    """Builds a runner and drives the script through it; on a virtual device if called inside of one.

    Args:
        device: ``"cpu"`` or ``"cuda"``; that of the script's schedule, if none is given.

    Attributes:
        workload: the requests that were served.
        trace: what was seen.
        recorder: of reports; None before the runner is built.
        refused: requests that no scheduler could serve.
        updates: streaming updates that the runner was told.
        refusal: set if the target refuses the settings.
    """

    def __init__(self, target: RunnerTarget, script: Script, device: str | None = None) -> None:
        self._device = device or ("cpu" if script.schedule is None else "cuda")
        self._target = target
        self._script = script
        self._facts = model_facts(script.model)
        self.workload = script_workload(script, (), *self._facts)
        self.trace = Trace()
        self.recorder: RecordingRunner | None = None
        self.refused = self.updates = 0
        self.refusal: Refused | None = None

    @property
    def script(self) -> Script:
        """What runs."""
        return self._script

    def chances(self) -> Chances | None:
        """How drafts were accepted, if that was by chance."""
        return chances_of(self._target, self._script.model, self._script.settings, self.trace)

    def __call__(self) -> None:
        """Run the script; what goes wrong is in ``trace`` and ``recorder``.

        Raises:
            Refused: the target refuses its settings.
        """
        on_cpu = self._device == "cpu"
        runner = self._build(on_cpu)
        if runner is None:
            return
        updates: dict[str, str] = {}
        session = SessionRunner(runner, updates) if Feature.STREAMING_UPDATES in self._target.features else None
        self.recorder = RecordingRunner(session or runner)
        features = self._target.features
        shown = _Looking(self.recorder, runner, session) if on_cpu and Feature.SNAPSHOT in features else None
        driver = ScriptDriver(
            shown or self.recorder,
            self._script,
            *self._facts,
            check_invariants=on_cpu,
            preempted=self.recorder.drop,
            updates=updates,
            admits=Feature.EMPTY_ADMISSION in features,
        )
        self.trace = driver.run()
        if not self.trace.crash and not on_cpu:
            self.trace.broken += [(len(self.trace.steps) - 1, finding) for finding in runner.invariants()]
        close(self.recorder, self.trace)
        self.workload = script_workload(self._script, driver.requests, *self._facts)
        self.refused = len(driver.refused)
        self.updates = session.updates if session else 0

    def _build(self, on_cpu: bool) -> Runner | None:
        """The runner; None if the target crashed, which the trace then says.

        Raises:
            Refused: the target refuses the settings.
        """
        device: dict[str, JSON] = {} if on_cpu else {"device": "cuda"}
        try:
            return checked_runner(self._target.build({**self._script.settings, **device, "model": self._script.model}))
        except (Exception, SystemExit) as error:
            if is_refusal(error):
                self.refusal = Refused(*(getattr(error, part) for part in FOUR_PARTS))
                raise self.refusal from error
            self.trace.crash = Crash(f"{type(error).__name__}: {error}", (), -1)
            return None


class _Looking:
    """A recorder that shows the snapshots of the runner inside: on the plain CPU a look costs and changes nothing.

    Args:
        session: between the two, if requests have other names inside.
    """

    def __init__(self, recorder: RecordingRunner, inner: Runner, session: SessionRunner | None) -> None:
        self._recorder = recorder
        self._inner = inner
        self._session = session

    def execute(self, step: Step) -> Handle:
        """See :class:`Runner`."""
        return self._recorder.execute(step)

    def invariants(self) -> list[Finding]:
        """See :class:`Runner`."""
        return self._inner.invariants()

    def close(self) -> None:
        """See :class:`Runner`."""
        self._recorder.close()

    def __getattr__(self, name: str) -> Callable[..., object]:
        """``snapshot``, ``producer`` and ``poisoned``, if the runner has them."""
        found: Callable[..., object] = getattr(self._inner, name)
        return self._snapshot if name == "snapshot" and self._session else found

    def _snapshot(self) -> object:
        """The inputs of the last step, under the names that requests have outside."""
        shown = cast(SnapshotRunner, self._inner).snapshot()
        if shown is None or self._session is None:
            return shown
        outer = self._session.outer
        return replace(shown, request_ids=tuple(outer.get(name, name) for name in shown.request_ids))


def outcome_of(
    program: Program, findings: tuple[Finding, ...], run: Run | None = None, versions: HostVersions | None = None
) -> CaseOutcome:
    """Judge a program that has run.

    Args:
        findings: of the device and the traps.
        run: on the virtual device, if it was there.
        versions: of what the host wrote there.
    """
    trace, tally = program.trace, Tally()
    if program.recorder is not None:
        recorder = program.recorder
        judge = judge_of(program.script.model, bool(program.script.settings.get("grammars")))
        logits = program.script.settings.get("logprobs_mode") == "raw_logits"
        reports = recorder.reports, recorder.prompts
        tally = judge.judge(program.workload, trace, *reports, program.chances(), logits=logits)
    versions = versions or HostVersions()
    found = [*_of_trace(trace), *map(_of_finding, findings), *_stale(versions), *_broken(trace), *_crashes(trace, run)]
    found += map(_of_words, tally.failures)
    if program.recorder is not None:
        found += [_of_words(f"request {name}: {fault}") for name, fault in program.recorder.faults.items()]
    return CaseOutcome(
        failures=_each_once(found),
        steps=len(trace.steps),
        tally=tally,
        counts={**_counts(program), "host versions read": versions.compared},
        results=trace.results,
        continued=_continued(program),
        streams=run.streams if run else 0,
        moments=run.recorder.moments if run else 0,
    )


def _continued(program: Program) -> dict[str, tuple[int, ...]]:
    prompts = whole_prompts(program.workload, program.trace)
    return {item.request_id: prompts[item.request_id] for item in program.workload.requests if item.continues}


def _each_once(found: Sequence[Failure]) -> tuple[Failure, ...]:
    first: dict[str, Failure] = {}
    for failure in found:
        first.setdefault(failure.signature, failure)
    return tuple(sorted(first.values(), key=lambda failure: failure.distance))


def _counts(program: Program) -> dict[str, int]:
    trace = program.trace
    steps = trace.steps
    return {
        **trace.counts,
        "row reuses": trace.row_reuses,
        "row moves": trace.row_moves,
        "prefixes found": sum(request.num_computed_tokens > 0 for step in steps for request in step.new),
        "blocks copied": sum(len(step.block_copies) for step in steps),
        "empty steps": sum(not step.scheduled for step in steps),
        "drafts": sum(sum(step.drafts.values()) for step in steps),
        "drafts rejected": sum(rejected for step in steps for _, rejected in step.verified.values()),
        "rows reused at once": sum(min(len(step.finished) + len(step.preempted), len(step.new)) for step in steps),
        "edges of graphs": sum(_at_an_edge(step) for step in steps) if _has_graphs(program.script) else 0,
        "refused requests": program.refused,
        "updates": program.updates,
    }


def _has_graphs(script: Script) -> bool:
    return script.settings.get("graph_mode", "eager") != "eager"


def _at_an_edge(step: Step) -> bool:
    """Whether its tokens fill a graph exactly, or are one too many for one: sizes are powers of two."""
    tokens = sum(step.scheduled.values())
    return tokens > 0 and (tokens & (tokens - 1) == 0 or (tokens - 1) & (tokens - 2) == 0)


def _crashes(trace: Trace, run: Run | None) -> Iterator[Failure]:
    for crash in (trace.crash, *trace.faults):
        if crash:
            place = f" at {crash.where[0].file}:{crash.where[0].function}" if crash.where else ""
            text = f"step {crash.step}: {crash.error}{place}"
            yield Failure(f"crash {_without_numbers(crash.error)}{place}", text, 3, crash.refusal)
    if run is not None and run.error is not None and trace.crash is None:
        yield Failure(f"crash {_without_numbers(run.error)}", run.ending or run.error, 3)


def _of_trace(trace: Trace) -> Iterator[Failure]:
    if trace.mismatch:
        step, mismatch = trace.mismatch
        by = f", computed by {trace.producer.file}:{trace.producer.function}" if trace.producer else ""
        yield Failure(
            f"wrong input {mismatch.field}",
            f"step {step}: {mismatch.field} of request {mismatch.request_id}, index {mismatch.index}, is "
            f"{mismatch.observed} instead of {mismatch.expected}{by}",
            0,
        )


def _broken(trace: Trace) -> Iterator[Failure]:
    for step, finding in trace.broken:
        failure = _of_finding(finding)
        yield Failure(failure.signature, f"step {step}: {failure.text}", 2)


def _of_finding(finding: Finding) -> Failure:
    places = [f"{site.file}:{site.line} ({site.function})" for site in (*finding.where[:1], *finding.other[:1])]
    text = f"{finding.code} {finding.title} {' and '.join(places)} {dict(finding.evidence)}"
    return Failure(f"{finding.code} {identity(finding)}", text[:1000], 1)


def _stale(versions: HostVersions) -> Iterator[Failure]:
    """What a race did in this schedule; the race itself comes first, if it was seen."""
    for read in versions.stale:
        yield Failure(f"stale read by {read.name}", str(read), 1)


def _of_words(text: str) -> Failure:
    return Failure(_without_numbers(text), text, 4 if ": token " in text else 5)


def _without_numbers(text: str) -> str:
    """The kind of a sentence: its names of requests and all numbers replaced."""
    return re.sub(r"-?\d[\d.]*(e[-+]?\d+)?|\bnan\b|-?\binf\b", "#", re.sub(r"\br\d+\b", "r", text))[:300]


@functools.cache
def model_facts(model: str) -> tuple[int, tuple[int, ...]]:
    """Size of the vocabulary, and the windows of the KV groups."""
    config = load_checkpoint(model).config
    return config.vocab_size, KVGroups.of_layers(config.layer_windows).windows
