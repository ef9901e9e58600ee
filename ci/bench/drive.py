"""Drives one runner through one trace and notes when what arrived."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from mrv2.refrunner.api import Handle, InvariantViolation, NewRequest, SamplingParams, Step, StepOutput
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.engine import CheckingRunner, Engine
from mrv2.refrunner.kv_cache_manager import PrefixCacheStats
from mrv2.refrunner.scheduler import SpeculationStats

from .traces import Arrival

Clock = Callable[[], int]
"""The time in ns."""


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Scope in which Python's garbage collector passes over all that exists now, as serving engines have it.

    Otherwise it walks through everything that torch has made, in the middle of a step, for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass(frozen=True)
class Asked:
    """A request as it is put to the engine.

    Attributes:
        name: its id.
        seconds: when it comes.
        prompt: token ids.
        sampling: its parameters.
    """

    name: str
    seconds: float
    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    Attributes:
        arrived: when it came, in ns.
        times: when each of its tokens was on the host, in ns.
        token_ids: the tokens generated.
        logprobs: of them.
    """

    arrived: int
    times: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Round:
    """One pass of one side over a trace.

    Attributes:
        answers: by request.
        steps: steps that scheduled something.
        nanoseconds: from the first arrival to the last token, idle time in which nobody had come yet left out.
        cpu_nanoseconds: that all threads of this process computed in that time.
        preemptions: requests that lost their row.
        speculation: how drafts fared.
        prefixes: what the prefix cache saved.
        taken: when the host had the output of each of them, in ns.
    """

    answers: Mapping[str, Answer]
    steps: int
    nanoseconds: int
    cpu_nanoseconds: int
    preemptions: int
    speculation: SpeculationStats
    prefixes: PrefixCacheStats
    taken: tuple[int, ...]


class _Timed:
    """A runner between the engine and the real one: stamps every output when the host has it."""

    def __init__(self, runner: CheckingRunner, now: Clock) -> None:
        self._runner, self._now = runner, now
        self.steps = 0
        self.outputs: list[tuple[int, StepOutput]] = []

    def execute(self, step: Step) -> Handle:
        """See :class:`mrv2.refrunner.api.Runner`."""
        handle = self._runner.execute(step)
        if not step.scheduled:
            return handle  # nothing is drawn, and the host has its output at once
        self.steps += 1
        return _TimedHandle(handle, self.outputs, self._now)

    def check_request(self, request: NewRequest) -> NewRequest:
        """See :class:`mrv2.refrunner.engine.CheckingRunner`."""
        return self._runner.check_request(request)

    def invariants(self) -> list[InvariantViolation]:
        """See :class:`mrv2.refrunner.api.Runner`."""
        return self._runner.invariants()

    def close(self) -> None:
        """The runner is driven again: whoever made it closes it."""


@dataclass(frozen=True)
class _TimedHandle:
    inner: Handle
    outputs: list[tuple[int, StepOutput]]
    now: Clock

    def result(self) -> StepOutput:
        """See :class:`mrv2.refrunner.api.Handle`; the engine asks once."""
        output = self.inner.result()
        self.outputs.append((self.now(), output))
        return output


def requests_of(
    trace: Sequence[Arrival], vocab_size: int, seed: int, sampling: SamplingParams, shared_prefix: int = 0
) -> tuple[Asked, ...]:
    """Requests with made-up tokens for a trace, the same ones every time.

    Args:
        trace: arrivals and lengths.
        vocab_size: tokens to choose from.
        seed: of the tokens, and of the draws.
        sampling: parameters of all; the number of tokens is the trace's.
        shared_prefix: leading tokens that all prompts have in common, where they are longer than that.
    """
    rng = np.random.default_rng(seed)
    prefix = rng.integers(vocab_size, size=shared_prefix).tolist()
    asked = []
    for number, arrival in enumerate(trace):
        own = rng.integers(vocab_size, size=arrival.prompt).tolist()
        prompt = (*prefix, *own[shared_prefix:]) if arrival.prompt > shared_prefix else tuple(own)
        drawn = None if sampling.temperature == 0 else seed + number
        params = replace(sampling, max_tokens=arrival.output, seed=drawn)
        asked.append(Asked(f"r{number}", arrival.seconds, prompt, params))
    return tuple(asked)


def drive(
    runner: CheckingRunner,
    config: RunnerConfig,
    windows: Sequence[int],
    requests: Sequence[Asked],
    now: Clock = time.perf_counter_ns,
    cpu_now: Clock = time.process_time_ns,
) -> Round:
    """Put requests to a runner as they arrive, until all have ended.

    While nobody has come the clock jumps to the next arrival.

    Args:
        runner: without a live request; it has none afterwards, either.
        config: its own.
        windows: of the model's KV groups.
        requests: in order of arrival.
        now: the time.
        cpu_now: the time that this process has computed.
    """
    timed = _Timed(runner, now)
    engine, waiting = Engine(timed, config, windows), deque(requests)
    arrived: dict[str, int] = {}
    begin, cpu_begin, skipped = now(), cpu_now(), 0
    while waiting or engine.has_work:
        elapsed = now() - begin + skipped
        while waiting and waiting[0].seconds * 1e9 <= elapsed:
            request = waiting.popleft()
            # Its own time, and not that at which the loop came round to it.
            arrived[request.name] = begin - skipped + int(request.seconds * 1e9)
            engine.add(request.name, request.prompt, request.sampling)
        if engine.has_work:
            engine.advance()
        elif waiting:
            skipped += max(0, int(waiting[0].seconds * 1e9) - elapsed) + 1
    nanoseconds, cpu = now() - begin, cpu_now() - cpu_begin
    return Round(
        _answers(engine, timed.outputs, arrived), timed.steps, nanoseconds, cpu,
        engine.num_preemptions, engine.speculation, engine.prefix_cache, tuple(stamp for stamp, _ in timed.outputs),
    )  # fmt: skip


def _answers(
    engine: Engine, outputs: Sequence[tuple[int, StepOutput]], arrived: Mapping[str, int]
) -> dict[str, Answer]:
    times: dict[str, list[int]] = {name: [] for name in arrived}
    for stamp, output in outputs:
        for name, tokens in output.token_ids.items():
            times[name] += [stamp] * len(tokens)
    answers = {}
    for name, request in engine.requests.items():
        tokens = tuple(request.token_ids[request.prompt_len :])
        # Draws that were under way when a request ended are nobody's.
        answers[name] = Answer(arrived[name], tuple(times[name][: len(tokens)]), tokens, tuple(request.logprobs))
    return answers
