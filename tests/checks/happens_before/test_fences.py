"""Which fences a run needs: with the race that shows it, and with those that stand for each other."""

import pytest

from mrv2.checks.events import SyncKind
from mrv2.checks.happens_before import HappensBefore, Need, Recorder, analyse_fences
from mrv2.checks.happens_before import fences as fences_module


@pytest.fixture
def records():
    return []


@pytest.fixture
def drive(driver_type, records):
    return driver_type(Recorder(records.append))


def by_line(records):
    return {fence.where[0].line: fence for fence in analyse_fences(records)}


def test_needed_fence_shows_the_order_that_breaks(drive, records):
    source, target = drive.pinned(), drive.device()
    for step in range(3):
        drive.step = step
        drive.touch(20, writes=[(source, 0, 8)])
        drive.upload(drive.one, 11, source=(source, 0, 8), target=(target, 0, 8))
        drive.synchronize(drive.sink.release(drive.one), 31)
    (fence,) = analyse_fences(records)
    assert (fence.kind, fence.name, fence.where[0].line) == (SyncKind.EVENT_SYNCHRONIZE, "Event.synchronize", 31)
    assert (fence.times, fence.effective, fence.need, fence.can_go) == (3, 3, Need.NEEDED, False)
    assert fence.witness.code == "MRV201"
    assert (fence.witness.where[0].line, fence.witness.other[0].line) == (20, 11)


def test_removable_fence(drive, records):
    source, target = drive.pinned(), drive.device()
    drive.upload(drive.one, source=(source, 0, 8), target=(target, 0, 8))
    drive.synchronize(drive.sink.release(drive.one))
    drive.touch(reads=[(source, 0, 8)])
    (fence,) = analyse_fences(records)
    assert (fence.need, fence.can_go, fence.witness) == (Need.REMOVABLE, True, None)


def test_vacuous_fences(drive, records):
    drive.synchronize(None, 31)
    drive.kernel(drive.one)
    token = drive.sink.release(drive.one)
    drive.synchronize(token, 32)
    drive.synchronize(token, 33)
    fences = by_line(records)
    assert [fences[line].need for line in (31, 32, 33)] == [Need.VACUOUS, Need.REMOVABLE, Need.VACUOUS]
    assert (fences[33].times, fences[33].effective) == (1, 0)


def two_for_one(drive):
    """Either of two synchronisations is enough; both know something of their own."""
    buffer, other = drive.pinned(), drive.device()
    drive.kernel(drive.one, 10, reads=[(buffer, 0, 8)])
    early = drive.sink.release(drive.one)
    drive.kernel(drive.one, 11, writes=[(other, 0, 8)])
    late = drive.sink.release(drive.one)
    drive.synchronize(early, 31)
    drive.synchronize(late, 32)
    drive.touch(20, writes=[(buffer, 0, 8)])


def test_two_that_are_removable_one_at_a_time(drive, records):
    two_for_one(drive)
    fences = by_line(records)
    assert [fences[line].need for line in (31, 32)] == [Need.REMOVABLE, Need.REMOVABLE]
    assert [fences[line].can_go for line in (31, 32)] == [True, False]
    assert fences[32].redundant_with == (fences[31].where,)
    assert fences[32].witness.code == "MRV202"
    assert fences[31].redundant_with == ()


def test_all_that_can_go_can_go_together(drive, records):
    two_for_one(drive)
    spare = drive.device()
    drive.kernel(drive.two, 12, writes=[(spare, 0, 8)])
    drive.wait(drive.one, drive.sink.release(drive.two), line=40)
    drive.synchronize(drive.sink.release(drive.two), 41)
    fences = by_line(records)
    assert {line for line, fence in fences.items() if fence.can_go} == {31, 40, 41}
    assert fences[32].redundant_with == (fences[31].where,)


def test_three_of_which_any_one_is_enough(drive, records):
    buffer, other = drive.pinned(), drive.device()
    drive.kernel(drive.one, 10, reads=[(buffer, 0, 8)])
    for line in (31, 32, 33):
        drive.kernel(drive.one, 11, writes=[(other, 0, 8)])
        drive.synchronize(drive.sink.release(drive.one), line)
    drive.touch(20, writes=[(buffer, 0, 8)])
    fences = by_line(records)
    assert [fences[line].can_go for line in (31, 32, 33)] == [True, True, False]
    assert set(fences[33].redundant_with) == {fences[31].where, fences[32].where}


def test_partners_are_only_those_that_matter(drive, records):
    two_for_one(drive)
    spare, buffer = drive.device(), drive.pinned()
    for line in (41, 42, 43):
        drive.kernel(drive.two, line - 30, writes=[(spare, 0, 8)])
        drive.synchronize(drive.sink.release(drive.two), line)
    drive.kernel(drive.two, 14, reads=[(buffer, 0, 8)])
    for line in (51, 52, 53):
        drive.kernel(drive.two, 15, writes=[(spare, 0, 8)])
        drive.synchronize(drive.sink.release(drive.two), line)
    drive.touch(21, writes=[(buffer, 0, 8)])
    fences = by_line(records)
    assert {line for line, fence in fences.items() if not fence.can_go} == {32, 53}
    assert set(fences[53].redundant_with) == {fences[51].where, fences[52].where}


def test_one_fence_stands_for_two(drive, records):
    """The last one can go only while both others stay."""
    left, right = drive.pinned(), drive.pinned()
    drive.kernel(drive.one, 10, reads=[(left, 0, 8)])
    first = drive.sink.release(drive.one)
    drive.kernel(drive.two, 11, reads=[(right, 0, 8)])
    second = drive.sink.release(drive.two)
    for token, line in ((first, 31), (second, 32)):
        drive.synchronize(token, line)
    for stream in (drive.one, drive.two):
        drive.kernel(stream, 12)
        drive.wait(drive.host, drive.sink.release(stream), SyncKind.DEVICE_SYNCHRONIZE, 33)
    drive.touch(20, writes=[(left, 0, 8), (right, 0, 8)])
    fences = by_line(records)
    assert {line: fence.can_go for line, fence in fences.items()} == {31: True, 32: True, 33: False}
    assert len(fences[33].redundant_with) == 1


def test_old_races_are_not_blamed_on_a_fence(drive, records):
    buffer = drive.pinned()
    drive.kernel(drive.one, 10, reads=[(buffer, 0, 8)])
    drive.touch(20, writes=[(buffer, 0, 8)])
    drive.kernel(drive.two, 11)
    drive.synchronize(drive.sink.release(drive.two))
    drive.kernel(drive.one, 10, reads=[(buffer, 0, 8)])
    drive.touch(20, writes=[(buffer, 0, 8)])
    (fence,) = analyse_fences(records)
    assert fence.need is Need.REMOVABLE


def test_hand_overs_are_judged_but_never_proposed(drive, records):
    buffer, worker = drive.pinned(), drive.thread()
    drive.touch(20, host=worker, writes=[(buffer, 0, 8)])
    drive.wait(drive.host, drive.sink.release(worker), SyncKind.THREAD, 50, "Thread.join")
    drive.touch(21, reads=[(buffer, 0, 8)])
    drive.touch(22, host=worker, reads=[(buffer, 8, 16)])
    drive.wait(drive.host, drive.sink.release(worker), SyncKind.THREAD, 51, "Queue.get")
    fences = by_line(records)
    assert (fences[50].need, fences[50].witness.code) == (Need.NEEDED, "MRV208")
    assert (fences[51].need, fences[51].can_go) == (Need.INHERENT, False)


def test_the_wait_of_an_operation_is_never_called_removable(drive, records):
    """What it waits for is a value that no event shows, so that it orders nothing else says nothing."""
    drive.kernel(drive.one)
    drive.wait(drive.host, drive.sink.release(drive.one), SyncKind.IMPLICIT, 50, "aten._local_scalar_dense")
    drive.wait(drive.host, drive.sink.release(drive.one), SyncKind.IMPLICIT, 51, "aten.copy_")
    fences = by_line(records)
    assert [(fences[line].need, fences[line].effective) for line in (50, 51)] == [
        (Need.INHERENT, 1),
        (Need.INHERENT, 0),
    ]
    assert not any(fence.can_go for fence in fences.values())


def test_the_wait_of_an_operation_that_orders_more_than_its_value_shows_it(drive, records):
    buffer = drive.pinned()
    drive.kernel(drive.one, 10, reads=[(buffer, 0, 8)])
    drive.wait(drive.host, drive.sink.release(drive.one), SyncKind.IMPLICIT, 50, "aten._local_scalar_dense")
    drive.touch(20, writes=[(buffer, 0, 8)])
    (fence,) = analyse_fences(records)
    assert (fence.need, fence.witness.code) == (Need.NEEDED, "MRV202")


def test_needed_ones_are_found_among_many_by_few_checks(drive, records, monkeypatch):
    buffers = [drive.pinned() for _ in range(40)]
    for index, buffer in enumerate(buffers):
        drive.kernel(drive.one, 10, reads=[(buffer, 0, 8)])
        kind = SyncKind.IMPLICIT if index < 20 else SyncKind.EVENT_SYNCHRONIZE
        drive.wait(drive.host, drive.sink.release(drive.one), kind, 100 + index, "wait")
        if index in (7, 33):
            drive.touch(20 + index, writes=[(buffer, 0, 8)])
    checks = []
    monkeypatch.setattr(fences_module, "HappensBefore", lambda: checks.append(1) or HappensBefore())
    fences = by_line(records)
    needed = {line: fence.witness.where[0].line for line, fence in fences.items() if fence.need is Need.NEEDED}
    assert needed == {107: 27, 133: 53}
    others = [fence.need for line, fence in fences.items() if line not in needed]
    assert (others.count(Need.INHERENT), others.count(Need.REMOVABLE)) == (19, 19)
    # As it was; two paths of six to the needed ones; the second phase has one for each that is removable.
    assert len(checks) - 19 <= 1 + 2 * 11


def test_an_event_never_recorded_is_told_from_an_order_that_was_there(drive, records):
    drive.kernel(drive.one)
    token = drive.sink.release(drive.one)
    drive.synchronize(None, 31)
    drive.synchronize(token, 32)
    drive.synchronize(token, 33)
    fences = by_line(records)
    assert [fences[line].never_recorded for line in (31, 32, 33)] == [True, False, False]
    assert [fences[line].ordered_by for line in (31, 32, 33)] == [(), (), (fences[32].where,)]


def test_a_vacuous_fence_names_all_that_had_made_its_order(drive, records):
    """Both threads of order come from elsewhere, and a third one that does not matter is not named."""
    for stream, line in ((drive.one, 31), (drive.two, 32)):
        drive.kernel(stream)
        drive.synchronize(drive.sink.release(stream), line)
    drive.wait(drive.one, drive.sink.release(drive.two), line=40)
    drive.synchronize(drive.sink.release(drive.two), 33)
    fences = by_line(records)
    assert fences[33].need is Need.VACUOUS
    assert fences[33].ordered_by == (fences[32].where,)


def test_a_wait_for_the_own_stream_is_ordered_by_no_fence(drive, records):
    drive.kernel(drive.one)
    drive.wait(drive.one, drive.sink.release(drive.one), line=40)
    (fence,) = analyse_fences(records)
    assert (fence.need, fence.never_recorded, fence.ordered_by) == (Need.VACUOUS, False, ())


def test_wait_that_protects_memory_that_is_freed(drive, records):
    block = drive.device(owner=drive.one)
    drive.kernel(drive.two, reads=[(block, 0, 8)])
    drive.wait(drive.one, drive.sink.release(drive.two), line=30)
    drive.free(block)
    (fence,) = analyse_fences(records)
    assert (fence.need, fence.witness.code) == (Need.NEEDED, "MRV205")


def test_two_places_with_the_same_line_are_two_fences(drive, records):
    drive.kernel(drive.one)
    drive.synchronize(drive.sink.release(drive.one), 31)
    drive.wait(drive.host, drive.sink.release(drive.two), SyncKind.STREAM_SYNCHRONIZE, 31, "Stream.synchronize")
    assert len(analyse_fences(records)) == 2


def test_a_run_without_fences(records, drive):
    drive.kernel(drive.one)
    assert analyse_fences(records) == []
