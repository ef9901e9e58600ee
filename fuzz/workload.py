"""Requests with their fates, and the loop that drives a runner through them.

A workload is data: which request arrives when, who is preempted or aborted after how many tokens. Driving it is
deterministic, so two runners, or one runner with two settings, can be compared step by step.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON, Finding, Site
from mrv2.fuzz.checked import (
    checked_counts,
    checked_findings,
    checked_output,
    checked_runner,
    checked_site,
    checked_snapshot,
)
from mrv2.fuzz.step_model import ExpectedInputs, InputMismatch, StepModel
from mrv2.fuzz.targets.protocols import PoisonRunner, Runner, RunnerTarget, SnapshotRunner
from mrv2.refrunner.api import Handle, SamplingParams, Step, StepOutput
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.scheduler import Scheduler

STACK_DEPTH = 8
FOUR_PARTS = ("subject", "rule", "reason", "remedy")
Result = TypeVar("Result")


@dataclass(frozen=True)
class WorkloadRequest:
    """One request and what happens to it.

    Attributes:
        request_id: its name.
        prompt: token ids.
        sampling: its parameters.
        arrival: index of the step before which it arrives.
        preempt_after: it is preempted each time this many tokens, one of these counts, have arrived.
        abort_after: it is aborted once this many tokens have arrived.
        priority: the smaller, the sooner it is served; counts only with ``scheduling="priority"``.
        continues: an earlier request: this one arrives when that has ended, ``arrival`` notwithstanding, and its
            prompt is all tokens of that one and then ``prompt``.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    arrival: int = 0
    preempt_after: tuple[int, ...] = ()
    abort_after: int | None = None
    priority: int = 0
    continues: str | None = None


@dataclass(frozen=True)
class Workload:
    """Requests and the capacities that put them under pressure.

    Attributes:
        requests: in order of arrival.
        capacities: fields of ``RunnerConfig``, those that scheduler and runner must agree on among them.
        vocab_size: of the model; a token drawn outside it ends the run as a crash.
        steps_in_flight: steps enqueued before the oldest output is taken.
        windows: of the model's KV groups; the first one is compared with snapshots.

    Raises:
        CheckError: a request continues one that does not come before it.
    """

    requests: tuple[WorkloadRequest, ...]
    capacities: Mapping[str, Any]
    vocab_size: int
    steps_in_flight: int = 2
    windows: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        known: set[str | None] = {None}
        for request in self.requests:
            if request.continues not in known:
                raise CheckError(
                    f"WorkloadRequest.continues={request.continues!r} of request {request.request_id!r}",
                    "it names a request that comes before this one",
                    "what never ends is never continued, and the run would wait for it for ever",
                    "the id of an earlier request, or None",
                )
            known.add(request.request_id)


@dataclass(frozen=True)
class Crash:
    """The target raised, or returned something that breaks its contract.

    Attributes:
        error: type and message.
        where: innermost frames first.
        step: index of the last step executed; -1 before the first.
        refusal: it says what rule its caller broke, and what to write instead.
    """

    error: str
    where: tuple[Site, ...]
    step: int
    refusal: bool = False


@dataclass(frozen=True)
class RequestResult:
    """What a request generated, and how it ended."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str | None


@dataclass(frozen=True)
class Emission:
    """What a step gave a request that took it.

    Attributes:
        step: its number.
        drafts: that it verified.
        token_ids: accepted drafts, then one more; those behind the request's end are among them.
    """

    step: int
    drafts: int
    token_ids: tuple[int, ...]


@dataclass
class Trace:
    """Everything observed while a workload ran.

    Attributes:
        steps: executed steps.
        results: per request.
        mismatch: first wrong input and the index of its step.
        producer: the code that computed it, if the runner names it.
        broken: findings of ``Runner.invariants``, with their step.
        crash: set if the target crashed; the trace ends there.
        faults: what went wrong beside the steps: in naming a producer, or in closing.
        row_reuses: requests that got a row used before (0 for a runner without snapshots).
        row_moves: requests that resumed in another row than their last one (likewise).
        counts: preemptions, resumptions, aborts and chunks of prefill seen.
        drafts: how many were verified, and how many of them accepted.
        emissions: of the steps whose output a request took, in order, by request.
        padded: steps that had padding, by kind; only a runner with snapshots shows it.
        poisoned: places of each kind that were seen to hold poison, at most at once; only with the invariants.
    """

    steps: list[Step] = field(default_factory=list)
    results: dict[str, RequestResult] = field(default_factory=dict)
    mismatch: tuple[int, InputMismatch] | None = None
    producer: Site | None = None
    broken: list[tuple[int, Finding]] = field(default_factory=list)
    crash: Crash | None = None
    faults: list[Crash] = field(default_factory=list)
    row_reuses: int = 0
    row_moves: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("preempted", "resumed", "aborted", "chunked"), 0)
    )
    drafts: tuple[int, int] = (0, 0)
    emissions: dict[str, list[Emission]] = field(default_factory=dict)
    padded: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("tokens", "requests"), 0))
    poisoned: dict[str, int] = field(default_factory=dict)


class _TargetCrash(Exception):
    """Carries a crash of the target out of the loop."""

    def __init__(self, crash: Crash) -> None:
        super().__init__(crash.error)
        self.crash = crash


@dataclass(frozen=True)
class _InFlight:
    """A step whose output is not taken: its number, who draws in it, how many drafts each had, and who decided it."""

    number: int
    handle: Handle
    draws: frozenset[str]
    drafts: Mapping[str, int]
    scheduled: bool


class Driver:
    """Drives one runner through one workload."""

    def __init__(self, runner: Runner, workload: Workload, *, check_invariants: bool = False) -> None:
        """Prepare; ``run`` does the work.

        Args:
            check_invariants: ask the runner for broken invariants, and for its poison, after every step.
        """
        self.trace = Trace()
        self._runner = runner
        self._workload = workload
        self._check_invariants = check_invariants
        config = RunnerConfig(**workload.capacities)
        self._scheduler = Scheduler(config, workload.windows)
        self._model = StepModel(config.block_size)
        self._in_flight: deque[_InFlight] = deque()
        arriving = [request for request in workload.requests if request.continues is None]
        self._arrivals = deque(sorted(arriving, key=lambda request: request.arrival))
        self._continuing = [request for request in workload.requests if request.continues is not None]
        self._preempted: set[tuple[str, int]] = set()
        self._last_row: dict[str, int] = {}
        self._used_rows: set[int] = set()
        self._expected = ExpectedInputs((), {}, {}, frozenset())

    def run(self) -> Trace:
        """Drive until every request has ended, or the target crashes."""
        try:
            self._drive()
        except _TargetCrash as crash:
            self.trace.crash = crash.crash
        self.trace.drafts = self._scheduler.speculation.drafts, self._scheduler.speculation.accepted
        for name, request in self._scheduler.requests.items():
            self.trace.results[name] = RequestResult(
                request.output_token_ids, tuple(request.logprobs), request.finish_reason
            )
        return self.trace

    def _drive(self) -> None:
        while self._arrivals or self._continuing or self._scheduler.has_work or self._in_flight:
            self._advance()

    def _advance(self) -> None:
        self._arrive()
        self._apply_fates()
        has_work = self._scheduler.has_work
        if has_work or self._arrivals:
            self._execute(self._scheduler.schedule())
        if len(self._in_flight) >= self._workload.steps_in_flight or not has_work:
            self._take_output()

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0].arrival <= len(self.trace.steps):
            self._add(self._arrivals.popleft())
        for request in list(self._continuing):
            earlier = self._scheduler.requests.get(request.continues or "")
            if earlier is not None and earlier.finish_reason is not None:
                self._continuing.remove(request)
                self._add(request, tuple(earlier.token_ids))

    def _add(self, request: WorkloadRequest, before: tuple[int, ...] = ()) -> None:
        prompt = (*before, *request.prompt)
        turn_of = self._turn_of(request)
        self._scheduler.add(request.request_id, prompt, request.sampling, request.priority, turn_of)

    def _turn_of(self, request: WorkloadRequest) -> str | None:
        """Another request, whose turn this one takes; nobody does here."""
        return None

    def _apply_fates(self) -> None:
        for request in self._workload.requests:
            tracked = self._scheduler.requests.get(request.request_id)
            if tracked is None or tracked.finish_reason is not None:
                continue
            arrived = len(tracked.output_token_ids)
            if request.abort_after is not None and arrived >= request.abort_after:
                self._scheduler.abort(request.request_id)
                self.trace.counts["aborted"] += 1
                continue
            for count in request.preempt_after:
                due = arrived >= count and (request.request_id, count) not in self._preempted
                if due and self._scheduler.preempt(request.request_id):
                    self._preempted.add((request.request_id, count))

    def _execute(self, step: Step, *, scheduled: bool = True) -> None:
        """Execute a step; one that the scheduler did not decide must be empty, and its output is none of its own."""
        self.trace.steps.append(step)
        self._count(step)
        self._expected = self._model.advance(step)
        try:
            handle = self._call(lambda: self._runner.execute(step))
        except _TargetCrash:
            # A wrong input is often the cause of a crash. A second crash while looking for it tells nothing.
            with suppress(_TargetCrash):
                self._compare_inputs(step)
            raise
        self._compare_inputs(step)
        number = len(self.trace.steps) - 1
        self._in_flight.append(_InFlight(number, handle, self._expected.draws, step.drafts, scheduled))
        if self._check_invariants:
            self._look_inside()

    def _look_inside(self) -> None:
        runner, index = self._runner, len(self.trace.steps) - 1
        broken = self._call(lambda: checked_findings(runner.invariants()))
        self.trace.broken.extend((index, finding) for finding in broken)
        if isinstance(runner, PoisonRunner):
            for kind, count in self._call(lambda: checked_counts(runner.poisoned())).items():
                self.trace.poisoned[kind] = max(self.trace.poisoned.get(kind, 0), count)

    def _call(self, function: Callable[[], Result]) -> Result:
        """Call the target; whatever it raises is a finding, not our failure."""
        try:
            return function()
        except (Exception, SystemExit) as error:
            raise _TargetCrash(_crash(error, len(self.trace.steps) - 1)) from error

    def _count(self, step: Step) -> None:
        counts = self.trace.counts
        counts["preempted"] += len(step.preempted)
        for request in step.new:
            counts["resumed"] += len(request.token_ids) > request.prompt_len
            counts["chunked"] += step.scheduled.get(request.request_id, 0) < len(request.token_ids)

    def _compare_inputs(self, step: Step) -> None:
        runner = self._runner
        unknown = not step.scheduled or not self._expected.certain
        if self.trace.mismatch or unknown or not isinstance(runner, SnapshotRunner):
            return
        shown = self._call(runner.snapshot)
        if shown is None:
            return
        snapshot = self._call(lambda: checked_snapshot(shown))
        self._follow_rows(step, dict(zip(snapshot.request_ids, snapshot.rows, strict=True)))
        self.trace.padded["tokens"] += snapshot.padding_tokens > 0
        self.trace.padded["requests"] += snapshot.padding_requests > 0
        mismatch = self._expected.compare(snapshot)
        if mismatch is not None:
            self.trace.mismatch = (len(self.trace.steps) - 1, mismatch)
            self.trace.producer = self._producer(runner, mismatch.field)

    def _producer(self, runner: SnapshotRunner, name: str) -> Site | None:
        """Who made a wrong input. Not knowing it is a fault of the target, but the input is wrong all the same."""
        try:
            return self._call(lambda: checked_site(name, runner.producer(name)))
        except _TargetCrash as crash:
            self.trace.faults.append(crash.crash)
            return None

    def _follow_rows(self, step: Step, rows: dict[str, int]) -> None:
        for name in {request.request_id for request in step.new} & set(rows):
            self.trace.row_reuses += rows[name] in self._used_rows
            self.trace.row_moves += self._last_row.get(name, rows[name]) != rows[name]
        self._last_row.update(rows)
        self._used_rows.update(rows.values())

    def _take_output(self) -> None:
        if not self._in_flight:
            return
        step = self._in_flight.popleft()
        vocab_size = self._workload.vocab_size
        output = self._call(lambda: checked_output(step.handle.result(), step.draws, vocab_size, step.drafts))
        if step.scheduled:
            self._model.record(output)
            self._update(step, output)

    def _update(self, step: _InFlight, output: StepOutput) -> None:
        """Let the scheduler take an output, and note which requests did: it drops what preempted ones had in flight."""
        requests = self._scheduler.requests
        before = {name: len(requests[name].output_token_ids) for name in output.token_ids}
        self._scheduler.update(output)
        for name, count in before.items():
            if len(requests[name].output_token_ids) > count:
                emission = Emission(step.number, step.drafts.get(name, 0), output.token_ids[name])
                self.trace.emissions.setdefault(name, []).append(emission)


def run_target(
    target: RunnerTarget, config: Mapping[str, JSON], workload: Workload, *, check_invariants: bool = False
) -> Trace:
    """Build a runner, drive it through a workload and close it; whatever goes wrong is part of the trace.

    Args:
        config: what :meth:`RunnerTarget.build` gets, beside the workload's capacities.
        check_invariants: see :class:`Driver`.

    Raises:
        what ``build`` raises to refuse the configuration, with the four parts of such an error.
    """
    try:
        runner = checked_runner(target.build({**config, **workload.capacities}))
    except (Exception, SystemExit) as error:
        if is_refusal(error):
            raise
        return Trace(crash=_crash(error, -1))
    trace = Driver(runner, workload, check_invariants=check_invariants).run()
    close(runner, trace)
    return trace


def close(runner: Runner, trace: Trace) -> None:
    """Close a runner; what it raises becomes a fault of the trace."""
    try:
        runner.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a target raises anything
        trace.faults.append(_crash(error, len(trace.steps) - 1))


def _crash(error: BaseException, step: int) -> Crash:
    return Crash(f"{type(error).__name__}: {error}", stack(error), step, is_refusal(error))


def is_refusal(error: BaseException) -> bool:
    """Whether an error has the four parts of one that refuses what a caller asked for, by name."""
    return all(hasattr(error, part) for part in FOUR_PARTS)


def stack(error: BaseException) -> tuple[Site, ...]:
    """Innermost frames first, named after their modules: the same on every machine."""
    frames = list(traceback.walk_tb(error.__traceback__))[-STACK_DEPTH:]
    return tuple(
        Site(f"{frame.f_globals.get('__name__', '').replace('.', '/')}.py", line, frame.f_code.co_qualname)
        for frame, line in reversed(frames)
    )
