"""The step contract: what is refused, with which words, and that a refused step changes nothing."""

from dataclasses import dataclass

import pytest
import torch

from mrv2.refrunner.api import NewRequest, SamplingParams, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import StepError
from mrv2.refrunner.step_check import StepChecker

# The capacities of make_runner in conftest.py, so that one list of bad steps serves the checker and a real runner.
CONFIG = RunnerConfig(
    max_num_reqs=3, max_num_batched_tokens=16, max_model_len=48, block_size=4, num_kv_blocks=25, pad_to=1
)
VOCAB = 256


def new(name, tokens=5, prompt_len=1, temperature=0.0, seed=None, computed=0, first=1):
    token_ids = tuple(range(first, first + tokens))
    return NewRequest(name, token_ids, prompt_len, SamplingParams(temperature=temperature, seed=seed), computed)


def blocks(*ids):
    return (tuple(ids),)


# State in which each step below arrives: "a" is decoding (6 of 7 tokens computed), "b" is in its prefill (4 of 9).
COMPUTED = {"a": 6, "b": 4}
TOTAL = {"a": 7, "b": 9}
BLOCKS = {"a": 2, "b": 1}
BEFORE = (
    Step(
        new=(new("a", 6), new("b", 9)),
        scheduled={"a": 6, "b": 4},
        new_blocks={"a": blocks(1, 2), "b": blocks(3)},
    ),
)


@dataclass(frozen=True)
class Refused:
    step: Step
    words: str


REFUSED = {
    "finished is unknown": Refused(Step(finished=("x",)), "'x': it is not live"),
    "preempted is unknown": Refused(Step(preempted=("x",)), "'x': it is not live"),
    "finished twice": Refused(Step(finished=("a", "a")), "'a': it is listed twice"),
    "finished and preempted": Refused(Step(finished=("a",), preempted=("a",)), "'a': it is listed twice"),
    "new is live": Refused(Step(new=(new("a"),)), "new request 'a': its id is in use"),
    "new twice": Refused(Step(new=(new("c"), new("c"))), "new request 'c': its id is in use"),
    "new without tokens": Refused(Step(new=(new("c", 0),)), "'c' with 0 tokens"),
    "new longer than a row": Refused(Step(new=(new("c", 49),)), "'c' with 49 tokens"),
    "no prompt": Refused(Step(new=(new("c", prompt_len=0),)), "prompt_len=0"),
    "prompt longer than the tokens": Refused(Step(new=(new("c", prompt_len=6),)), "prompt_len=6"),
    "token below the vocabulary": Refused(Step(new=(new("c", first=-1),)), "token id -1 of request 'c'"),
    "token above the vocabulary": Refused(Step(new=(new("c", first=VOCAB - 4),)), "token id 256 of request 'c'"),
    "draw without a seed": Refused(Step(new=(new("c", temperature=0.5),)), "'c' at temperature 0.5: it has no seed"),
    "computed below zero": Refused(Step(new=(new("c", computed=-1),)), "num_computed_tokens=-1"),
    "all computed": Refused(Step(new=(new("c", computed=5),)), "num_computed_tokens=5"),
    "too many live requests": Refused(
        Step(new=(new("c"), new("d")), scheduled={"c": 5}, new_blocks={"c": blocks(7, 8)}), "4 live requests"
    ),
    "too many tokens": Refused(Step(scheduled={"a": 1, "b": 16}), "17 tokens"),
    "drafts": Refused(Step(scheduled={"a": 1}, drafts={"a": 1}), "1 drafts"),
    "scheduled is unknown": Refused(Step(scheduled={"x": 1}), "'x': it is not live"),
    "scheduled has just left": Refused(Step(finished=("a",), scheduled={"a": 1}), "'a': it is not live"),
    "preempted goes on": Refused(Step(preempted=("b",), scheduled={"b": 1}), "'b': it is not live"),
    "no token": Refused(Step(scheduled={"a": 0}), "0 tokens of request 'a' at position 6"),
    "negative tokens": Refused(Step(scheduled={"a": -1}), "-1 tokens of request 'a'"),
    "more tokens than known": Refused(Step(scheduled={"a": 2}), "2 tokens of request 'a' at position 6"),
    "chunk beyond the prompt": Refused(
        Step(scheduled={"b": 6}, new_blocks={"b": blocks(7, 8)}), "6 tokens of request 'b' at position 4"
    ),
    "no slot": Refused(Step(scheduled={"b": 1}), "1 tokens of request 'b' at position 4"),
    "new without blocks": Refused(Step(new=(new("c"),), scheduled={"c": 1}), "1 tokens of request 'c' at position 0"),
    "reborn has the blocks of its former life": Refused(
        Step(finished=("a",), new=(new("a"),), scheduled={"a": 5}, new_blocks={"a": blocks(7)}), "its 1 blocks hold 4"
    ),
    "blocks of an unknown": Refused(Step(new_blocks={"x": blocks(5)}), "'x': it is not live"),
    "null block": Refused(Step(scheduled={"b": 1}, new_blocks={"b": blocks(0)}), r"new blocks \(\(0,\),\)"),
    "block beyond the pool": Refused(
        Step(scheduled={"b": 1}, new_blocks={"b": blocks(25)}), r"new blocks \(\(25,\),\)"
    ),
    "two KV groups": Refused(Step(scheduled={"b": 1}, new_blocks={"b": ((5,), (6,))}), "one KV group"),
    "no KV group": Refused(Step(scheduled={"b": 1}, new_blocks={"b": ()}), "one KV group"),
    "bad block of an unscheduled request": Refused(Step(new_blocks={"b": blocks(25)}), r"new blocks \(\(25,\),\)"),
    "two groups of an unscheduled request": Refused(Step(new_blocks={"b": ((5,), (6,))}), "one KV group"),
    "table longer than its row": Refused(Step(new_blocks={"b": blocks(*range(5, 17))}), "at most 12 blocks"),
    "one bad among good": Refused(
        Step(
            finished=("a",),
            new=(new("c"),),
            scheduled={"c": 5, "b": 2},
            new_blocks={"c": blocks(7, 8)},
        ),
        "2 tokens of request 'b'",
    ),
}

ACCEPTED = {
    "nothing": Step(),
    "decode and chunk": Step(scheduled={"a": 1, "b": 5}, new_blocks={"b": blocks(7, 8)}),
    "blocks without tokens": Step(new_blocks={"b": blocks(7)}),
    "full table": Step(new_blocks={"b": blocks(*range(5, 16))}),
    "row taken in the step that frees it": Step(
        finished=("a", "b"),
        new=(new("c"), new("d"), new("e")),
        scheduled={"c": 5, "d": 5, "e": 5},
        new_blocks={"c": blocks(1, 2), "d": blocks(3, 4), "e": blocks(5, 6)},
    ),
    "same id again": Step(finished=("a",), new=(new("a"),), scheduled={"a": 5}, new_blocks={"a": blocks(1, 2)}),
    "resumed": Step(preempted=("a",), new=(new("a", 7, prompt_len=2),), new_blocks={"a": blocks(1, 2)}),
    "longest request": Step(
        new=(new("c", 48, computed=47),), scheduled={"c": 1}, new_blocks={"c": blocks(*range(5, 17))}
    ),
    "seeded": Step(new=(new("c", temperature=0.5, seed=0),)),
}


def check(step):
    StepChecker(CONFIG, VOCAB).check(step, COMPUTED, TOTAL, BLOCKS)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    with pytest.raises(StepError, match=REFUSED[case].words) as caught:
        check(REFUSED[case].step)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case):
    check(ACCEPTED[case])


@pytest.fixture
def busy(make_runner):
    runner = make_runner()
    for step in BEFORE:
        runner.execute(step)
    return runner


def state_of(runner):
    """Everything that a step may change, on the host and on the device."""
    states, tables = runner._states, runner._builder.block_tables
    written = (states._counters, states._token_ids, states._temperature, states._seeds, tables._table)
    return {
        "rows": (dict(states.row_of), list(states.free_rows)),
        "counts": (dict(runner._computed), dict(runner._total)),
        "blocks": ({row: tables.blocks_of(row) for row in range(3)}, tables.num_blocks.tolist()),
        "staged": [dict(table._staged) for table in written],
        "device": [table.gpu.tolist() for table in written],
        "cache": runner._attention.cache.clone(),
    }


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_step_changes_nothing(busy, case):
    before = state_of(busy)
    with pytest.raises(StepError):
        busy.execute(REFUSED[case].step)
    after = state_of(busy)
    assert torch.equal(before.pop("cache"), after.pop("cache"))
    assert before == after
    assert busy.batch is None
    assert busy.invariants() == []


@pytest.mark.parametrize("case", ACCEPTED)
def test_an_accepted_step_runs(busy, case):
    busy.execute(ACCEPTED[case]).result()
    assert busy.invariants() == []


def test_the_state_of_this_files_steps_is_the_runners(busy):
    assert (busy._computed, busy._total) == (COMPUTED, TOTAL)
    assert {
        name: int(busy._builder.block_tables.num_blocks[row]) for name, row in busy._states.row_of.items()
    } == BLOCKS


def test_a_refused_step_does_not_spoil_the_next(busy, make_runner):
    undisturbed = make_runner()
    undisturbed.execute(BEFORE[0])
    for case in REFUSED.values():
        with pytest.raises(StepError):
            busy.execute(case.step)
    step = Step(scheduled={"a": 1, "b": 5}, new_blocks={"b": blocks(7, 8)})
    assert busy.execute(step).result() == undisturbed.execute(step).result()
