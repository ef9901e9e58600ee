"""Grammars in the runner: the oracle's tokens whatever happens to a request, texts that parse, faults that are found.

``MRV2_GRAMMAR_REQUESTS=500`` makes the test of random schemas as long as that.
"""

import importlib
import json
import os
import re

import jsonschema
import numpy as np
import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.happens_before import Need
from mrv2.checks.sync.settings import Settings
from mrv2.checks.sync.virtual import install
from mrv2.checks.sync.watch import Watch
from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.removal import fences_of
from mrv2.checks.virtual.runs import run_program
from mrv2.ci.stages.runner_oracle import RunnerAgainstOracle
from mrv2.fuzz.grammars import STOP, VOCAB_SIZE, grammar_workload, in_turns, runner_with_grammars
from mrv2.fuzz.mutants import MASK_EDGES, MASKS, mutated_package
from mrv2.fuzz.programs import RunnerProgram, workload_as_json, workload_from_json
from mrv2.fuzz.targets.reference import ReferenceRunner, ReferenceTarget
from mrv2.fuzz.workload import Driver, run_target
from mrv2.refrunner.api import Grammar, SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.engine import Engine
from mrv2.refrunner.grammar.compiler import GrammarCompiler
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.tokenizer import ByteTokenizer
from mrv2.refrunner.oracle.grammar import GrammarOracle
from mrv2.refrunner.oracle.oracle import Oracle

pytest.importorskip("llguidance")
REQUESTS = int(os.environ.get("MRV2_GRAMMAR_REQUESTS", "40"))
BYTES = ByteTokenizer().vocabulary()
TINY = {"model": "tiny"}


class Silent:
    """Progress for nobody."""

    def start(self, total):
        pass

    def advance(self, units=1):
        pass


@pytest.fixture(scope="module")
def judge(oracle):
    """What is wrong with a trace, by the oracle with grammars."""
    grammars = GrammarOracle(BYTES.tokens, BYTES.special, BYTES.encode, VOCAB_SIZE)
    stage = RunnerAgainstOracle("tiny", VOCAB_SIZE, Oracle(oracle.model, grammars))

    def judged(load, trace):
        return stage.judge(load, trace, Silent())

    return judged


def run(load, target=None, **settings):
    with triton_cpu.enabled():
        return run_target(target or ReferenceTarget(), {**TINY, **settings}, load, check_invariants=True)


def tokens(trace):
    return {name: result.token_ids for name, result in trace.results.items()}


NGRAM = {"speculation": "ngram", "num_drafts": 3}


@pytest.mark.parametrize(
    ("seed", "settings"), [(0, {}), (3, {"poison": True, "pad_to": 4}), (5, {"attention": "triton"}), (6, NGRAM)]
)
def test_tokens_and_logprobs_are_the_oracles(judge, seed, settings):
    load = grammar_workload(seed, 10, **settings)
    trace = run(load)
    assert (trace.crash, trace.mismatch, trace.broken) == (None, None, [])
    judged = judge(load, trace)
    assert judged.findings == []
    assert judged.tokens > 50
    assert trace.counts["resumed"]
    assert {request.sampling.grammar is None for request in load.requests} == {True, False}


@pytest.mark.parametrize(
    ("speculation", "draft_model", "num_drafts"),
    [("ngram", "", 1), ("ngram", "", 3), ("ngram", "", 7), ("draft", "tiny-draft", 3), ("eagle", "tiny-eagle", 3)],
)
def test_drafts_change_no_token(speculation, draft_model, num_drafts):
    trace = run(grammar_workload(9, 8, speculation=speculation, num_drafts=num_drafts), draft_model=draft_model)
    assert (trace.crash, trace.mismatch, trace.broken) == (None, None, [])
    accepted = [len(tokens) - 1 for step in trace.steps for tokens in step.arrived.values()]
    verified = [len(tokens) for step in trace.steps for tokens in step.draft_tokens.values()]
    # A draft model knows nothing of the grammar, so what it proposes is mostly no text of it.
    assert sum(verified) > sum(accepted) > 0 or draft_model
    assert max(verified) == num_drafts and trace.counts["resumed"]
    plain = tokens(run(grammar_workload(9, 8)))
    ended = {name: result for name, result in trace.results.items() if result.finish_reason != "abort"}
    assert {name: result.token_ids for name, result in ended.items()} == {name: plain[name] for name in ended}


@pytest.mark.parametrize(
    ("schedule", "settings"),
    [("late", {}), ("random:1", {}), ("starve:0", {}), ("starve:2", {}), ("late", NGRAM), ("starve:1", NGRAM)],
)
def test_the_virtual_device_draws_the_same_without_a_race(schedule, settings):
    load = grammar_workload(1, 5, **settings)
    program = RunnerProgram(ReferenceTarget(), load)
    with virtual_device(schedule) as device:
        found = program()
    assert (device.findings, found["crash"]) == ([], None)
    assert {name: result.token_ids for name, result in found["results"].items()} == tokens(run(load))


def test_requests_without_a_grammar_cost_no_upload_and_draw_as_ever():
    load = grammar_workload(2, 4, share=0.0)
    built = []

    class Target(ReferenceTarget):
        def build(self, config):
            built.append(super().build(config))
            return built[-1]

    trace = run(load, Target())
    assert built[0]._runner._grammar._masks._ring.depth == 0
    assert tokens(trace) == tokens(run(grammar_workload(2, 4, share=0.0, grammars=False)))


def check_text(grammar, token_ids):
    """Raise if a text is not what its grammar says, by other means than the library's."""
    assert token_ids[-1] == STOP
    text = bytes(token_ids[:-1]).decode()
    if grammar.kind == "json_schema":
        jsonschema.validate(json.loads(text), json.loads(grammar.text))
    elif grammar.kind == "regex":
        assert re.fullmatch(grammar.text, text)
    else:
        assert re.fullmatch(r"\(([a-z]|\[[0-9]\])\)", text)


#: Who proposes drafts, and how they are verified: in turn, ten requests each.
WAYS = (
    {},
    NGRAM,
    {"speculation": "draft", "draft_model": "tiny-draft", "num_drafts": 3, "verification": "token"},
    {"speculation": "eagle", "draft_model": "tiny-eagle", "num_drafts": 2, "verification": "block"},
)


def test_every_text_parses_and_validates():
    """Random schemas, mixed with requests that have none; preempted, aborted, several steps in flight, with drafts."""
    checked = resumed = 0
    for index in range(-(-REQUESTS // 10)):
        way = dict(WAYS[index % len(WAYS)])
        draft_model = way.pop("draft_model", "")
        load = grammar_workload(100 + index, 10, **way)
        # Without snapshots, each of which would take as long as a step.
        runner = ReferenceTarget().build({**TINY, "draft_model": draft_model, **load.capacities})._runner
        with triton_cpu.enabled():
            trace = Driver(runner, load).run()
        resumed += trace.counts["resumed"]
        assert trace.crash is None
        for request in load.requests:
            result = trace.results[request.request_id]
            if request.sampling.grammar is not None and result.finish_reason != "abort":
                assert result.finish_reason == "stop"
                check_text(request.sampling.grammar, result.token_ids)
                checked += 1
    assert checked > REQUESTS // 2 and resumed > REQUESTS // 20


def test_a_workload_with_grammars_goes_through_json():
    load = grammar_workload(4, 6)
    assert workload_from_json(json.loads(json.dumps(workload_as_json(load)))) == load


def test_a_request_whose_grammar_can_go_nowhere_ends_alone_and_by_name(checkpoint):
    config = RunnerConfig(grammars=True)
    runner = ModelRunner(config, checkpoint.config, checkpoint.tensors, GrammarCompiler(BYTES, VOCAB_SIZE))
    engine = Engine(runner, config)
    word = SamplingParams(grammar=Grammar("regex", "ab"), stop_token_ids=(STOP,), bad_words=((ord("b"),),))
    engine.add("stuck", [1], word)
    engine.add("other", [1], SamplingParams(max_tokens=8))
    with triton_cpu.enabled():
        engine.drain()
    stuck, other = engine.requests["stuck"], engine.requests["other"]
    assert (stuck.finish_reason, stuck.output_token_ids) == ("error", (ord("a"),))
    assert (other.finish_reason, len(other.output_token_ids)) == ("length", 8)


# Waits and edges


@pytest.mark.parametrize("schedule", ["late", "early"])
def test_a_step_with_masks_waits_for_nothing(schedule):
    target = ReferenceTarget()
    program = RunnerProgram(target, in_turns())
    with Watch(Settings(target.hot_paths)) as watch:
        run_program(program, schedule, hooks=(install(watch),))
    watch.require_entered()
    assert (watch.findings, program.trace.crash) == ([], None)
    assert min(len(result.token_ids) for result in program.trace.results.values()) == 6


def test_both_edges_and_the_question_to_the_slot_are_needed():
    run, fences = fences_of(runner_with_grammars)
    assert (run.error, run.findings) == (None, ())
    needs = {}
    for fence in fences:
        places = [site.function for site in fence.where if site.file.endswith("grammar/masks.py")]
        if places:
            needs.setdefault((fence.name, places[0]), set()).add(fence.need)
    assert needs == {
        ("wait_event", "TokenMasks.apply"): {Need.NEEDED},
        ("wait_event", "TokenMasks.upload"): {Need.NEEDED},
        ("Event.query", "TokenMasks.upload"): {Need.NEEDED},
    }


# Faults

# The first has two requests with drafts in one step, and accepted ones; the second resumes in the middle of a text.
LOADS = [grammar_workload(seed, 8, **NGRAM) for seed in (9, 22)]


class StageOf(ReferenceTarget):
    """The runner as it is, with the grammar stage of a mutated package."""

    def __init__(self, package):
        super().__init__()
        self._stage = importlib.import_module(f"{package}.grammar.stage").GrammarStage
        self._compiler = importlib.import_module(f"{package}.grammar.compiler").GrammarCompiler

    def build(self, config):
        stage = self._stage

        class Runner(ModelRunner):
            def _grammar_stage(self, config, vocab_size):
                return stage(config, self._device, self._compiler, vocab_size)

        settings = {name: value for name, value in config.items() if name != "model"}
        tiny = self._checkpoint("tiny")
        runner = Runner(RunnerConfig(**settings), tiny.config, tiny.tensors, self._compiler(BYTES, VOCAB_SIZE))
        return ReferenceRunner(runner, self._site)


@pytest.mark.parametrize("mutation", MASKS, ids=lambda mutation: mutation.name)
def test_a_planted_fault_is_found(judge, mutation):
    with mutated_package(mutation) as package:
        assert any(is_wrong(judge, load, run(load, StageOf(package))) for load in LOADS)


def is_wrong(judge, load, trace):
    return trace.crash is not None or bool(judge(load, trace).findings)


def test_the_workloads_of_the_faults_have_none_without_them(judge):
    assert not any(is_wrong(judge, load, run(load)) for load in LOADS)


def masks_at_once(package):
    """Two steps' masks, uploaded and applied right after the memory was made, on a device that nobody waits for."""
    device = importlib.import_module(f"{package}.device").Device("cuda")
    with device.on_main_stream():
        masks = importlib.import_module(f"{package}.grammar.masks").TokenMasks(device, 2, 64)
        results = []
        for bit in (1, 2):
            logits = torch.zeros(2, 64, device="cuda")
            masks.upload([bit - 1], np.array([[1 << bit, 0]], dtype=np.uint32))
            torch.cuda.current_stream().synchronize()  # says nothing about the upload, which is on another stream
            masks.apply(logits)
            results.append(logits)
    torch.cuda.synchronize()
    return [
        (row > -1).nonzero().flatten().tolist()
        for logits, row in zip(results, (0, 1), strict=True)
        for row in [logits[row].cpu()]
    ]


SCHEDULES = ("late", "early", "starve:0", "starve:1")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_masks_are_in_order_from_the_first_on(schedule):
    with virtual_device(schedule) as device:
        assert masks_at_once("mrv2.refrunner") == [[1], [2]]
    assert device.findings == []


@pytest.mark.parametrize("mutation", MASK_EDGES, ids=lambda mutation: mutation.name)
def test_a_missing_edge_is_a_race_in_every_schedule(mutation):
    with mutated_package(mutation) as package:
        for schedule in SCHEDULES:
            with virtual_device(schedule) as device:
                masks_at_once(package)
            assert {finding.code for finding in device.findings} & {"MRV201", "MRV202", "MRV203", "MRV204"}, schedule
