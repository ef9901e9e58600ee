"""The phases before the first step: nothing of a request changes, everything is loaded, and the log says what runs."""

import logging
from dataclasses import replace

import pytest
import torch

from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.programs import random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver, WorkloadRequest
from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.errors import ConfigurationError
from mrv2.refrunner.kernels import attention, block_table, drafting, draw, gumbel, input_prep, logprobs, rejection
from mrv2.refrunner.kernels.launch import PER_STEP, Kernel
from mrv2.refrunner.models.llama import LlamaModel
from mrv2.refrunner.startup import largest_shape
from mrv2.refrunner.tensors import tensors_of

WORKLOAD = random_workload(256, 7, 30)
TRITON = {"attention": "triton"}


def build(**settings):
    config = {"model": "tiny", "device": "cuda", **WORKLOAD.capacities, **settings}
    return ReferenceTarget().build(config)


def state(runner):
    """All that outlives a step: the tables and the cache, byte by byte."""
    owners = (runner._states, runner._sampler, runner._builder.block_tables._table, runner._attention.cache)
    return {
        f"{type(owner).__name__}/{path}": tensor.view(torch.uint8).tolist()
        for owner in owners
        for path, tensor in tensors_of(owner)
    }


@pytest.mark.parametrize("attention", ["torch", "triton"])
@pytest.mark.parametrize("poison", [False, True])
def test_a_step_of_nobody_changes_no_state(attention, poison):
    with virtual_device():
        runner = build(attention=attention, poison=poison)._runner
        request = NewRequest("a", (1, 2, 3), 3, SamplingParams(0.8, 5))
        runner.execute(Step(new=(request,), scheduled={"a": 3}, new_blocks={"a": ((4,),)}))
        before = state(runner)
        assert len(before) >= 5
        runner._run_padding(largest_shape(runner.config))
        after = state(runner)
        # Padding lanes of the reference attention write to the null block, from which nothing is read.
        null = runner.config.block_size * runner._attention.cache[0, 0, 0].nbytes
        assert {name: value for name, value in after.items() if value != before[name]}.keys() <= {"Tensor/Tensor"}
        slots = runner._attention.cache.view(torch.uint8).flatten(2)[:, :, null:]
        assert after.keys() == before.keys() and slots.numel()
        assert len(runner.execute(Step(scheduled={"a": 1})).result().token_ids["a"]) == 1
        assert runner.invariants() == []


def variant(kernel, args, kwargs):
    """What makes Triton compile a kernel anew on a GPU: types, alignment, integers that are 1 or divisible by 16."""
    free = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    parts = []
    for name, value in {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}.items():
        if isinstance(value, torch.Tensor):
            parts.append((name, value.dtype, value.data_ptr() % 16 == 0))
        elif isinstance(value, int) and name not in free and name not in kwargs:
            parts.append((name, value == 1, value % 16 == 0))
        else:
            parts.append((name, value if name in kwargs else type(value)))
    return (kernel.__name__, *parts)


@pytest.fixture
def loaded(monkeypatch):
    """The variants of kernels that were launched, in order."""
    variants = []
    run = Kernel.run

    def noted(self, *args, grid, warmup, **kwargs):
        key = variant(self, args, kwargs)
        if key not in variants:
            variants.append(key)
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    monkeypatch.setattr(Kernel, "run", noted)
    return variants


@pytest.mark.parametrize(
    ("settings", "draft_model"),
    [
        ({}, ""),
        ({"graph_mode": "full"}, ""),
        ({"graph_mode": "piecewise"}, ""),
        ({"speculation": "ngram", "num_drafts": 2}, ""),
        ({"speculation": "draft", "num_drafts": 3}, "tiny-draft"),
        ({"speculation": "eagle", "num_drafts": 3, "verification": "block"}, "tiny-eagle"),
    ],
)
def test_no_step_loads_a_kernel(loaded, settings, draft_model):
    scheduled = {name: value for name, value in settings.items() if name != "graph_mode"}
    workload = replace(WORKLOAD, capacities={**WORKLOAD.capacities, "num_kv_blocks": 14, **scheduled})
    with virtual_device("early"):
        runner = build(**TRITON, **{**workload.capacities, **settings}, draft_model=draft_model)
        at_start = list(loaded)
        trace = Driver(runner, workload).run()
        runner.close()
    assert trace.crash is None and len(trace.steps) > 30
    assert len({name for name, *_ in at_start}) >= 9
    assert loaded == at_start


EVERYTHING = SamplingParams(
    temperature=0.8, seed=3, repetition_penalty=1.1, allowed_token_ids=tuple(range(99)), logit_bias=((3, 0.5),),
    bad_words=((5, 6),), min_p=0.01, top_k=20, top_p=0.9, stop_token_ids=(9,), min_tokens=1, logprobs=2,
    prompt_logprobs=1, logprob_token_ids=(1, 2), max_tokens=6,
)  # fmt: skip


def test_no_stage_of_the_sampler_loads_a_kernel(loaded):
    """Every parameter at once, beside plain requests, in batches of one to three."""
    asked = [
        WorkloadRequest(f"r{index}", tuple(range(1, 4 + 5 * index)), params, arrival=index)
        for index, params in enumerate((EVERYTHING, SamplingParams(max_tokens=8), replace(EVERYTHING, logprobs=5)))
    ]
    with virtual_device("early"):
        runner = build(**TRITON)
        at_start = list(loaded)
        trace = Driver(runner, replace(WORKLOAD, requests=tuple(asked))).run()
        runner.close()
    assert trace.crash is None and {len(step.scheduled) for step in trace.steps} >= {1, 2, 3}
    assert loaded == at_start


def test_without_the_trial_the_first_steps_load_kernels(loaded, monkeypatch):
    """The negative control of the test above; and an integer that Triton specialises shows there too."""
    monkeypatch.setattr("mrv2.refrunner.model_runner.ModelRunner._run_padding", lambda *_: None)
    with virtual_device("early"):
        runner = build(**TRITON)
        assert loaded == []
        Driver(runner, WORKLOAD).run()
        runner.close()
    assert len(loaded) >= 9


def test_sizes_of_a_batch_are_taken_as_they_come():
    kernels = [
        value
        for module in (attention, block_table, draw, drafting, gumbel, input_prep, logprobs, rejection)
        for value in vars(module).values()
        if type(value) is Kernel
    ]
    found = {parameter.name for kernel in kernels for parameter in kernel.params if parameter.do_not_specialize}
    assert found == PER_STEP


def test_the_log_says_what_runs(caplog):
    caplog.set_level(logging.INFO, "mrv2.refrunner.startup")
    with virtual_device():
        build(**TRITON, graph_mode="full", graph_sizes=(1, 3))
    said = dict(message.split(": ", 1) for message in caplog.messages)
    assert said["runner"] == "refrunner on cuda, virtual device, float32"
    assert said["attention"] == "triton"
    assert said["graphs"] == "full, captured for 1, 3 lanes; the sampler outside"
    assert said["KV cache"].startswith("10 blocks of 8 tokens; ")
    assert said["prompt tokens"] == "staged"
    assert said["scheduler"] == "fcfs, 2 steps in flight; prefix caching off"
    assert {"sampler", "staged writes", "poison"} <= said.keys()


def test_as_many_blocks_as_fit():
    """Twice: one more MiB holds 256 more blocks of 4 KiB; no three more would fit, with what the trial has taken."""
    counts = []
    for size in (2**20, 2**21):
        with virtual_device():
            runner = build(**TRITON, memory_fraction=size / torch.cuda.mem_get_info()[1])._runner
            counts.append(runner.config.num_kv_blocks)
            assert runner._attention.cache.shape[2] == counts[-1] * 8
            free, total = torch.cuda.mem_get_info()
            assert size - 3 * 4096 < total - free <= size
    assert counts[1] - counts[0] == 256


def test_the_trial_includes_the_logits_of_a_prompt(monkeypatch):
    """Of the tiny model they take no more than the rest of a step; of a real vocabulary they do."""
    rows, compute = [], LlamaModel.compute_logits

    def noted(self, hidden):
        rows.append(len(hidden))
        return compute(self, hidden)

    monkeypatch.setattr(LlamaModel, "compute_logits", noted)
    with virtual_device():
        build(max_num_batched_tokens=64, prompt_logprobs_chunk=40)
    assert rows == [40, 3]


def test_too_little_memory_for_one_request_is_refused():
    with virtual_device():
        share = 2**16 / torch.cuda.mem_get_info()[1]
        with pytest.raises(ConfigurationError, match="KV blocks is left") as caught:
            build(**TRITON, memory_fraction=share)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
