"""Writes past numpy and torch: found by comparison, then traced to their line."""

import ctypes
import struct
import sys
import threading
from pathlib import Path

import pytest
import torch

from mrv2.checks.errors import CheckError
from mrv2.checks.events import LaneKind, OperationKind, SyncKind
from mrv2.checks.hooks import numpy_alias, open_snapshots, snapshots
from mrv2.checks.hooks.snapshots import MAX_BYTES
from mrv2.checks.hooks.watchpoint import followed, locate_writer
from mrv2.checks.virtual import virtual_device


@pytest.fixture
def host(device):
    undos = [numpy_alias.install(device), snapshots.install(device)]
    yield device
    while undos:
        undos.pop()()


def through_memoryview(tensor):
    memoryview(tensor.numpy())[2] = 9.0


def through_struct(tensor):
    struct.pack_into("f", memoryview(tensor.numpy()).cast("B"), 8, 9.0)


def through_ctypes(tensor):
    ctypes.c_float.from_address(tensor.data_ptr() + 8).value = 9.0


def through_numpy(host, tensor):
    host.wrap_array(tensor.numpy())[2] = 9.0


UNSEEN = [through_memoryview, through_struct, through_ctypes]


class TestUnseenWrites:
    @pytest.mark.parametrize("write", UNSEEN)
    @pytest.mark.parametrize("early", [False, True])
    def test_before_waiting(self, host, write, early):
        source = host.pinned([0.0] * 4)
        host.upload(source)
        if early:
            host.run()
        write(source)
        host.synchronize()
        assert host.codes == ["MRV207"]
        (finding,) = host.judge.findings
        assert finding.evidence["changed"] == 2
        assert finding.evidence["bytes"] == [10, 12]
        assert finding.where[0].line == 2

    @pytest.mark.parametrize("write", UNSEEN)
    def test_after_waiting(self, host, write):
        source = host.pinned([0.0] * 4)
        host.upload(source)
        host.synchronize()
        write(source)
        host.synchronize()
        assert host.codes == []

    def test_a_write_that_is_seen_is_told_by_the_judge_alone(self, host):
        source = host.pinned([0.0] * 4)
        host.upload(source)
        through_numpy(host, source)
        host.synchronize()
        assert host.codes == ["MRV201"]

    def test_unseen_next_to_seen(self, host):
        source = host.pinned([0.0] * 4)
        host.upload(source[1:])
        host.wrap_array(source.numpy())[3] = 1.0
        through_memoryview(source)
        host.synchronize()
        assert host.codes == ["MRV201", "MRV207"]
        assert host.judge.findings[1].evidence["bytes"] == [10, 12]

    def test_other_bytes_of_the_block(self, host):
        source = host.pinned([0.0] * 4)
        host.upload(source[3:])
        through_memoryview(source)
        host.synchronize()
        assert host.codes == []

    def test_never_waited_for(self, device):
        undo = snapshots.install(device)
        source = device.pinned([0.0] * 4)
        device.upload(source)
        through_memoryview(source)
        undo()
        assert device.codes == ["MRV207"]
        assert device.upload_guard is None
        assert device.sink is device.judge

    def test_dropped_and_reused(self, host):
        source = host.pinned([0.0] * 4)
        host.upload(source)
        block = host.find_block(source.data_ptr())
        with host.lock:
            host.sink.free(block.id, host.host_lane(), ())
        through_memoryview(source)
        host.synchronize()
        assert "MRV207" not in host.codes  # it is another rule's case

    def test_large_sources_are_not_watched(self, host):
        source = host.pinned([0.0] * (MAX_BYTES // 4 + 1))
        host.upload(source)
        through_memoryview(source)
        host.synchronize()
        assert host.codes == []


class TestOrder:
    def test_another_stream_knows_by_a_chain_of_events(self, host):
        sink = host.sink
        other, third = (sink.lane(LaneKind.STREAM, name) for name in ("other", "third"))
        source = host.pinned([0.0] * 4)
        host.upload(source)
        sink.acquire(other, sink.release(host.stream))
        sink.acquire(third, sink.release(other))
        host.run()
        sync = sink.sync(host.host_lane(), SyncKind.STREAM_SYNCHRONIZE, "synchronize", ())
        sink.acquire(host.host_lane(), sink.release(third), sync=sync)
        through_memoryview(source)
        host.synchronize()
        assert host.codes == []

    def test_waiting_for_an_unrelated_stream_is_not_enough(self, host):
        other = host.sink.lane(LaneKind.STREAM, "other")
        source = host.pinned([0.0] * 4)
        host.upload(source)
        host.run()
        host.sink.acquire(host.host_lane(), host.sink.release(other))
        through_memoryview(source)
        host.synchronize()
        assert host.codes == ["MRV207"]

    def test_an_event_from_before_the_copy_is_not_enough(self, host):
        token = host.sink.release(host.stream)
        source = host.pinned([0.0] * 4)
        host.upload(source)
        host.sink.acquire(host.host_lane(), token)
        through_memoryview(source)
        host.synchronize()
        assert host.codes == ["MRV207"]

    def test_a_pending_download_into_the_source_is_no_unseen_write(self, host):
        source = host.pinned([0.0] * 4)
        span = (source.data_ptr(), source.data_ptr() + 16)
        host.enqueue("download", OperationKind.COPY_TO_HOST, lambda: through_memoryview(source), writes=[span])
        host.upload(source)
        host.synchronize()
        assert host.codes == []
        host.upload(source)
        through_ctypes(source)
        through_struct(source[1:])
        host.synchronize()
        assert host.codes == ["MRV207"]


def test_memory_is_bounded_though_something_is_always_pending(host):
    sources = [host.pinned([0.0] * 4) for _ in range(3)]
    downloads = [(sources[2].data_ptr(), sources[2].data_ptr() + 16)]
    tokens = []
    for step in range(50):
        host.upload(sources[step % 2])
        host.enqueue("download", OperationKind.COPY_TO_HOST, lambda: None, writes=downloads)
        tokens.append(host.sink.release(host.stream))
        if step:
            host.sink.acquire(host.host_lane(), tokens[step - 1])
            while len(host.engine.pending) > 2:
                host.engine.pending.popleft()
    assert len(host.sink._open) == 1
    assert host.sink._open.tokens <= 2
    assert sum(map(len, host.sink._pending.values())) <= 3


def lines_run(work):
    """Lines of the hook's own Python code that a piece of work runs: the same on every machine."""
    files, count = (snapshots.__file__, open_snapshots.__file__), 0

    def trace(frame, event, argument):
        nonlocal count
        count += frame.f_code.co_filename in files
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


EVENTS = {
    "write": lambda host, source: host.wrap_array(source.numpy()).fill(1.0),
    "pending write": lambda host, source: host.enqueue(
        "download", OperationKind.COPY_TO_HOST, None, writes=[(source.data_ptr(), source.data_ptr() + 16)]
    ),
    "release": lambda host, source: host.sink.release(host.stream),
    "upload": lambda host, source: host.upload(source),
    "acquire of nothing": lambda host, source: host.sink.acquire(host.host_lane(), host.sink.release(host.host_lane())),
    "stream waits again": lambda host, source: host.sink.acquire(host.other, host.sink.release(host.stream)),
    "free": lambda host, source: host.sink.free(host.find_block(source.data_ptr()).id, host.host_lane(), ()),
}


@pytest.mark.parametrize("apart", [True, False], ids=["in blocks of their own", "in one block"])
@pytest.mark.parametrize("event", EVENTS)
def test_nothing_costs_more_with_more_open_snapshots(host, event, apart):
    host.other = host.sink.lane(LaneKind.STREAM, "other")
    pool = host.pinned([0.0] * 4 * 400)
    costs = []
    for count in (20, 400):
        for index in range(len(host.sink._open), count):
            host.upload(host.pinned([0.0] * 4) if apart else pool[4 * index : 4 * index + 4])
        host.sink.acquire(host.other, host.sink.release(host.stream))
        fresh = host.pinned([0.0] * 4)
        costs.append(lines_run(lambda fresh=fresh: EVENTS[event](host, fresh)))
        assert len(host.sink._open) >= count
    assert costs[0] == costs[1] > 0


def test_writes_beside_open_snapshots_of_the_same_block_do_not_look_at_them(host, monkeypatch):
    pool, looked = host.pinned([0.0] * 400), []
    monkeypatch.setattr(open_snapshots.Snapshot, "leave_out", lambda self, low, high: looked.append(self.low))
    for index in range(90):
        host.upload(pool[4 * index : 4 * index + 4])
    array = host.wrap_array(pool.numpy())
    array[380:] = 1.0
    assert looked == []
    array[4 * 7] = 1.0
    assert looked == [pool[28:].data_ptr()]


def test_a_stream_that_knew_nothing_for_a_while_learns_again(host):
    other, source = host.sink.lane(LaneKind.STREAM, "other"), host.pinned([0.0] * 4)
    for _ in range(3):
        host.upload(source)
        host.sink.acquire(other, host.sink.release(host.stream))
        host.run()
        host.sink.acquire(host.host_lane(), host.sink.release(other))
        assert len(host.sink._open) == 0
        through_memoryview(source)
    host.upload(source)
    host.run()
    host.sink.acquire(host.host_lane(), host.sink.release(other))  # it has not waited this time
    through_ctypes(source[1:])
    host.synchronize()
    assert host.codes == ["MRV207"]


# On the virtual device


def unseen_program():
    source = torch.zeros(4, pin_memory=True)
    alias = memoryview(source.numpy())
    target = torch.empty(4, device="cuda")
    target.copy_(source, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    alias[0] = 5.0
    for number in range(2):
        target.copy_(source, non_blocking=True)
        if number == 1:
            write_behind(alias)
    torch.cuda.synchronize()


def write_behind(alias):
    before = alias[2]
    struct.pack_into("f", alias.cast("B"), 8, before + 1.0)
    return before


@pytest.mark.parametrize("schedule", ["late", "early", "random:1", "starve:0"])
def test_found_in_every_schedule_and_traced_to_its_line(schedule):
    with virtual_device(schedule) as device:
        unseen_program()
        findings = device.findings
    assert [finding.code for finding in findings] == ["MRV207"]
    site = locate_writer(unseen_program, schedule, 0, findings[0])
    assert site is not None
    assert (site.file, site.function) == (Path(__file__).name, "write_behind")
    assert site.line == write_behind.__code__.co_firstlineno + 2


def test_a_replayed_graph_may_find_other_bytes_each_time():
    with virtual_device("late") as device:
        source, target = torch.zeros(4, pin_memory=True), torch.empty(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            target.copy_(source, non_blocking=True)
        for number in range(3):
            through_memoryview(source)
            source[0] = number
            graph.replay()
            torch.cuda.synchronize()
        assert device.findings == []
        graph.replay()
        through_ctypes(source[1:])
        torch.cuda.synchronize()
        assert [finding.code for finding in device.findings] == ["MRV207"]


def test_only_an_unseen_write_can_be_located(device):
    finding = device.judge.findings
    assert finding == []
    with virtual_device("late") as virtual:
        source = torch.zeros(4, pin_memory=True)
        torch.empty(4, device="cuda").copy_(source, non_blocking=True)
        source.add_(1)
    with pytest.raises(CheckError, match="MRV207"):
        locate_writer(unseen_program, "late", 0, virtual.findings[0])


def test_lines_are_followed_in_every_thread():
    lines = set()
    with followed(lambda code, line: lines.add((code.co_name, line - code.co_firstlineno))):
        thread = threading.Thread(target=write_behind, args=(memoryview(bytearray(16)).cast("f"),))
        thread.start()
        thread.join()
    assert {("write_behind", 1), ("write_behind", 2), ("write_behind", 3)} <= lines
    count = len(lines)
    write_behind(memoryview(bytearray(16)).cast("f"))
    assert len(lines) == count
