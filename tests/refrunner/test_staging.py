"""Staging: the pinned ring under a device that the test holds back, packed uploads, and staged table writes."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mrv2.refrunner import staging
from mrv2.refrunner.device import Device
from mrv2.refrunner.errors import StepError
from mrv2.refrunner.staging import (
    ALIGNMENT,
    SEGMENT_BLOCK,
    SMALLEST_SLOT,
    PackedUpload,
    PinnedRing,
    StagedWriteTensor,
    _without_overlap,
)


class HeldEvent:
    """An event that passes when the test says so; whoever waits for it has failed."""

    def __init__(self):
        self.passed = False

    def query(self):
        return self.passed

    def synchronize(self):
        raise AssertionError("the ring waited for the device")


class HeldDevice(Device):
    """A device that has finished nothing until the test lets an event pass."""

    def __init__(self):
        super().__init__("cpu")
        self.events = []
        self.pinned = []

    def record_event(self):
        self.events.append(HeldEvent())
        return self.events[-1]

    def pinned_empty(self, size, dtype):
        self.pinned.append(super().pinned_empty(size, dtype))
        return self.pinned[-1]


def content(size, seed):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def test_a_slot_in_flight_is_neither_rewritten_nor_waited_for():
    device = HeldDevice()
    ring = PinnedRing(device)
    ring.upload(content(100, 1))
    ring.upload(content(100, 2))
    assert ring.depth == 2
    assert [bytes(slot[:100].numpy()) for slot in device.pinned] == [bytes(content(100, seed)) for seed in (1, 2)]


def test_a_slot_is_used_again_once_its_reader_has_passed():
    device = HeldDevice()
    ring = PinnedRing(device)
    ring.upload(content(100, 1))
    ring.upload(content(100, 2))
    device.events[1].passed = True
    ring.upload(content(100, 3))
    assert ring.depth == 2
    assert bytes(device.pinned[1][:100].numpy()) == bytes(content(100, 3))
    # The slot's new reader holds it again.
    ring.upload(content(100, 4))
    assert ring.depth == 3


def test_a_device_that_keeps_up_needs_one_slot():
    ring = PinnedRing(Device("cpu"))
    for seed in range(5):
        assert bytes(ring.upload(content(50, seed)).numpy()) == bytes(content(50, seed))
    assert ring.depth == 1


def test_growth_is_reported(caplog):
    ring = PinnedRing(HeldDevice())
    with caplog.at_level("INFO", logger="mrv2.refrunner.staging"):
        for seed in range(3):
            ring.upload(content(10, seed))
    assert [record.args for record in caplog.records] == [(2,), (3,)]


def test_a_slot_too_small_is_replaced_and_only_when_free():
    device = HeldDevice()
    ring = PinnedRing(device)
    ring.upload(content(10, 1))
    device.events[0].passed = True
    large = content(SMALLEST_SLOT + 1, 2)
    assert bytes(ring.upload(large).numpy()) == bytes(large)
    assert ring.depth == 1
    assert [len(slot) for slot in device.pinned] == [SMALLEST_SLOT, 2 * SMALLEST_SLOT]
    assert bytes(device.pinned[0][:10].numpy()) == bytes(content(10, 1))


def test_the_payload_belongs_to_the_caller_again_after_the_call():
    payload = content(10, 1)
    uploaded = PinnedRing(HeldDevice()).upload(payload)
    payload[:] = 0
    assert bytes(uploaded.numpy()) == bytes(content(10, 1))


@given(st.lists(st.one_of(st.integers(1, 3 * SMALLEST_SLOT), st.just("pass one"), st.just("pass all")), max_size=30))
def test_ring_keeps_every_upload_in_flight(actions):
    device = HeldDevice()
    ring = PinnedRing(device)
    in_flight, most = [], 0
    for number, action in enumerate(actions):
        if action == "pass all":
            passed, in_flight = in_flight, []
        elif action == "pass one":
            passed, in_flight = in_flight[:1], in_flight[1:]
        else:
            payload = content(action, number)
            ring.upload(payload)
            (slot,) = [slot.memory for slot in ring._slots if slot.last_reader is device.events[-1]]
            in_flight.append((device.events[-1], slot, payload))
            passed = []
        for event, _, _ in passed:
            event.passed = True
        most = max(most, len(in_flight))
        for _, slot, payload in in_flight:
            assert bytes(slot[: len(payload)].numpy()) == bytes(payload)
    assert ring.depth <= most


DTYPES = (np.int32, np.int64, np.float32, np.int8, np.uint8, np.float64)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 40)), max_size=8))
@example([(np.int32, 0)])
def test_packed_arrays_come_back_aligned_with_their_types(shapes):
    arrays = [np.random.default_rng(i).integers(0, 100, size).astype(dtype) for i, (dtype, size) in enumerate(shapes)]
    upload, ring = PackedUpload(), PinnedRing(Device("cpu"))
    tickets = [upload.add(array) for array in arrays]
    upload.send(ring)
    assert ring.depth == any(len(array) for array in arrays)
    for ticket, array in zip(tickets, arrays, strict=True):
        view = upload.view(ticket)
        assert view.dtype == torch.from_numpy(array).dtype
        assert view.storage_offset() * view.element_size() % ALIGNMENT == 0
        assert np.array_equal(view.numpy(), array)


def test_packed_arrays_may_be_strided_or_of_any_shape():
    upload = PackedUpload()
    matrix = np.arange(12, dtype=np.int32).reshape(3, 4)
    tickets = [upload.add(matrix), upload.add(matrix[:, ::2]), upload.add(matrix.T)]
    upload.send(PinnedRing(Device("cpu")))
    for ticket, array in zip(tickets, (matrix, matrix[:, ::2], matrix.T), strict=True):
        assert upload.view(ticket).tolist() == array.ravel().tolist()


def test_a_view_before_the_upload_is_a_mistake():
    upload = PackedUpload()
    ticket = upload.add(np.ones(3, np.int32))
    with pytest.raises(AssertionError, match=r"send\(\) comes before view\(\)"):
        upload.view(ticket)


def make_table(rows=3, columns=8, dtype=torch.int32):
    return StagedWriteTensor(rows, columns, dtype, Device("cpu"), "test table")


def flush(table):
    upload = PackedUpload()
    table.pack(upload)
    upload.send(PinnedRing(Device("cpu")))
    table.apply(upload)


def test_writes_wait_for_the_flush():
    table = make_table()
    table.stage_write(1, 2, [7, 8])
    assert not table.gpu.any()
    flush(table)
    assert table.gpu.tolist() == [[0] * 8, [0, 0, 7, 8, 0, 0, 0, 0], [0] * 8]


def test_a_flush_forgets_what_it_wrote():
    table = make_table()
    table.stage_write(0, 0, [1])
    flush(table)
    table.gpu.zero_()
    flush(table)
    assert not table.gpu.any()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (torch.int32, [-(2**31), 2**31 - 1]),
        (torch.int64, [-(2**63), 2**63 - 1]),
        (torch.float32, [1.5, float("nan")]),
    ],
)
def test_types_of_tables(dtype, values):
    table = make_table(dtype=dtype)
    table.stage_write(2, 6, values)
    flush(table)
    assert torch.equal(table.gpu[2, 6:].nan_to_num(99.0), torch.tensor(values, dtype=dtype).nan_to_num(99.0))
    assert not table.gpu[:2].any()


@pytest.mark.parametrize("length", [SEGMENT_BLOCK - 1, SEGMENT_BLOCK, SEGMENT_BLOCK + 1, 2 * SEGMENT_BLOCK + 3])
def test_segments_longer_than_a_block(length):
    table = make_table(rows=2, columns=2 * SEGMENT_BLOCK + 10)
    table.stage_write(0, 5, range(1, length + 1))
    flush(table)
    row = table.gpu[0].tolist()
    assert row == [0] * 5 + list(range(1, length + 1)) + [0] * (len(row) - 5 - length)
    assert not table.gpu[1].any()


@pytest.mark.parametrize(
    ("row", "start", "length"), [(-1, 0, 1), (3, 0, 1), (0, -1, 1), (0, 0, 9), (2, 8, 1), (1, 9, 0)]
)
def test_a_write_that_leaves_its_row_is_refused_whole(row, start, length):
    table = make_table()
    with pytest.raises(StepError) as caught:
        table.stage_write(row, start, [1] * length)
    assert "test table" in caught.value.subject
    flush(table)
    assert not table.gpu.any()


@pytest.mark.parametrize(("start", "length"), [(0, 8), (7, 1), (8, 0), (0, 0)])
def test_a_write_may_fill_its_row_to_the_end(start, length):
    table = make_table()
    table.stage_write(2, start, [1] * length)
    flush(table)
    assert int(table.gpu.sum()) == length


class LaunchCounter:
    """Stands where the kernel is and counts launches."""

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *args, **kwargs: None


def test_an_empty_flush_uploads_and_launches_nothing(monkeypatch):
    counter = LaunchCounter()
    monkeypatch.setattr(staging, "apply_staged_writes", counter)
    table, ring = make_table(), PinnedRing(Device("cpu"))
    for staged in (False, True, False):
        if staged:
            table.stage_write(0, 0, [1, 2])
            table.stage_write(1, 3, [4])
        upload = PackedUpload()
        table.pack(upload)
        upload.send(ring)
        table.apply(upload)
        table.apply(upload)
    assert counter.grids == [(2,)]
    assert ring.depth == 1


segments = st.lists(
    st.integers(0, 15).flatmap(
        lambda start: st.tuples(st.just(start), st.lists(st.integers(1, 9), min_size=1, max_size=16 - start))
    ),
    min_size=1,
    max_size=8,
)


@given(segments)
@settings(max_examples=200)
def test_overlaps_are_resolved_before_the_launch(writes):
    """A GPU runs the programs of a launch in any order, so no two segments may touch one element."""
    expected, row, touched = np.zeros(16, np.int32), np.zeros(16, np.int32), np.zeros(16, int)
    for start, values in writes:
        expected[start : start + len(values)] = values
    for start, values in _without_overlap([(start, tuple(values)) for start, values in writes]):
        row[start : start + len(values)] = values
        touched[start : start + len(values)] += 1
    assert np.array_equal(row, expected)
    assert touched.max() == 1


@given(st.lists(st.tuples(st.integers(0, 2), segments), min_size=1, max_size=4))
@settings(max_examples=25)
def test_the_last_write_wins_in_every_row(writes):
    table, expected = make_table(columns=16), np.zeros((3, 16), np.int32)
    for row, staged in writes:
        for start, values in staged:
            table.stage_write(row, start, values)
            expected[row, start : start + len(values)] = values
    flush(table)
    assert np.array_equal(table.gpu.numpy(), expected)
