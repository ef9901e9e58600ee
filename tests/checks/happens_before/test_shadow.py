"""What is kept of past accesses, and that nothing is lost by keeping little."""

from unittest import mock

import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.events import LaneKind, OperationKind, Space, SyncKind
from mrv2.checks.happens_before import core, shadow
from mrv2.checks.happens_before.addresses import AddressMap

STEPS = 100_000


@pytest.fixture
def eager():
    """Thin out at every access."""
    with (
        mock.patch.object(shadow, "_FEW", 0),
        mock.patch.object(shadow, "_MANY", 0),
        mock.patch.object(shadow, "_GROWTH", 0),
        mock.patch.object(core, "_ENDED_LANES", 0),
    ):
        yield


class Extent:
    def __init__(self, base, end):
        self.base, self.end = base, end


def placed(*extents):
    found = AddressMap()
    for base, end in extents:
        found.place(Extent(base, end))
    return found


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((10, 20), [(10, 20)]),
        ((12, 14), [(12, 14)]),
        ((5, 12), [(10, 12)]),
        ((15, 35), [(15, 20), (30, 35)]),
        ((0, 100), [(10, 20), (30, 40), (40, 50)]),
        ((39, 41), [(39, 40), (40, 41)]),
        ((20, 30), []),
        ((0, 5), []),
        ((60, 70), []),
        ((12, 12), []),
    ],
)
def test_pieces_of_a_range(span, expected):
    found = placed((30, 40), (10, 20), (40, 50))
    assert [(low, high) for _, low, high in found.pieces(*span)] == expected


def test_pieces_in_an_empty_map():
    assert placed().pieces(0, 10) == []


@pytest.mark.parametrize(
    ("new", "left"),
    [
        ((12, 14), [(12, 14), (30, 40)]),
        ((15, 35), [(15, 35)]),
        ((20, 30), [(10, 20), (20, 30), (30, 40)]),
        ((0, 100), [(0, 100)]),
        ((10, 20), [(10, 20), (30, 40)]),
    ],
)
def test_a_new_block_evicts_what_it_overlaps(new, left):
    found = placed((10, 20), (30, 40), new)
    assert [(item.base, item.end) for item in found] == left


def test_new_memory_at_an_old_address_has_no_past(drive, judge):
    block = drive.device(base=1 << 20)
    drive.kernel(drive.two, writes=[(block, 0, 64)])
    fresh = drive.device(base=1 << 20)
    drive.kernel(drive.one, writes=[(fresh, 0, 64)])
    assert judge.findings == []
    assert judge.kept == 1


def test_late_access_of_an_operation_is_judged_by_its_enqueue(drive, codes):
    buffer = drive.pinned()
    kernel = drive.open(drive.one)
    drive.touch(writes=[(buffer, 0, 8)])
    drive.synchronize(drive.sink.release(drive.one))
    drive.run(kernel, reads=[(buffer, 0, 8)])
    assert codes() == ["MRV202"]


def test_late_access_of_an_operation_that_was_waited_for(drive, judge):
    buffer = drive.pinned()
    kernel = drive.open(drive.one)
    drive.synchronize(drive.sink.release(drive.one))
    drive.touch(writes=[(buffer, 0, 8)])
    drive.run(kernel, reads=[(buffer, 0, 8)])
    assert judge.findings == []


def test_late_access_to_a_block_freed_meanwhile(drive, codes):
    block = drive.device(owner=drive.one)
    kernel = drive.open(drive.two)
    drive.free(block)
    drive.run(kernel, reads=[(block, 0, 8)])
    assert codes() == ["MRV205"]


def test_what_happens_at_a_freed_address_is_nobodys_business(drive, judge):
    block = drive.device(owner=drive.one)
    drive.kernel(drive.one, writes=[(block, 0, 8)])
    drive.free(block)
    drive.kernel(drive.two, writes=[(block, 0, 8)])
    drive.touch(writes=[(block, 0, 8)])
    assert judge.findings == []


def test_record_is_kept_while_an_older_operation_is_open(eager, drive, codes):
    block = drive.device()
    kernel = drive.open(drive.two)
    drive.kernel(drive.one, 10, reads=[(block, 0, 8)])
    drive.wait(drive.one, drive.sink.release(drive.two))
    drive.kernel(drive.one, 10, reads=[(block, 0, 8)])  # after the open one, and so no substitute for the first
    drive.run(kernel, writes=[(block, 0, 8)])
    assert codes() == ["MRV204"]


def test_unprotected_copy_is_not_superseded_by_a_protected_one(eager, drive, codes):
    source, target = drive.pinned(), drive.device()
    for protected in (False, True, True):
        drive.upload(drive.one, source=(source, 0, 64), target=(target, 0, 64), protected=protected)
    drive.free(source)
    assert codes() == ["MRV206"]


def test_write_is_not_superseded_by_a_read_at_the_same_place(eager, drive, codes):
    buffer = drive.pinned()
    drive.kernel(drive.one, 10, writes=[(buffer, 0, 8)])
    drive.kernel(drive.one, 10, reads=[(buffer, 0, 8)])
    drive.touch(reads=[(buffer, 0, 8)])
    assert codes() == ["MRV202"]


def test_smaller_range_does_not_supersede(eager, drive, codes):
    buffer = drive.pinned()
    drive.kernel(drive.one, 10, reads=[(buffer, 0, 64)])
    drive.kernel(drive.one, 10, reads=[(buffer, 0, 8)])
    drive.touch(writes=[(buffer, 32, 40)])
    assert codes() == ["MRV202"]


def test_occurrences_are_operations_not_pairs(drive, judge):
    buffer = drive.pinned()
    for step in range(3):
        drive.step = step
        drive.kernel(drive.one, reads=[(buffer, 0, 64)])
    for step in range(3, 5):
        drive.step = step
        drive.touch(writes=[(buffer, 0, 8), (buffer, 16, 24)])
    (finding,) = judge.findings
    assert finding.evidence["occurrences"] == 2
    assert finding.evidence["offset"] == [0, 8]
    assert [side["step"] for side in finding.evidence["operations"]] == [3, 2]


def test_reports_of_a_frontend_are_kept_once(drive, judge):
    drive.wait(drive.host, None)
    (finding,) = judge.findings
    judge.report(finding)
    judge.report(finding)
    assert judge.findings == [finding, finding]


# ---- memory


def well_synchronised(drive, source, target, results):
    """A step as a runner makes it: upload, kernel, download on a second stream, the host two steps behind."""
    ready = []
    for step in range(STEPS // 4):  # a hundred times what may be left
        slot = step % 3
        if step >= 2:
            drive.synchronize(ready[step % 2])
            drive.touch(21, reads=[(results, 8 * (slot - 2) % 24, 8 * (slot - 2) % 24 + 8)])
        drive.touch(20, writes=[(source, 8 * slot, 8 * slot + 8)])
        drive.upload(drive.one, source=(source, 8 * slot, 8 * slot + 8), target=(target, 0, 8))
        drive.kernel(drive.one, reads=[(target, 0, 8)], writes=[(target, 8, 16)])
        drive.wait(drive.two, drive.sink.release(drive.one))
        drive.download(drive.two, source=(target, 8, 16), target=(results, 8 * slot, 8 * slot + 8))
        drive.wait(drive.one, drive.sink.release(drive.two))
        ready[step % 2 : step % 2 + 1] = [drive.sink.release(drive.two)]


def sizes(judge):
    """Everything that could grow."""
    lanes = judge._lanes.values()
    return {
        "records": judge.kept,
        "operations": len(judge._operations),
        "blocks": len(judge._blocks),
        "shadow": len(list(judge._shadow._blocks)),
        "lanes": len(judge._lanes) + len(judge._ended),
        "known": max(len(lane.known) for lane in lanes),
        "waits": len(judge._waits._current) + len(judge._waits._last),
    }


def test_memory_is_bounded_over_many_steps(drive, judge):
    well_synchronised(drive, drive.pinned(), drive.device(), drive.pinned())
    assert judge.findings == []
    assert all(size < 300 for size in sizes(judge).values()), sizes(judge)


def test_memory_is_bounded_without_any_synchronisation(drive, judge):
    source, target = drive.pinned(), drive.device()
    for _ in range(STEPS // 10):
        drive.upload(drive.one, source=(source, 0, 8), target=(target, 0, 8))
        drive.kernel(drive.two, reads=[(target, 0, 8)])
    assert all(size < 300 for size in sizes(judge).values()), sizes(judge)
    (finding,) = judge.findings
    assert finding.evidence["occurrences"] == 2 * (STEPS // 10) - 1


def test_memory_is_bounded_with_operations_always_open(drive, judge):
    buffer, target, pending = drive.pinned(), drive.device(), []
    for step in range(STEPS // 10):
        pending.append(drive.open(drive.one))
        drive.touch(writes=[(buffer, step % 4, step % 4 + 1)])
        if len(pending) > 100:
            drive.run(pending.pop(0), reads=[(target, 0, 8)], writes=[(target, 8, 16)])
    assert all(size < 1000 for size in sizes(judge).values()), sizes(judge)


def test_memory_is_bounded_with_blocks_that_come_and_go(drive, judge):
    for _ in range(STEPS // 10):
        block = drive.device(owner=drive.one)
        drive.kernel(drive.one, writes=[(block, 0, 64)])
        drive.free(block)
    assert all(size < 10_000 for size in sizes(judge).values()), sizes(judge)


def test_memory_is_bounded_with_graph_branches(drive, judge):
    block = drive.device()
    for _ in range(STEPS // 20):
        with drive.branch(drive.one) as left, drive.branch(drive.one) as right:
            drive.kernel(left, writes=[(block, 0, 8)])
            drive.kernel(right, writes=[(block, 8, 16)])
        drive.synchronize(drive.sink.release(drive.one))
    assert judge.findings == []
    assert all(size < 300 for size in sizes(judge).values()), sizes(judge)


def test_memory_is_bounded_with_threads_that_are_joined(drive, judge):
    buffer = drive.pinned()
    for _ in range(STEPS // 20):
        worker = drive.thread()
        drive.touch(host=worker, writes=[(buffer, 0, 8)])
        drive.sink.end_lane(worker)
        drive.sink.acquire(drive.host, drive.sink.release(worker))
    assert judge.findings == []
    assert all(size < 300 for size in sizes(judge).values()), sizes(judge)


def test_idle_threads_do_not_hold_memory(drive, judge):
    drive.thread("idle")
    buffer = drive.pinned()
    for _ in range(STEPS // 10):
        drive.touch(writes=[(buffer, 0, 8)])
    assert all(size < 300 for size in sizes(judge).values()), sizes(judge)


def test_ended_lane_can_be_released_after_it_was_forgotten(eager, drive, judge):
    workers = [drive.thread() for _ in range(3)]
    buffer = drive.pinned()
    for worker in workers:
        drive.touch(host=worker, writes=[(buffer, 0, 8)])
        drive.sink.acquire(drive.host, drive.sink.release(worker))
        for other in workers:
            drive.sink.acquire(other, drive.sink.release(drive.host))
    for worker in workers:
        drive.sink.end_lane(worker)
    assert len(judge._lanes) < 6
    drive.sink.acquire(drive.host, drive.sink.release(workers[0]))
    drive.touch(writes=[(buffer, 0, 8)])
    assert judge.findings == []


def test_ended_lane_is_kept_while_it_knows_more_than_others(eager, drive, judge):
    source, target, worker = drive.device(), drive.pinned(), drive.thread()
    drive.download(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.synchronize(drive.sink.release(drive.one), host=worker)
    drive.sink.end_lane(worker)
    drive.sink.acquire(drive.host, drive.sink.release(worker))
    drive.touch(reads=[(target, 0, 64)])
    assert judge.findings == []


def test_ended_lane_is_kept_while_an_operation_of_it_is_open(eager, drive, codes):
    buffer = drive.pinned()
    with drive.branch(drive.one) as branch:
        kernel = drive.open(branch)
        drive.touch(writes=[(buffer, 0, 8)])
        drive.sink.acquire(drive.host, drive.sink.release(branch))
    drive.run(kernel, reads=[(buffer, 0, 8)])
    assert codes() == ["MRV202"]


# ---- mistakes of a frontend


def mistakes(drive):
    host, stream = drive.host, drive.one
    operation = drive.kernel(stream)
    drive.kernel(stream)
    block = drive.device()
    drive.free(block)
    first = drive.sink.sync(host, SyncKind.WAIT_EVENT, "wait", ())
    drive.sink.sync(host, SyncKind.WAIT_EVENT, "wait", ())
    sink = drive.sink
    return {
        "access of a finished operation": lambda: sink.access(operation, [(0, 1)], write=True),
        "close of one that is not open": lambda: sink.close(operation),
        "second free": lambda: drive.free(block),
        "unknown lane": lambda: sink.operation(99, OperationKind.KERNEL, "k", ()),
        "unknown issuer": lambda: sink.operation(stream, OperationKind.KERNEL, "k", (), issuer=99),
        "release of a lane never made": lambda: sink.release(99),
        "token that is only a number": lambda: sink.acquire(host, int(sink.release(stream))),
        "late acquisition": lambda: sink.acquire(host, sink.release(stream), sync=first),
        "allocation for an unknown lane": lambda: sink.allocate(99, 0, 8, Space.DEVICE, ()),
    }


@pytest.mark.parametrize(
    "mistake",
    [
        "access of a finished operation",
        "close of one that is not open",
        "second free",
        "unknown lane",
        "unknown issuer",
        "release of a lane never made",
        "token that is only a number",
        "late acquisition",
        "allocation for an unknown lane",
    ],
)
def test_mistakes_of_a_frontend_are_named(drive, mistake):
    with pytest.raises(CheckError) as caught:
        mistakes(drive)[mistake]()
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy))


def test_empty_blocks_and_ranges_are_nothing(drive, judge):
    block = drive.device(size=0)
    drive.kernel(drive.one, writes=[(block, 0, 0)])
    drive.kernel(drive.two, writes=[(block, 0, 0)])
    drive.free(block)
    assert judge.findings == []


def test_stream_that_acts_by_itself_keeps_what_it_may_race_with(eager, drive, codes):
    lane = drive.sink.lane(LaneKind.STREAM, "autonomous")
    drive.sink.operation(lane, OperationKind.KERNEL, "k", ())
    buffer = drive.pinned()
    drive.touch(writes=[(buffer, 0, 8)])
    drive.touch(writes=[(buffer, 8, 16)])
    operation = drive.sink.operation(lane, OperationKind.KERNEL, "k", (("a", 1, "f"),))
    drive.tell(operation, writes=[(buffer, 0, 8)])
    assert codes() == ["MRV202"]
