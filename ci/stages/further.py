"""Workloads of what not every target can do: drafts, grammars, and both at once; for the stages about order.

They are few and always the same: what is ordered, and what waits, depends neither on weights nor on the seed of a run,
and each must have drafts that are accepted and drafts that are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrv2.checks.findings import JSON
from mrv2.fuzz.grammars import STOP
from mrv2.fuzz.targets.protocols import RunnerTarget
from mrv2.fuzz.workload import Trace, Workload, WorkloadRequest
from mrv2.refrunner.api import Grammar, SamplingParams

from .runner_oracle import knows_grammars

CAPACITIES: Mapping[str, Any] = {
    "max_num_reqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "block_size": 8, "num_kv_blocks": 14,
}  # fmt: skip
#: Names of the workloads with drafts of a model, and who proposes them.
PROPOSERS: Mapping[str, str] = {"drafts of a model": "draft", "drafts of a head": "eagle"}
#: Likewise, of models whose drafts are drawn, and accepted by chance: who proposes, and how they are accepted.
CHANCES: Mapping[str, tuple[str, str]] = {
    "drafts by chance one by one": ("draft", "token"), "drafts by chance in blocks": ("eagle", "block"),
}  # fmt: skip
NGRAMS, GRAMMARS, BOTH = "drafts of n-grams", "grammars", "grammars and drafts of n-grams"
NUM_DRAFTS = 3
# Each request repeats three bytes of its own, as n-grams do that are right now and then.
_BYTES = (b"abc", b"xyz", b"019", b"pqr")
_TEXT = Grammar("regex", "(ab|ba){3,5}c?")
_FREE_TOKENS, _TEXT_TOKENS = 8, 14


def further_workloads(target: RunnerTarget, vocab_size: int) -> dict[str, Workload]:
    """By name, as many as the target knows the settings of.

    These are the knobs "speculation", "num_drafts" and "verification", and grammars.

    Args:
        vocab_size: of the tiny model, whose tokens are bytes.
    """
    known, grammars = _values(target, "speculation"), knows_grammars(target)
    # What is looked for is not in attention, and kernels are fewer operations than the reference.
    base = {"attention": "triton"} if "triton" in _values(target, "attention") else {}
    found: dict[str, Workload] = {}
    for name, proposer in PROPOSERS.items():
        if proposer in known:
            drafts = {"speculation": proposer, "num_drafts": NUM_DRAFTS}
            found[name] = _workload(vocab_size, {**base, **drafts}, free=True)
    for name, (proposer, way) in CHANCES.items():
        if proposer in known and way in _values(target, "verification"):
            drafts = {"speculation": proposer, "num_drafts": NUM_DRAFTS, "verification": way}
            found[name] = _workload(vocab_size, {**base, **drafts}, free=True)
    ngrams = {**base, "speculation": "ngram", "num_drafts": NUM_DRAFTS}
    if "ngram" in known and not grammars:
        found[NGRAMS] = _workload(vocab_size, ngrams)
    if grammars:
        found[GRAMMARS] = _workload(vocab_size, {**base, "grammars": True})
    if "ngram" in known and grammars:
        found[BOTH] = _workload(vocab_size, {**ngrams, "grammars": True})
    return found


def _values(target: RunnerTarget, knob: str) -> tuple[JSON, ...]:
    return target.knobs[knob].values if knob in target.knobs else ()


def unexercised_further(name: str, workload: Workload, trace: Trace) -> list[str]:
    """What a workload was to exercise and did not; a stage with an entry here may not pass."""
    verified, accepted = trace.drafts
    missing = [] if trace.counts["resumed"] else ["nobody came back after a preemption"]
    if "speculation" in workload.capacities and not 0 < accepted < verified:
        missing.append(f"{accepted} of {verified} drafts were accepted, and it takes some of each kind")
    for request in workload.requests:
        result = trace.results.get(request.request_id)
        ended = result is not None and result.finish_reason == "stop"
        if request.sampling.grammar is not None and not ended:
            missing.append(f"the text of {request.request_id} did not come to its end")
    return [f"{name}: {what}" for what in missing]


def _workload(vocab_size: int, settings: Mapping[str, Any], *, free: bool = False) -> Workload:
    """Four requests in three rows, two of which are preempted with steps in flight.

    Args:
        settings: fields of the runner's configuration; with ``grammars`` half of the requests have one.
        free: half of the requests may draw any token: models that propose know nothing of what is allowed.
    """
    requests = []
    for index, own in enumerate(_BYTES):
        even = index % 2 == 0
        sampling = (
            _text(index)
            if "grammars" in settings and even
            else _repeating(index, None if free and even else tuple(own))
        )
        prompt = (*own, *own, *own[:2])
        requests.append(WorkloadRequest(f"r{index}", prompt, sampling, index, preempt_after=(2,) if index < 2 else ()))
    return Workload(tuple(requests), {**CAPACITIES, **settings}, vocab_size)


def _repeating(index: int, allowed: tuple[int, ...] | None) -> SamplingParams:
    temperature, seed = (0.8, index) if index % 2 else (0.0, None)
    return SamplingParams(temperature, seed, _FREE_TOKENS, allowed_token_ids=allowed)


def _text(index: int) -> SamplingParams:
    return SamplingParams(0.8, index, _TEXT_TOKENS, stop_token_ids=(STOP,), grammar=_TEXT)
