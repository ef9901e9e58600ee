"""The reference runner in each of the ways in which it orders its work: a program in which every fence is needed.

A fence that is vacuous in a run with little in it may be needed in another one, so ``mrv2 fences refrunner`` looks at
all of these together: uploads that are copied or read in place, graphs, drafts of each proposer and of each way to
accept them, prefixes that are found and blocks that are copied, reports on prompts, masks of grammars, with drafts and
without.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from mrv2.fuzz.grammars import in_turns
from mrv2.fuzz.programs import RunnerProgram
from mrv2.fuzz.targets.protocols import RunnerTarget
from mrv2.fuzz.workload import Workload, WorkloadRequest
from mrv2.refrunner.api import SamplingParams

VOCAB_SIZE = 256
#: Prompts are longer than a step, so that who is preempted in between leaves a step in flight that reads the prompt.
CAPACITIES: dict[str, Any] = {
    "max_num_reqs": 1, "max_num_batched_tokens": 4, "max_model_len": 16, "block_size": 4, "num_kv_blocks": 9,
    "attention": "triton", "device": "cuda",
}  # fmt: skip
WAYS: tuple[dict[str, Any], ...] = (
    {"attention": "torch"},
    {"prompt_tokens": "uva", "staged_writes": "in_place"},
    {"graph_mode": "full", "prefix_caching": True, "max_num_reqs": 3},
    {"graph_mode": "piecewise", "max_num_reqs": 3},
    {"speculation": "ngram", "staged_writes": "in_place", "max_num_reqs": 3},
    {"speculation": "draft", "graph_mode": "piecewise", "max_num_reqs": 3},
    {"speculation": "eagle", "graph_mode": "full", "max_num_reqs": 3},
    {"speculation": "draft", "verification": "block", "max_num_reqs": 3},
    {"speculation": "eagle", "verification": "token", "graph_mode": "full", "max_num_reqs": 3},
)
REPORTED = SamplingParams(
    temperature=0.7, seed=3, max_tokens=3, logprobs=2, prompt_logprobs=1, repetition_penalty=1.2, top_p=0.9
)


def every_edge(target: RunnerTarget) -> RunnerPrograms:
    """The program.

    Args:
        target: builds runners that know all settings of ``RunnerConfig``.
    """
    return RunnerPrograms(target, tuple(_workloads()))


class RunnerPrograms:
    """Programs of one target, one after the other, each with a runner of its own."""

    def __init__(self, target: RunnerTarget, workloads: tuple[Workload, ...]) -> None:
        self._programs = [RunnerProgram(target, workload) for workload in workloads]

    def __call__(self) -> list[dict[str, object]]:
        """What each of them gives."""
        return [program() for program in self._programs]


def _workloads() -> Iterator[Workload]:
    for way in WAYS:
        yield Workload(every_edge_requests(), {**CAPACITIES, **way}, VOCAB_SIZE, steps_in_flight=3)
    if find_spec("llguidance"):  # which grammars need, and only they
        yield _masks_by_turns({})
        yield _masks_by_turns({"speculation": "ngram", "num_drafts": 2})


def every_edge_requests() -> tuple[WorkloadRequest, ...]:
    """Prompts that begin alike; of those that leave the token table alone, one is preempted in the middle."""
    return tuple(
        WorkloadRequest(
            f"r{index}",
            (*range(1, 7), 10 * index, 1, 2),
            REPORTED if index % 3 == 0 else SamplingParams(max_tokens=3),
            preempt_after=(0,) if index % 2 else (),
        )
        for index in range(3)
    )


def _masks_by_turns(way: dict[str, Any]) -> Workload:
    """Two requests that draw in every second step each, so that every step has masks of its own."""
    settings = {**CAPACITIES, "max_num_reqs": 2, "grammars": True, **way}
    return Workload(in_turns().requests, settings, VOCAB_SIZE, steps_in_flight=2)
