"""Speculation on a real GPU: the tokens of the runner without it, graphs on and off; exact joint tables."""

import functools

import pytest
import torch

from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.targets.speculation import ReferenceSpeculation
from mrv2.refrunner.api import NewRequest, SamplingParams, Step

from .speculation_cases import differences, drive, results_of, workload
from .test_rejection import FALSE_ALARM, joint_p_value, keys, reversed_draft, sequence_p_value, softmax, tables
from .test_speculation import PROPOSERS, SHAPES

pytestmark = pytest.mark.gpu
SEEDS = (0, 1, 2)
# Long enough that everything a test enqueues behind it is enqueued before it ends.
BUSY_CYCLES = 1_000_000_000


@functools.cache
def plain(seed, proposer):
    return results_of(drive(workload(seed, **SHAPES[proposer]), device="cuda", attention="triton"))


@pytest.mark.parametrize("graph_mode", ["eager", "piecewise", "full"])
@pytest.mark.parametrize("num_drafts", [1, 3, 7])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_tokens_are_those_without_speculation(proposer, num_drafts, graph_mode):
    settings = {"num_drafts": num_drafts, "attention": "triton", "graph_mode": graph_mode, **PROPOSERS[proposer]}
    accepted = 0
    for seed in SEEDS:
        items = workload(seed, steps_in_flight=1 + seed, **SHAPES[proposer])
        driver = drive(items, device="cuda", poison=seed == 0, **settings)
        assert not differences(driver, plain(seed, proposer))
        accepted += driver._scheduler.speculation.accepted
    assert accepted > 0


def draws(target, draft, verification="token", count=100_000):
    return ReferenceSpeculation(verification, device="cuda").speculate(target, draft, *keys(count))


@pytest.mark.parametrize(("vocab_size", "name"), [(3, "reversed"), (3, "sure"), (16, "reversed")])
def test_the_joint_table_of_draft_and_token_is_exact(vocab_size, name):
    target, draft = tables(vocab_size, name)
    assert joint_p_value(draws(target, draft), softmax(target)[0], softmax(draft)[0]) > FALSE_ALARM


@pytest.mark.parametrize("verification", ["token", "block"])
def test_what_comes_out_is_distributed_as_without_drafts(verification):
    target, draft = reversed_draft(3, 3)
    assert sequence_p_value(draws(target, draft, verification), softmax(target)) > FALSE_ALARM


@pytest.mark.parametrize("graph_mode", ["eager", "full"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_steps_with_drafts_wait_for_nothing(proposer, graph_mode):
    """Torch raises where it would wait; and all steps are enqueued while the device is still busy with the first."""
    settings = {"num_drafts": 3, "attention": "triton", "graph_mode": graph_mode, **PROPOSERS[proposer]}
    runner = ReferenceTarget().build({"model": "tiny", "device": "cuda", **settings})._runner
    asked = NewRequest("a", tuple(range(20)), 20, SamplingParams(temperature=0.8, seed=3))
    runner.execute(Step(new=(asked,), scheduled={"a": 20}, new_blocks={"a": (tuple(range(1, 9)),)})).result()
    runner.execute(Step(scheduled={"a": 4}, drafts={"a": 3})).result()
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    busy = torch.cuda.Event()
    busy.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        handles = [runner.execute(Step(scheduled={"a": 4}, drafts={"a": 3})) for _ in range(4)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not busy.query()
    assert all(1 <= len(handle.result().token_ids["a"]) <= 4 for handle in handles)
    assert runner.invariants() == []
