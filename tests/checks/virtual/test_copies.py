"""The copies table of the semantics page, row by row: who waits, and when the host side is read or written.

"Read later" and "old bytes on return" are shown by the late schedule, in which nothing runs that need not.
"""

import copy

import numpy as np
import pytest
import torch

from mrv2.checks.events import SyncKind
from mrv2.checks.virtual import virtual_device

from .conftest import codes


def pinned(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype, pin_memory=True)


def gpu(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="cuda")


def waits(sink, action):
    """Whether an action made the host wait for its stream."""
    before = len(sink.named("sync", 1, SyncKind.IMPLICIT))
    action()
    return len(sink.named("sync", 1, SyncKind.IMPLICIT)) > before


# (name, pinned source, function that uploads it and returns the device tensor)
READ_LATER = {
    "contiguous": lambda: (p := pinned(8, 8), lambda: gpu(8, 8).copy_(p, non_blocking=True)),
    "offset": lambda: (p := pinned(8, 8), lambda: gpu(7, 8).copy_(p[1:], non_blocking=True)),
    "transposed to transposed": lambda: (p := pinned(8, 8), lambda: gpu(8, 8).t().copy_(p.t(), non_blocking=True)),
    "transposed, to": lambda: (p := pinned(8, 8), lambda: p.t().to("cuda", non_blocking=True)),
    "to a gapped target": lambda: (p := pinned(8, 4), lambda: gpu(8, 8)[:, :4].copy_(p, non_blocking=True)),
    "f32 to f16": lambda: (p := pinned(8, 8), lambda: gpu(8, 8, dtype=torch.float16).copy_(p, non_blocking=True)),
    "i32 to i64": lambda: (
        p := pinned(8, dtype=torch.int32), lambda: gpu(8, dtype=torch.int64).copy_(p, non_blocking=True)),
    "to, with type": lambda: (p := pinned(8), lambda: p.to("cuda", torch.float16, non_blocking=True)),
    "cuda()": lambda: (p := pinned(8), lambda: p.cuda(non_blocking=True)),
    "numpy alias": lambda: (p := pinned(8), lambda: gpu(8).copy_(torch.from_numpy(p.numpy()), non_blocking=True)),
    "foreach": lambda: (p := pinned(8), lambda: torch._foreach_copy_([gpu(8)], [p], non_blocking=True)[0]),
}  # fmt: skip
SNAPSHOT = {
    "gapped": lambda: (p := pinned(8, 8), lambda: gpu(8, 4).copy_(p[:, :4], non_blocking=True)),
    "gapped to gapped": lambda: (p := pinned(8, 8), lambda: gpu(8, 8)[:, :4].copy_(p[:, :4], non_blocking=True)),
    "strided": lambda: (p := pinned(8, 8), lambda: gpu(4, 8).copy_(p[::2], non_blocking=True)),
    "transposed to contiguous": lambda: (p := pinned(8, 8), lambda: gpu(8, 8).copy_(p.t(), non_blocking=True)),
    "expanded": lambda: (p := pinned(8, 1), lambda: gpu(8, 8).copy_(p.expand(8, 8), non_blocking=True)),
    "row broadcast": lambda: (p := pinned(1, 8), lambda: gpu(4, 8).copy_(p.expand(4, 8), non_blocking=True)),
    "gapped with conversion": lambda: (
        p := pinned(8, 8), lambda: gpu(8, 4, dtype=torch.float16).copy_(p[:, :4], non_blocking=True)),
    "pageable": lambda: (p := torch.zeros(8), lambda: gpu(8).copy_(p, non_blocking=True)),
    "pageable, to": lambda: (p := torch.zeros(8), lambda: p.to("cuda", non_blocking=True)),
}  # fmt: skip


@pytest.mark.parametrize("row", READ_LATER)
def test_uploads_that_read_later(late, row):
    source, upload = READ_LATER[row]()
    target = upload()
    source.fill_(1)
    assert target.cpu().float().unique().tolist() == [1]
    assert codes(late) == ["MRV201"]


@pytest.mark.parametrize("row", SNAPSHOT)
def test_uploads_that_read_at_the_call(late, row):
    source, upload = SNAPSHOT[row]()
    target = upload()
    source.fill_(1)
    result = target.cpu()
    assert result.float().unique().tolist() == [0]
    assert codes(late) == []


@pytest.mark.parametrize("row", [*READ_LATER, *SNAPSHOT])
def test_no_non_blocking_upload_of_this_size_waits(row, sink):
    with virtual_device("late", sink=sink):
        _, upload = (READ_LATER | SNAPSHOT)[row]()
        assert not waits(sink, upload)


BLOCKING_UPLOADS = {
    "pinned": lambda: gpu(8).copy_(pinned(8)),
    "pageable": lambda: gpu(8).copy_(torch.zeros(8)),
    "slice assignment": lambda: gpu(8).__setitem__(slice(2, 4), pinned(2)),
    "to": lambda: torch.zeros(8).to("cuda"),
    "cuda": lambda: pinned(8).cuda(),
    "tensor": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "as_tensor": lambda: torch.as_tensor(np.zeros(2), device="cuda"),
    "element": lambda: gpu(8).__setitem__(3, 2.0),
    "list index": lambda: gpu(8).__getitem__([1, 2]),
    "host index": lambda: gpu(8).__getitem__(torch.tensor([1, 2])),
    "host index write": lambda: gpu(8).__setitem__(torch.tensor([1, 2]), gpu(2)),
}


@pytest.mark.parametrize("row", BLOCKING_UPLOADS)
def test_blocking_uploads(row, sink):
    with virtual_device("late", sink=sink):
        assert waits(sink, BLOCKING_UPLOADS[row])


def test_staging_is_one_budget(sink):
    def fits(pieces):
        with virtual_device("late", sink=sink):
            x = torch.zeros(1, device="cuda")
            side = torch.cuda.Stream()
            torch.cuda.synchronize()
            marks = []
            for index, size in enumerate(pieces):
                with torch.cuda.stream(side if index % 2 else torch.cuda.default_stream()):
                    source = torch.zeros(size, dtype=torch.uint8)
                    target = torch.empty(size, dtype=torch.uint8, device="cuda")
                    x.add_(1)
                    event = torch.cuda.Event()
                    event.record()
                    marks.append(event._record.mark)
                    target.copy_(source, non_blocking=True)
                    if any(mark.done for mark in marks):
                        return index
            return len(pieces)

    kib = 1 << 10
    assert fits([2048 * kib]) == 1
    assert fits([2048 * kib + 1]) == 0
    assert fits([2048 * kib, 2048 * kib]) == 1
    assert fits([1024 * kib, 1024 * kib, 128 * kib]) == 2
    assert fits([1024 * kib, 1024 * kib, 64 * kib]) == 3
    assert fits([64 * kib] * 70) == 62
    assert fits([32 * kib] * 140) == 124


def test_a_wait_for_staging_space_orders_nothing(late):
    p = pinned(8)
    gpu(8).copy_(p, non_blocking=True)
    gpu(3 << 20, dtype=torch.uint8).copy_(torch.zeros(3 << 20, dtype=torch.uint8), non_blocking=True)
    p.add_(1)
    assert codes(late) == ["MRV201"]


# (target, download into it)
OLD_BYTES = {
    "contiguous": lambda d: (p := pinned(8, 8), lambda: p.copy_(d, non_blocking=True)),
    "from a gapped source": lambda d: (p := pinned(8, 4), lambda: p.copy_(d[:, :4], non_blocking=True)),
    "from a transposed source": lambda d: (p := pinned(8, 8), lambda: p.copy_(d.t(), non_blocking=True)),
    "from another type": lambda d: (p := pinned(8, 8, dtype=torch.float64), lambda: p.copy_(d, non_blocking=True)),
    "row slice": lambda d: (p := pinned(9, 8), lambda: p[1:].copy_(d, non_blocking=True)),
    "foreach": lambda d: (p := pinned(8, 8), lambda: torch._foreach_copy_([p], [d], non_blocking=True)),
}
VALID = {
    "gapped": lambda d: (p := pinned(8, 16), lambda: p[:, :8].copy_(d, non_blocking=True)),
    "transposed": lambda d: (p := pinned(8, 8), lambda: p.t().copy_(d, non_blocking=True)),
    "pageable": lambda d: (p := torch.zeros(8, 8), lambda: p.copy_(d, non_blocking=True)),
    "assignment": lambda d: (p := pinned(8, 8), lambda: p.__setitem__(slice(None), d)),
    "blocking": lambda d: (p := pinned(8, 8), lambda: p.copy_(d)),
}


@pytest.mark.parametrize("row", OLD_BYTES)
def test_downloads_that_arrive_later(late, row):
    target, download = OLD_BYTES[row](torch.ones(8, 8, device="cuda"))
    download()
    assert target.sum().item() == 0
    assert codes(late) == ["MRV203"]
    torch.cuda.synchronize()
    assert target.sum().item() in (32, 64) and codes(late) == ["MRV203"]


@pytest.mark.parametrize("row", VALID)
def test_downloads_that_wait(vd, row):
    target, download = VALID[row](torch.ones(8, 8, device="cuda"))
    download()
    assert target.sum().item() == 64 and codes(vd) == []


LAYOUTS = {
    "contiguous": lambda d: d, "gapped": lambda d: d[:, :4], "transposed": lambda d: d.t(), "strided": lambda d: d[::2],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_cpu_non_blocking_gives_pinned_memory_that_fills_later(late, layout, dtype):
    source = LAYOUTS[layout](torch.ones(8, 8, device="cuda"))
    copy = source.to("cpu", dtype, non_blocking=True)
    assert copy.is_pinned() and not source.cpu().is_pinned() and not source.to("cpu").is_pinned()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert copy.float().sum().item() == copy.numel() and codes(late) == []


def test_reading_to_cpu_non_blocking_early(vd):
    copy = torch.ones(8, device="cuda").to("cpu", non_blocking=True)
    copy.sum().item()
    assert codes(vd) == ["MRV203"]


@pytest.mark.parametrize("pin", [False, True])
def test_a_0_dim_operand_is_read_at_the_call(late, pin):
    scale = torch.tensor(2.0, pin_memory=pin)
    d = torch.ones(4, device="cuda") * scale
    scale.fill_(5)
    assert d.tolist() == [2] * 4 and codes(late) == []


def test_seed_bug(schedule):
    """The bug that this whole project began with."""
    for fixed in (False, True):
        with virtual_device(schedule) as device:
            source, target = torch.zeros(8, pin_memory=True), torch.empty(8, device="cuda")
            target.copy_(source, non_blocking=True)
            if fixed:
                event = torch.cuda.Event()
                event.record()
                event.synchronize()
            source.add_(1)
            result = target.tolist()
            assert codes(device) == ([] if fixed else ["MRV201"])
            if fixed or schedule == "early":
                assert result == [0] * 8
            elif schedule == "late":
                assert result == [1] * 8


def test_disjoint_parts_of_one_buffer(vd):
    source, target = torch.zeros(8, pin_memory=True), torch.empty(4, device="cuda")
    target.copy_(source[:4], non_blocking=True)
    source[4:].add_(1)
    assert target.tolist() == [0] * 4 and codes(vd) == []


def test_what_counts_as_pinned(vd):
    p = torch.zeros(4, 4, pin_memory=True)
    assert p.pin_memory() is p
    for yes in (
        p, torch.from_numpy(p.numpy()), torch.frombuffer(memoryview(p.numpy().reshape(-1)), dtype=torch.float32), p[1:],
        p[:, 1], p.expand(2, 4, 4), p.t(), p.as_strided((2,), (3,)), torch.ones(2).pin_memory(),
        torch.tensor([1.0], pin_memory=True), torch.empty_like(p, pin_memory=True), p.new_empty(2, pin_memory=True),
    ):  # fmt: skip
        assert yes.is_pinned()
    for no in (
        torch.zeros(4), torch.empty(0, pin_memory=True), p.clone(), p + 1, p.t().contiguous(), p.to(torch.float64),
        torch.empty_like(p), p.new_empty(2), copy.deepcopy(p), torch.ones(2, device="cuda"),
    ):  # fmt: skip
        assert not no.is_pinned()
    assert torch.ones(3).pin_memory().tolist() == [1, 1, 1] and torch.full((2,), 7, pin_memory=True).tolist() == [7, 7]
    with pytest.raises(RuntimeError, match="Only dense CPU"):
        torch.empty(2, device="cuda", pin_memory=True)
