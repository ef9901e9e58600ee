"""Workloads whose drafts are often right: requests draw from a few tokens, repeat themselves, and are preempted."""

import functools
import random

from mrv2.checks import triton_cpu
from mrv2.checks.virtual.runs import run_program
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver, Workload, WorkloadRequest, close
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.kv_groups import KVGroups
from mrv2.refrunner.models.checkpoint import load_checkpoint

VOCAB = 256
CAPACITIES = {
    "max_num_reqs": 3,
    "max_num_batched_tokens": 20,
    "max_model_len": 64,
    "block_size": 4,
    "num_kv_blocks": 26,
}
PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.3}


def params(draw, tokens, free):
    """Parameters of one request; each stage of the sampler is in about every third."""
    chosen = {
        "temperature": draw.choice((0.0, 0.0, 0.7)),
        "seed": draw.randrange(2**40),
        "max_tokens": draw.randrange(1, 24),
        "allowed_token_ids": None if draw.random() < free else tokens,
    }
    for some in (PENALTIES, {"bad_words": ((tokens[0], tokens[1]),)}, {"top_k": 2}, {"logprobs": 2}):
        chosen |= some if draw.random() < 0.3 else {}
    if draw.random() < 0.4:
        chosen |= {"stop_token_ids": tokens[:1], "min_tokens": min(draw.randrange(8), chosen["max_tokens"])}
    return SamplingParams(**chosen)


def workload(seed, requests=8, steps_in_flight=2, free=0.0, **capacities):
    """Requests with preemptions and aborts in a pool that is too small for all of them.

    A share of them is ``free`` to draw any token: draft models know nothing of what is allowed.
    """
    draw = random.Random(seed)
    items = []
    for index in range(requests):
        tokens = tuple(draw.sample(range(VOCAB), 3))
        prompt = tuple(draw.choices(tokens, k=draw.randrange(1, 24)))
        fate = {"preempt_after": (draw.randrange(4),)} if draw.random() < 0.4 else {}
        fate |= {"abort_after": draw.randrange(4)} if draw.random() < 0.1 else {}
        items.append(WorkloadRequest(f"r{index}", prompt, params(draw, tokens, free), index * 2, **fate))
    return Workload(tuple(items), {**CAPACITIES, **capacities}, VOCAB, steps_in_flight)


class WithoutSnapshots:
    """On the virtual device a look at the inputs synchronises, and would hide what runs late."""

    def __init__(self, runner):
        self.execute, self.invariants, self.close = runner.execute, runner.invariants, runner.close


def drive(items, target=None, device="cpu", model="tiny", draft_model="", **settings):
    """Run a workload to its end; returns its driver. Settings may name what the workload leaves open."""
    config = {"model": model, "draft_model": draft_model, "device": device, **items.capacities, **settings}
    runner = (target or ReferenceTarget()).build(config)
    of_scheduler = {**items.capacities, **settings, "graph_mode": "eager"}
    windows = KVGroups.of_layers(load_checkpoint(model).config.layer_windows).windows
    merged = Workload(items.requests, of_scheduler, VOCAB, items.steps_in_flight, windows)
    shown = runner if device == "cpu" else WithoutSnapshots(runner)
    driver = Driver(shown, merged, check_invariants=device == "cpu")
    driver.run()
    close(runner, driver.trace)
    return driver


def results_of(driver):
    """What became of every request, in a run in which nothing went wrong."""
    trace = driver.trace
    assert (trace.crash, trace.mismatch, trace.broken, trace.faults) == (None, None, [], []), trace
    return trace.results


def differences(driver, plain):
    """Requests whose tokens or log-probabilities are not those of another run; of an aborted one as far as both got."""
    return {
        name: (result.token_ids, plain[name].token_ids)
        for name, result in results_of(driver).items()
        if not _agree(result, plain[name])
    }


def _agree(one, other):
    aborted = "abort" in (one.finish_reason, other.finish_reason)
    length = min(len(one.token_ids), len(other.token_ids)) if aborted else None
    pairs = zip(one.logprobs, other.logprobs, strict=False)
    return one.token_ids[:length] == other.token_ids[:length] and all(abs(a - b) < 1e-3 for a, b in pairs)


def on_cpu(items, target=None, **settings):
    """The same with kernels compiled for the CPU."""
    with triton_cpu.enabled() as session:
        driver = drive(items, target, **settings)
    assert session.findings == []
    return driver


def on_virtual_device(items, schedule, target=None, **settings):
    """The same on the virtual device, where a race is a finding."""
    drivers = []
    run = run_program(lambda: drivers.append(drive(items, target, device="cuda", **settings)), schedule)
    assert not run.findings and not run.ending, (run.findings, run.ending)
    return drivers[-1]


@functools.cache
def plain_results(seed, model="tiny", **changes):
    """Results of a workload without speculation."""
    return results_of(on_cpu(workload(seed, **changes), model=model, attention="triton"))
