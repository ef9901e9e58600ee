"""Both runners under the same conditions, in turns; or a refusal, where the conditions would not be the same."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from mrv2.ci.report.problem import InputError
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.kv_groups import KVGroups
from mrv2.refrunner.models.weights import Checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle
from mrv2.refrunner.oracle.rounding import Float32Twins, Judgement
from mrv2.refrunner.phases import HostClock, Phase, observed

from .device_time import DeviceTime, profiled
from .drive import Clock, Round, collector_at_rest, drive, requests_of
from .sides import SIDES, Side, fallbacks
from .traces import Arrival

BLOCKING = "CUDA_LAUNCH_BLOCKING"
#: Requests of the shorter run under the profiler.
PROFILED_REQUESTS = 16
#: The oracle computes in float64 on the CPU, a whole sequence at a time: this many parameters take seconds for a few.
ORACLE_PARAMETERS = 200_000_000


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
    """

    sides: tuple[str, ...]
    config: RunnerConfig
    trace: tuple[Arrival, ...]
    sampling: SamplingParams
    seed: int = 0
    rounds: int = 3
    judged: int = 4
    shared_prefix: int = 0


@dataclass(frozen=True)
class Measured:
    """One side.

    Attributes:
        rounds: each as it was, without observers.
        host: µs a step in each phase, and outside of all of them (``"other"``), of one more round with a clock.
        device: of a shorter round under the profiler; None without a GPU.
        peaks: bytes of device memory and of pinned memory at most, beyond what was in use before; empty without a GPU.
    """

    rounds: tuple[Round, ...]
    host: Mapping[str, float]
    device: DeviceTime | None
    peaks: Mapping[str, int]


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


def refuse_blocking_launches() -> None:
    """Refuse to measure where every launch waits for the device.

    Raises:
        InputError: the environment says so.
    """
    if os.environ.get(BLOCKING, "0") not in ("", "0"):
        raise InputError(
            f"{BLOCKING}={os.environ[BLOCKING]}",
            "a benchmark needs launches that do not wait",
            "with it each kernel ends before the next is launched, so nothing overlaps, and no figure means much",
            f"unset {BLOCKING}; it is for finding out which kernel fails",
        )


def compare(
    conditions: Conditions,
    checkpoint: Checkpoint,
    advance: Callable[[], None] = lambda: None,
    now: Clock = time.perf_counter_ns,
) -> Comparison:
    """Measure all sides in turns.

    Args:
        conditions: the same for all.
        checkpoint: the model.
        advance: called after each round; there are ``num_rounds(conditions)``.
        now: the time.

    Raises:
        InputError: launches block, or a side does not run what was asked for.
    """
    refuse_blocking_launches()
    with ExitStack() as stack:
        bench = _Bench(conditions, checkpoint, now, advance)
        sides = {name: stack.enter_context(bench.side(name)) for name in conditions.sides}
        stack.enter_context(collector_at_rest())
        for name, side in sides.items():
            bench.warm_up(name, side)
        rounds: dict[str, list[Round]] = {name: [] for name in sides}
        for turn in range(conditions.rounds):
            # Forwards and backwards, so that a drift of the machine meets all alike.
            for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
                rounds[name].append(bench.round(sides[name]))
        measured = {name: bench.measured(side, rounds[name]) for name, side in sides.items()}
        for name, side in sides.items():
            bench.require_as_asked(name, side)
        return Comparison(conditions, measured, bench.correctness([rounds[name][-1] for name in sides]))


def num_rounds(conditions: Conditions) -> int:
    """Rounds that ``compare`` drives of all sides: a first one, those measured, one with a clock, one profiled."""
    on_gpu = conditions.config.device != "cpu"
    return len(conditions.sides) * (conditions.rounds + 2 + on_gpu)


class _Bench:
    """Requests, and how a side is driven through them."""

    def __init__(self, conditions: Conditions, checkpoint: Checkpoint, now: Clock, advance: Callable[[], None]) -> None:
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
        if told:
            raise InputError(
                f"runner {name}: {'; '.join(told)}",
                "both sides run what was asked for, or nothing is compared",
                "a side that fell back is slower for another reason than the one that is looked for",
                "graph sizes that hold every batch of the trace (--max-num-reqs), or --graph-mode eager for both",
            )

    def round(self, side: Side) -> Round:
        """One pass over the trace."""
        if self._on_gpu:
            torch.cuda.synchronize()
        done = drive(side, self._config, self._windows, self._requests, self._now)
        self._advance()
        return done

    def measured(self, side: Side, rounds: Sequence[Round]) -> Measured:
        """What else there is to measure of a side."""
        before = self._memory("current")
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.reset_peak_host_memory_stats()
        clock = HostClock(self._now)
        with observed(clock):
            clocked = self.round(side)
        held = self._held[id(side)]
        peaks = {name: held[name] + peak - before[name] for name, peak in self._memory("peak").items()}
        return Measured(tuple(rounds), _host(clock, clocked), self._device_time(side), peaks)

    def _device_time(self, side: Side) -> DeviceTime | None:
        if not self._on_gpu:
            return None
        few = self._requests[: max(PROFILED_REQUESTS, self._config.max_num_reqs)]
        found = profiled(partial(drive, side, self._config, self._windows, few))
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
