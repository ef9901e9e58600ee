"""Windows, prefix caching and copies at work: every request gets the oracle's tokens, whatever it shares a cache with.

Requests are cut from a few long texts, so that prefixes are common, end anywhere in a block, and come back after a
preemption; the pool is small, so that blocks are evicted, and taken from below windows.
"""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.targets.reference import ReferenceRunner
from mrv2.fuzz.workload import Driver, Workload, WorkloadRequest
from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import RequestError
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


def shared(name, length, tail=1, temperature=0.0, tokens=4, **fate):
    return request(name, 0, length, tail, temperature, tokens, **fate)


#: Prefixes that end inside blocks, one that is a whole prompt, one that comes back after a preemption.
FAMILY = (
    shared("a", 26),
    shared("b", 26, 0, arrival=4),
    shared("c", 19, 2, 0.8, arrival=4, preempt_after=(2,)),
    shared("d", 10, 3, arrival=7),
    shared("e", 26, 2, 0.8, 9, arrival=9),
)


@pytest.mark.parametrize("name", ["full", "full and window", "three groups"])
def test_a_prefix_that_was_computed_is_not_computed_again(models, name):
    plain = drive(models(name)[0], FAMILY)
    cached = drive(models(name)[0], FAMILY, prefix_caching=True, num_kv_blocks=30)
    judge(models(name), FAMILY, cached.trace)
    computed = [sum(sum(step.scheduled.values()) for step in run.trace.steps) for run in (plain, cached)]
    stats = cached._scheduler.prefix_cache
    assert plain._scheduler.prefix_cache.found == 0
    assert stats.found > stats.queried // 2
    assert stats.copied_blocks == sum(len(step.block_copies) for step in cached.trace.steps) > 0
    assert computed[1] < computed[0] - stats.found // 2
    for result, other in zip(plain.trace.results.values(), cached.trace.results.values(), strict=True):
        assert result.token_ids == other.token_ids


def test_windows_take_fewer_blocks(models):
    """With a window, what a long request holds stops growing; the pool is too small for it otherwise."""
    long = [request("a", 0, 30, 0, 0.0, 16)]
    driver = drive(models("windows only")[0], long, num_kv_blocks=9 - 14)
    assert len(driver.trace.results["a"].token_ids) == 16
    with pytest.raises(RequestError, match="needs 12 KV blocks and the pool has 8"):
        drive(models("full")[0], long, num_kv_blocks=9 - 14)


def test_new_blocks_are_zeroed(models):
    checkpoint, _, _ = models("full")
    config = RunnerConfig(**CAPACITIES, num_kv_blocks=9, zero_new_blocks=True)
    runner = ModelRunner(config, checkpoint.config, checkpoint.tensors)
    runner._attention.cache.fill_(7.0)
    new = NewRequest("a", tuple(range(6)), 6, num_computed_tokens=5)
    runner.execute(Step(new=(new,), new_blocks={"a": ((3, 4, 5),)}))
    blocks = runner._attention.cache.unflatten(2, (9, 4)).flatten(3)
    # What holds a computed token is left alone.
    assert [set(blocks[:, :, block].flatten().tolist()) for block in (3, 4, 5, 6)] == [{7.0}, {7.0}, {0.0}, {7.0}]


def test_blocks_are_copied_whole_in_every_layer(models):
    checkpoint, _, _ = models("full")
    runner = ModelRunner(RunnerConfig(**CAPACITIES, num_kv_blocks=9), checkpoint.config, checkpoint.tensors)
    runner._attention.cache.copy_(torch.arange(runner._attention.cache.numel()).view(runner._attention.cache.shape))
    before = runner._attention.cache.unflatten(2, (9, 4)).clone()
    new = NewRequest("a", tuple(range(8)), 8, num_computed_tokens=5)
    runner.execute(Step(new=(new,), new_blocks={"a": ((3, 4),)}, block_copies=((7, 4),)))
    after = runner._attention.cache.unflatten(2, (9, 4))
    assert torch.equal(after[:, :, 4], before[:, :, 7])
    others = [block for block in range(9) if block != 4]
    assert torch.equal(after[:, :, others], before[:, :, others])


@pytest.mark.parametrize("attention", ["torch", "triton"])
def test_a_request_whose_prompt_grows_keeps_its_blocks(models, attention):
    """It is replaced while a step of its former self is in flight, and goes on from what that one computed."""
    checkpoint, oracle, _ = models("full and window")
    config = RunnerConfig(**CAPACITIES, num_kv_blocks=30, attention=attention, poison=True)
    runner = ModelRunner(config, checkpoint.config, checkpoint.tensors)
    first = NewRequest("a", TEXTS[0][:9], 9)
    runner.execute(Step(new=(first,), scheduled={"a": 9}, new_blocks={"a": ((1, 2, 3), (4, 5, 6))}))
    grown = NewRequest("a", TEXTS[0][:14], 14, SamplingParams(max_tokens=3), num_computed_tokens=9)
    blocks = {"a": ((1, 2, 3, 7), (4, 5, 6, 8))}
    drawn = runner.execute(Step(new=(grown,), scheduled={"a": 5}, new_blocks=blocks)).result().token_ids["a"]
    assert runner.invariants() == []
    drawn += runner.execute(Step(scheduled={"a": 1})).result().token_ids["a"]
    drawn += runner.execute(Step(scheduled={"a": 1})).result().token_ids["a"]
    assert drawn == oracle.generate(NewRequest("a", TEXTS[0][:14], 14, SamplingParams(max_tokens=3))).token_ids
    assert runner._states.generations.tolist().count(2) == 1
    runner.execute(Step(finished=("a",)))
    assert runner._holders.of_block == {}


@pytest.mark.parametrize("schedule", ["late", "random:0"])
def test_no_race_on_the_virtual_device(models, schedule):
    checkpoint, _, _ = models("full and window")
    knobs = {"attention": "triton", "prefix_caching": True, "num_kv_blocks": 2, "poison": True}
    knobs |= {"prompt_tokens": "uva", "staged_writes": "in_place"}
    with virtual_device(schedule) as device:
        driver = drive(checkpoint, FAMILY, 3, **knobs, device="cuda")
    assert device.findings == []
    assert driver._scheduler.prefix_cache.copied_blocks > 0
    judge(models("full and window"), FAMILY, driver.trace)
