"""The runner of the older design: the reference runner's tokens, rows without holes, and a barrier that is needed."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.runs import run_program
from mrv2.fuzz.programs import RunnerProgram, random_workload
from mrv2.fuzz.targets.baseline import BaselineTarget
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver
from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.baseline_v1.barrier import Barrier
from mrv2.refrunner.baseline_v1.persistent_batch import CachedRequest, PersistentBatch
from mrv2.refrunner.baseline_v1.runner import BaselineRunner
from mrv2.refrunner.baseline_v1.settings import ONLY
from mrv2.refrunner.baseline_v1.step_inputs import StepInputs
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.device import Device
from mrv2.refrunner.engine import Engine
from mrv2.refrunner.errors import ConfigurationError, StepError
from mrv2.refrunner.kv_groups import KVGroups
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.checkpoint import load_checkpoint

WORKLOAD = random_workload(256, 3, 8)
SMALL = {"max_num_reqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "block_size": 4, "num_kv_blocks": 25}
MODES = {
    "eager": {},
    "padded, poison": {"pad_to": 4, "poison": True},
    "full graphs": {"attention": "triton", "graph_mode": "full"},
    "pieces": {"attention": "torch", "graph_mode": "piecewise", "graph_sizes": (2, 16)},
}
PARAMS = {
    "greedy": SamplingParams(max_tokens=6),
    "penalties": SamplingParams(max_tokens=6, repetition_penalty=1.7, presence_penalty=0.5, frequency_penalty=0.4),
    "bad words": SamplingParams(max_tokens=6, temperature=1.5, seed=4, bad_words=((7, 9), (3,))),
    "prompt": SamplingParams(max_tokens=6, prompt_logprobs=3, logprob_token_ids=(5, 6)),
    "filters": SamplingParams(max_tokens=6, temperature=1.3, seed=2, top_k=9, top_p=0.9, min_p=0.01),
    "lists": SamplingParams(
        max_tokens=6, temperature=1.0, seed=9, logit_bias=((3, 2.5), (9, -4.0)), allowed_token_ids=tuple(range(3, 90)),
        min_tokens=3, stop_token_ids=(3, 5), logprobs=2,
    ),
}  # fmt: skip


@functools.cache
def reference(attention):
    """Tokens of the reference runner."""
    return {name: one.token_ids for name, one in drive(ReferenceTarget(), attention=attention).items()}


def drive(target, schedule="late", **settings):
    with virtual_device(schedule) as device:
        runner = target.build({"model": "tiny", "device": "cuda", **WORKLOAD.capacities, **settings})
        trace = Driver(runner, WORKLOAD, check_invariants=True).run()
        runner.close()
    assert (trace.crash, trace.mismatch, trace.broken, device.findings) == (None, None, [], [])
    return trace.results


def engine_of(kind, model="tiny", **settings):
    checkpoint = load_checkpoint(model)
    config = RunnerConfig(**{**SMALL, **settings})
    windows = KVGroups.of_layers(checkpoint.config.layer_windows).windows
    return Engine(kind(config, checkpoint.config, checkpoint.tensors), config, windows)


def answers(engine, requests):
    for name, (prompt, params) in requests.items():
        engine.add(name, prompt, params)
    engine.drain()
    assert engine._runner.invariants() == []
    engine.close()
    return engine.requests


def prompt_ids(request):
    return request.prompt_logprobs and [entry and entry.token_ids for entry in request.prompt_logprobs]


@pytest.mark.parametrize(
    ("mode", "schedule"), [("eager", "late"), *((mode, "random:0") for mode in MODES if mode != "eager")]
)
def test_tokens_are_those_of_the_reference_runner(mode, schedule):
    results = drive(BaselineTarget(), schedule, **MODES[mode])
    expected = reference(MODES[mode].get("attention", "torch"))
    assert {name: one.token_ids for name, one in results.items()} == expected


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("tiny", {}),
        ("tiny", {"attention": "triton", "steps_in_flight": 4}),
        ("tiny-sliding", {"num_kv_blocks": 40}),
        ("tiny", {"prefix_caching": True, "zero_new_blocks": True, "num_kv_blocks": 30}),
        ("tiny", {"num_kv_blocks": 13}),  # requests are preempted and come back
    ],
)
def test_every_parameter_and_setting_gives_the_same_answers(model, settings):
    rng = np.random.default_rng(5)
    shared = rng.integers(256, size=9).tolist()
    requests = {
        f"{name}{copy}": ([*shared, *rng.integers(256, size=3 + copy).tolist()], params)
        for copy in range(2)
        for name, params in PARAMS.items()
    }
    with triton_cpu.enabled():
        expected = answers(engine_of(ModelRunner, model, **settings), requests)
        observed = answers(engine_of(BaselineRunner, model, **settings), requests)
    for name, one in observed.items():
        assert one.token_ids == expected[name].token_ids
        assert one.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4)
        assert len(one.top_logprobs) == len(expected[name].top_logprobs)
        assert prompt_ids(one) == prompt_ids(expected[name])


def test_rows_have_no_holes_and_a_request_that_is_not_scheduled_loses_its_row():
    checkpoint = load_checkpoint("tiny")
    runner = BaselineRunner(RunnerConfig(**SMALL), checkpoint.config, checkpoint.tensors)
    new = tuple(NewRequest(name, (place + 1, 2, 3), 3) for place, name in enumerate("abc"))
    blocks = {name: ((place + 1,),) for place, name in enumerate("abc")}
    runner.execute(Step(new=new, scheduled=dict.fromkeys("abc", 3), new_blocks=blocks))
    assert runner.rows.names == ["a", "b", "c"]
    runner.execute(Step(finished=("a",), scheduled={"b": 1, "c": 1}))
    assert runner.rows.names == ["c", "b"]  # the last row has moved into the hole
    runner.execute(Step(scheduled={"b": 1}, new_blocks={"b": ((4,),)}))
    assert (runner.rows.names, set(runner.requests)) == (["b"], {"b", "c"})
    runner.execute(Step(scheduled={"b": 1, "c": 1}, new_blocks={"c": ((5,),)}))
    assert runner.rows.row_of == {"b": 0, "c": 1}
    assert runner.invariants() == []
    assert runner.rows.tables[0].host[:3, :2].tolist() == [[2, 4], [3, 5], [0, 0]]
    runner.close()
    with pytest.raises(StepError, match="closed"):
        runner.execute(Step())


def test_invariants_see_a_row_that_holds_something_else():
    checkpoint = load_checkpoint("tiny")
    runner = BaselineRunner(RunnerConfig(**SMALL), checkpoint.config, checkpoint.tensors)
    step = Step(new=(NewRequest("a", (1, 2), 2),), scheduled={"a": 2}, new_blocks={"a": ((3,),)})
    runner.execute(step)
    runner.rows.tables[0].gpu[0, 0] = 9
    runner.rows.token_ids[0, 1] = 7
    runner.rows.row_of["a"] = 1
    assert {one.rule for one in runner.invariants()} == {"block-table", "row-tokens", "row-bijection"}


class Keeper:
    """Keeps the name of each row, and has to be told of every change."""

    def __init__(self):
        self.kept = {}

    def fill(self, row, cached):
        self.kept[row] = cached.request.request_id

    def clear(self, row, cached):
        del self.kept[row]

    def move(self, source, target):
        self.kept[target] = self.kept.pop(source)

    def exchange(self, first, second):
        self.kept[first], self.kept[second] = self.kept[second], self.kept[first]


def test_whatever_is_kept_by_row_moves_with_its_request():
    keeper, rng = Keeper(), np.random.default_rng(0)
    rows = PersistentBatch(RunnerConfig(**{**SMALL, "max_num_reqs": 6}), Device("cpu"), 256, 1, (keeper,))
    live = {}
    for number in range(60):
        for name in [name for name in live if rng.random() < 0.4]:
            rows.remove(name, live.pop(name))
        while len(live) < 6 and rng.random() < 0.8:
            name = f"r{number}.{len(live)}"
            live[name] = CachedRequest.of(NewRequest(name, (number, len(live)), 2), 1)
            live[name].blocks[0].append(len(live) + number)
            rows.add(name, live[name])
        rows.condense()
        rows.reorder(rng.permutation(rows.names).tolist())
        assert sorted(rows.names) == sorted(live)
        for row, name in enumerate(rows.names):
            assert (rows.row_of[name], keeper.kept[row]) == (row, name)
            assert rows.token_ids[row, :2].tolist() == live[name].token_ids
            assert rows.tables[0].host[row, 0] == live[name].blocks[0][0]
        assert not rows.tables[0].host[len(live) :].any()


@pytest.mark.parametrize("field", [field for field, *_ in ONLY])
def test_a_setting_that_it_lacks_is_refused_by_name(field):
    other = {"speculation": "ngram", "grammars": True, "prompt_tokens": "uva", "staged_writes": "in_place",
             "memory_fraction": 0.5}  # fmt: skip
    checkpoint = load_checkpoint("tiny")
    settings = replace(RunnerConfig(**SMALL))
    object.__setattr__(settings, field, other[field])
    with pytest.raises(ConfigurationError, match=f"{field}=.*for baseline_v1"):
        BaselineRunner(settings, checkpoint.config, checkpoint.tensors)


def test_the_barrier_is_needed(monkeypatch):
    """Without it the next step writes the arrays that a copy in flight still reads: the detector's positive control."""
    program = RunnerProgram(BaselineTarget(), random_workload(256, 2, 3))
    assert run_program(program, "late").findings == ()
    monkeypatch.setattr(Barrier, "uploads_enqueued", lambda self, behind: None)
    found = {finding.code for finding in run_program(program, "late").findings}
    assert "MRV201" in found


def test_draws_of_the_last_step_go_on_without_the_host():
    """A token that only the device knows is put into its lane there, or the step would read whatever the row holds."""
    with virtual_device("late"):
        runner = BaselineTarget().build({"model": "tiny", "device": "cuda", **SMALL})
        step = Step(new=(NewRequest("a", (1, 2), 2),), scheduled={"a": 2}, new_blocks={"a": ((3,),)})
        first = runner.execute(step)
        runner.execute(Step(scheduled={"a": 1}))
        lane = int(runner.snapshot().input_ids[0])
        assert (lane,) == first.result().token_ids["a"]
        runner.close()


def test_a_draw_that_stays_on_the_device_and_is_not_put_there_is_seen(monkeypatch):
    requests = {"a": ([1, 2, 3], SamplingParams(max_tokens=6))}
    with triton_cpu.enabled():
        right = answers(engine_of(BaselineRunner), requests)
        monkeypatch.setattr(StepInputs, "_fill_drawn", lambda *_: None)
        wrong = answers(engine_of(BaselineRunner), requests)
    assert right["a"].token_ids != wrong["a"].token_ids
