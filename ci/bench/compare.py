"""Both runners under the same conditions, in turns; or a refusal, where the conditions would not be the same."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import torch

from mrv2.checks.timeline.analysis import Analysis
from mrv2.ci.report.problem import InputError
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.kv_groups import KVGroups
from mrv2.refrunner.models.weights import Checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle
from mrv2.refrunner.oracle.rounding import Float32Twins, Judgement
from mrv2.refrunner.phases import HostClock, Phase, observed

from .device_time import DeviceTime, device_time, profiled_trace
from .drive import Clock, Round, collector_at_rest, drive, requests_of
from .sides import SIDES, Side, fallbacks
from .traces import Arrival

#: Variables that make what is measured another thing than what is used, with the reason; they may be "0" or empty.
SPOILING: Mapping[str, str] = MappingProxyType(
    {
        "CUDA_LAUNCH_BLOCKING": "with it each kernel ends before the next is launched, so nothing overlaps",
        "HIP_LAUNCH_BLOCKING": "with it each kernel ends before the next is launched, so nothing overlaps",
        "AMD_SERIALIZE_KERNEL": "with it each kernel ends before the next is launched, so nothing overlaps",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "with it each tensor is allocated by the driver, which waits for the device",
        "TRITON_INTERPRET": "with it Python interprets every kernel, thousands of times slower",
    }
)
T = TypeVar("T")
#: Requests of the shorter run under the profiler.
PROFILED_REQUESTS = 16
#: The oracle computes in float64 on the CPU, a whole sequence at a time: this many parameters take seconds for a few.
ORACLE_PARAMETERS = 200_000_000


@dataclass(frozen=True)
class Goal:
    """What makes a request a good one; a bound that is None is met.

    Attributes:
        first_token_ms: its first token comes no later than this after its arrival.
        per_token_ms: its further tokens take no more than this on average.
    """

    first_token_ms: float | None = None
    per_token_ms: float | None = None


@dataclass(frozen=True)
class Conditions:
    """What is the same for all sides.

    Attributes:
        sides: names of the runners, ``"v2"``, ``"v1"``.
        config: model settings, attention, graphs, token budget.
        trace: who comes when.
        sampling: parameters of all requests.
        seed: of tokens and draws.
        rounds: measured, of each side.
        judged: requests whose tokens the oracle judges.
        shared_prefix: leading tokens that prompts have in common.
        goal: what a request has to meet to count as good; None if nobody said.
    """

    sides: tuple[str, ...]
    config: RunnerConfig
    trace: tuple[Arrival, ...]
    sampling: SamplingParams
    seed: int = 0
    rounds: int = 3
    judged: int = 4
    shared_prefix: int = 0
    goal: Goal | None = None


@dataclass(frozen=True)
class Measured:
    """One side.

    Attributes:
        rounds: each as it was, without observers.
        host: µs a step in each phase, and outside of all of them (``"other"``), of each of as many rounds with a clock.
        device: of a shorter round under the profiler; None without a GPU.
        peaks: bytes of device memory and of pinned memory at most in any of the rounds with a clock, beyond what was in
            use before the runner was made; empty without a GPU.
        timeline: what the profiler saw; None without a GPU.
    """

    rounds: tuple[Round, ...]
    host: tuple[Mapping[str, float], ...]
    device: DeviceTime | None
    peaks: Mapping[str, int]
    timeline: Analysis | None = None


@dataclass(frozen=True)
class Correctness:
    """What the tokens say.

    Attributes:
        sides: that were compared.
        requests: of each.
        equal: those with the same tokens on all sides.
        judged: tokens that the oracle judged.
        right: those that are its own.
        near_ties: those that are within rounding of it.
        not_judged: why the oracle judged nothing, if so.
    """

    sides: int
    requests: int
    equal: int
    judged: int = 0
    right: int = 0
    near_ties: int = 0
    not_judged: str | None = None

    @property
    def wrong(self) -> int:
        """Judged tokens that rounding does not explain."""
        return self.judged - self.right - self.near_ties

    @property
    def is_known(self) -> bool:
        """Whether tokens were compared with any that they must equal: the oracle's, or all those of another side."""
        return self.judged > 0 or (self.sides > 1 and self.equal == self.requests)


@dataclass(frozen=True)
class Comparison:
    """All that was measured.

    Attributes:
        conditions: the same for all.
        sides: by name, in the order asked for.
        correctness: of the last round's tokens.
    """

    conditions: Conditions
    sides: Mapping[str, Measured]
    correctness: Correctness


def refuse_spoiled_environment() -> None:
    """Refuse to measure where the environment makes everything slow.

    Raises:
        InputError: it does.
    """
    for name, reason in SPOILING.items():
        if os.environ.get(name, "0").lower() not in ("", "0", "false", "off"):
            raise InputError(
                f"{name}={os.environ[name]}",
                "a benchmark needs launches that do not wait, of compiled kernels",
                f"{reason}, and no figure means much",
                f"unset {name}; it is for finding out what fails",
            )


def compare(
    conditions: Conditions,
    checkpoint: Checkpoint,
    advance: Callable[[], None] = lambda: None,
    now: Clock = time.perf_counter_ns,
    interpreted: Collection[str] = (),
) -> Comparison:
    """Measure all sides in turns.

    Args:
        conditions: the same for all.
        checkpoint: the model.
        advance: called after each round; there are ``num_rounds(conditions)``.
        now: the time.
        interpreted: kernels that have run in Triton's interpreter, which is looked at as it grows.

    Raises:
        InputError: launches block, or a side does not run what was asked for.
    """
    refuse_spoiled_environment()
    with ExitStack() as stack:
        bench = _Bench(conditions, checkpoint, now, advance, interpreted)
        sides = {name: stack.enter_context(bench.side(name)) for name in conditions.sides}
        stack.enter_context(collector_at_rest())
        for name, side in sides.items():
            bench.warm_up(name, side)
        rounds = _in_turns(sides, conditions.rounds, bench.round)
        clocked = _in_turns(sides, conditions.rounds, bench.clocked)
        measured = {name: bench.measured(side, rounds[name], clocked[name]) for name, side in sides.items()}
        for name, side in sides.items():
            bench.require_as_asked(name, side)
        return Comparison(conditions, measured, bench.correctness([rounds[name][-1] for name in sides]))


def _in_turns(sides: Mapping[str, Side], rounds: int, run: Callable[[Side], T]) -> dict[str, list[T]]:
    """What comes of each side in each round; forwards and backwards, so that a drift of the machine meets all alike."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(run(sides[name]))
    return found


def num_rounds(conditions: Conditions) -> int:
    """Rounds that ``compare`` drives of all sides: a first one, those measured, as many with a clock, one profiled."""
    on_gpu = conditions.config.device != "cpu"
    return len(conditions.sides) * (1 + 2 * conditions.rounds + on_gpu)


class _Bench:
    """Requests, and how a side is driven through them."""

    def __init__(
        self, conditions: Conditions, checkpoint: Checkpoint, now: Clock, advance: Callable[[], None],
        interpreted: Collection[str],
    ) -> None:  # fmt: skip
        self._interpreted = interpreted
        self._conditions, self._config, self._checkpoint = conditions, conditions.config, checkpoint
        self._now, self._advance = now, advance
        self._on_gpu = self._config.device != "cpu"
        self._windows = KVGroups.of_layers(checkpoint.config.layer_windows).windows
        self._requests = requests_of(
            conditions.trace, checkpoint.config.vocab_size, conditions.seed, conditions.sampling,
            conditions.shared_prefix,
        )  # fmt: skip
        self._held: dict[int, Mapping[str, int]] = {}

    @contextmanager
    def side(self, name: str) -> Iterator[Side]:
        """A runner for the length of the scope."""
        before = self._memory("current")
        runner = SIDES[name](self._config, self._checkpoint.config, self._checkpoint.tensors)
        self._held[id(runner)] = {key: value - before[key] for key, value in self._memory("current").items()}
        try:
            yield runner
        finally:
            runner.close()

    def warm_up(self, name: str, side: Side) -> None:
        """Drive it once; whatever the first use costs is paid then, and a fallback shows before anything is measured.

        Raises:
            InputError: it does not run what was asked for.
        """
        self.round(side)
        self.require_as_asked(name, side)

    def require_as_asked(self, name: str, side: Side) -> None:
        """Refuse a side that fell back.

        Raises:
            InputError: it does not run what was asked for.
        """
        told = fallbacks(name, side, self._config)
        if self._interpreted:
            told.append(f"kernels run in Triton's interpreter: {', '.join(sorted(self._interpreted))}")
        if told:
            raise InputError(
                f"runner {name}: {'; '.join(told)}",
                "both sides run what was asked for, or nothing is compared",
                "a side that fell back is slower for another reason than the one that is looked for",
                "graph sizes that hold every batch of the trace (--max-num-reqs), --graph-mode eager for both, or "
                "kernels that can be compiled",
            )

    def round(self, side: Side) -> Round:
        """One pass over the trace."""
        if self._on_gpu:
            torch.cuda.synchronize()
        done = drive(side, self._config, self._windows, self._requests, self._now)
        self._advance()
        return done

    def clocked(self, side: Side) -> tuple[Mapping[str, float], Mapping[str, int]]:
        """A round with a clock at the phases: the host's µs a step, and bytes at most."""
        before = self._memory("current")
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.reset_peak_host_memory_stats()
        clock = HostClock(self._now)
        with observed(clock):
            done = self.round(side)
        held = self._held[id(side)]
        peaks = {name: held[name] + peak - before[name] for name, peak in self._memory("peak").items()}
        return _host(clock, done), peaks

    def measured(
        self,
        side: Side,
        rounds: Sequence[Round],
        clocked: Sequence[tuple[Mapping[str, float], Mapping[str, int]]],
    ) -> Measured:
        """All that there is of a side, with what a profiler sees in a shorter round."""
        timeline = self._timeline(side)
        device = None if timeline is None else device_time(timeline)
        peaks = {name: max(told[name] for _, told in clocked) for name in clocked[0][1]}
        return Measured(tuple(rounds), tuple(host for host, _ in clocked), device, peaks, timeline)

    def _timeline(self, side: Side) -> Analysis | None:
        if not self._on_gpu:
            return None
        few = self._requests[: max(PROFILED_REQUESTS, self._config.max_num_reqs)]
        found = profiled_trace(partial(drive, side, self._config, self._windows, few))
        self._advance()
        return found

    def _memory(self, which: str) -> dict[str, int]:
        """Bytes in use, ``"current"`` or ``"peak"``; nothing without a GPU."""
        if not self._on_gpu:
            return {}
        device, pinned = torch.cuda.memory_stats(), torch.cuda.host_memory_stats()
        return {
            "device bytes": int(device.get(f"allocated_bytes.all.{which}", 0)),
            "pinned bytes": int(pinned.get(f"allocated_bytes.{which}", 0)),
        }

    def correctness(self, last: Sequence[Round]) -> Correctness:
        """Compare the sides with each other, and all of them with the oracle."""
        first, *others = last
        different = {
            name
            for name, answer in first.answers.items()
            if any(other.answers[name].token_ids != answer.token_ids for other in others)
        }
        count, reason = len(first.answers), self._not_judged()
        if reason is not None:
            return Correctness(len(last), count, count - len(different), not_judged=reason)
        judgements = [judgement for done in last for judgement in self._judge(done, different)]
        right, ties = judgements.count(Judgement.EQUAL), judgements.count(Judgement.NEAR_TIE)
        return Correctness(len(last), count, count - len(different), len(judgements), right, ties)

    def _not_judged(self) -> str | None:
        if not self._conditions.judged:
            return "no request was to be judged"
        if self._config.dtype != "float32":
            return f"rounding in {self._config.dtype} has no bound here; --dtype float32 has one"
        if sum(math.prod(tensor.shape) for tensor in self._checkpoint.tensors.values()) > ORACLE_PARAMETERS:
            return "the model is too large for the oracle, which computes in float64 on the CPU"
        return None

    def _judge(self, done: Round, first: Set[str]) -> Iterator[Judgement]:
        """Judge a sample of requests, some before others, each token given those before it."""
        oracle = Oracle(LlamaOracle(self._checkpoint.config, self._checkpoint.tensors))
        twins = Float32Twins(oracle.model)
        lengths = {one.name: len(one.prompt) + one.sampling.max_tokens for one in self._requests}
        sample = sorted(self._requests, key=lambda one: (one.name not in first, lengths[one.name]))
        for request in sample[: self._conditions.judged]:
            asked = NewRequest(request.name, request.prompt, len(request.prompt), request.sampling)
            scored = oracle.score(asked, done.answers[request.name].token_ids)
            for bound in twins.bounds(asked, scored):
                # Without any rounding to blame, equal scores are a tie, and the lowest id wins it.
                wrong_tie = bound.judgement is Judgement.NEAR_TIE and bound.tie_gap == 0
                yield Judgement.WRONG if wrong_tie else bound.judgement


def _host(clock: HostClock, done: Round) -> dict[str, float]:
    """µs a step by phase; what is outside of all of them is the loop around the engine."""
    host = {which.value: clock.nanoseconds[which] / 1e3 / done.steps for which in Phase if clock.entries[which]}
    return host | {"other": done.nanoseconds / 1e3 / done.steps - sum(host.values())}
