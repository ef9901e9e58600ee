"""Drives a runner through the events of a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from mrv2.fuzz.targets.protocols import Runner
from mrv2.fuzz.workload import Driver, Workload, WorkloadRequest
from mrv2.refrunner.api import Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import RequestError

from .script import Abort, Admit, Advance, Arrive, Collect, Event, Preempt, Script, Skip

#: What the scheduler of the fuzzer needs to know of the settings; the rest is the target's own affair.
CAPACITIES = frozenset({"max_num_reqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_kv_blocks"})
SCHEDULER_SETTINGS = CAPACITIES | {"prefix_caching", "scheduling", "speculation", "num_drafts", "grammars"}


def _nobody(request_id: str) -> None:
    """Nobody wants to know."""


class ScriptDriver(Driver):
    """Drives one runner through one script.

    Attributes:
        requests: those that were served, in order of arrival, as a workload has them.
        refused: names of those that could never be served: they are longer than the context or the pool.
    """

    def __init__(
        self,
        runner: Runner,
        script: Script,
        vocab_size: int,
        windows: Sequence[int],
        *,
        check_invariants: bool = False,
        preempted: Callable[[str], None] = _nobody,
        updates: MutableMapping[str, str] | None = None,
        admits: bool = False,
    ) -> None:
        """Prepare; ``run`` does the work.

        Args:
            vocab_size: of the script's model.
            windows: of its KV groups.
            check_invariants: ask the runner for broken invariants after every step.
            preempted: is told of each request that the script preempts, before any step is.
            updates: gets, for each request that may be told as a streaming update, the one that it updates.
            admits: whether the runner may be told who enters before any of it is computed.
        """
        super().__init__(runner, script_workload(script, (), vocab_size, windows), check_invariants=check_invariants)
        self._events = script.events
        self._preempted_now = preempted
        self._updates = {} if updates is None else updates
        self._admits = admits
        self._arrived = 0
        self.requests: list[WorkloadRequest] = []
        self.refused: list[str] = []

    def _drive(self) -> None:
        for event in self._events:
            self._apply(event)
        super()._drive()

    def _apply(self, event: Event) -> None:
        match event:
            case Arrive():
                self._receive(event)
            case Advance(steps):
                for _ in range(steps):
                    self._step()
            case Skip():
                self._execute(Step(), scheduled=False)
                self._keep_up()
            case Preempt(which):
                self._preempt(which)
            case Abort(which):
                self._abort(which)
            case Collect():
                self._collect()
            case Admit():
                self._step(apart=self._admits)

    def _receive(self, event: Arrive) -> None:
        name, earlier = f"r{self._arrived}", None
        if event.continues is not None and self.requests:
            earlier = self.requests[event.continues % len(self.requests)].request_id
        self._arrived += 1
        request = WorkloadRequest(name, event.prompt, event.sampling, priority=event.priority, continues=earlier)
        if earlier is None:
            self._add(request)
        else:
            self.requests.append(request)
            self._continuing.append(request)
            if event.updates:
                self._updates[name] = earlier

    def _add(self, request: WorkloadRequest, before: tuple[int, ...] = ()) -> None:
        """Refuse what no scheduler could serve, and go on: a script stays one when its settings shrink."""
        try:
            self._check_grammar(request)
            super()._add(request, before)
        except RequestError:
            self._forget(request)
        else:
            if request not in self.requests:
                self.requests.append(request)

    def _turn_of(self, request: WorkloadRequest) -> str | None:
        """An update enters in the step in which what it updates leaves, whoever waits."""
        return self._updates.get(request.request_id)

    def _forget(self, request: WorkloadRequest) -> None:
        """Nothing continues what was never there, and nothing that: one that is waited for in vain is for ever."""
        self.refused.append(request.request_id)
        self.requests = [item for item in self.requests if item is not request]
        waiting = [item for item in self._continuing if item.continues == request.request_id]
        self._continuing = [item for item in self._continuing if item not in waiting]
        for item in waiting:
            self._forget(item)

    def _check_grammar(self, request: WorkloadRequest) -> None:
        """The scheduler leaves it to the runner, which would take it for a fault of its caller.

        Raises:
            RequestError: the runner is built without what grammars need.
        """
        if request.sampling.grammar is not None and not self._workload.capacities.get("grammars"):
            raise RequestError(
                f"request {request.request_id!r} with a grammar",
                "the settings of its script have grammars=True",
                "a runner allocates memory for masks when it is built",
                "settings={'grammars': True, ...}",
            )

    def _step(self, *, apart: bool = False) -> None:
        self._arrive()
        step = self._scheduler.schedule()
        if apart:
            self._execute(replace(step, scheduled={}, drafts={}, draft_tokens={}), scheduled=False)
            self._keep_up()
            step = Step(scheduled=step.scheduled, drafts=step.drafts, draft_tokens=step.draft_tokens)
        self._execute(step)
        self._keep_up()

    def _keep_up(self) -> None:
        if len(self._in_flight) >= self._workload.steps_in_flight:
            self._take_output()

    def _unfinished(self) -> list[str]:
        return [name for name, request in self._scheduler.requests.items() if request.finish_reason is None]

    def _preempt(self, which: int) -> None:
        """Preempt one of the running requests: the scheduler refuses all others, which are passed over."""
        names = self._unfinished()
        for offset in range(len(names)):
            name = names[(which + offset) % len(names)]
            if self._scheduler.preempt(name):
                self._preempted_now(name)
                return

    def _abort(self, which: int) -> None:
        names = self._unfinished()
        if names:
            self._scheduler.abort(names[which % len(names)])
            self.trace.counts["aborted"] += 1

    def _collect(self) -> None:
        while self._in_flight:
            self._take_output()


def script_workload(
    script: Script, requests: Sequence[WorkloadRequest], vocab_size: int, windows: Sequence[int]
) -> Workload:
    """What a script asks of a scheduler, with requests that it served."""
    settings: Mapping[str, Any] = script.settings
    capacities = {name: value for name, value in settings.items() if name in SCHEDULER_SETTINGS}
    return Workload(tuple(requests), capacities, vocab_size, script.steps_in_flight, tuple(windows))


def smallest_pool(settings: Mapping[str, Any], groups: int) -> int:
    """KV blocks that hold one request of full length, the null block and one spare for each group included."""
    config = RunnerConfig(**{name: value for name, value in settings.items() if name in CAPACITIES - {"num_kv_blocks"}})
    return 1 + groups * (config.max_blocks_per_request + 1)
