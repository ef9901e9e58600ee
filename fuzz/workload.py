"""Requests with their fates, and the loop that drives a runner through them.

A workload is data: which request arrives when, who is preempted or aborted after how many tokens. Driving it is
deterministic, so two runners, or one runner with two settings, can be compared step by step.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mrv2.checks.findings import Finding, Site
from mrv2.fuzz.step_model import ExpectedInputs, InputMismatch, StepModel
from mrv2.fuzz.targets.protocols import InputSnapshot, Runner, SnapshotRunner
from mrv2.refrunner.api import Handle, SamplingParams, Step, StepOutput
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.scheduler import Scheduler

STACK_DEPTH = 8
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
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    arrival: int = 0
    preempt_after: tuple[int, ...] = ()
    abort_after: int | None = None


@dataclass(frozen=True)
class Workload:
    """Requests and the capacities that put them under pressure.

    Attributes:
        requests: in order of arrival.
        capacities: fields of ``RunnerConfig`` that the scheduler and the runner must agree on.
        vocab_size: of the model; a token drawn outside it ends the run as a crash.
        steps_in_flight: steps enqueued before the oldest output is taken.
    """

    requests: tuple[WorkloadRequest, ...]
    capacities: Mapping[str, int]
    vocab_size: int
    steps_in_flight: int = 2


@dataclass(frozen=True)
class Crash:
    """The target raised, or returned something that is not an output or not a snapshot.

    Attributes:
        error: type and message.
        where: innermost frames first.
        step: index of the last step executed.
    """

    error: str
    where: tuple[Site, ...]
    step: int


@dataclass(frozen=True)
class RequestResult:
    """What a request generated, and how it ended."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str | None


@dataclass
class Trace:
    """Everything observed while a workload ran.

    Attributes:
        steps: executed steps.
        results: per request.
        mismatch: first wrong input and the index of its step.
        broken: findings of ``Runner.invariants``, with their step.
        crash: set if the target crashed; the trace ends there.
        row_reuses: requests that got a row used before (0 for a runner without snapshots).
        row_moves: requests that resumed in another row than their last one (likewise).
        counts: preemptions, resumptions, aborts and chunks of prefill seen.
    """

    steps: list[Step] = field(default_factory=list)
    results: dict[str, RequestResult] = field(default_factory=dict)
    mismatch: tuple[int, InputMismatch] | None = None
    broken: list[tuple[int, Finding]] = field(default_factory=list)
    crash: Crash | None = None
    row_reuses: int = 0
    row_moves: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class _TargetCrash(Exception):
    """Carries a crash of the target out of the loop."""

    def __init__(self, crash: Crash) -> None:
        super().__init__(crash.error)
        self.crash = crash


class MalformedOutput(Exception):
    """A runner's output breaks the contract of ``StepOutput`` or ``InputSnapshot``."""


class Driver:
    """Drives one runner through one workload."""

    def __init__(self, runner: Runner, workload: Workload, *, check_invariants: bool = False) -> None:
        """Prepare; ``run`` does the work.

        Args:
            check_invariants: ask the runner for broken invariants after every step.
        """
        self.trace = Trace(counts=dict.fromkeys(("preempted", "resumed", "aborted", "chunked"), 0))
        self._runner = runner
        self._workload = workload
        self._check_invariants = check_invariants
        capacities: dict[str, Any] = {**workload.capacities}
        config = RunnerConfig(**capacities)
        self._scheduler = Scheduler(config)
        self._model = StepModel(config.block_size)
        self._in_flight: deque[tuple[Handle, frozenset[str]]] = deque()
        self._arrivals = deque(sorted(workload.requests, key=lambda request: request.arrival))
        self._preempted: set[tuple[str, int]] = set()
        self._last_row: dict[str, int] = {}
        self._used_rows: set[int] = set()
        self._expected = ExpectedInputs((), {}, {}, frozenset())

    def run(self) -> Trace:
        """Drive until every request has ended, or the target crashes."""
        try:
            while self._arrivals or self._scheduler.has_work or self._in_flight:
                self._advance()
        except _TargetCrash as crash:
            self.trace.crash = crash.crash
        for name, request in self._scheduler.requests.items():
            self.trace.results[name] = RequestResult(
                request.output_token_ids, tuple(request.logprobs), request.finish_reason
            )
        return self.trace

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
            request = self._arrivals.popleft()
            self._scheduler.add(request.request_id, request.prompt, request.sampling)

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

    def _execute(self, step: Step) -> None:
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
        self._in_flight.append((handle, self._expected.draws))
        if self._check_invariants:
            index = len(self.trace.steps) - 1
            broken = self._call(lambda: list(self._runner.invariants()))
            self.trace.broken.extend((index, finding) for finding in broken)

    def _call(self, function: Callable[[], Result]) -> Result:
        """Call the target; whatever it raises is a finding, not our failure."""
        try:
            return function()
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise _TargetCrash(Crash(message, _stack(error), len(self.trace.steps) - 1)) from error

    def _count(self, step: Step) -> None:
        counts = self.trace.counts
        counts["preempted"] += len(step.preempted)
        for request in step.new:
            counts["resumed"] += len(request.token_ids) > request.prompt_len
            counts["chunked"] += step.scheduled.get(request.request_id, 0) < len(request.token_ids)

    def _compare_inputs(self, step: Step) -> None:
        if self.trace.mismatch or not step.scheduled or not isinstance(self._runner, SnapshotRunner):
            return
        snapshot = self._call(self._runner.snapshot)
        if snapshot is None:
            return
        self._call(lambda: _check_snapshot(snapshot))
        self._follow_rows(step, dict(zip(snapshot.request_ids, snapshot.rows, strict=True)))
        mismatch = self._expected.compare(snapshot)
        if mismatch is not None:
            self.trace.mismatch = (len(self.trace.steps) - 1, mismatch)

    def _follow_rows(self, step: Step, rows: dict[str, int]) -> None:
        for name in {request.request_id for request in step.new} & set(rows):
            self.trace.row_reuses += rows[name] in self._used_rows
            self.trace.row_moves += self._last_row.get(name, rows[name]) != rows[name]
        self._last_row.update(rows)
        self._used_rows.update(rows.values())

    def _take_output(self) -> None:
        if not self._in_flight:
            return
        handle, draws = self._in_flight.popleft()
        output = self._call(lambda: _checked(handle.result(), draws, self._workload.vocab_size))
        self._model.record(output)
        self._scheduler.update(output)


def _checked(output: StepOutput, draws: frozenset[str], vocab_size: int) -> StepOutput:
    """The output, if it has exactly one token and one finite logprob for each request that must have a draw."""
    if set(output.token_ids) != draws or set(output.logprobs) != draws:
        raise MalformedOutput(f"tokens for {sorted(output.token_ids)}, expected for {sorted(draws)}")
    for name in draws:
        tokens, logprobs = output.token_ids[name], output.logprobs[name]
        if len(tokens) != 1 or len(logprobs) != 1 or not math.isfinite(logprobs[0]):
            raise MalformedOutput(f"request {name}: tokens {tokens} with logprobs {logprobs}, expected one finite draw")
        if not isinstance(tokens[0], int) or not 0 <= tokens[0] < vocab_size:
            raise MalformedOutput(f"request {name}: token {tokens[0]!r}, expected an int in 0..{vocab_size - 1}")
    return output


def _check_snapshot(snapshot: InputSnapshot) -> None:
    """Raise unless the fields with one entry per request have the same length."""
    lengths = {name: len(getattr(snapshot, name)) for name in ("request_ids", "rows", "seq_lens", "block_tables")}
    if len(set(lengths.values())) != 1:
        raise MalformedOutput(f"a snapshot has one entry per request in each of these, but the lengths are {lengths}")


def _stack(error: BaseException) -> tuple[Site, ...]:
    """Innermost frames first, named after their modules: the same on every machine."""
    frames = list(traceback.walk_tb(error.__traceback__))[-STACK_DEPTH:]
    return tuple(
        Site(f"{frame.f_globals.get('__name__', '').replace('.', '/')}.py", line, frame.f_code.co_qualname)
        for frame, line in reversed(frames)
    )
