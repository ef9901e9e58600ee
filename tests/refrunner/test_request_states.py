"""The state table: rows are stable, and a row given out again shows nothing of its former owner."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.refrunner.api import NewRequest
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.device import Device
from mrv2.refrunner.request_states import RequestStates
from mrv2.refrunner.staging import PackedUpload, PinnedRing

ROWS, LENGTH, VOCAB = 4, 12, 50


def make_states():
    config = RunnerConfig(max_num_reqs=ROWS, max_model_len=LENGTH)
    return RequestStates(config, Device("cpu"), VOCAB)


def flush(states):
    upload = PackedUpload()
    states.pack(upload)
    upload.send(PinnedRing(Device("cpu")))
    states.apply(upload)


def request(name, tokens=(3, 4, 5), computed=0):
    return NewRequest(name, tuple(tokens), 1, num_computed_tokens=computed)


def row_content(states, row):
    """Everything the device knows about a row, but for tokens beyond the known ones, which are stale by design."""
    total = int(states.total_len[row])
    return {
        "computed": int(states.num_computed[row]),
        "total": total,
        "last": int(states.last_sampled[row]),
        "tokens": tuple(states.token_ids[row, :total].tolist()),
    }


def expected_content(new):
    return {
        "computed": new.num_computed_tokens,
        "total": len(new.token_ids),
        "last": new.token_ids[-1],
        "tokens": new.token_ids,
    }


def test_a_request_gets_a_row_with_its_whole_state():
    states = make_states()
    new = request("a", (7, 8, 9), computed=2)
    row = states.add(new)
    flush(states)
    assert states.row_of == {"a": row}
    assert row_content(states, row) == expected_content(new)


def test_rows_of_others_never_move():
    states = make_states()
    rows = {name: states.add(request(name)) for name in "abc"}
    states.remove("b")
    states.add(request("d"))
    assert {name: states.row_of[name] for name in "ac"} == {name: rows[name] for name in "ac"}
    assert states.row_of["d"] == rows["b"]


def test_a_row_that_changes_hands_within_one_flush_belongs_to_the_new_owner():
    states = make_states()
    states.add(request("a", range(1, 11)))
    row = states.remove("a")
    states.poison(row)
    new = request("b", (1, 2))
    assert states.add(new) == row
    flush(states)
    assert row_content(states, row) == expected_content(new)
    # What the new owner did not write is poison, nothing of the former owner's.
    assert states.token_ids[row, 2:].tolist() == [VOCAB - 1] * (LENGTH - 2)


def test_a_poisoned_row_holds_nothing_usable():
    states = make_states()
    row = states.add(request("a", (1, 2, 3)))
    flush(states)
    states.remove("a")
    states.poison(row)
    flush(states)
    assert states.token_ids[row].tolist() == [VOCAB - 1] * LENGTH
    assert (int(states.num_computed[row]), int(states.total_len[row]), int(states.last_sampled[row])) == (1, 1, 49)


def test_a_full_row_fits():
    states = make_states()
    new = request("a", range(LENGTH))
    row = states.add(new)
    flush(states)
    assert row_content(states, row) == expected_content(new)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), min_size=1, max_size=12), st.booleans())
@settings(max_examples=15)
def test_rows_follow_their_requests(events, poison):
    """Requests come and go; after each flush every live row holds exactly its owner's state."""
    states, live = make_states(), {}
    for number, (arrives, seed) in enumerate(events):
        draw = random.Random(seed)
        if live and (not arrives or len(live) == ROWS):
            name = draw.choice(sorted(live))
            row = states.remove(name)
            assert row == live.pop(name)[0]
            if poison:
                states.poison(row)
        else:
            tokens = [draw.randrange(VOCAB) for _ in range(draw.randint(1, LENGTH))]
            new = request(f"r{number}", tokens)
            live[new.request_id] = (states.add(new), new)
        if draw.random() < 0.6:
            flush(states)
    flush(states)
    assert states.row_of == {name: row for name, (row, _) in live.items()}
    assert sorted([*states.row_of.values(), *states.free_rows]) == list(range(ROWS))
    for row, new in live.values():
        assert row_content(states, row) == expected_content(new)
