"""Clocks in shared pieces against whole vectors, and what they cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.checks.happens_before.clocks import FOREVER, Frontier, LaneClock

LANES = 4
lanes = st.integers(0, LANES - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), lanes, st.none() | lanes),
        st.tuples(st.just("release"), lanes, st.none()),
        st.tuples(st.just("acquire"), lanes, st.integers(0, 9)),
    ),
    min_size=10,
    max_size=60,
)


def join(into, vector):
    for lane, time in enumerate(vector):
        into[lane] = max(into[lane], time)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_every_pair_of_operations_is_ordered_as_by_whole_vectors(program):
    clocks = [LaneClock(lane) for lane in range(LANES)]
    vectors = [[0] * LANES for _ in range(LANES)]
    operations, tokens = [], []
    for name, lane, other in program:
        if name == "tick":
            clocks[lane].tick(None if other is None else clocks[other])
            if other is not None:
                join(vectors[lane], vectors[other])
            vectors[lane][lane] += 1
            operations.append((clocks[lane].moment(), lane, list(vectors[lane])))
        elif name == "release":
            tokens.append((clocks[lane].moment(), list(vectors[lane])))
        elif tokens:
            moment, vector = tokens[other % len(tokens)]
            clocks[lane].acquire(moment)
            join(vectors[lane], vector)
    for before, lane, vector in operations:
        for after, _, reached in operations:
            assert after.covers(before) == (reached[lane] >= vector[lane])


def fed_stream():
    host, stream = LaneClock(0), LaneClock(1)
    stream.tick(host)
    return host, stream


def test_a_stream_fed_by_one_host_copies_nothing():
    host, stream = fed_stream()
    known = stream.known
    for _ in range(100):
        host.tick()
        stream.tick(host)
    assert stream.known is known
    assert stream.reach(0) == host.time


def test_what_the_host_learns_reaches_the_stream_with_its_next_operation():
    host, stream = fed_stream()
    other = LaneClock(2)
    other.tick()
    assert host.acquire(other.moment())
    assert not stream.covers(other)
    stream.tick(host)
    assert stream.covers(other)


def test_the_former_host_is_not_forgotten():
    host, stream = fed_stream()
    host.tick()
    stream.tick(host)
    worker = LaneClock(3)
    worker.tick()
    stream.tick(worker)
    assert stream.covers(host.moment())
    assert stream.covers(worker.moment())


def test_an_acquisition_of_something_known_is_no_news():
    host, stream = fed_stream()
    token = stream.moment()
    assert host.acquire(token)
    known, time = host.known, host.time
    assert not host.acquire(token)
    assert (host.known, host.time) == (known, time)


def test_what_is_learnt_after_an_operation_is_in_the_next_release_only():
    one, two, three = LaneClock(0), LaneClock(1), LaneClock(2)
    for clock in (one, two):
        clock.tick()
    early = one.moment()
    one.acquire(two.moment())
    three.acquire(early)
    assert not three.covers(two.moment())
    assert three.acquire(one.moment())
    assert three.covers(two.moment())


def test_joining_does_not_change_the_lane():
    host, stream = fed_stream()
    other = LaneClock(2)
    other.tick()
    joined = stream.joined_with([other])
    assert joined.covers(other) and joined.covers(host) and joined.covers(stream)
    assert not stream.covers(other)


def test_forgetting_keeps_the_others():
    host, stream = fed_stream()
    other = LaneClock(2)
    other.tick()
    for clock in (stream, other):
        host.acquire(clock.moment())
    host.forget({2})
    assert (host.reach(1), host.reach(2)) == (1, 0)


def test_frontier_is_what_all_but_the_lane_itself_cover():
    host, stream = fed_stream()
    worker = LaneClock(2)
    stream.tick(host)
    host.acquire(stream.moment())
    assert Frontier([host]).reach(1) == 2
    assert Frontier([host, worker]).reach(1) == 0
    assert Frontier([host]).reach(0) == FOREVER
    assert Frontier([]).reach(1) == FOREVER


@pytest.mark.parametrize("learnt_since", [False, True])
def test_joining_with_the_issuer_is_joining_with_anybody(learnt_since):
    """Where nothing is to be copied, nothing is; what the moment covers is the same."""
    host, stream, other = LaneClock(0), LaneClock(1), LaneClock(2)
    for _ in range(3):
        other.tick()
        host.tick()
    host.acquire(other.moment())
    stream.tick(host)
    host.tick()
    if learnt_since:
        other.tick()
        host.acquire(other.moment())
    joined, slowly = stream.joined_with([host]), stream.joined_with([host, host])
    assert [joined.reach(lane) for lane in range(3)] == [slowly.reach(lane) for lane in range(3)]
    assert (joined.known is stream.known) is not learnt_since
    assert stream.reach(0) < joined.reach(0)
