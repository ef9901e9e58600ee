"""Speculation changes no token: three proposers over fuzzed traces, on the CPU and on the virtual device."""

import os
import random

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.sync.settings import Settings
from mrv2.checks.sync.virtual import install
from mrv2.checks.sync.watch import Watch
from mrv2.checks.virtual.runs import run_program
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Workload, WorkloadRequest
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.kernels.speculation import propose_ngrams
from mrv2.refrunner.llm import LLM

from .speculation_cases import VOCAB, differences, drive, on_cpu, on_virtual_device, plain_results, workload

PROPOSERS = {
    "ngram": {"speculation": "ngram"},
    "draft": {"speculation": "draft", "draft_model": "tiny-draft"},
    "eagle": {"speculation": "eagle", "draft_model": "tiny-eagle"},
}
MANY = bool(os.environ.get("MRV2_SPECULATION_TRACES"))
SEEDS = range(40) if MANY else (0,)
# Draft models know nothing of what is allowed; an n-gram repeats what was.
SHAPES = {"ngram": {}, "draft": {"free": 0.7, "num_kv_blocks": 32}, "eagle": {"free": 0.7, "num_kv_blocks": 32}}


@pytest.mark.parametrize("num_drafts", [1, 3, 7])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_tokens_are_those_without_speculation(proposer, seed, num_drafts):
    shape = SHAPES[proposer]
    items = workload(seed, steps_in_flight=1 + (seed + num_drafts) % 3, **shape)
    settings = {"attention": "triton", "poison": True, "pad_to": 1 + 2 * (num_drafts % 2), **PROPOSERS[proposer]}
    driver = on_cpu(items, num_drafts=num_drafts, **settings)
    assert not differences(driver, plain_results(seed, **shape))
    stats = driver._scheduler.speculation
    assert 0 < stats.accepted < stats.drafts or MANY, stats
    assert driver.trace.counts["resumed"] > 0 or MANY


ORDERS = (("late", "full"), ("random:1", "piecewise"), ("starve:0", "eager"), ("starve:1", "full"))


@pytest.mark.parametrize(
    ("proposer", "schedule", "graph_mode"),
    [
        (proposer, *order)
        for number, proposer in enumerate(PROPOSERS)
        for place, order in enumerate(ORDERS)
        if MANY or place in (number, number + 1)
    ],
)
def test_no_race_and_the_same_tokens_on_the_virtual_device(proposer, schedule, graph_mode):
    shape = {**SHAPES[proposer], "requests": 4}
    settings = {"num_drafts": 3, "attention": "triton", "graph_mode": graph_mode, **PROPOSERS[proposer]}
    driver = on_virtual_device(workload(1, **shape), schedule, **settings)
    assert not differences(driver, plain_results(1, **shape))
    assert driver._scheduler.speculation.accepted > 0


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_no_step_waits_for_the_device(proposer):
    items, target = workload(1, **{**SHAPES[proposer], "requests": 3}), ReferenceTarget()
    settings = {"num_drafts": 3, "attention": "triton", **PROPOSERS[proposer]}
    with Watch(Settings(target.hot_paths)) as watch:
        run_program(lambda: drive(items, target, device="cuda", **settings), "late", hooks=(install(watch),))
    watch.require_entered()
    assert watch.findings == []


@pytest.mark.parametrize("proposer", ["ngram", "draft"])
def test_a_sliding_window_moves_by_what_is_certain(proposer):
    shape = {"num_kv_blocks": 60, "free": 0.3}
    settings = {"num_drafts": 3, "poison": True, "attention": "triton", "model": "tiny-sliding", **PROPOSERS[proposer]}
    driver = on_cpu(workload(2, **shape), **settings)
    assert not differences(driver, plain_results(2, "tiny-sliding", **shape))
    assert driver._scheduler.speculation.accepted > 0


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_reference_attention_reads_nothing_beyond_the_sequence(proposer):
    shape = {**SHAPES[proposer], "requests": 4}
    driver = on_cpu(workload(3, **shape), num_drafts=3, poison=True, attention="torch", **PROPOSERS[proposer])
    assert not differences(driver, plain_results(3, **shape))


def accepted_of_the_target_itself(steps_in_flight, num_drafts, target=None):
    """Drafts that were accepted, and all of them, where the draft model is the target."""
    requests = [
        WorkloadRequest(f"r{index}", tuple(range(index, 3 + 9 * index)), SamplingParams(max_tokens=20), index)
        for index in range(4)
    ]
    capacities = {"max_num_reqs": 3, "max_num_batched_tokens": 17, "max_model_len": 64, "block_size": 4}
    items = Workload(tuple(requests), {**capacities, "num_kv_blocks": 60}, VOCAB, steps_in_flight)
    settings = {"attention": "triton", "speculation": "draft", "draft_model": "tiny", "num_drafts": num_drafts}
    stats = on_cpu(items, target, **settings)._scheduler.speculation
    return stats.accepted, stats.drafts


@pytest.mark.parametrize(("steps_in_flight", "num_drafts"), [(1, 4), (3, 1), (3, 4)])
def test_a_draft_model_that_is_the_target_is_always_right(steps_in_flight, num_drafts):
    """Whatever draft keys are missing, stale or in the wrong slot makes it wrong now and then."""
    accepted, drafts = accepted_of_the_target_itself(steps_in_flight, num_drafts)
    assert accepted == drafts > 30


def plain_search(tokens, drafts, longest, length):
    """What followed the longest suffix of the tokens that occurred before, at its last occurrence."""
    best = (0, 0)
    for place in range(1, len(tokens)):
        matched = 0
        while matched < min(longest, place) and tokens[place - 1 - matched] == tokens[-1 - matched]:
            matched += 1
        best = max(best, (matched, place))
    matched, place = best
    count = min(drafts, length - len(tokens)) if matched else 0
    return [tokens[place + draft % (len(tokens) - place)] for draft in range(count)]


def test_n_grams_are_those_of_a_plain_search():
    draw, rows, length, drafts = random.Random(4), 200, 40, 5
    sequences = [draw.choices(range(draw.choice((2, 3, 9))), k=draw.randrange(1, length + 1)) for _ in range(rows)]
    tokens = torch.zeros(rows, length, dtype=torch.int32)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    total = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int32)
    emitted = torch.tensor([draw.randrange(3) for _ in range(rows)], dtype=torch.int32)
    found = torch.zeros(rows, dtype=torch.int32)
    with triton_cpu.enabled() as session:
        propose_ngrams[(rows,)](
            torch.arange(rows, dtype=torch.int32), emitted, total, found, tokens, length, length,
            LONGEST=4, DRAFTS=drafts, BLOCK=16,
        )  # fmt: skip
    assert session.findings == []
    for row, sequence in enumerate(sequences):
        wanted = plain_search(sequence, drafts, 4, length) if emitted[row] else []
        assert tokens[row, len(sequence) : len(sequence) + int(found[row])].tolist() == wanted
    assert 0 < int((found > 0).sum()) < rows


@pytest.mark.parametrize("verification", ["equal", "block"])
def test_every_token_drawn_from_nothing_is_reported(verification):
    """Whichever of a step's tokens it is, and whatever was drafted for it: id 0 comes out, as without drafts."""
    nothing = SamplingParams(temperature=0.9, seed=5, max_tokens=9, allowed_token_ids=(7,), bad_words=((7,),))
    drafts = {"speculation": "draft", "draft_model": "tiny-draft", "verification": verification}
    if verification == "equal":
        drafts = {"speculation": "ngram"}
    with triton_cpu.enabled(), LLM.from_model("tiny", max_model_len=32, **drafts) as llm:
        (done,) = llm.generate([[1, 0, 0, 0]], nothing)
        accepted = llm.speculation.accepted
    assert done.token_ids == (0,) * 9
    assert {index: fault.exhausted for index, fault in done.faults.items()} == dict.fromkeys(range(9), True)
    assert (accepted > 0) == (verification == "equal")
