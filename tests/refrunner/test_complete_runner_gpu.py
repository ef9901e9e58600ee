"""The whole runner on a GPU: sets of its features against the oracle, and graphs that neither wait nor race."""

import json
import re
from dataclasses import replace

import pytest
import torch

from mrv2.checks.cuda.sync_trap import cuda_sync_trap
from mrv2.checks.hot_path import hot_path
from mrv2.fuzz.feature_sets.differential import CUDA, run_feature_set
from mrv2.fuzz.feature_sets.factors import FeatureSet, feature_sets
from mrv2.fuzz.feature_sets.traces import workload_of
from mrv2.fuzz.programs import random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver, close
from mrv2.refrunner.api import NewRequest, Step
from mrv2.refrunner.models.config import LlamaConfig

from .random_model import runner_of

pytestmark = pytest.mark.gpu

TARGET = ReferenceTarget()
SETS = feature_sets()
STEPS = 100
MODES = ("eager", "piecewise", "full")
#: Model of 0.6 thousand million parameters; float32, so that another shape of a product changes next to nothing.
SHAPE = LlamaConfig(
    vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_layers=28, num_heads=16, num_kv_heads=8,
    head_dim=128, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=40_960, tie_word_embeddings=True,
)  # fmt: skip
REQUESTS, NEW_TOKENS = 12, 24
GATHER_IN_PLACE = re.compile("MRV202 .*'triton:prepare_inputs' may still use in place refrunner/prompt_rows.py")


@pytest.mark.parametrize("number", range(0, len(SETS), 6))
def test_a_feature_set_gives_the_oracles_answers_and_has_no_race(number, record_property):
    outcome = run_feature_set(TARGET, SETS[number], CUDA, STEPS)
    record_property("feature_set", json.dumps({**outcome.as_json(), "values": dict(SETS[number].values)}))
    assert outcome.failures == ()
    # Which rows of prompts a gather reads is in device memory, so it may be those that are written now.
    assert [text for text in outcome.suspects if not GATHER_IN_PLACE.match(text)] == []
    assert outcome.steps >= STEPS
    assert outcome.tally.tokens > outcome.requests > 0


class Watched:
    """A runner each of whose steps is a hot path."""

    def __init__(self, runner):
        self.execute = hot_path("step")(runner.execute)
        self.invariants = runner.invariants
        self.close = runner.close


def everything(mode):
    """Requests that ask for all that there is, for the tiny model."""
    values = {**SETS[27].values, "logprobs": "three", "prompt_logprobs": "two", "penalties": "some", "filters": "some"}
    settings = {"prompt_tokens": "uva", "staged_writes": "in_place", "prefix_caching": True}
    return on_gpu(workload_of(FeatureSet(27, {**values, **settings, "model": "tiny"}), STEPS), mode)


def plain(mode):
    """Requests that ask for tokens only."""
    return on_gpu(random_workload(256, 7, STEPS), mode)


def on_gpu(workload, mode):
    settings = {"device": "cuda", "attention": "triton", "graph_mode": mode}
    return replace(workload, capacities={**workload.capacities, **settings})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workload_of_mode", [plain, everything])
def test_no_step_waits_in_steady_state(mode, workload_of_mode, record_property):
    workload = workload_of_mode(mode)
    runner = TARGET.build({"model": "tiny", **workload.capacities})
    with cuda_sync_trap() as trap:
        trace = Driver(Watched(runner), workload).run()
        found = [f"{finding.code} {finding.title}" for finding in trap.findings]
    assert runner.invariants() == []
    close(runner, trace)
    figures = {"mode": mode, "requests": workload_of_mode.__name__, "steps": len(trace.steps), "found": found}
    record_property("steady_state", json.dumps(figures))
    assert (trace.crash, found) == (None, [])
    assert len(trace.steps) >= STEPS


def generate(runner, prompts):
    """Tokens of each request, all of them decoded together; one step ahead of the results."""
    count = len(prompts)
    blocks = {f"r{index}": (tuple(range(1 + 4 * index, 5 + 4 * index)),) for index in range(count)}
    new = tuple(NewRequest(f"r{index}", prompt, len(prompt)) for index, prompt in enumerate(prompts))
    first = Step(new=new, scheduled={r.request_id: r.prompt_len for r in new}, new_blocks=blocks)
    handles = [runner.execute(first)]
    for _ in range(NEW_TOKENS - 1):
        handles.append(runner.execute(Step(scheduled=dict.fromkeys(blocks, 1))))
        handles[-2].result()
    outputs = [handle.result().token_ids for handle in handles]
    return {name: [output[name][0] for output in outputs] for name in blocks}


def test_graphs_of_a_real_shape_draw_the_eager_runners_tokens(record_property):
    random = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(0, SHAPE.vocab_size, (5 + index,), generator=random)) for index in range(REQUESTS)]
    prompts = [tuple(int(token) for token in prompt) for prompt in prompts]
    sizes = {"max_num_reqs": 16, "max_num_batched_tokens": 256, "max_model_len": 64, "num_kv_blocks": 65}
    tokens, waits = {}, {}
    for mode in MODES:
        runner = runner_of(SHAPE, graph_mode=mode, **sizes)
        with cuda_sync_trap() as trap:
            tokens[mode] = generate(Watched(runner), prompts)
            waits[mode] = [finding.title for finding in trap.findings]
        assert runner.invariants() == []
        del runner
    different = {mode: sum(tokens[mode][name] != tokens["eager"][name] for name in tokens["eager"]) for mode in MODES}
    figures = {"model": "0.6B shape, float32, random weights", "requests": REQUESTS, "tokens each": NEW_TOKENS}
    record_property("graph_modes", json.dumps({**figures, "requests that differ": different, "waits": waits}))
    assert different == dict.fromkeys(MODES, 0)
    assert not any(waits.values())
