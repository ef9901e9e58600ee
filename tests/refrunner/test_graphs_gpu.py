"""CUDA graphs on a real GPU: the eager runner's tokens, no wait, no kernel loaded by a step."""

import gc
from dataclasses import replace

import pytest
import torch

from mrv2.ci.stages.workloads import quick_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver
from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.kernels.launch import Kernel

pytestmark = pytest.mark.gpu

WORKLOAD = quick_workload(256, 5, 8)
EAGER = {"attention": "triton"}
MODES = {
    "full": {**EAGER, "graph_mode": "full"},
    "full, one size": {**EAGER, "graph_mode": "full", "graph_sizes": (5,)},
    "piecewise": {**EAGER, "graph_mode": "piecewise"},
    "piecewise, torch": {"attention": "torch", "graph_mode": "piecewise", "graph_sizes": (3, 16, 48)},
}
# Long enough that everything a test enqueues behind it is enqueued before it ends.
BUSY_CYCLES = 1_000_000_000


def build(**settings):
    return ReferenceTarget().build({"model": "tiny", "device": "cuda", **settings})


def drive(**settings):
    """Results of the workload; every input and invariant of every step was checked."""
    runner = build(**WORKLOAD.capacities, **settings)
    trace = Driver(runner, WORKLOAD, check_invariants=True).run()
    runner.close()
    assert (trace.crash, trace.mismatch, trace.broken) == (None, None, [])
    return trace.results


@pytest.fixture(scope="module")
def eager():
    return drive(**EAGER)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("poison", [False, True])
def test_tokens_are_those_of_the_eager_runner(eager, mode, poison):
    results = drive(poison=poison, **MODES[mode])
    assert results.keys() == eager.keys()
    for name, result in results.items():
        assert result.token_ids == eager[name].token_ids
        assert result.logprobs == pytest.approx(eager[name].logprobs, abs=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_two_replays_of_one_run_are_equal_bit_for_bit(mode, dtype):
    assert drive(dtype=dtype, **MODES[mode]) == drive(dtype=dtype, **MODES[mode])


def decoding(**settings):
    """A runner with two requests in their decode."""
    runner = build(max_model_len=512, **settings)._runner
    asked = (
        NewRequest("a", tuple(range(20)), 20),
        NewRequest("b", (7, 8, 9), 3, SamplingParams(temperature=0.8, seed=3)),
    )
    tables = {"a": (tuple(range(1, 20)),), "b": (tuple(range(20, 40)),)}
    runner.execute(Step(new=asked, scheduled={"a": 20, "b": 3}, new_blocks=tables)).result()
    return runner


@pytest.mark.parametrize(
    "mode", [{"attention": "torch"}, EAGER, *MODES.values()], ids=["eager, torch", "eager", *MODES]
)
def test_steps_wait_for_nothing(mode):
    """Torch raises where it would wait; and all steps are enqueued while the device is still busy with the first."""
    runner = decoding(**mode)
    for _ in range(3):
        runner.execute(Step(scheduled={"a": 1, "b": 1})).result()
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    busy = torch.cuda.Event()
    busy.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        late = [runner.execute(Step(scheduled={"a": 1, "b": 1})) for _ in range(4)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not busy.query()
    assert [sorted(handle.result().token_ids) for handle in late] == [["a", "b"]] * 4
    assert runner.invariants() == []


def kernels():
    """Every kernel of the runner."""
    return [each for each in gc.get_objects() if type(each) is Kernel]


def loaded():
    """Variants that are loaded on this device, by kernel."""
    device = torch.cuda.current_device()
    return {kernel.__name__: len(kernel.device_caches[device][0]) for kernel in kernels()}


EVERYTHING = SamplingParams(
    temperature=0.8, seed=3, repetition_penalty=1.1, allowed_token_ids=tuple(range(99)), logit_bias=((3, 0.5),),
    bad_words=((5, 6),), min_p=0.01, top_k=20, top_p=0.9, stop_token_ids=(9,), min_tokens=1, logprobs=2,
    prompt_logprobs=1, logprob_token_ids=(1, 2), max_tokens=8,
)  # fmt: skip
EVERY_OTHER = replace(
    WORKLOAD,
    requests=tuple(
        replace(request, sampling=replace(EVERYTHING, logprobs=index) if index % 2 else request.sampling)
        for index, request in enumerate(WORKLOAD.requests)
    ),
)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"graph_mode": "full"},
        {"graph_mode": "piecewise"},
        {"prompt_tokens": "uva", "staged_writes": "in_place"},
        {"prefix_caching": True, "graph_mode": "full"},
        {"zero_new_blocks": True},
    ],
    ids=str,
)
def test_no_step_loads_a_kernel(settings):
    for kernel in kernels():
        kernel.device_caches.clear()  # what another test has loaded would hide what a step of this one loads
    runner = build(**WORKLOAD.capacities, **EAGER, **settings)
    before = loaded()
    assert sum(count > 0 for count in before.values()) >= 9
    trace = Driver(runner, EVERY_OTHER).run()
    assert trace.crash is None and len(trace.steps) > 10
    assert loaded() == before


def test_as_many_blocks_as_fit():
    """Of a tenth of the device; a step of the largest batch finds its memory afterwards."""
    total = torch.cuda.mem_get_info()[1]
    share = 0.1 + (total - torch.cuda.mem_get_info()[0]) / total
    runner = build(**EAGER, max_model_len=512, memory_fraction=share)._runner
    free, _ = torch.cuda.mem_get_info()
    assert runner.config.num_kv_blocks * 16 == runner._attention.cache.shape[2]
    assert 0.9 * share < (total - free) / total <= share + 0.005
    blocks = {"a": (tuple(range(1, 17)),)}
    step = Step(new=(NewRequest("a", (5,) * 256, 256),), scheduled={"a": 256}, new_blocks=blocks)
    assert len(runner.execute(step).result().token_ids["a"]) == 1
