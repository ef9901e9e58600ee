"""Every rule, by driving the sink: what must be reported, and beside it the correct program that must not be."""

import pytest

from mrv2.checks.events import LaneKind, OperationKind, SyncKind
from mrv2.checks.findings import Site, Soundness, Verdict
from mrv2.checks.happens_before.rules import lane_text


def test_pinned_source_overwritten(drive, judge):
    source, target = drive.pinned(), drive.device()
    drive.step = 4
    drive.upload(drive.one, 11, source=(source, 0, 64), target=(target, 0, 64))
    drive.step = 5
    drive.touch(20, writes=[(source, 8, 16)])
    (finding,) = judge.findings
    assert (finding.code, finding.verdict, finding.soundness) == ("MRV201", Verdict.VIOLATION, Soundness.SOUND)
    assert finding.where == (Site("runner.py", 20, "execute"), Site("main.py", 7, "main"))
    assert finding.other[0].line == 11
    assert finding.allocation[0].line == 900
    assert finding.step == 5
    assert finding.evidence == {
        "space": "pinned host memory",
        "block_size": 64,
        "offset": [8, 16],
        "operations": [
            {
                "name": "numpy.__setitem__",
                "kind": "host access",
                "lane": "host thread MainThread",
                "access": "write",
                "step": 5,
                "operation": 1,
            },
            {
                "name": "memcpy",
                "kind": "host-to-device copy",
                "lane": "stream 1",
                "access": "read",
                "step": 4,
                "operation": 0,
            },
        ],
        "missing_edge": "nothing makes host thread MainThread wait for 'memcpy' on stream 1: record an event after it, "
        "and synchronise that event before this write",
        "occurrences": 1,
    }


def test_pinned_source_overwritten_after_its_event(drive, judge):
    source, target = drive.pinned(), drive.device()
    drive.upload(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.synchronize(drive.sink.release(drive.one))
    drive.touch(writes=[(source, 8, 16)])
    assert judge.findings == []


def test_event_before_the_copy_is_not_enough(drive, codes):
    source, target = drive.pinned(), drive.device()
    early = drive.sink.release(drive.one)
    drive.upload(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.synchronize(early)
    drive.touch(writes=[(source, 8, 16)])
    assert codes() == ["MRV201"]


def test_pinned_source_may_be_read_again(drive, judge):
    source, target = drive.pinned(), drive.device()
    drive.upload(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.touch(reads=[(source, 0, 64)])
    assert judge.findings == []


def test_host_write_before_the_copy_is_ordered_by_the_call(drive, judge):
    source, target = drive.pinned(), drive.device()
    drive.touch(writes=[(source, 0, 64)])
    drive.upload(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    assert judge.findings == []


@pytest.mark.parametrize(("device", "host"), [("reads", "writes"), ("writes", "reads"), ("writes", "writes")])
def test_uva(drive, codes, device, host):
    buffer = drive.pinned()
    drive.kernel(drive.one, **{device: [(buffer, 0, 8)]})
    drive.touch(**{host: [(buffer, 0, 8)]})
    assert codes() == ["MRV202"]


def test_uva_synchronised(drive, judge):
    buffer = drive.pinned()
    drive.kernel(drive.one, reads=[(buffer, 0, 8)])
    drive.synchronize(drive.sink.release(drive.one))
    drive.touch(writes=[(buffer, 0, 8)])
    assert judge.findings == []


@pytest.mark.parametrize("host", ["reads", "writes"])
def test_download_target(drive, codes, host):
    source, target = drive.device(), drive.pinned()
    drive.download(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.touch(**{host: [(target, 0, 4)]})
    assert codes() == ["MRV203"]


def test_download_target_polled(drive, judge):
    source, target = drive.device(), drive.pinned()
    drive.download(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    token = drive.sink.release(drive.one)
    drive.wait(drive.host, None, SyncKind.EVENT_QUERY, name="Event.query")
    drive.wait(drive.host, token, SyncKind.EVENT_QUERY, name="Event.query")
    drive.touch(reads=[(target, 0, 64)])
    assert judge.findings == []


def test_download_target_polled_once_in_vain(drive, codes):
    source, target = drive.device(), drive.pinned()
    drive.download(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.wait(drive.host, None, SyncKind.EVENT_QUERY, name="Event.query")
    drive.touch(reads=[(target, 0, 64)])
    assert codes() == ["MRV203"]


def test_in_place_host_operation_is_one_finding(drive, codes):
    source, target = drive.device(), drive.pinned()
    drive.download(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.touch(reads=[(target, 0, 64)], writes=[(target, 0, 64)])
    assert codes() == ["MRV203"]


def test_a_line_of_the_host_is_one_place_in_however_many_ways_it_reads(drive, judge):
    source, target = drive.device(), drive.pinned()
    drive.download(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.touch(20, reads=[(target, 0, 64)], name="numpy.greater")
    drive.touch(20, reads=[(target, 8, 16)], name="ndarray.__getitem__")
    (finding,) = judge.findings
    assert "numpy.greater" in finding.title
    assert finding.evidence["occurrences"] == 2
    drive.touch(21, reads=[(target, 8, 16)], name="ndarray.__getitem__")
    assert [finding.where[0].line for finding in judge.findings] == [20, 21]


def test_copy_that_writes_or_reads_pinned_memory_in_place_is_a_use_like_a_kernels(drive, codes):
    """Through a device view of pinned memory, an upload can write to it and a download read from it."""
    target, source = drive.pinned(), drive.pinned()
    upload = drive.on(drive.one, OperationKind.COPY_TO_DEVICE, "memcpy", 10)
    drive.tell(upload, writes=[(target, 0, 8)])
    download = drive.on(drive.one, OperationKind.COPY_TO_HOST, "memcpy", 11)
    drive.tell(download, reads=[(source, 0, 8)])
    drive.touch(20, writes=[(target, 0, 8)])
    drive.touch(21, writes=[(source, 0, 8)])
    assert codes() == ["MRV202", "MRV202"]


def test_two_streams(drive, judge):
    block = drive.device()
    drive.kernel(drive.one, 10, name="writer", writes=[(block, 0, 64)])
    drive.kernel(drive.two, 11, name="reader", reads=[(block, 32, 40)])
    (finding,) = judge.findings
    assert finding.code == "MRV204"
    assert finding.title == "'writer' and 'reader' use the same device memory on two streams without an order"
    assert finding.evidence["missing_edge"] == (
        "nothing makes stream 2 wait for 'writer' on stream 1: record an event on stream 1 after it, and let stream 2 "
        "wait for that event before 'reader'"
    )
    assert finding.evidence["offset"] == [32, 40]


def test_two_streams_with_an_event(drive, judge):
    block = drive.device()
    drive.kernel(drive.one, writes=[(block, 0, 64)])
    drive.wait(drive.two, drive.sink.release(drive.one))
    drive.kernel(drive.two, reads=[(block, 32, 40)])
    assert judge.findings == []


def test_two_streams_that_both_read(drive, judge):
    block = drive.device()
    drive.kernel(drive.one, reads=[(block, 0, 64)])
    drive.kernel(drive.two, reads=[(block, 0, 64)])
    assert judge.findings == []


def test_two_streams_ordered_through_the_host(drive, judge):
    block = drive.device()
    drive.kernel(drive.one, writes=[(block, 0, 64)])
    drive.synchronize(drive.sink.release(drive.one))
    drive.kernel(drive.two, reads=[(block, 32, 40)])
    assert judge.findings == []


def test_two_streams_ordered_by_a_third(drive, judge):
    block, third = drive.device(), drive.sink.lane(LaneKind.STREAM, "stream 3")
    drive.kernel(drive.one, writes=[(block, 0, 64)])
    drive.wait(third, drive.sink.release(drive.one))
    drive.wait(drive.two, drive.sink.release(third))
    drive.kernel(drive.two, reads=[(block, 0, 64)])
    assert judge.findings == []


def test_disjoint_bytes_of_one_block(drive, judge):
    block, buffer = drive.device(), drive.pinned()
    drive.kernel(drive.one, writes=[(block, 0, 32)], reads=[(buffer, 0, 8)])
    drive.kernel(drive.two, writes=[(block, 32, 64)])
    drive.touch(writes=[(buffer, 8, 64)])
    assert judge.findings == []


def test_one_byte_of_two_scattered_accesses(drive, judge):
    block = drive.device()
    drive.kernel(drive.one, writes=[(block, start, start + 4) for start in range(0, 64, 8)])
    drive.kernel(drive.two, writes=[(block, start, start + 4) for start in range(4, 60, 8)])
    assert judge.findings == []
    drive.kernel(drive.two, writes=[(block, 35, 36), (block, 62, 64)])
    assert [finding.evidence["offset"] for finding in judge.findings] == [[35, 36]]


def test_graph_branches(drive, codes):
    block = drive.device()
    with drive.branch(drive.one) as left, drive.branch(drive.one) as right:
        drive.kernel(left, 10, writes=[(block, 0, 64)])
        drive.kernel(right, 11, writes=[(block, 0, 64)])
    assert codes() == ["MRV204"]


def test_graph_branches_joined_before_the_next_use(drive, judge):
    block = drive.device()
    with drive.branch(drive.one) as left:
        drive.kernel(left, 10, writes=[(block, 0, 64)])
    drive.kernel(drive.one, 11, reads=[(block, 0, 64)])
    assert judge.findings == []


def test_freed_without_record_stream(drive, judge):
    block = drive.device(owner=drive.one)
    drive.kernel(drive.two, 10, reads=[(block, 0, 64)])
    drive.free(block, 40)
    (finding,) = judge.findings
    assert finding.code == "MRV205"
    assert (finding.where[0].line, finding.other[0].line, finding.allocation[0].line) == (40, 10, 901)
    assert "call record_stream(stream 2)" in finding.evidence["missing_edge"]


def test_freed_with_record_stream(drive, judge):
    block = drive.device(owner=drive.one)
    drive.kernel(drive.two, reads=[(block, 0, 64)])
    drive.free(block, after=[drive.two])
    assert judge.findings == []


def test_record_stream_of_one_block_orders_nothing_else(drive, codes):
    block, other = drive.device(owner=drive.one), drive.device(owner=drive.one)
    drive.kernel(drive.two, 10, reads=[(block, 0, 64)], writes=[(other, 0, 64)])
    drive.free(block, after=[drive.two])
    drive.kernel(drive.one, 11, reads=[(other, 0, 64)])
    assert codes() == ["MRV204"]


def test_freed_on_its_own_stream(drive, judge):
    block = drive.device(owner=drive.one)
    drive.kernel(drive.one, reads=[(block, 0, 64)])
    drive.free(block)
    assert judge.findings == []


def test_freed_after_its_stream_waited_for_the_other(drive, judge):
    block = drive.device(owner=drive.one)
    drive.kernel(drive.two, reads=[(block, 0, 64)])
    drive.wait(drive.one, drive.sink.release(drive.two))
    drive.free(block)
    assert judge.findings == []


def test_freed_after_the_host_synchronised(drive, judge):
    block = drive.device(owner=drive.one)
    drive.kernel(drive.two, reads=[(block, 0, 64)])
    drive.synchronize(drive.sink.release(drive.two))
    drive.free(block)
    assert judge.findings == []


def test_what_the_host_knows_at_a_free_does_not_reach_the_stream(drive, codes):
    worker, block, other = drive.thread(), drive.device(owner=drive.one), drive.device(owner=drive.one)
    drive.kernel(drive.two, 10, writes=[(other, 0, 64)])
    drive.synchronize(drive.sink.release(drive.two))
    drive.free(block)
    drive.kernel(drive.one, 11, reads=[(other, 0, 64)], issuer=worker)
    assert codes() == ["MRV204"]


def test_pinned_dropped_while_a_kernel_reads_in_place(drive, judge):
    buffer = drive.pinned()
    drive.kernel(drive.one, reads=[(buffer, 0, 8)])
    drive.free(buffer)
    (finding,) = judge.findings
    assert finding.code == "MRV206"
    assert finding.title == "pinned host memory is dropped while 'triton:gather' may still use it"


def test_pinned_dropped_while_a_copy_of_the_allocator_is_pending(drive, judge):
    source, target = drive.pinned(), drive.device()
    drive.upload(drive.one, source=(source, 0, 64), target=(target, 0, 64), protected=True)
    drive.free(source)
    assert judge.findings == []


def test_pinned_dropped_while_a_copy_through_an_alias_is_pending(drive, codes):
    source, target = drive.pinned(), drive.device()
    drive.upload(drive.one, source=(source, 0, 64), target=(target, 0, 64), protected=False)
    drive.free(source)
    assert codes() == ["MRV206"]


def test_protection_of_one_access_does_not_cover_another(drive, codes):
    source, target = drive.pinned(), drive.device()
    drive.kernel(drive.one, 10, reads=[(source, 0, 64)])
    drive.upload(drive.one, 11, source=(source, 0, 64), target=(target, 0, 64), protected=True)
    drive.free(source)
    assert codes() == ["MRV206"]


@pytest.mark.parametrize("after", ["one", "two"])
def test_pinned_dropped_is_reused_after_what_the_given_streams_have_enqueued(drive, codes, after):
    source = drive.pinned()
    drive.kernel(drive.one, 10, reads=[(source, 0, 64)])
    drive.free(source, after=[getattr(drive, after)])
    assert codes() == ([] if after == "one" else ["MRV206"])


def test_protection_is_no_licence_to_write(drive, codes):
    source, target = drive.pinned(), drive.device()
    drive.upload(drive.one, source=(source, 0, 64), target=(target, 0, 64), protected=True)
    drive.touch(writes=[(source, 0, 4)])
    assert codes() == ["MRV201"]


def test_pinned_dropped_after_its_event(drive, judge):
    buffer = drive.pinned()
    drive.kernel(drive.one, reads=[(buffer, 0, 8)])
    drive.synchronize(drive.sink.release(drive.one))
    drive.free(buffer)
    assert judge.findings == []


def test_dropping_the_last_reference_is_ordered_with_other_threads(drive, judge):
    buffer, worker = drive.pinned(), drive.thread()
    drive.touch(host=worker, reads=[(buffer, 0, 8)])
    drive.free(buffer)
    assert judge.findings == []


def test_two_threads(drive, judge):
    buffer, worker = drive.pinned(), drive.thread("output")
    drive.touch(20, host=worker, writes=[(buffer, 0, 8)])
    drive.touch(21, reads=[(buffer, 0, 8)])
    (finding,) = judge.findings
    assert finding.code == "MRV208"
    assert finding.evidence["missing_edge"].startswith("nothing orders host thread output and host thread MainThread")


def test_two_threads_with_a_hand_over(drive, judge):
    buffer, worker = drive.pinned(), drive.thread()
    drive.touch(20, host=worker, writes=[(buffer, 0, 8)])
    drive.sink.acquire(drive.host, drive.sink.release(worker))
    drive.touch(21, reads=[(buffer, 0, 8)])
    assert judge.findings == []


def test_worker_synchronises_and_hands_over(drive, judge):
    source, target, worker = drive.device(), drive.pinned(), drive.thread()
    drive.download(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.synchronize(drive.sink.release(drive.one), host=worker)
    drive.sink.end_lane(worker)
    drive.sink.acquire(drive.host, drive.sink.release(worker))
    drive.touch(reads=[(target, 0, 64)])
    assert judge.findings == []


def test_worker_synchronises_and_does_not_hand_over(drive, codes):
    source, target, worker = drive.device(), drive.pinned(), drive.thread()
    drive.download(drive.one, source=(source, 0, 64), target=(target, 0, 64))
    drive.synchronize(drive.sink.release(drive.one), host=worker)
    drive.touch(reads=[(target, 0, 64)])
    assert codes() == ["MRV203"]


def test_copy_enqueued_by_another_thread_after_the_write(drive, judge):
    source, target, worker = drive.pinned(), drive.device(), drive.thread()
    drive.touch(20, writes=[(source, 0, 64)])
    drive.upload(drive.one, 11, source=(source, 0, 64), target=(target, 0, 64), issuer=worker)
    (finding,) = judge.findings
    assert finding.code == "MRV201"
    edge = finding.evidence["missing_edge"]
    assert "the thread that enqueued 'memcpy' on stream 1 wait for host thread MainThread" in edge


@pytest.mark.parametrize("side", ["device", "host"])
def test_possible_access_is_suspect(drive, judge, side):
    buffer = drive.pinned()
    drive.kernel(drive.one, reads=[(buffer, 0, 8)], certain=side != "device")
    drive.touch(writes=[(buffer, 0, 8)], certain=side != "host")
    (finding,) = judge.findings
    assert (finding.code, finding.verdict, finding.soundness) == ("MRV202", Verdict.SUSPECT, Soundness.MAY)


def test_violation_at_the_same_places_replaces_the_suspicion(drive, judge):
    buffer = drive.pinned()
    drive.kernel(drive.one, reads=[(buffer, 0, 8)], certain=False)
    drive.touch(writes=[(buffer, 0, 8)])
    drive.kernel(drive.one, reads=[(buffer, 0, 8)])
    drive.touch(writes=[(buffer, 0, 8)])
    assert [finding.verdict for finding in judge.findings] == [Verdict.VIOLATION]


@pytest.mark.parametrize("kind", [SyncKind.WAIT_EVENT, SyncKind.EVENT_SYNCHRONIZE])
def test_vacuous_fence(drive, judge, kind):
    drive.wait(drive.host, None, kind, 31, "Event.wait")
    (finding,) = judge.findings
    assert (finding.code, finding.verdict) == ("MRV210", Verdict.SUSPECT)
    assert finding.where[0].line == 31


@pytest.mark.parametrize(
    "kind", [SyncKind.EVENT_QUERY, SyncKind.STREAM_QUERY, SyncKind.STREAM_SYNCHRONIZE, SyncKind.DEVICE_SYNCHRONIZE]
)
def test_polling_in_vain_and_waiting_for_an_idle_stream_are_no_fences_without_effect(drive, judge, kind):
    drive.wait(drive.host, None, kind)
    assert judge.findings == []


def test_first_lap_of_a_ring_is_not_vacuous(drive, judge):
    events = [None, None]
    for lap in range(4):
        drive.synchronize(events[lap % 2], 31)
        drive.kernel(drive.one)
        events[lap % 2] = drive.sink.release(drive.one)
    assert judge.findings == []


def test_waiting_twice_for_one_record_is_not_vacuous(drive, judge):
    drive.kernel(drive.one)
    token = drive.sink.release(drive.one)
    drive.wait(drive.two, token, line=30)
    drive.wait(drive.two, token, line=31)
    assert judge.findings == []


def test_event_recorded_again_orders_only_what_was_recorded_when_the_wait_was_asked_for(drive, codes):
    block, other = drive.device(), drive.device()
    drive.kernel(drive.one, 10, writes=[(block, 0, 8)])
    first = drive.sink.release(drive.one)
    drive.wait(drive.two, first)
    drive.kernel(drive.one, 11, writes=[(other, 0, 8)])
    drive.sink.release(drive.one)
    drive.kernel(drive.two, 12, reads=[(block, 0, 8)])
    assert codes() == []
    drive.kernel(drive.two, 13, reads=[(other, 0, 8)])
    assert codes() == ["MRV204"]


def test_what_the_host_does_after_the_enqueue_is_not_ordered(drive, codes):
    buffer = drive.pinned()
    drive.kernel(drive.one, 10, reads=[(buffer, 0, 8)])
    drive.touch(20, writes=[(buffer, 0, 8)])
    drive.kernel(drive.one, 11, reads=[(buffer, 0, 8)])
    assert codes() == ["MRV202"]


def test_marker_carries_the_host_to_the_stream(drive, judge):
    buffer, worker = drive.pinned(), drive.thread()
    drive.touch(writes=[(buffer, 0, 8)])
    drive.on(drive.one, OperationKind.MARKER, "event.record", 14)
    drive.wait(drive.two, drive.sink.release(drive.one))
    drive.kernel(drive.two, reads=[(buffer, 0, 8)], issuer=worker)
    assert judge.findings == []


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (LaneKind.HOST, "MainThread", "host thread MainThread"),
        (LaneKind.STREAM, "stream 7", "stream 7"),
        (LaneKind.STREAM, "default stream", "default stream"),
        (LaneKind.GRAPH, "2", "graph branch 2"),
    ],
)
def test_lanes_are_named_as_people_say(kind, name, text):
    assert lane_text(kind, name) == text
