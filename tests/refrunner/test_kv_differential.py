"""Windows, prefix caching and copies at work: every request gets the oracle's tokens, whatever it shares a cache with.

Requests are cut from a few long texts, so that prefixes are common, end anywhere in a block, and come back after a
preemption; the pool is small, so that blocks are evicted, and taken from below windows.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.checks import triton_cpu
from mrv2.fuzz.targets.reference import ReferenceRunner
from mrv2.fuzz.workload import Driver, Workload, WorkloadRequest
from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.kv_groups import KVGroups
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.tiny import TINY_CONFIG, TINY_SLIDING_CONFIG, tiny_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle
from mrv2.refrunner.oracle.rounding import Float32Twins, Judgement

VOCAB = 256
CAPACITIES = {"max_num_reqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "block_size": 4}
MODELS = {
    "full": TINY_CONFIG,
    "full and window": TINY_SLIDING_CONFIG,
    "three groups": replace(TINY_CONFIG, num_layers=3, sliding_windows=(5, 0, 12)),
    "windows only": replace(TINY_CONFIG, sliding_windows=(6, 6)),
}
TEXTS = [tuple(random.Random(seed).choices(range(VOCAB), k=30)) for seed in range(2)]


@pytest.fixture(autouse=True)
def _compiled():
    """Kernels run compiled: the interpreter would take seconds a launch."""
    with triton_cpu.enabled() as session:
        yield
    assert session.findings == []


@pytest.fixture(scope="module")
def models():
    """Checkpoint, oracle and rounding of each model, made when first asked for."""
    made = {}

    def get(name):
        if name not in made:
            checkpoint = tiny_checkpoint(config=MODELS[name])
            oracle = Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors))
            made[name] = checkpoint, oracle, Float32Twins(oracle.model)
        return made[name]

    return get


def request(name, text, length, tail, temperature, tokens, **fate):
    """A prompt that starts like a text and ends in its own way."""
    prompt = (*TEXTS[text][:length], *random.Random(name).choices(range(VOCAB), k=tail))
    params = SamplingParams(temperature=temperature, seed=len(prompt), max_tokens=tokens)
    return WorkloadRequest(name, prompt, params, **fate)


class WithoutInputs:
    """A runner that does not show its inputs."""

    def __init__(self, runner):
        self.execute, self.invariants, self.close = runner.execute, runner.invariants, runner.close


@st.composite
def workloads(draw):
    requests = [
        request(
            f"r{index}",
            draw(st.integers(0, 1)),
            draw(st.integers(1, 26)),
            draw(st.integers(0, 3)),
            draw(st.sampled_from((0.0, 0.8))),
            draw(st.integers(1, 9)),
            arrival=draw(st.integers(0, 9)),
            preempt_after=tuple(draw(st.sets(st.integers(0, 3), max_size=1))),
            abort_after=draw(st.sampled_from((None, None, None, 1))),
        )
        for index in range(draw(st.integers(2, 6)))
    ]
    knobs = {
        "poison": draw(st.booleans()),
        "attention": draw(st.sampled_from(("torch", "triton"))),
        "num_kv_blocks": draw(st.integers(0, 20)),
        "prefix_caching": draw(st.booleans()),
        "pad_to": draw(st.sampled_from((1, 3))),
        "prompt_tokens": draw(st.sampled_from(("staged", "uva"))),
        "staged_writes": draw(st.sampled_from(("copied", "in_place"))),
    }
    return requests, knobs, draw(st.integers(1, 3))


def drive(checkpoint, requests, steps_in_flight=2, **knobs):
    """Run requests to their end, with inputs and invariants of every step checked; returns the driver too."""
    windows = KVGroups.of_layers(checkpoint.config.layer_windows).windows
    config = {**CAPACITIES, **knobs, "num_kv_blocks": 14 * len(windows) + knobs.get("num_kv_blocks", 0)}
    runner = ModelRunner(RunnerConfig(**config), checkpoint.config, checkpoint.tensors)
    workload = Workload(tuple(requests), {**config, "device": "cpu"}, VOCAB, steps_in_flight, windows)
    shown = ReferenceRunner(runner, lambda field: None)
    # The model of the inputs knows no null blocks, and compares group 0 only.
    driver = Driver(shown if 0 in windows else WithoutInputs(shown), workload, check_invariants=True)
    trace = driver.run()
    assert (trace.crash, trace.mismatch, trace.broken) == (None, None, [])
    assert not runner._states.row_of and not runner._holders.of_block
    pool = driver._scheduler._blocks.pool
    assert pool.num_free == pool.capacity
    runner.close()
    return driver


def judge(model, requests, trace):
    """Compare every token and logprob with the oracle's."""
    _, oracle, twins = model
    for request in requests:
        result = trace.results[request.request_id]
        asked = NewRequest(request.request_id, request.prompt, len(request.prompt), request.sampling)
        scored = oracle.score(asked, result.token_ids)
        for token, bound, logprob in zip(scored, twins.bounds(asked, scored), result.logprobs, strict=True):
            assert bound.judgement is not Judgement.WRONG, (request.request_id, token)
            assert abs(logprob - token.logprob) <= bound.logprob_error, (request.request_id, token)


@pytest.mark.parametrize("name", MODELS)
@given(drawn=workloads())
@settings(max_examples=5)
def test_any_workload_equals_the_oracle(models, name, drawn):
    requests, knobs, steps_in_flight = drawn
    driver = drive(models(name)[0], requests, steps_in_flight, **knobs)
    judge(models(name), requests, driver.trace)
