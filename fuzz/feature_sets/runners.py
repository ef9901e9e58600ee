"""Wrappers around a runner: one notes all that requests are told, one turns a continuing request into an update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from mrv2.checks.findings import Finding
from mrv2.fuzz.targets.protocols import Runner
from mrv2.refrunner.api import Handle, LogitsFault, Step, StepOutput, TokenLogprobs

Value = TypeVar("Value")


class RecordingRunner:
    """Notes reports and faults when the driver takes an output. It shows no snapshots, since each one synchronises.

    What was in flight when its request was preempted is dropped, as it is by the scheduler: from the step on that tells
    it, or from the moment that a driver names, which may take outputs before there is another step.

    Attributes:
        reports: on drawn tokens, by request.
        prompts: on tokens of prompts, by request.
        faults: of logits, by request.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.reports: dict[str, list[TokenLogprobs]] = {}
        self.prompts: dict[str, tuple[TokenLogprobs | None, ...]] = {}
        self.faults: dict[str, tuple[LogitsFault, ...]] = {}
        self._preempted: list[str] = []

    def execute(self, step: Step) -> Handle:
        """See :class:`Runner`."""
        self._preempted += step.preempted
        return _Noted(self._runner.execute(step), self, len(self._preempted))

    def drop(self, request_id: str) -> None:
        """The scheduler has preempted a request, and drops what it has in flight."""
        self._preempted.append(request_id)

    def invariants(self) -> list[Finding]:
        """See :class:`Runner`."""
        return self._runner.invariants()

    def close(self) -> None:
        """See :class:`Runner`."""
        self._runner.close()

    def note(self, output: StepOutput, preemptions: int) -> None:
        """Add what an output holds beside tokens and their log-probabilities.

        Args:
            preemptions: that had been told when its step was executed.
        """
        dropped = set(self._preempted[preemptions:])
        for name, reports in output.top_logprobs.items():
            if name not in dropped:
                self.reports.setdefault(name, []).extend(reports)
        self.prompts.update({n: tuple(reports) for n, reports in output.prompt_logprobs.items() if n not in dropped})
        self.faults.update({n: fault for n, fault in output.faults.items() if n not in dropped})


class _Noted:
    def __init__(self, handle: Handle, recorder: RecordingRunner, preemptions: int) -> None:
        self._handle = handle
        self._recorder = recorder
        self._preemptions = preemptions

    def result(self) -> StepOutput:
        output = self._handle.result()
        self._recorder.note(output, self._preemptions)
        return output


class SessionRunner:
    """Where a request enters in the step in which the one that it continues leaves, the runner sees one that grows.

    It keeps the name of the other, which is not told to leave: a streaming update. To the outside nothing is renamed.

    Attributes:
        updates: how many there were.
        outer: of the last step, for each name that the runner knew, the one that it has outside.
    """

    def __init__(self, runner: Runner, continues: Mapping[str, str]) -> None:
        """Wrap a runner.

        Args:
            continues: for each request that continues another one, that one.
        """
        self._runner = runner
        self._continues = continues
        self._inner: dict[str, str] = {}
        self.updates = 0
        self.outer: dict[str, str] = {}

    def execute(self, step: Step) -> Handle:
        """See :class:`Runner`."""
        grown = {
            earlier: request.request_id
            for request in step.new
            if (earlier := self._continues.get(request.request_id)) in step.finished and earlier is not None
        }
        for earlier, later in grown.items():
            self._inner[later] = self._name(earlier)
        self.updates += len(grown)
        self.outer = {self._name(name): name for name in step.scheduled}
        return _Renamed(self._runner.execute(self._renamed(step, grown)), self.outer)

    def invariants(self) -> list[Finding]:
        """See :class:`Runner`."""
        return self._runner.invariants()

    def close(self) -> None:
        """See :class:`Runner`."""
        self._runner.close()

    def _name(self, name: str) -> str:
        return self._inner.get(name, name)

    def _renamed(self, step: Step, grown: Mapping[str, str]) -> Step:
        return replace(
            step,
            finished=tuple(self._name(name) for name in step.finished if name not in grown),
            preempted=tuple(map(self._name, step.preempted)),
            new=tuple(replace(request, request_id=self._name(request.request_id)) for request in step.new),
            scheduled={self._name(name): count for name, count in step.scheduled.items()},
            new_blocks={self._name(name): blocks for name, blocks in step.new_blocks.items()},
            drafts={self._name(name): count for name, count in step.drafts.items()},
            arrived={self._name(name): tokens for name, tokens in step.arrived.items()},
            draft_tokens={self._name(name): tokens for name, tokens in step.draft_tokens.items()},
            verified={self._name(name): outcome for name, outcome in step.verified.items()},
        )


class _Renamed:
    def __init__(self, handle: Handle, outer: Mapping[str, str]) -> None:
        self._handle = handle
        self._outer = outer

    def result(self) -> StepOutput:
        output = self._handle.result()
        return StepOutput(
            token_ids=self._renamed(output.token_ids),
            logprobs=self._renamed(output.logprobs),
            top_logprobs=self._renamed(output.top_logprobs),
            prompt_logprobs=self._renamed(output.prompt_logprobs),
            faults=self._renamed(output.faults),
            drafts=self._renamed(output.drafts),
        )

    def _renamed(self, told: Mapping[str, Value]) -> dict[str, Value]:
        """A name that nobody was scheduled under stays, and is somebody else's finding."""
        return {self._outer.get(name, name): value for name, value in told.items()}
