"""The step contract: what is refused, with which words, and that a refused step changes nothing."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
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


def raw(**changes):
    """A request whose fields may be of any type."""
    fields = {"request_id": "c", "token_ids": (1, 2), "prompt_len": 1, "sampling": SamplingParams()}
    return NewRequest(**{**fields, **changes})


def blocks(*ids):
    return (tuple(ids),)


# State in which each step below arrives: "a" is decoding (6 of 7 tokens computed), "b" is in its prefill (4 of 9).
COMPUTED = {"a": 6, "b": 4}
TOTAL = {"a": 7, "b": 9}
BLOCKS = {"a": (2,), "b": (1,)}
HOLDERS = {1: {"a"}, 2: {"a"}, 3: {"b"}}
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
    "new twice": Refused(Step(new=(new("c"), new("c"))), "new request 'c': it comes twice"),
    "new without tokens": Refused(Step(new=(new("c", 0),)), "'c' with 0 tokens"),
    "new longer than a row": Refused(Step(new=(new("c", 49),)), "'c' with 49 tokens"),
    "no prompt": Refused(Step(new=(new("c", prompt_len=0),)), "prompt_len=0"),
    "prompt longer than the tokens": Refused(Step(new=(new("c", prompt_len=6),)), "prompt_len=6"),
    "token below the vocabulary": Refused(Step(new=(new("c", first=-1),)), "token id -1 of request 'c'"),
    "token above the vocabulary": Refused(Step(new=(new("c", first=VOCAB - 4),)), "token id 256 of request 'c'"),
    "bias outside the vocabulary": Refused(
        Step(new=(raw(sampling=SamplingParams(logit_bias=((VOCAB, 1.0),))),)),
        "256 in SamplingParams.logit_bias of request",
    ),
    "prompt logprobs of a prompt that is in the cache": Refused(
        Step(new=(raw(sampling=SamplingParams(prompt_logprobs=1), prompt_len=2, num_computed_tokens=1),)),
        "prompt_logprobs and",
    ),
    "draw without a seed": Refused(Step(new=(new("c", temperature=0.5),)), "'c' at temperature 0.5: it has no seed"),
    "computed below zero": Refused(Step(new=(new("c", computed=-1),)), "num_computed_tokens=-1"),
    "all computed": Refused(Step(new=(new("c", computed=5),)), "num_computed_tokens=5"),
    "a request without a name, and another's block": Refused(
        Step(finished=("b",), new=(new(""), new("c")), new_blocks={"": blocks(9), "c": blocks(9)}),
        "new block 9 of request 'c'",
    ),
    "a request without a name gets a block twice": Refused(
        Step(new=(new(""),), new_blocks={"": blocks(9, 9)}), "new block 9 of request ''"
    ),
    "a request without a name shares a block twice": Refused(
        Step(new=(new("", 9, computed=8),), new_blocks={"": blocks(9, 9)}), "new block 9 of request ''"
    ),
    "too many live requests": Refused(
        Step(new=(new("c"), new("d")), scheduled={"c": 5}, new_blocks={"c": blocks(7, 8)}), "4 live requests"
    ),
    "too many tokens": Refused(Step(scheduled={"a": 1, "b": 16}), "17 tokens"),
    "drafts": Refused(Step(scheduled={"a": 1}, drafts={"a": 1}), "1 drafts"),
    "drafts without speculation": Refused(Step(scheduled={"a": 2}, drafts={"a": 1}), "at most 0 drafts"),
    "outcome of drafts that nobody scheduled": Refused(
        Step(verified={"a": (1, 0)}), "1 verified drafts of request 'a'"
    ),
    "outcome for a request that leaves": Refused(Step(finished=("a",), verified={"a": (0, 0)}), "0 verified drafts"),
    "an outcome of one number": Refused(Step(verified={"a": (1,)}), "it must be a pair"),
    "scheduled is unknown": Refused(Step(scheduled={"x": 1}), "'x': it is not live"),
    "scheduled has just left": Refused(Step(finished=("a",), scheduled={"a": 1}), "'a': it is not live"),
    "preempted goes on": Refused(Step(preempted=("b",), scheduled={"b": 1}), "'b': it is not live"),
    "no token": Refused(Step(scheduled={"a": 0}), "0 tokens of request 'a' at position 6.*left out of"),
    "negative tokens": Refused(Step(scheduled={"a": -1}), "-1 tokens of request 'a'"),
    "more tokens than known": Refused(
        Step(scheduled={"a": 2}), "2 tokens of request 'a' at position 6.*more than 1 in"
    ),
    "chunk beyond the prompt": Refused(
        Step(scheduled={"b": 6}, new_blocks={"b": blocks(7, 8)}), "6 tokens of request 'b' at position 4"
    ),
    "no slot": Refused(Step(scheduled={"b": 1}), "1 tokens of request 'b' at position 4.*enough blocks"),
    "new without blocks": Refused(Step(new=(new("c"),), scheduled={"c": 1}), "1 tokens of request 'c' at position 0"),
    "reborn has the blocks of its former life": Refused(
        Step(finished=("a",), new=(new("a"),), scheduled={"a": 5}, new_blocks={"a": blocks(7)}), "its 1 blocks hold 4"
    ),
    "blocks of an unknown": Refused(Step(new_blocks={"x": blocks(5)}), "'x': it is not live"),
    "null block": Refused(Step(scheduled={"b": 1}, new_blocks={"b": blocks(0)}), r"new blocks \(\(0,\),\)"),
    "block beyond the pool": Refused(
        Step(scheduled={"b": 1}, new_blocks={"b": blocks(25)}), r"new blocks \(\(25,\),\)"
    ),
    "two KV groups": Refused(Step(scheduled={"b": 1}, new_blocks={"b": ((5,), (6,))}), "tuple for each KV group"),
    "no KV group": Refused(Step(scheduled={"b": 1}, new_blocks={"b": ()}), "tuple for each KV group"),
    "bad block of an unscheduled request": Refused(Step(new_blocks={"b": blocks(25)}), r"new blocks \(\(25,\),\)"),
    "two groups of an unscheduled request": Refused(Step(new_blocks={"b": ((5,), (6,))}), "tuple for each KV group"),
    "table longer than its row": Refused(Step(new_blocks={"b": blocks(*range(5, 17))}), "at most 12 blocks"),
    "block of another request": Refused(Step(new_blocks={"b": blocks(2)}), "new block 2 of request 'b': it belongs to"),
    "block that the request holds": Refused(Step(new_blocks={"b": blocks(3)}), "belongs to request 'b'"),
    "block twice in one request": Refused(Step(new_blocks={"b": blocks(7, 7)}), "new block 7 of request 'b'"),
    "block twice in one step": Refused(
        Step(new=(new("c"),), new_blocks={"b": blocks(7), "c": blocks(7)}), "new block 7 of request 'c'.*request 'b'"
    ),
    "block of one that stays, beside one that leaves": Refused(
        Step(finished=("a",), new=(new("c"),), new_blocks={"c": blocks(1, 3)}), "new block 3 of request 'c'"
    ),
    "freed block given out twice": Refused(
        Step(finished=("a",), new=(new("c"),), new_blocks={"b": blocks(1), "c": blocks(1)}), "new block 1"
    ),
    "a block that is not full is shared": Refused(
        Step(new=(new("c", 9, computed=8),), new_blocks={"c": blocks(1, 2)}), "new block 2 of request 'c'.*request 'a'"
    ),
    "a full block is shared to write in": Refused(
        Step(new=(new("c", computed=3),), new_blocks={"c": blocks(1)}), "new block 1 of request 'c'.*request 'a'"
    ),
    "a block is shared with one that gets it to write in": Refused(
        Step(
            finished=("b",),
            new=(new("c"), new("d", computed=4)),
            new_blocks={"c": blocks(7), "d": blocks(7)},
        ),
        "new block 7 of request 'd'.*request 'c'",
    ),
    "a shared block is given to write in": Refused(
        Step(
            finished=("b",),
            new=(new("c"), new("d", computed=4)),
            new_blocks={"d": blocks(7), "c": blocks(7)},
        ),
        "new block 7 of request 'c'.*request 'd'",
    ),
    "replaced, and its old blocks go to another": Refused(
        Step(new=(new("a", 6), new("c")), new_blocks={"a": blocks(1, 2), "c": blocks(1, 7)}),
        "new block 1 of request 'c'.*request 'a'",
    ),
    "copy into a shared block": Refused(
        Step(new=(new("c", computed=4),), new_blocks={"c": blocks(7)}, block_copies=((1, 7),)), "block 1 to block 7"
    ),
    "copy into a block that nobody gets": Refused(Step(block_copies=((1, 7),)), "block 1 to block 7"),
    "copy from a block of this step": Refused(
        Step(new_blocks={"b": blocks(7, 8)}, block_copies=((7, 8),)), "block 7 to block 8"
    ),
    "two copies into one block": Refused(
        Step(new_blocks={"b": blocks(7)}, block_copies=((1, 7), (2, 7))), "block 2 to block 7"
    ),
    "copy from the null block": Refused(
        Step(new_blocks={"b": blocks(7)}, block_copies=((0, 7),)), "block 0 to block 7"
    ),
    "copy from beyond the pool": Refused(
        Step(new_blocks={"b": blocks(7)}, block_copies=((25, 7),)), "block 25 to block 7"
    ),
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

WRONG_TYPES = {
    "no step": Refused(None, "step: None: it must be a Step"),
    "step as a dict": Refused({"finished": ()}, "it must be a Step"),
    "finished as text": Refused(Step(finished="ab"), "Step.finished: 'ab': it must be a sequence"),
    "finished as a set": Refused(Step(finished={"a"}), "it must be a sequence"),
    "preempted is None": Refused(Step(preempted=None), "Step.preempted: None"),
    "id is a number": Refused(Step(finished=(7,)), "Step.finished: 7: request ids must be strings"),
    "new as text": Refused(Step(new=("c",)), "new request: 'c': it must be a NewRequest"),
    "new is None": Refused(Step(new=(None,)), "new request: None"),
    "new id is a list": Refused(Step(new=(new(["c"]),)), r"NewRequest.request_id: \['c'\]"),
    "token ids as fractions": Refused(Step(new=(raw(token_ids=(1.7, 2.9)),)), "token ids of request 'c': 1.7"),
    "token ids as words": Refused(Step(new=(raw(token_ids=("1", "2")),)), "token ids of request 'c': '1'"),
    "token ids as bytes": Refused(Step(new=(raw(token_ids=b"abc"),)), "token ids of request 'c': b'abc'"),
    "token ids as truth": Refused(Step(new=(raw(token_ids=(True, 1)),)), "token ids of request 'c': True"),
    "token ids are None": Refused(Step(new=(raw(token_ids=None),)), "token ids of request 'c': None"),
    "token ids as a set": Refused(Step(new=(raw(token_ids={1}),)), "token ids of request 'c'"),
    "token ids as floats of numpy": Refused(Step(new=(raw(token_ids=np.ones(2)),)), "token ids of request 'c'"),
    "huge token id": Refused(Step(new=(raw(token_ids=(10**10_000,)),)), "whole number of 64 bits"),
    "prompt_len as a fraction": Refused(Step(new=(raw(prompt_len=1.5),)), "prompt_len of request 'c': 1.5"),
    "computed as a fraction": Refused(Step(new=(raw(num_computed_tokens=0.5),)), "num_computed_tokens .*: 0.5"),
    "sampling is None": Refused(Step(new=(raw(sampling=None),)), "sampling of request 'c': None"),
    "sampling as a dict": Refused(Step(new=(raw(sampling={"temperature": 0}),)), "it must be a SamplingParams"),
    "sampling of another shape": Refused(
        Step(new=(raw(sampling=SimpleNamespace(**{**vars(SamplingParams()), "temperature": "hot"})),)),
        "sampling of request 'c', SamplingParams.temperature='hot'",
    ),
    "scheduled as a list": Refused(Step(scheduled=["a"]), "Step.scheduled: .*it must be a mapping"),
    "scheduled as a fraction": Refused(Step(scheduled={"a": 1.0}), r"Step.scheduled\['a'\]: 1.0"),
    "scheduled as a word": Refused(Step(scheduled={"a": "1"}), r"Step.scheduled\['a'\]: '1'"),
    "scheduled as truth": Refused(Step(scheduled={"a": True}), r"Step.scheduled\['a'\]: True"),
    "scheduled id": Refused(Step(scheduled={7: 1}), "Step.scheduled: 7: request ids must be strings"),
    "block as a fraction": Refused(Step(new_blocks={"b": ((7.5,),)}), r"Step.new_blocks\['b'\]: 7.5"),
    "blocks without a group": Refused(Step(new_blocks={"b": (7,)}), r"Step.new_blocks\['b'\]: 7"),
    "blocks are None": Refused(Step(new_blocks={"b": None}), r"Step.new_blocks\['b'\]: None"),
    "copies are None": Refused(Step(block_copies=None), "Step.block_copies: None"),
    "a copy of three": Refused(Step(block_copies=((1, 2, 3),)), "it must be a pair"),
    "a copy of fractions": Refused(Step(block_copies=((1.5, 2),)), "Step.block_copies: 1.5"),
    "drafts are None": Refused(Step(drafts=None), "Step.drafts: None"),
    "wrong type behind good parts": Refused(
        Step(finished=("a",), new=(raw(),), scheduled={"b": 1.0}), r"Step.scheduled\['b'\]: 1.0"
    ),
}
REFUSED |= WRONG_TYPES

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
    "numbers of numpy": Step(
        new=(raw(token_ids=np.array([1, 2]), prompt_len=np.int32(1), num_computed_tokens=np.int64(0)),),
        scheduled={"c": np.int64(2), "b": np.uint8(1)},
        new_blocks={"c": [np.array([7])], "b": ((np.int32(8),),)},
    ),
    "lists": Step(new=[raw(token_ids=[1, 2])], scheduled={"c": 2}, new_blocks={"c": [[7]]}),
    "seeded": Step(new=(new("c", temperature=0.5, seed=0),)),
    "a full block is shared": Step(new=(new("c", computed=4),), scheduled={"c": 1}, new_blocks={"c": blocks(1, 7)}),
    "a full block is shared by two that enter": Step(
        finished=("b",),
        new=(new("c", computed=4), new("d", computed=4)),
        scheduled={"c": 1, "d": 1},
        new_blocks={"c": blocks(1, 7), "d": blocks(1, 8)},
    ),
    "a block that nobody holds is shared": Step(new=(new("c", computed=4),), new_blocks={"c": blocks(9)}),
    "replaced, with the blocks of its former life": Step(
        new=(new("a", 9, computed=6),), scheduled={"a": 3}, new_blocks={"a": blocks(1, 2, 8)}
    ),
    "replaced, with blocks of others that leave": Step(
        finished=("b",), new=(new("a", 4),), scheduled={"a": 4}, new_blocks={"a": blocks(3)}
    ),
    "copied": Step(
        new=(new("c", computed=2),), scheduled={"c": 3}, new_blocks={"c": blocks(7, 8)}, block_copies=((1, 7),)
    ),
}


def check(step):
    return StepChecker(CONFIG, VOCAB).check(step, COMPUTED, TOTAL, BLOCKS, HOLDERS)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    with pytest.raises(StepError, match=REFUSED[case].words) as caught:
        check(REFUSED[case].step)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case):
    check(ACCEPTED[case])


def test_an_accepted_step_becomes_plain():
    plain = check(ACCEPTED["numbers of numpy"])
    assert plain == Step(
        new=(raw(num_computed_tokens=0),), scheduled={"c": 2, "b": 1}, new_blocks={"c": ((7,),), "b": ((8,),)}
    )
    numbers = (*plain.new[0].token_ids, *plain.scheduled.values(), *plain.new_blocks["c"][0])
    assert {type(number) for number in numbers} == {int}
    assert check(Step(scheduled={"a": 1})) == Step(scheduled={"a": 1})


@pytest.fixture
def busy(make_runner):
    runner = make_runner()
    for step in BEFORE:
        runner.execute(step)
    return runner


def state_of(runner):
    """Everything that a step may change, on the host and on the device."""
    states, tables, sampling = runner._states, runner._builder.block_tables, runner._sampler.tables
    written = (states._counters, states._token_ids, *sampling._tables._tables.values(), tables._table)
    return {
        "rows": (dict(states.row_of), list(states.free_rows)),
        "counts": (
            dict(runner._computed),
            dict(runner._total),
            dict(runner._holders.of_block),
        ),
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
    assert {block: set(names) for block, names in busy._holders.of_block.items()} == HOLDERS
    assert {
        name: tuple(busy._builder.block_tables.num_blocks[:, row]) for name, row in busy._states.row_of.items()
    } == BLOCKS


def test_a_refused_step_does_not_spoil_the_next(busy, make_runner):
    undisturbed = make_runner()
    undisturbed.execute(BEFORE[0])
    for case in REFUSED.values():
        with pytest.raises(StepError):
            busy.execute(case.step)
    step = Step(scheduled={"a": 1, "b": 5}, new_blocks={"b": blocks(7, 8)})
    assert busy.execute(step).result() == undisturbed.execute(step).result()


WINDOWS = (0, 6)
WINDOWED = {
    "both groups": (Step(new=(new("c", 9),), new_blocks={"c": ((5, 6), (7, 8))}), None),
    "null below the window": (
        Step(
            new=(new("c", 20, computed=16),), scheduled={"c": 1}, new_blocks={"c": ((5, 6, 7, 8, 9), (0, 0, 3, 4, 10))}
        ),
        None,
    ),
    "null in the window": (
        Step(new=(new("c", 20, computed=16),), new_blocks={"c": ((5, 6, 7, 8), (0, 0, 0, 4))}),
        "new blocks",
    ),
    "null with full attention": (
        Step(new=(new("c", 20, computed=16),), new_blocks={"c": ((0, 6, 7, 8), (0, 0, 3, 4))}),
        "new blocks",
    ),
    "null for one that has computed nothing": (Step(new=(new("c", 9),), new_blocks={"c": ((5,), (0,))}), "new blocks"),
    "one group of two": (Step(new=(new("c", 9),), new_blocks={"c": ((5,),)}), "here 2"),
    "a block in both groups": (Step(new=(new("c", 9),), new_blocks={"c": ((5,), (5,))}), "new block 5"),
    "one group is shorter": (
        Step(new=(new("c", 9),), scheduled={"c": 8}, new_blocks={"c": ((5, 6), (7,))}),
        "its 1 blocks hold 4",
    ),
}


@pytest.mark.parametrize("case", WINDOWED)
def test_blocks_of_several_groups(case):
    step, words = WINDOWED[case]
    checker = StepChecker(CONFIG, VOCAB, WINDOWS)
    if words is None:
        assert checker.check(step, {}, {}, {}, {}) == step
    else:
        with pytest.raises(StepError, match=words):
            checker.check(step, {}, {}, {}, {})


SPECULATING = StepChecker(replace(CONFIG, speculation="ngram", num_drafts=2), VOCAB)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Step(scheduled={"a": 4}, drafts={"a": 3}, new_blocks={"a": blocks(7)}), "at most 2 drafts"),
        (Step(scheduled={"a": 2}, drafts={"a": 2}), "2 drafts of request 'a', 2 scheduled"),
        (Step(scheduled={"b": 2}, drafts={"b": 1}, new_blocks={"b": blocks(7)}), "1 drafts of request 'b'"),
        (Step(drafts={"a": 1}), "0 scheduled tokens"),
        (Step(scheduled={"a": 3}, drafts={"a": 2}), "3 tokens of request 'a' at position 6"),
        (Step(verified={"a": (2, 3)}), "2 verified drafts of request 'a', 3 of them rejected"),
        (Step(verified={"a": (5, 0)}), "of its 4 drafts without an outcome"),
    ],
)
def test_drafts_follow_the_newest_token_and_outcomes_the_drafts(step, words):
    with pytest.raises(StepError) as refused:
        SPECULATING.check(step, COMPUTED, TOTAL, {"a": (2,), "b": (1,)}, HOLDERS, {"a": 4})
    assert words in str(refused.value)


def test_rejected_drafts_give_positions_back():
    step = Step(scheduled={"a": 3}, drafts={"a": 2}, verified={"a": (2, 2)})
    assert SPECULATING.check(step, COMPUTED, TOTAL, {"a": (2,), "b": (1,)}, HOLDERS, {"a": 4}) == step


def test_a_request_as_long_as_it_may_be_is_told_to_end():
    checker = StepChecker(CONFIG, VOCAB)
    with pytest.raises(StepError, match=r"the request in Step\.finished"):
        checker.check(Step(scheduled={"a": 1}), {"a": 48}, {"a": 49}, {"a": (12,)}, {})
