"""Grammars on a real GPU: the oracle's tokens with and without graphs and drafts; order behind a busy stream."""

import gc
import importlib

import numpy as np
import pytest
import torch

from mrv2.ci.stages.runner_oracle import RunnerAgainstOracle
from mrv2.fuzz.grammars import STOP, VOCAB_SIZE, grammar_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver
from mrv2.refrunner.api import Grammar, NewRequest, SamplingParams, Step
from mrv2.refrunner.kernels.launch import Kernel
from mrv2.refrunner.models.tokenizer import ByteTokenizer
from mrv2.refrunner.oracle.grammar import GrammarOracle
from mrv2.refrunner.oracle.oracle import Oracle

pytest.importorskip("llguidance")
pytestmark = pytest.mark.gpu

EAGER = {"attention": "triton"}
NGRAM = {"speculation": "ngram", "num_drafts": 3}
#: Settings of the runner, and those that the scheduler must know, too.
MODES = {
    "eager": (EAGER, {}),
    "full": ({**EAGER, "graph_mode": "full"}, {}),
    "piecewise": ({**EAGER, "graph_mode": "piecewise"}, {}),
    "reference attention": ({"attention": "torch"}, {}),
    "drafts": (EAGER, NGRAM),
    "drafts, piecewise": ({**EAGER, "graph_mode": "piecewise"}, NGRAM),
}
# Long enough that everything a test enqueues behind it is enqueued before it ends.
BUSY_CYCLES = 1_000_000_000


class Silent:
    """Progress for nobody."""

    def start(self, total):
        pass

    def advance(self, units=1):
        pass


def build(**settings):
    return ReferenceTarget().build({"model": "tiny", "device": "cuda", **settings})


def drive(load, **settings):
    """What a workload comes to; every input and invariant of every step was checked."""
    runner = build(**load.capacities, **settings)
    trace = Driver(runner, load, check_invariants=True).run()
    runner.close()
    assert (trace.crash, trace.mismatch, trace.broken) == (None, None, [])
    return trace


@pytest.fixture(scope="module")
def judge(oracle):
    vocabulary = ByteTokenizer().vocabulary()
    grammars = GrammarOracle(vocabulary.tokens, vocabulary.special, vocabulary.encode, VOCAB_SIZE)
    return RunnerAgainstOracle("tiny", VOCAB_SIZE, Oracle(oracle.model, grammars))


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_the_oracles(judge, mode):
    settings, shared = MODES[mode]
    load = grammar_workload(9, 12, **shared)
    trace = drive(load, **settings)
    judged = judge.judge(load, trace, Silent())
    assert judged.findings == []
    assert judged.tokens > 80 and trace.counts["resumed"]
    ended = {result.finish_reason for name, result in trace.results.items() if grammar_of(load)[name] is not None}
    assert ended <= {"stop", "abort"}


def grammar_of(load):
    return {request.request_id: request.sampling.grammar for request in load.requests}


def test_a_step_with_masks_waits_for_nothing():
    """Torch raises where it would wait; and both steps are enqueued while the device is still busy."""
    runner = build(max_num_reqs=4, grammars=True, **EAGER)._runner
    params = SamplingParams(grammar=Grammar("regex", "[ab]{9}"), stop_token_ids=(STOP,))
    asked = [NewRequest(name, (1, 2), 2, params) for name in "ab"]
    tables = {"a": ((1,),), "b": ((2,),)}
    first = runner.execute(Step(new=tuple(asked), scheduled={"a": 2, "b": 2}, new_blocks=tables)).result().token_ids
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    busy = torch.cuda.Event()
    busy.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        late = [runner.execute(Step(scheduled={name: 1}, arrived={name: first[name]})) for name in "ab"]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not busy.query()
    drawn = [handle.result().token_ids[name][0] for handle, name in zip(late, "ab", strict=True)]
    assert {*drawn} <= {*b"ab"}
    assert runner.invariants() == []


def test_masks_keep_their_order_behind_a_busy_stream():
    """The kernel of one step still waits when the masks of the next are uploaded; a lost edge would mix them up."""
    package = "mrv2.refrunner"
    device = importlib.import_module(f"{package}.device").Device("cuda")
    masks = importlib.import_module(f"{package}.grammar.masks").TokenMasks(device, 2, 4096)
    masks.warm_up(torch.zeros(1, 4096, device="cuda"))
    torch.cuda.synchronize()
    results = []
    for bit in range(24):
        logits = torch.zeros(1, 4096, device="cuda")
        mask = np.zeros((1, 128), dtype=np.uint32)
        mask[0, bit] = 1 << bit
        masks.upload([0], mask)
        torch.cuda._sleep(BUSY_CYCLES // 100)
        masks.apply(logits)
        results.append(logits)
    assert [(row > -1).nonzero()[:, 1].tolist() for row in results] == [[32 * bit + bit] for bit in range(24)]


def kernels():
    """Every kernel of the runner."""
    return [each for each in gc.get_objects() if type(each) is Kernel]


def loaded():
    """Variants that are loaded on this device, by kernel."""
    device = torch.cuda.current_device()
    return {kernel.__name__: len(kernel.device_caches[device][0]) for kernel in kernels()}


@pytest.mark.parametrize("shared", [{}, NGRAM], ids=["plain", "drafts"])
def test_no_step_loads_a_kernel(shared):
    for kernel in kernels():
        kernel.device_caches.clear()  # what another test has loaded would hide what a step of this one loads
    load = grammar_workload(9, 6, **shared)
    runner = build(**load.capacities, **EAGER)
    before = loaded()
    assert before["mask_logits"] and (before["list_drafts"] > 0) == (shared == NGRAM)
    trace = Driver(runner, load).run()
    assert trace.crash is None and len(trace.steps) > 10
    assert loaded() == before
