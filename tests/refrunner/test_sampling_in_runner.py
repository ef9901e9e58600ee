"""The sampler within the runner: the oracle's tokens whatever happens to a request; prompts; faults of the model."""

import dataclasses
import random

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.targets.reference import ReferenceRunner
from mrv2.fuzz.workload import Driver, Workload, WorkloadRequest
from mrv2.refrunner.api import LogitsFault, NewRequest, SamplingParams, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.oracle.rounding import Float32Twins, Judgement

V = 256
CAPACITIES = {
    "max_num_reqs": 3,
    "max_num_batched_tokens": 16,
    "max_model_len": 48,
    "block_size": 4,
    "num_kv_blocks": 25,
}
SETS = {
    "filters": {"top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.6, "presence_penalty": 0.4},
    "lists": {
        "allowed_token_ids": tuple(range(0, V, 2)),
        "logit_bias": ((4, 2.0), (6, -3.0), (8, 1.0)),
        "bad_words": ((10,), (4, 8), (8, 4, 8)),
    },
    "minimum": {"min_tokens": 6, "stop_token_ids": tuple(range(120))},
    "logprobs": {"logprobs": 3, "logprob_token_ids": (1, 2), "prompt_logprobs": 2},
}
PAIRS = [
    *((name,) for name in SETS),
    ("filters", "penalties"),
    ("lists", "minimum"),
    ("penalties", "lists"),
    tuple(SETS),
]


def workload(names, seed=0):
    """Six requests with the parameters of some sets, three of them neutral; two are preempted, one twice."""
    draw = random.Random(f"{names}{seed}")
    chosen = {key: value for name in names for key, value in SETS[name].items()}
    requests = []
    for index in range(6):
        params = SamplingParams(
            temperature=draw.choice((0.0, 0.8, 1.5)),
            seed=draw.getrandbits(64),
            max_tokens=8,
            **(chosen if index % 2 else {}),
        )
        prompt = tuple(draw.choices(range(V), k=draw.randint(1, 20)))
        preempt = {1: (2, 5), 3: (3,)}.get(index, ())
        requests.append(WorkloadRequest(f"r{index}", prompt, params, arrival=index // 2, preempt_after=preempt))
    return Workload(tuple(requests), CAPACITIES, V)


def run(checkpoint, load, **settings):
    config = RunnerConfig(**{**CAPACITIES, **settings})
    runner = ModelRunner(config, checkpoint.config, checkpoint.tensors)
    trace = Driver(ReferenceRunner(runner, lambda field: None), load, check_invariants=True).run()
    assert (trace.crash, trace.mismatch, trace.broken) == (None, None, [])
    return {name: result.token_ids for name, result in trace.results.items()}, trace


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_tokens_are_the_oracles(checkpoint, oracle, names):
    load = workload(names)
    with triton_cpu.enabled() as session:
        _, trace = run(checkpoint, load)
        poisoned, _ = run(checkpoint, load, poison=True, pad_to=4, force_sampler_stages=True)
    assert session.findings == []
    twins = Float32Twins(oracle.model)
    changed = 0
    for request in load.requests:
        result = trace.results[request.request_id]
        asked = NewRequest(request.request_id, request.prompt, len(request.prompt), request.sampling)
        scored = oracle.score(asked, result.token_ids)
        for token, bound, logprob in zip(scored, twins.bounds(asked, scored), result.logprobs, strict=True):
            assert bound.judgement is not Judgement.WRONG, (request, token)
            assert abs(logprob - token.logprob) <= bound.logprob_error
        plain = dataclasses.replace(
            asked, sampling=SamplingParams(request.sampling.temperature, request.sampling.seed, max_tokens=8)
        )
        changed += any(token.gap > 1e-3 for token in oracle.score(plain, result.token_ids))
        assert poisoned[request.request_id] == result.token_ids
    assert changed or names == ("logprobs",)  # the parameters had something to say


@pytest.mark.parametrize("schedule", ["late", "starve:1"])
def test_the_virtual_device_draws_the_same(checkpoint, schedule):
    load = workload(tuple(SETS), seed=1)
    with triton_cpu.enabled():
        expected, _ = run(checkpoint, load)
    with virtual_device(schedule) as device:
        found, _ = run(checkpoint, load, device="cuda", poison=True)
    assert device.findings == []
    assert found == expected


def test_a_stop_token_ends_only_after_the_minimum(checkpoint):
    load = workload(("minimum",))
    with triton_cpu.enabled():
        results, _ = run(checkpoint, load)
    for request in load.requests:
        tokens, params = results[request.request_id], request.sampling
        early = [token in params.stop_token_ids for token in tokens[: params.min_tokens]]
        assert not any(early)
    assert any(len(tokens) < 8 for tokens in results.values())  # stopped after it


# Prompts

PROMPT = tuple(random.Random(5).choices(range(V), k=14))


def prompt_report(checkpoint, params, chunks, prompt=PROMPT, **settings):
    """The report on one prompt that is prefilled in chunks, and how many outputs carried it."""
    runner = ModelRunner(RunnerConfig(**{**CAPACITIES, **settings}), checkpoint.config, checkpoint.tensors)
    request = NewRequest("a", prompt, len(prompt), params)
    outputs = []
    for index, count in enumerate(chunks):
        enter = {"new": (request,), "new_blocks": {"a": ((1, 2, 3, 4, 5),)}} if index == 0 else {}
        outputs.append(runner.execute(Step(scheduled={"a": count}, **enter)).result())
    told = [output.prompt_logprobs["a"] for output in outputs if output.prompt_logprobs]
    assert [bool(output.prompt_logprobs) for output in outputs].count(True) == len(told) == 1
    return told[0], outputs


def check_prompt(report, expected, bounds):
    assert len(report) == len(expected) and report[0] is None
    for told, right, bound in zip(report[1:], expected[1:], bounds.tolist(), strict=False):
        for ours, theirs in ((told.value, right.value), *zip(told.fixed, right.fixed, strict=True)):
            assert abs(ours - theirs) <= bound + 1e-5
        assert len(told.values) == len(right.values)
        assert all(abs(a - b) <= bound + 1e-5 for a, b in zip(told.values, right.values, strict=True))
        assert told.token_ids == right.token_ids and told.rank == right.rank


@pytest.mark.parametrize("wanted", [0, 3, -1])
def test_prompts_are_reported_alike_in_any_chunks(checkpoint, oracle, wanted):
    params = SamplingParams(prompt_logprobs=wanted, logprob_token_ids=(7, 0))
    expected = oracle.prompt_logprobs(NewRequest("a", PROMPT, len(PROMPT), params))
    bounds = Float32Twins(oracle.model).measure(PROMPT).logprob_bounds
    with triton_cpu.enabled() as session:
        for chunks, lanes in (((14,), 1024), ((14,), 5), ((1, 6, 7), 4), ((13, 1), 1)):
            report, _ = prompt_report(checkpoint, params, chunks, prompt_logprobs_chunk=lanes)
            check_prompt(report, expected, bounds)
    assert session.findings == []


def test_a_prompt_of_one_token_has_nothing_to_report(checkpoint):
    report, _ = prompt_report(checkpoint, SamplingParams(prompt_logprobs=2), (1,), prompt=(3,))
    assert report == (None,)


def test_logits_of_a_prompt_are_made_in_chunks(checkpoint, monkeypatch):
    """The peak: never more rows of logits at once than the chunk has, whatever the prompt's length."""
    counts = []
    from mrv2.refrunner.models.llama import LlamaModel

    original = LlamaModel.compute_logits
    monkeypatch.setattr(
        LlamaModel, "compute_logits", lambda self, hidden: counts.append(len(hidden)) or original(self, hidden)
    )
    with triton_cpu.enabled():
        prompt_report(checkpoint, SamplingParams(prompt_logprobs=1), (14,), prompt_logprobs_chunk=4)
    assert counts == [1, 4, 4, 4, 1]  # the draw's, and those of the thirteen tokens after the first


def test_a_resumed_request_has_had_its_report(checkpoint):
    params = SamplingParams(prompt_logprobs=1)
    with triton_cpu.enabled():
        runner = ModelRunner(RunnerConfig(**CAPACITIES), checkpoint.config, checkpoint.tensors)
        request = NewRequest("a", PROMPT, len(PROMPT), params)
        blocks = {"a": ((1, 2, 3, 4),)}
        half = runner.execute(Step(new=(request,), scheduled={"a": 6}, new_blocks=blocks)).result()
        again = Step(preempted=("a",), new=(request,), scheduled={"a": 14}, new_blocks=blocks)
        whole = runner.execute(again).result()
        resumed = dataclasses.replace(request, token_ids=(*PROMPT, *whole.token_ids["a"]))
        later = runner.execute(Step(preempted=("a",), new=(resumed,), scheduled={"a": 15}, new_blocks=blocks)).result()
    assert not half.prompt_logprobs and not later.prompt_logprobs
    assert len(whole.prompt_logprobs["a"]) == len(PROMPT) and later.token_ids


# Faults


def test_a_model_that_is_not_a_number_is_reported(checkpoint):
    tensors = dict(checkpoint.tensors)
    head = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
    broken = tensors[head].clone()
    broken[[200, 90]] = float("nan")
    if head == "lm_head.weight":
        tensors[head] = broken
    else:
        pytest.skip("the embedding is the head of this model")
    with triton_cpu.enabled():
        runner = ModelRunner(RunnerConfig(**CAPACITIES), checkpoint.config, tensors)
        requests = (NewRequest("a", (1, 2), 2), NewRequest("b", (1,), 1, SamplingParams(allowed_token_ids=(90,))))
        step = Step(new=requests, scheduled={"a": 2, "b": 1}, new_blocks={"a": ((1,),), "b": ((2,),)})
        output = runner.execute(step).result()
    assert output.faults == {"a": (LogitsFault(2, 90, False),), "b": (LogitsFault(2, 90, True),)}
    assert output.token_ids["a"][0] not in (90, 200) and output.token_ids["b"] == (0,)
    assert torch.tensor(output.logprobs["a"]).isnan().all()
