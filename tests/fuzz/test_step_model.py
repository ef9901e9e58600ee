"""The step contract in plain Python: what it expects of each step, and how it names the first wrong input."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrv2.fuzz.step_model import InputMismatch, StepModel
from mrv2.fuzz.targets.protocols import InputSnapshot
from mrv2.refrunner.api import NewRequest, Step, StepOutput

BLOCK_SIZE = 4


def enter(name, *tokens):
    return NewRequest(name, tokens, len(tokens))


def output(**tokens):
    return StepOutput({name: (token,) for name, token in tokens.items()}, dict.fromkeys(tokens, (-1.0,)))


def lanes(expected):
    return [(lane.request_id, lane.position, lane.token, lane.slot) for lane in expected.lanes]


def two_requests():
    """ "a" has two chunks of prefill; "b" is done after one."""
    model = StepModel(BLOCK_SIZE)
    entering = (enter("a", 10, 11, 12, 13, 14, 15), enter("b", 20, 21))
    step = Step(new=entering, scheduled={"a": 3, "b": 2}, new_blocks={"a": ((7,),), "b": ((3, 9),)})
    return model, model.advance(step)


def test_prefill():
    _, expected = two_requests()
    assert lanes(expected) == [("a", 0, 10, 28), ("a", 1, 11, 29), ("a", 2, 12, 30), ("b", 0, 20, 12), ("b", 1, 21, 13)]
    assert expected.request_ids == ("a", "b")
    assert expected.seq_lens == {"a": 3, "b": 2}
    # "b" was given a second block that holds no token yet.
    assert expected.blocks == {"a": (7,), "b": (3,)}
    assert expected.draws == {"b"}


def test_a_token_in_flight_is_unknown_until_its_output_is_recorded():
    model, _ = two_requests()
    step = Step(scheduled={"b": 1, "a": 3}, new_blocks={"a": ((5,),)})
    expected = model.advance(step)
    assert lanes(expected) == [("b", 2, None, 14), ("a", 3, 13, 31), ("a", 4, 14, 20), ("a", 5, 15, 21)]
    assert expected.draws == {"a", "b"}
    model.record(output(b=22))
    model.record(output(b=23, a=16))
    expected = model.advance(Step(scheduled={"a": 1, "b": 1}))
    assert lanes(expected) == [("a", 6, 16, 22), ("b", 3, 23, 15)]


def test_who_leaves_is_forgotten_and_may_come_back():
    model, _ = two_requests()
    model.advance(Step(preempted=("b",), finished=("a",)))
    model.record(output(b=22))
    back = Step(new=(NewRequest("b", (20, 21, 22), 2),), scheduled={"b": 3}, new_blocks={"b": ((1,),)})
    expected = model.advance(back)
    assert lanes(expected) == [("b", 0, 20, 4), ("b", 1, 21, 5), ("b", 2, 22, 6)]
    assert expected.draws == {"b"}


def test_an_output_that_comes_late_is_not_that_of_the_request_that_is_back():
    model, _ = two_requests()
    model.advance(Step(preempted=("b",)))
    model.advance(Step(new=(enter("b", 20, 21),), scheduled={"b": 2}, new_blocks={"b": ((1,),)}))
    model.record(output(b=99))
    expected = model.advance(Step(scheduled={"b": 1}))
    assert lanes(expected) == [("b", 2, None, 6)]
    model.record(output(b=22))
    assert lanes(model.advance(Step(scheduled={"b": 1}, new_blocks={"b": ((2,),)})))[0][2] is None
    model.record(output(b=23))
    model.record(output(b=24))
    assert lanes(model.advance(Step(scheduled={"b": 1}))) == [("b", 4, 24, 8)]


def test_computed_tokens_are_skipped():
    model = StepModel(BLOCK_SIZE)
    entering = NewRequest("a", (10, 11, 12, 13, 14, 15), 6, num_computed_tokens=4)
    expected = model.advance(Step(new=(entering,), scheduled={"a": 2}, new_blocks={"a": ((7, 8),)}))
    assert lanes(expected) == [("a", 4, 14, 32), ("a", 5, 15, 33)]
    assert expected.blocks == {"a": (7, 8)}


def test_an_empty_step_expects_nothing():
    expected = StepModel(BLOCK_SIZE).advance(Step())
    assert (expected.lanes, expected.request_ids, expected.draws) == ((), (), frozenset())


def snapshot_of(expected, unknown=99):
    """The snapshot of a runner that does everything right."""
    counts = [sum(lane.request_id == name for lane in expected.lanes) for name in expected.request_ids]
    return InputSnapshot(
        request_ids=expected.request_ids,
        rows=tuple(range(len(counts))),
        query_start_loc=tuple(sum(counts[:i]) for i in range(len(counts) + 1)),
        input_ids=tuple(unknown if lane.token is None else lane.token for lane in expected.lanes),
        positions=tuple(lane.position for lane in expected.lanes),
        slot_mapping=tuple(lane.slot for lane in expected.lanes),
        seq_lens=tuple(expected.seq_lens.values()),
        block_tables=tuple(expected.blocks.values()),
    )


def test_right_inputs_have_no_difference():
    _, expected = two_requests()
    assert expected.compare(snapshot_of(expected)) is None


@pytest.mark.parametrize("token", [0, 99, 255])
def test_a_token_known_to_the_device_only_is_not_judged(token):
    model, _ = two_requests()
    expected = model.advance(Step(scheduled={"b": 1}))
    assert expected.compare(snapshot_of(expected, token)) is None


WRONG = {
    "query_start_loc": ((0, 2, 5), InputMismatch("query_start_loc", "a", 1, 3, 2)),
    "block_tables": (((7,), (9,)), InputMismatch("block_tables", "b", 0, 3, 9)),
    "seq_lens": ((3, 3), InputMismatch("seq_lens", "b", 1, 2, 3)),
    "positions": ((0, 1, 3, 0, 1), InputMismatch("positions", "a", 2, 2, 3)),
    "slot_mapping": ((28, 29, 30, 12, 14), InputMismatch("slot_mapping", "b", 4, 13, 14)),
    "input_ids": ((10, 11, 12, 21, 21), InputMismatch("input_ids", "b", 3, 20, 21)),
}


@pytest.mark.parametrize("field", WRONG)
def test_the_first_difference_is_named(field):
    _, expected = two_requests()
    observed, mismatch = WRONG[field]
    assert expected.compare(replace(snapshot_of(expected), **{field: observed})) == mismatch


def test_differences_come_in_the_order_of_computation():
    """A wrong position is the consequence of a wrong length, and a wrong slot of a wrong block."""
    _, expected = two_requests()
    snapshot = snapshot_of(expected)
    for field in reversed(WRONG):
        snapshot = replace(snapshot, **{field: WRONG[field][0]})
        assert expected.compare(snapshot) == WRONG[field][1]


@pytest.mark.parametrize("field", ["input_ids", "positions", "slot_mapping", "query_start_loc"])
def test_a_field_of_another_length(field):
    _, expected = two_requests()
    snapshot = snapshot_of(expected)
    length = len(getattr(snapshot, field))
    for observed in (getattr(snapshot, field)[:-1], (*getattr(snapshot, field), 0)):
        mismatch = expected.compare(replace(snapshot, **{field: observed}))
        assert mismatch == InputMismatch(field, "", length, length, len(observed))


@pytest.mark.parametrize(
    ("tables", "mismatch"),
    [
        (((), (3,)), InputMismatch("block_tables", "a", 0, 7, -1)),
        (((7, 4), (3,)), InputMismatch("block_tables", "a", 1, -1, 4)),
    ],
)
def test_a_block_table_of_another_length(tables, mismatch):
    _, expected = two_requests()
    assert expected.compare(replace(snapshot_of(expected), block_tables=tables)) == mismatch


@pytest.mark.parametrize(
    ("order", "mismatch"),
    [
        (("b", "a"), InputMismatch("request_ids", "a", 0, 0, 1)),
        (("a",), InputMismatch("request_ids", "b", 1, 1, -1)),
        (("a", "b", "c"), InputMismatch("request_ids", "c", 2, -1, 2)),
        ((), InputMismatch("request_ids", "a", 0, 0, -1)),
    ],
)
def test_another_order_of_execution(order, mismatch):
    _, expected = two_requests()
    assert expected.compare(replace(snapshot_of(expected), request_ids=order)) == mismatch


def test_lists_are_as_good_as_tuples():
    _, expected = two_requests()
    snapshot = snapshot_of(expected)
    sequences = [field for field in snapshot.__dataclass_fields__ if not field.startswith("padding")]
    as_lists = replace(snapshot, **{field: list(getattr(snapshot, field)) for field in sequences})
    assert expected.compare(as_lists) is None


FIELDS = ("query_start_loc", "seq_lens", "positions", "slot_mapping", "input_ids")


@given(st.sampled_from(FIELDS), st.integers(0, 4), st.integers(1, 1000))
def test_any_single_wrong_number_is_found(field, index, error):
    _, expected = two_requests()
    snapshot = snapshot_of(expected)
    values = list(getattr(snapshot, field))
    values[index % len(values)] += error
    mismatch = expected.compare(replace(snapshot, **{field: tuple(values)}))
    assert (mismatch.field, mismatch.index) == (field, index % len(values))
    assert mismatch.observed - mismatch.expected == error
