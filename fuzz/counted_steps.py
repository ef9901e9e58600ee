"""A runner through a few steps of each sort, counted: what it gives the device to do in a prefill, in a decode.

Small and the same every time, so that the counts can be recorded and compared exactly; see ``checks.timeline``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from mrv2.checks.errors import CheckError
from mrv2.checks.timeline.step_counts import StepCounter, StepCounts
from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.programs import RunnerProgram
from mrv2.fuzz.targets.protocols import Feature, RunnerTarget
from mrv2.fuzz.workload import Workload, WorkloadRequest
from mrv2.refrunner.api import Grammar, SamplingParams

VOCAB_SIZE = 256
CAPACITIES: Mapping[str, Any] = MappingProxyType(
    {
        "max_num_reqs": 3, "max_num_batched_tokens": 16, "max_model_len": 32, "block_size": 8, "num_kv_blocks": 13,
        "device": "cuda",
    }
)  # fmt: skip
#: Value of the knob of this name, for a target that has it: its launches are those of a runner at work.
ATTENTION = "triton"
#: The ways in which the reference runner does its steps.
WAYS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "eager": {},
        "read in place": {"prompt_tokens": "uva", "staged_writes": "in_place"},
        "piecewise graphs": {"graph_mode": "piecewise"},
        "full graphs": {"graph_mode": "full"},
        "n-gram drafts": {"speculation": "ngram"},
        "draft model": {"speculation": "draft"},
        "grammars": {"grammars": True},
    }
)
#: What each step does. The second request arrives with a long prompt after the first one has been decoding.
STEPS: Mapping[str, int] = MappingProxyType({"prefill": 0, "decode": 2, "mixed": 3, "decode of two": 5})
FIRST, SECOND = (1, 2, 3, 1, 2, 3, 1, 2), (4, 5, 6, 7, 8)
#: Sampled with all that a step of most requests needs, and never over before the last step that is counted.
SAMPLING = SamplingParams(temperature=0.7, seed=1, top_k=5, max_tokens=8, min_tokens=8)
GREEDY = SamplingParams(max_tokens=8, min_tokens=8)
GRAMMAR = SamplingParams(max_tokens=8, grammar=Grammar("regex", "[ab]{9}"), stop_token_ids=(0,))


def ways(target: RunnerTarget) -> tuple[str, ...]:
    """The ways whose settings are knobs of a target, the plain one among them; grammars need a library, too."""
    return tuple(
        way
        for way, settings in WAYS.items()
        if all(name in target.knobs and value in target.knobs[name].values for name, value in settings.items())
        and (way != "grammars" or find_spec("llguidance"))
    )


def count_steps(target: RunnerTarget, way: str = "eager") -> dict[str, StepCounts]:
    """What each step of ``STEPS`` gives the device to do; empty for a runner that never uses the device.

    Args:
        target: builds a runner of the tiny model.
        way: one of ``WAYS``.

    Raises:
        CheckError: the run did not come to its end, so that its counts mean nothing.
    """
    program = RunnerProgram(target, Workload(_requests(target, way), _settings(target, way), VOCAB_SIZE))
    counter = StepCounter()
    with virtual_device(sink=counter):
        crash = _crash_of(program)
    if crash is not None:
        raise CheckError(
            f"the counted run ({way})",
            f"it must come to its end, and broke off with {crash}",
            "what a run does until it breaks off is no step of its usual kind",
            "a target that passes mrv2 verify",
        )
    if not any(number in counter.steps for number in STEPS.values()):
        return {}
    return {f"{way}, {name}": counter.steps.get(number, StepCounts()) for name, number in STEPS.items()}


def _requests(target: RunnerTarget, way: str) -> tuple[WorkloadRequest, ...]:
    draws = Feature.SEEDED_SAMPLING in target.features and "speculation" not in WAYS[way]
    return (
        WorkloadRequest("first", FIRST, GRAMMAR if way == "grammars" else GREEDY),
        WorkloadRequest("second", SECOND, SAMPLING if draws else GREEDY, arrival=STEPS["mixed"]),
    )


def _settings(target: RunnerTarget, way: str) -> dict[str, Any]:
    knob = target.knobs.get("attention")
    attention = {"attention": ATTENTION} if knob and ATTENTION in knob.values else {}
    return {**CAPACITIES, **attention, **WAYS[way]}


def _crash_of(program: RunnerProgram) -> object:
    """What went wrong in a run, or in the making of its runner; None if nothing did."""
    try:
        return program()["crash"]
    except Exception as error:
        if all(hasattr(error, part) for part in ("subject", "rule", "reason", "remedy")):
            raise
        return f"{type(error).__name__}: {error}"
