"""The tables are complete, and say what was measured."""

import itertools

import pytest

from mrv2.checks.semantics import (
    CAPTURE_CALLS,
    CAPTURE_MODES,
    COPIES,
    EVENTS,
    LAUNCH_QUEUE_ENTRIES,
    PAGEABLE_STAGING_LIMIT,
    STREAMS_PER_POOL,
    CaptureCall,
    Direction,
    EventState,
    HostMemory,
    HostRead,
    InCapture,
    Waits,
    isin_waits,
    one_transfer,
    staging_waits,
)


def test_every_kind_of_copy_has_a_rule():
    assert set(COPIES) == set(itertools.product(Direction, HostMemory, (True, False), (True, False)))


def test_only_non_blocking_copies_with_pinned_memory_in_one_transfer_never_wait():
    never = {key for key, rule in COPIES.items() if rule.waits is Waits.NEVER}
    assert never == {(direction, HostMemory.PINNED, True, True) for direction in Direction}


def test_a_download_waits_unless_it_is_one_of_those():
    downloads = {key: rule for key, rule in COPIES.items() if key[0] is Direction.DOWNLOAD}
    assert [key for key, rule in downloads.items() if rule.waits is not Waits.ALWAYS] == [
        (Direction.DOWNLOAD, HostMemory.PINNED, True, True)
    ]


def test_an_upload_reads_later_only_from_pinned_memory_in_one_transfer():
    for (direction, memory, whole, _), rule in COPIES.items():
        if direction is Direction.UPLOAD:
            later = memory is HostMemory.PINNED and whole
            assert (rule.source is HostRead.LATER) is later


def test_captures_take_what_never_waits():
    taken = {key for key, rule in COPIES.items() if rule.in_capture is InCapture.CAPTURED}
    assert taken == {key for key, rule in COPIES.items() if rule.waits is Waits.NEVER}
    fatal = {key for key, rule in COPIES.items() if rule.in_capture is InCapture.FATAL}
    assert fatal == {(direction, HostMemory.PINNED, True, False) for direction in Direction}


def test_every_other_call_in_a_capture_has_a_verdict():
    assert set(CAPTURE_CALLS) == set(CaptureCall) and InCapture.CAPTURED not in CAPTURE_CALLS.values()
    assert CAPTURE_MODES == {"global": True, "thread_local": False, "relaxed": False}


def test_only_a_record_outside_of_captures_orders():
    assert set(EVENTS) == set(EventState)
    assert [state for state, rule in EVENTS.items() if rule.orders] == [EventState.RECORDED]
    assert [state for state, rule in EVENTS.items() if rule.raises] == [EventState.CAPTURED]


@pytest.mark.parametrize(
    ("contiguous", "dense", "same_layout", "whole"),
    [(True, True, False, True), (False, True, True, True), (False, True, False, False), (False, False, True, False)],
)
def test_layout_decides(contiguous, dense, same_layout, whole):
    assert one_transfer(contiguous=contiguous, dense=dense, same_layout=same_layout) is whole


@pytest.mark.parametrize(
    ("staged", "size", "waits"),
    [
        (0, PAGEABLE_STAGING_LIMIT, False),
        (0, PAGEABLE_STAGING_LIMIT + 1, True),
        (512 << 10, 1 << 20, False),
        (1 << 20, 1 << 20, False),
        (1 << 20, (1 << 20) + 1, True),
        (2 << 20, 64 << 10, False),
        (2 << 20, (64 << 10) + 1, True),
        (62 * (64 << 10), 1, True),
    ],
)
def test_staging_is_a_shared_budget(staged, size, waits):
    assert staging_waits(staged, size) is waits


def test_isin_sorts_from_some_size_on():
    assert not isin_waits(8, 3)
    assert isin_waits(8, 100)


def test_constants_that_were_measured():
    assert (LAUNCH_QUEUE_ENTRIES, PAGEABLE_STAGING_LIMIT, STREAMS_PER_POOL) == (1021, 2097152, 32)
