"""CUDA graphs on the virtual device: the eager runner's tokens, the right graph for each batch, fixed addresses."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.programs import random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver
from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.engine import Engine
from mrv2.refrunner.graphs.candidates import BatchNeeds, Candidate, candidates, first_that_admits
from mrv2.refrunner.graphs.captured import FullGraph, PiecewiseGraph, Recorder
from mrv2.refrunner.input_batch import InputBatchBuilder
from mrv2.refrunner.kv_groups import KVGroups
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.llama import LlamaModel
from mrv2.refrunner.models.tiny import TINY_CONFIG, random_tensors

WORKLOAD = random_workload(256, 3, 8)
MODES = {
    "full": {"attention": "triton", "graph_mode": "full"},
    "full, one size": {"attention": "triton", "graph_mode": "full", "graph_sizes": (3,)},
    "piecewise": {"attention": "triton", "graph_mode": "piecewise", "graph_sizes": (2, 16)},
    "piecewise, torch": {"attention": "torch", "graph_mode": "piecewise", "graph_sizes": (1, 5)},
}


def full(size):
    return Candidate("full", size, size)


def pieces(size):
    return Candidate("piecewise", size, size)


class TestCandidates:
    @pytest.mark.parametrize(
        ("needs", "expected"),
        [
            (BatchNeeds(1, 1, True), full(2)),
            (BatchNeeds(2, 2, True), full(2)),
            (BatchNeeds(3, 3, True), full(4)),
            (BatchNeeds(5, 5, True), pieces(8)),
            (BatchNeeds(9, 9, True), None),
            # A prefill of one token, and one whose tokens are as many as the lanes of a decode graph.
            (BatchNeeds(1, 1, False), pieces(8)),
            (BatchNeeds(2, 1, False), pieces(8)),
            (BatchNeeds(8, 2, False), pieces(8)),
        ],
    )
    def test_the_first_that_admits_is_taken(self, needs, expected):
        assert first_that_admits((full(2), full(4), pieces(8)), needs) == expected

    @pytest.mark.parametrize(
        ("settings", "sizes"),
        [
            ({"graph_mode": "full", "max_num_reqs": 1}, [1]),
            ({"graph_mode": "full", "max_num_reqs": 6}, [1, 2, 4, 6]),
            ({"graph_mode": "piecewise", "max_num_batched_tokens": 8}, [1, 2, 4, 8]),
            ({"graph_mode": "piecewise", "graph_sizes": (3, 7)}, [3, 7]),
            ({"graph_mode": "eager"}, []),
        ],
    )
    def test_sizes(self, settings, sizes):
        with virtual_device():
            config = RunnerConfig(device="cuda", attention="triton", **settings)
        assert [candidate.num_tokens for candidate in candidates(config)] == sizes

    def test_only_a_full_graph_pads_requests(self):
        shapes = [candidate.shape(2) for candidate in (full(4), pieces(8))]
        assert [(shape.num_tokens, shape.num_requests) for shape in shapes] == [(4, 4), (8, 2)]


@pytest.fixture
def replays(monkeypatch):
    """How often each kind of graph was replayed."""
    counts = Counter()
    for kind in (FullGraph, PiecewiseGraph):

        def replay(self, attend, inner=kind.replay):
            counts[type(self).__name__] += 1
            return inner(self, attend)

        monkeypatch.setattr(kind, "replay", replay)
    return counts


def build(**settings):
    return ReferenceTarget().build({"model": "tiny", "device": "cuda", **WORKLOAD.capacities, **settings})


def drive(schedule="late", **settings):
    """Tokens and log-probabilities of the workload; every input and invariant of every step was checked."""
    with virtual_device(schedule) as device:
        runner = build(**settings)
        trace = Driver(runner, WORKLOAD, check_invariants=schedule == "early").run()
        runner.close()
    assert (trace.crash, trace.mismatch, trace.broken, device.findings) == (None, None, [], [])
    return trace.results


@pytest.fixture(scope="module")
def eager():
    return drive(attention="triton")


@pytest.mark.parametrize(
    ("mode", "schedule"),
    [
        *((mode, "late") for mode in MODES),
        ("full", "early"),
        ("piecewise", "random:0"),
        ("piecewise, torch", "starve:0"),
    ],
)
def test_tokens_are_those_of_the_eager_runner(eager, replays, mode, schedule):
    results = drive(schedule, **MODES[mode])
    assert sum(replays.values()) >= 3
    assert results.keys() == eager.keys()
    for name, result in results.items():
        assert result.token_ids == eager[name].token_ids
        assert result.logprobs == pytest.approx(eager[name].logprobs, abs=1e-4)


@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_poison_changes_no_bit(mode):
    assert drive(poison=True, **MODES[mode]) == drive(**MODES[mode])


def entering(name, length, block):
    request = NewRequest(name, tuple(range(1, length + 1)), length)
    return Step(new=(request,), scheduled={name: length}, new_blocks={name: ((block,),)})


def test_which_batch_runs_in_which_graph(replays):
    """Decodes do; a prompt of one token and the last token of a prompt in chunks do not, whatever their shape."""
    with virtual_device():
        runner = build(attention="triton", graph_mode="full")
        runner.execute(entering("a", 1, 1))
        assert not replays
        runner.execute(Step(scheduled={"a": 1}))
        assert replays == {"FullGraph": 1}
        chunk = Step(new=(NewRequest("b", (5, 6, 7), 3),), scheduled={"a": 1, "b": 2}, new_blocks={"b": ((2,),)})
        runner.execute(chunk)
        runner.execute(Step(scheduled={"a": 1, "b": 1}))
        assert replays == {"FullGraph": 1}
        runner.execute(Step(scheduled={"a": 1, "b": 1}))
        assert replays == {"FullGraph": 2}
        runner.execute(Step(new_blocks={"b": ((3,),)}))
        assert replays == {"FullGraph": 2}
        assert runner.invariants() == []


def test_a_decode_step_is_one_replay_and_no_launch_of_the_model(monkeypatch):
    with virtual_device():
        runner = build(attention="triton", graph_mode="full")
        runner.execute(entering("a", 3, 1))
        monkeypatch.setattr(runner._runner._model, "forward", None)
        monkeypatch.setattr(runner._runner._attention, "forward", None)
        assert len(runner.execute(Step(scheduled={"a": 1})).result().token_ids["a"]) == 1


@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_an_input_that_moved_is_a_broken_invariant(mode):
    """And so is, in a full graph, a cache that was allocated anew."""
    with virtual_device():
        runner = build(**MODES[mode])._runner
        assert runner.invariants() == []
        builder, attention = runner._builder, runner._attention
        kept, builder._positions = builder._positions, builder._positions.clone()
        (violation,) = runner.invariants()
        assert violation.rule == "graph-address" and "InputBatchBuilder._positions" in violation.detail
        builder._positions, cache = kept, attention.cache
        attention.cache = cache.clone()
        assert [violation.rule for violation in runner.invariants()] == ["graph-address"] * (mode == "full")


def test_an_input_that_lies_elsewhere_in_every_step_is_found(monkeypatch):
    """The negative control of fixed addresses: attention in the graph reads what its capture had for bounds."""
    inner = InputBatchBuilder.build

    def elsewhere(*arguments):
        batch = inner(*arguments)
        return replace(batch, query_start_loc=batch.query_start_loc.clone())

    monkeypatch.setattr(InputBatchBuilder, "build", elsewhere)
    with virtual_device() as device:
        runner = build(**MODES["full"])
        runner.execute(entering("a", 3, 1))
        runner.execute(Step(scheduled={"a": 1}))
        runner.close()
    assert "MRV501" in {finding.code for finding in device.findings}


def test_a_capture_that_fails_leaves_its_error_and_a_stream_that_works(monkeypatch):
    """Here a wait in the forward pass, which no graph can hold."""
    forward = LlamaModel.forward

    def waiting(*arguments):
        hidden = forward(*arguments)
        hidden.sum().item()
        return hidden

    monkeypatch.setattr(LlamaModel, "forward", waiting)
    with virtual_device():
        with pytest.raises(RuntimeError, match="capturing"):
            build(**MODES["full"])
        monkeypatch.undo()
        assert not torch.cuda.is_current_stream_capturing()
        assert build(**MODES["full"]).invariants() == []


def test_what_a_capture_enqueues_beside_its_graphs_is_waited_for(monkeypatch):
    """The negative control: without it the memory between the pieces is filled while a step may write it."""
    monkeypatch.setattr(Recorder, "hand_over", lambda recorder, beside: None)
    with virtual_device() as device:
        runner = build(**MODES["piecewise"])
        runner.execute(entering("a", 2, 1))
        runner.close()
    assert {finding.code for finding in device.findings} == {"MRV204"}


WINDOWED = replace(TINY_CONFIG, sliding_windows=(5, 0))


@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_full_attention_and_a_sliding_window_in_one_graph(replays, mode):
    """Two KV groups: their tables and slots are refreshed in place as well, and windows slide over freed blocks."""
    tensors, windows = random_tensors(WINDOWED, 11), KVGroups.of_layers(WINDOWED.layer_windows).windows
    found = []
    for settings in ({"attention": "triton"}, MODES[mode]):
        with virtual_device() as device:
            config = RunnerConfig(**{**WORKLOAD.capacities, "device": "cuda", "num_kv_blocks": 20, **settings})
            engine = Engine(ModelRunner(config, WINDOWED, tensors), config, windows)
            for name, length in (("a", 9), ("b", 3)):
                engine.add(name, range(1, 1 + length), SamplingParams(max_tokens=12))
            engine.drain()
            engine.close()
        assert not device.findings
        found.append({name: request.output_token_ids for name, request in engine.requests.items()})
    assert found[0] == found[1]
    assert sum(replays.values()) >= 10
