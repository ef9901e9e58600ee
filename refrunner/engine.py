"""The loop around a runner: decides steps ahead of the device, and hands each output to the scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from .api import Handle, NewRequest, Runner, SamplingParams
from .config import RunnerConfig
from .errors import RequestError, RunnerError
from .kv_cache_manager import PrefixCacheStats
from .kv_groups import FULL_ATTENTION
from .phases import Phase, phase
from .scheduler import Scheduler, SpeculationStats
from .tracked_request import TrackedRequest


class CheckingRunner(Runner, Protocol):
    """A runner that says before any step whether it would take a request."""

    def check_request(self, request: NewRequest) -> NewRequest:
        """The request in plain Python values; nothing changes.

        Raises:
            RunnerError: a step with it would be refused.
        """
        ...


class Engine:
    """Runs requests on one runner, with several steps in flight; for one thread.

    The host decides and enqueues step N + 1 while the device computes step N, and takes an output only when
    ``RunnerConfig.steps_in_flight`` steps are under way, or none can be added. Which steps it makes depends on the
    calls and the tokens alone, never on how far the device is.
    """

    def __init__(
        self, runner: CheckingRunner, config: RunnerConfig, windows: Sequence[int] = (FULL_ATTENTION,)
    ) -> None:
        """Take over a runner.

        Args:
            runner: nobody else may execute steps on it.
            config: the runner's own.
            windows: of the model's KV groups, see :class:`~.kv_groups.KVGroups`.
        """
        self._runner = runner
        self._depth = config.steps_in_flight
        self._scheduler = Scheduler(config, windows)
        self._in_flight: deque[Handle] = deque()
        self._failure: str | None = None
        self._closed = False

    @property
    def requests(self) -> Mapping[str, TrackedRequest]:
        """Every request that was added and not forgotten."""
        return self._scheduler.requests

    @property
    def speculation(self) -> SpeculationStats:
        """How drafts fared so far."""
        return self._scheduler.speculation

    @property
    def num_preemptions(self) -> int:
        """How often a request lost its row before its end."""
        return self._scheduler.num_preemptions

    @property
    def prefix_cache(self) -> PrefixCacheStats:
        """How much the prefix cache saved so far."""
        return self._scheduler.prefix_cache

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished, or a step's output has not been taken."""
        return self._scheduler.has_work or bool(self._in_flight)

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and no step has broken off."""
        return not self._closed and self._failure is None

    def add(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams, priority: int = 0) -> None:
        """Queue a request; the arguments are those of ``Scheduler.add``, and ``sampling`` has a seed if it draws.

        Raises:
            RequestError: it cannot be served, see ``Scheduler.add``, its step would be refused, or the engine takes no
                more; nothing was queued.
        """
        self.require_usable()
        self._scheduler.check(request_id, prompt, sampling, priority)
        try:
            request = self._runner.check_request(NewRequest(request_id, tuple(prompt), len(prompt), sampling))
        except RunnerError as error:
            raise RequestError(error.subject, error.rule, error.reason, error.remedy) from error
        self._scheduler.add(request_id, request.token_ids, request.sampling, priority)

    def abort(self, request_id: str) -> None:
        """End a request now, with what has arrived; one that has ended or is unknown is left alone."""
        self._scheduler.abort(request_id)

    def forget(self, request_id: str) -> TrackedRequest:
        """Give up a request that has ended, or was never started, and return it."""
        self._scheduler.abort(request_id)
        return self._scheduler.requests.pop(request_id)

    def advance(self) -> None:
        """Enqueue one step, and take the oldest output once enough steps are in flight.

        Raises:
            RequestError: the engine is closed or has failed.
            Exception: whatever the runner raises; this engine runs no further step then. What had arrived before is
                kept in ``requests``.
        """
        self.require_usable()
        try:
            with phase(Phase.STEP):
                self._advance()
        except BaseException as error:
            self._failure = type(error).__name__
            raise

    def _advance(self) -> None:
        has_work = self._scheduler.has_work
        if has_work:
            with phase(Phase.SCHEDULER):
                step = self._scheduler.schedule()
            self._in_flight.append(self._runner.execute(step))
        if self._in_flight and (len(self._in_flight) >= self._depth or not has_work):
            output = self._in_flight.popleft().result()
            with phase(Phase.SCHEDULER):
                self._scheduler.update(output)

    def drain(self) -> None:
        """Run until nothing is left to do: every request has ended, the runner was told, all outputs were taken."""
        while self.has_work:
            self.advance()

    def close(self) -> None:
        """Release the runner; idempotent."""
        self._closed = True
        self._runner.close()

    def require_usable(self) -> None:
        """Refuse if no further step can run.

        Raises:
            RequestError: the engine is closed, or a step broke off.
        """
        if self._closed:
            raise RequestError(
                "engine after close()",
                "a closed engine generates nothing",
                "its runner is released",
                "generate() inside the with block, or a new Engine",
            )
        if self._failure is not None:
            raise RequestError(
                f"engine after {self._failure}",
                "a call that broke off in the middle of a step was its last",
                "scheduler and runner may disagree on what is in flight, so tokens could go to the wrong request",
                "a new Engine",
            )
