"""A random workload for a feature set: requests that keep the runner busy for a number of steps, and their fates.

Prompts are cut from two texts, so that prefixes are common and end anywhere in a block; ends are their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mrv2.checks.findings import JSON
from mrv2.fuzz.workload import Workload, WorkloadRequest
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.kv_groups import KVGroups
from mrv2.refrunner.models.checkpoint import load_checkpoint

from .factors import NO, FeatureSet

MAX_MODEL_LEN = 48
LONGEST_PROMPT, LONGEST_OUTPUT = 24, 8
LONGEST_ADDITION = 5
# Mean steps between arrivals; with three rows the runner is busy, and now and then somebody waits.
ARRIVAL_GAP = 3
VOCAB = 256
LOGPROBS: Mapping[JSON, int | None] = {NO: None, "three": 3, "two": 2, "full": -1}


def workload_of(features: FeatureSet, steps: int, seed: int = 0) -> Workload:
    """The workload of a feature set.

    Args:
        steps: how many to execute at least.
        seed: of everything; another seed, other requests.
    """
    values: dict[str, Any] = {**features.values}
    random = np.random.default_rng((seed, features.number))
    texts = random.integers(0, VOCAB, (2, LONGEST_PROMPT))
    requests = tuple(_requests(random, values, texts, steps))
    windows = KVGroups.of_layers(load_checkpoint(values["model"]).config.layer_windows).windows
    settings: dict[str, Any] = {**features.settings, "max_model_len": MAX_MODEL_LEN}
    settings["num_kv_blocks"] = _pool(values, len(windows))
    return Workload(requests, settings, VOCAB, values["steps_in_flight"], windows)


def _pool(values: Mapping[str, Any], groups: int) -> int:
    """KV blocks, the null block included. Scarce ones are enough for one request of full length, and little more."""
    one_request = -(-MAX_MODEL_LEN // values["block_size"]) + 1
    return int(1 + groups * one_request * (1 if values["blocks"] == "scarce" else values["max_num_reqs"]))


def _requests(
    random: np.random.Generator, values: Mapping[str, Any], texts: np.ndarray[Any, Any], steps: int
) -> Iterator[WorkloadRequest]:
    arrival, number, last = 0, 0, False
    while not last:
        last = arrival >= steps
        request = _request(random, f"r{number}", values, texts, arrival)
        yield request
        if values["continue"] != NO and random.integers(3) == 0:
            number += 1
            addition = _tokens(random.integers(0, VOCAB, random.integers(1, LONGEST_ADDITION + 1)))
            sampling = _sampling(random, values, addition)
            yield WorkloadRequest(f"r{number}", addition, sampling, continues=request.request_id)
        number += 1
        arrival += int(random.integers(0, 2 * ARRIVAL_GAP + 1))


def _request(
    random: np.random.Generator, name: str, values: Mapping[str, Any], texts: np.ndarray[Any, Any], arrival: int
) -> WorkloadRequest:
    end = random.integers(0, VOCAB, random.integers(1, 4))
    prompt = _tokens([*random.choice(texts)[: random.integers(0, LONGEST_PROMPT - 2)], *end])
    some = random.integers(4, size=2)
    return WorkloadRequest(
        name,
        prompt,
        _sampling(random, values, prompt),
        arrival,
        preempt_after=(int(random.integers(0, 3)),) if values["preempt"] != NO and some[0] == 0 else (),
        abort_after=int(random.integers(0, 3)) if values["abort"] != NO and some[1] == 0 else None,
        priority=int(random.integers(3)),
    )


def _sampling(random: np.random.Generator, values: Mapping[str, Any], prompt: tuple[int, ...]) -> SamplingParams:
    """Parameters of one request; those that need not be neutral are so now and then all the same."""
    params = SamplingParams(
        max_tokens=int(random.integers(1, LONGEST_OUTPUT + 1)),
        logprobs=_sometimes(random, LOGPROBS[values["logprobs"]], None),
        prompt_logprobs=_sometimes(random, LOGPROBS[values["prompt_logprobs"]], None),
        logprob_token_ids=() if values["logprobs"] == NO else _some_tokens(random, 2),
    )
    greedy = values["temperature"] == "greedy" or (values["temperature"] == "mixed" and random.integers(2) == 0)
    if not greedy:
        temperature = float(random.choice((0.4, 0.8, 1.5)))
        params = replace(params, temperature=temperature, seed=int(random.integers(0, 2**64, dtype=np.uint64)))
    if values["penalties"] != NO:
        params = replace(params, **_penalties(random))
    if values["filters"] != NO:
        params = replace(params, **_filters(random))
    return replace(params, **_constraints(random, values["constraints"], prompt, params.max_tokens))


def _penalties(random: np.random.Generator) -> dict[str, Any]:
    return {
        "repetition_penalty": _sometimes(random, float(random.choice((0.7, 1.3, 2.0))), 1.0),
        "frequency_penalty": _sometimes(random, float(random.choice((-0.5, 0.7))), 0.0),
        "presence_penalty": _sometimes(random, float(random.choice((-0.9, 1.1))), 0.0),
    }


def _filters(random: np.random.Generator) -> dict[str, Any]:
    return {
        "min_p": _sometimes(random, float(random.choice((0.02, 0.2))), 0.0),
        "top_k": _sometimes(random, int(random.choice((1, 5, 50))), 0),
        "top_p": _sometimes(random, float(random.choice((0.3, 0.9))), 1.0),
    }


def _constraints(random: np.random.Generator, kind: str, prompt: tuple[int, ...], max_tokens: int) -> dict[str, Any]:
    """Bias, allowed ids, a minimum of tokens or bad words. Never so many that no token is left."""
    if kind == "bias":
        return {"logit_bias": tuple((token, float(random.choice((-8.0, 4.0)))) for token in _some_tokens(random, 6))}
    if kind == "allowed":
        return {"allowed_token_ids": _some_tokens(random, 40)}
    if kind == "min tokens":
        return {"stop_token_ids": _some_tokens(random, 60), "min_tokens": int(random.integers(0, max_tokens + 1))}
    if kind == "bad words":
        words = [(token,) for token in _some_tokens(random, 60)]
        return {"bad_words": (*words, *((prompt[-1], token) for token in _some_tokens(random, 60)))}
    return {}


def _sometimes(random: np.random.Generator, value: Any, neutral: Any) -> Any:
    return value if random.integers(3) else neutral


def _some_tokens(random: np.random.Generator, count: int) -> tuple[int, ...]:
    return _tokens(random.choice(VOCAB, count, replace=False))


def _tokens(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
