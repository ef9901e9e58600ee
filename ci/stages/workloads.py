"""The workloads of the quick profile: one touches every part of a runner's state, the other the edges of its ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mrv2.checks.findings import Finding
from mrv2.fuzz.step_model import StepModel
from mrv2.fuzz.workload import Driver, Workload, WorkloadRequest
from mrv2.refrunner.api import Handle, SamplingParams, Step, StepOutput

from .traces import unexercised, unmoved

# For a context of FULL_CONTEXT positions; shorter ones scale them down.
PROMPT_LENGTHS = (200, 3, 17, 50, 8, 33, 120, 64)
FULL_CONTEXT, LEAST_CONTEXT = 256, 64
GREEDY = 3
# Of the requests that draw: far below 1, just below a half and of more than one decimal, and so large that the noise
# decides. Two more lie between.
TEMPERATURES = (0.05, 0.4999, 40.0)
# The ends of the range, and the bit that a signed number takes for its sign: 0 and 2**63 differ in nothing else.
SEEDS = (0, 2**63, 2**64 - 1)
# Five rows for eight requests, so that rows are used again; 48 tokens a step, so that long prompts come in chunks;
# and too few blocks for all, so that the pool runs dry, and a preempted request waits until another one ends and
# then resumes in a row that is not its old one. In its old row it would find its own stale state, and be right.
ROWS, BLOCKS = 5, 20
# Arrangements tried until one exercises everything; of ten, about six do.
TRIALS = 200

# More lanes in one step than a kernel handles at once, more positions than fit into ten bits, blocks of an odd size,
# and a length limit that no block ends at.
EDGE_LANES, EDGE_POSITIONS, EDGE_BLOCK = 300, 1101, 3
EDGE_TOKENS = 6


def quick_workload(vocab_size: int, seed: int, new_tokens: int, context: int = FULL_CONTEXT) -> Workload:
    """Eight prompts of 3 to 200 random tokens, arriving over time; two are preempted (one twice), one is aborted.

    Who has which length, temperature, seed, arrival and fate depends on the seed. Arrangements are rehearsed without
    a model until one exercises what the stages ask for; what happens when does not depend on the tokens drawn. If
    none does, because there are too few new tokens, the last one is returned, and the stages will say what is missing.

    Args:
        vocab_size: token ids are drawn below it.
        seed: of everything.
        new_tokens: tokens to generate per request, at least 6.
        context: positions of the model, at least ``LEAST_CONTEXT``; below ``FULL_CONTEXT`` prompts, blocks and steps
            shrink with it.
    """
    random = np.random.default_rng(seed)
    for _ in range(TRIALS):
        workload = _arrangement(random, vocab_size, new_tokens, min(context, FULL_CONTEXT))
        if not rehearse(workload):
            break
    return workload


def edges_workload(vocab_size: int, seed: int) -> Workload:
    """Four prompts at the edges of what a runner's tables and kernels handle; the longest runs into the length limit.

    Args:
        vocab_size: token ids are drawn below it.
        seed: of everything.
    """
    random = np.random.default_rng(seed)
    limit = EDGE_POSITIONS + EDGE_BLOCK * int(random.integers(1, 40)) + int(random.integers(1, EDGE_BLOCK))
    lengths = [limit - EDGE_TOKENS // 2, 5, int(random.integers(260, EDGE_LANES)), 40]
    samplings = [(0.8, 2**64 - 1), (0.4999, 2**63), (0.0, None), (0.05, 0)]
    order = [0, *(1 + random.permutation(3)).tolist()]
    requests = [
        WorkloadRequest(
            request_id=f"e{number}",
            prompt=_prompt(random, lengths[index], vocab_size),
            sampling=SamplingParams(samplings[index][0], samplings[index][1], EDGE_TOKENS),
            arrival=2 * number,
        )
        for number, index in enumerate(order)
    ]
    capacities = {
        "max_num_reqs": 2,
        "max_num_batched_tokens": EDGE_LANES,
        "max_model_len": limit,
        "block_size": EDGE_BLOCK,
        "num_kv_blocks": 2 * -(-limit // EDGE_BLOCK),
    }
    return Workload(tuple(requests), capacities, vocab_size)


def rehearse(workload: Workload) -> list[str]:
    """What a workload would not exercise, found by driving it without a model."""
    trace = Driver(_Rehearsal(StepModel(workload.capacities["block_size"])), workload).run()
    succession = _Succession(workload.capacities["max_num_reqs"])
    greedy = {request.request_id: request.sampling.temperature == 0 for request in workload.requests}
    trace.row_reuses, trace.row_moves, heirs = succession.follow(trace.steps)
    pairs = {(greedy[former], greedy[heir]) for former, heir in heirs if former != heir}
    wanted = {(False, True): "greedy after sampled in one row", (True, False): "sampled after greedy in one row"}
    return unexercised(trace, workload) + unmoved(trace) + [text for pair, text in wanted.items() if pair not in pairs]


def _arrangement(random: np.random.Generator, vocab_size: int, new_tokens: int, context: int) -> Workload:
    lengths = random.permutation([max(1, length * context // FULL_CONTEXT) for length in PROMPT_LENGTHS])
    between = np.exp(random.uniform(math.log(0.05), math.log(4.0), len(lengths) - GREEDY - len(TEMPERATURES)))
    temperatures = random.permutation([*[0.0] * GREEDY, *TEMPERATURES, *between])
    seeds = [int(seed) for seed in random.integers(0, 2**64, len(lengths), dtype=np.uint64)]
    for place, seed in zip(random.permutation(np.flatnonzero(temperatures)), SEEDS, strict=False):
        seeds[place] = seed
    arrivals = sorted([0, 0, *random.integers(1, 13, len(lengths) - 2).tolist()])
    twice, once, aborted = random.permutation(len(lengths))[:3].tolist()
    requests = tuple(
        WorkloadRequest(
            request_id=f"r{index}",
            prompt=_prompt(random, int(lengths[index]), vocab_size),
            sampling=SamplingParams(temperature, seeds[index] if temperature else None, new_tokens),
            arrival=arrivals[index],
            preempt_after={twice: (2, 4), once: (3,)}.get(index, ()),
            abort_after=4 if index == aborted else None,
        )
        for index, temperature in enumerate(temperatures.tolist())
    )
    return Workload(requests, _capacities(context), vocab_size)


def _capacities(context: int) -> dict[str, int]:
    return {
        "max_num_reqs": ROWS,
        "max_num_batched_tokens": 48 * context // FULL_CONTEXT,
        "max_model_len": context,
        "block_size": -(-context // 16),
        "num_kv_blocks": BLOCKS,
    }


def _prompt(random: np.random.Generator, length: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(random.integers(0, vocab_size, length).tolist())


@dataclass(frozen=True)
class _Answer:
    output: StepOutput

    def result(self) -> StepOutput:
        """See :class:`Handle`."""
        return self.output


class _Rehearsal:
    """A runner without a model: it draws token 0 for whoever is due."""

    def __init__(self, model: StepModel) -> None:
        self._model = model

    def execute(self, step: Step) -> Handle:
        """See :class:`Runner`."""
        draws = self._model.advance(step).draws
        return _Answer(StepOutput(dict.fromkeys(draws, (0,)), dict.fromkeys(draws, (0.0,))))

    def invariants(self) -> list[Finding]:
        """See :class:`Runner`."""
        return []

    def close(self) -> None:
        """See :class:`Runner`."""


class _Succession:
    """Who follows whom in which row, if the row that was freed last is given out first."""

    def __init__(self, rows: int) -> None:
        self._free = list(reversed(range(rows)))
        self._row_of: dict[str, int] = {}
        self._last_row: dict[str, int] = {}
        self._last_owner: dict[int, str] = {}

    def follow(self, steps: Sequence[Step]) -> tuple[int, int, list[tuple[str, str]]]:
        """How many rows were used again, how many requests came back in another row, and (former, new owner) pairs."""
        moves, heirs = 0, []
        for step in steps:
            self._free.extend(self._row_of.pop(name) for name in (*step.finished, *step.preempted))
            for name in (request.request_id for request in step.new):
                row = self._free.pop()
                moves += self._last_row.get(name, row) != row
                if row in self._last_owner:
                    heirs.append((self._last_owner[row], name))
                self._row_of[name] = self._last_row[name] = row
                self._last_owner[row] = name
        return len(heirs), moves, heirs
