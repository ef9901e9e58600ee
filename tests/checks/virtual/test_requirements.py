"""What an unmodified production runner needed of the device: fourteen requirements, each with a test."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from mrv2.checks.virtual import virtual_device

from .conftest import SCHEDULES, codes


class TestStateOfTheEnqueue:
    """1. Deferred work runs under the inference-mode, autocast and grad state of its enqueue."""

    def test_inference_mode(self, late):
        with torch.inference_mode():
            x = torch.zeros(4, device="cuda")
            x.add_(1)
            y = x * 2
        torch.cuda.synchronize()
        assert y.cpu().tolist() == [2] * 4 and codes(late) == []

    def test_drained_inside_inference_mode(self, late):
        x = torch.zeros(4, device="cuda")
        x.add_(1)
        with torch.inference_mode():
            torch.cuda.synchronize()
            z = x + 1
        assert z.tolist() == [2] * 4 and codes(late) == []

    def test_autocast_of_the_draining_call(self, late):
        a, b = torch.full((4, 4), 1 + 2**-12, device="cuda"), torch.eye(4, device="cuda")
        c = a @ b
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.cuda.synchronize()
        assert c.dtype is torch.float32 and c[0, 0].item() == 1 + 2**-12 and codes(late) == []

    def test_autocast_of_the_enqueue(self, late):
        a, b = torch.full((4, 4), 1 + 2**-12, device="cuda"), torch.eye(4, device="cuda")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = a @ b
        assert c.dtype is torch.bfloat16 and c[0, 0].item() == 1 and codes(late) == []

    @pytest.mark.parametrize("kind", ["cuda", "cpu"])
    def test_autocast_that_names_the_device(self, late, kind):
        a, b = torch.full((4, 4), 1 + 2**-12, device="cuda"), torch.eye(4, device="cuda")
        with torch.autocast(kind, dtype=torch.bfloat16):
            assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") is torch.bfloat16
            with torch.autocast(kind, enabled=False):
                c = a @ b
            d = a @ b
        assert not torch.is_autocast_enabled("cuda")
        assert c.dtype is torch.float32 and d.dtype is torch.bfloat16 and codes(late) == []

    def test_grad_mode(self, late):
        weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
        with torch.no_grad():
            weight.add_(1)
        y = (weight * 3).sum()
        torch.cuda.synchronize()
        assert y.item() == 24 and weight.tolist() == [2] * 4 and codes(late) == []


def test_2_composite_operators_are_decomposed_in_inference_mode(schedule):
    with virtual_device(schedule) as device, torch.inference_mode():
        x = torch.zeros(4, device="cuda")
        x.add_(1)
        y = x.to(torch.float64)  # looks like a view, and is none
        z = x.reshape(2, 2)
        t = z.t().reshape(4)
        h = torch.nn.functional.one_hot(torch.tensor([1, 0], device="cuda"), 3)
        x.add_(1)
        assert y.is_cuda and y.tolist() == [1] * 4
        assert z.tolist() == [[2, 2], [2, 2]] and t.tolist() == [1] * 4 and h.tolist() == [[0, 1, 0], [1, 0, 0]]
        assert codes(device) == []


def test_3_no_address_has_two_owners(late):
    blocks = late.runtime.memory.blocks
    for size in (64, 256, 64, 1024, 128) * 20:
        torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(1)
        torch.empty(size, dtype=torch.uint8, device="cuda").fill_(1)
    bases, ends = late.runtime.blocks()
    assert (bases[1:] >= ends[:-1]).all() and len(bases) == len(list(blocks))
    stale = next(iter(blocks))
    twin = type(stale)(stale.memory, stale.owner, stale.base + 8, 16, stale.space, stale.layout, ())
    blocks.place(twin)
    assert blocks.find(stale.base) is None and blocks.find(stale.base + 8) is twin
    blocks.remove(stale)
    assert blocks.find(stale.base + 8) is twin
    blocks.remove(twin)


def test_4_owners_are_compared_by_identity_and_never_by_value(vd):
    x = torch.zeros(2, device="cuda")
    pinned = torch.zeros(2, pin_memory=True)
    for tensor in (x, x[:1], x.view(2, 1), pinned):
        y = tensor.to("cuda")
        assert y.is_cuda
    assert torch.cat([x, x]).tolist() == [0] * 4 and codes(vd) == []


def test_5_masks_may_be_integers(vd):
    x = torch.arange(4.0, device="cuda")
    with pytest.warns(UserWarning, match="uint8"):
        assert x[torch.tensor([1, 0, 0, 1], dtype=torch.uint8, device="cuda")].tolist() == [0, 3]


def test_6_record_stream_takes_a_virtual_stream_and_counts(schedule):
    for recorded in (False, True):
        with virtual_device(schedule) as device:
            side, x = torch.cuda.Stream(), torch.ones(4, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x + 1
            if recorded:
                x.record_stream(side)
            del x
            torch.zeros(4, device="cuda")
            assert codes(device) == ([] if recorded else ["MRV205"])
            side.synchronize()
            del y


def test_7_drops_of_an_earlier_device_are_ignored():
    with virtual_device("late"):
        old, old_pinned = torch.ones(4, device="cuda"), torch.ones(4, pin_memory=True)
    with virtual_device("late") as device:
        x = torch.ones(4, device="cuda")
        in_use = torch.cuda.memory_allocated()
        del old, old_pinned
        gc.collect()
        x.add_(1)
        assert torch.cuda.memory_allocated() == in_use and x.tolist() == [2] * 4 and codes(device) == []


class TestThreads:
    """8. Thread starts and joins, queues, futures and conditions are edges."""

    def test_start_and_join(self, vd):
        p, d, event = torch.zeros(4, pin_memory=True), torch.ones(4, device="cuda"), torch.cuda.Event()
        p.copy_(d, non_blocking=True)
        event.record()
        thread = threading.Thread(target=event.synchronize)
        thread.start()
        thread.join()
        assert p.tolist() == [1] * 4 and codes(vd) == []

    def test_without_the_join_it_is_a_race(self, vd):
        p, d, event = torch.zeros(4, pin_memory=True), torch.ones(4, device="cuda"), torch.cuda.Event()
        p.copy_(d, non_blocking=True)
        event.record()
        p.tolist()
        assert codes(vd) == ["MRV203"]

    def test_each_thread_has_a_current_stream_and_the_modes(self, vd):
        results = []

        def work():
            x = torch.ones(4).to("cuda")
            results.append((torch.cuda.current_stream().stream_id, x.is_cuda, x.add_(1).tolist()))

        with torch.cuda.stream(torch.cuda.Stream()):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert results == [(0, True, [2] * 4)] * 4 and codes(vd) == []


def test_9_nothing_cached_by_the_program_survives_a_run():
    cache = {}

    def program():
        stream = cache.setdefault("stream", torch.cuda.Stream())
        event = cache.setdefault("event", torch.cuda.Event())
        local = cache.setdefault("local", threading.local())
        local.stream = getattr(local, "stream", None) or torch.cuda.current_stream()
        other = torch.cuda.Stream()
        assert stream != other and stream.stream_id != other.stream_id
        x = torch.ones(4, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.add_(1)
            event.record()
        event.synchronize()
        return x.tolist()

    for _ in range(3):
        with virtual_device("late") as device:
            assert program() == [2] * 4 and codes(device) == []


def test_10_faults_are_recorded_and_survived(schedule):
    with virtual_device(schedule) as device:
        table, index = torch.zeros(4, device="cuda"), torch.tensor([9], device="cuda")
        y = table.index_select(0, index)
        device.step(3)
        z = table.gather(0, index)
        other = torch.ones(4, device="cuda") + 1
        torch.cuda.synchronize()
        assert other.tolist() == [2] * 4
        assert codes(device) == ["MRV214", "MRV214"]
        first, second = device.findings
        assert {first.step, second.step} == {None, 3}
        assert first.where[0].file == Path(__file__).name and "index" in first.evidence["error"]
        del y, z


def test_11_the_programs_last_use_counts_and_not_that_of_pending_work(schedule):
    with virtual_device(schedule) as device:
        p = torch.ones(8, pin_memory=True)
        view = torch.as_tensor(Exported(p), device="cuda")
        out = view * 2
        del p, view
        torch.zeros(1, device="cuda")
        assert codes(device) == ["MRV206"]
        torch.cuda.synchronize()
        del out


def test_12_metadata_is_not_read(vd):
    p, d = torch.zeros(4, pin_memory=True), torch.ones(4, device="cuda")
    p.copy_(d, non_blocking=True)
    alias = p.numpy()
    assert alias.shape == (4,) and alias.dtype == np.float32 and alias.nbytes == 16 and len(alias) == 4
    assert np.may_share_memory(alias, alias[1:]) and p.shape == (4,) and p.stride() == (1,) and p.data_ptr()
    assert torch.empty_like(p).shape == p.new_zeros(4).shape == torch.zeros_like(p).shape
    assert p[1:].view(3, 1).shape == (3, 1) and p.is_pinned() and p.numel() == 4
    assert codes(vd) == []


class TestPinnedAllocator:
    """13. A dropped pinned tensor is protected by streams that copied it alone; freed memory is poisoned in time."""

    def test_copies_protect(self, late):
        p, d = torch.ones(4, pin_memory=True), torch.zeros(4, device="cuda")
        d.copy_(p, non_blocking=True)
        del p
        torch.zeros(1, device="cuda")
        assert d.tolist() == [1] * 4 and codes(late) == []

    def test_kernels_do_not(self, late):
        p = torch.ones(4, pin_memory=True)
        out = torch.as_tensor(Exported(p), device="cuda") + 0
        del p
        torch.zeros(1, device="cuda")
        assert out.tolist() != [1] * 4 and codes(late) == ["MRV206"]

    @pytest.mark.parametrize("first", ["copy", "kernel"])
    def test_a_stream_that_copies_protects_its_kernels_too(self, late, first):
        p, d = torch.ones(4, pin_memory=True), torch.zeros(4, device="cuda")
        if first == "copy":
            d.copy_(p, non_blocking=True)
        out = torch.as_tensor(Exported(p), device="cuda") + 0
        if first == "kernel":
            d.copy_(p, non_blocking=True)
        del p
        torch.zeros(1, device="cuda")
        assert codes(late) == []
        assert d.tolist() == [1] * 4 and out.tolist() == [1] * 4, "poisoned before the stream had come so far"

    def test_and_no_other_stream(self, late):
        p = torch.ones(4, pin_memory=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.zeros(4, device="cuda").copy_(p, non_blocking=True)
            torch.cuda.synchronize()
        out = torch.as_tensor(Exported(p), device="cuda") + 0
        del p
        torch.zeros(1, device="cuda")
        assert out.tolist() != [1] * 4 and codes(late) == ["MRV206"]


class TestMemoryIsBounded:
    """14. Pruning goes on while several host threads live, and every report carries the step."""

    def test_with_an_idle_thread(self, late):
        stop, started = threading.Event(), threading.Event()

        def idle():
            torch.ones(4, device="cuda").add_(1)
            started.set()
            stop.wait()

        thread = threading.Thread(target=idle)
        thread.start()
        started.wait()
        x, p = torch.zeros(64, device="cuda"), torch.zeros(64, pin_memory=True)
        kept = []
        for step in range(400):
            late.step(step)
            x.add_(1)
            p.copy_(x, non_blocking=True)
            torch.cuda.synchronize()
            kept.append(len(list(late.runtime.memory.blocks)))
        stop.set()
        thread.join()
        assert codes(late) == [] and max(kept[200:]) <= max(kept[:200])
        assert not late.runtime.memory._withheld

    def test_reports_carry_the_step(self, schedule):
        with virtual_device(schedule) as device:
            p, d = torch.zeros(4, pin_memory=True), torch.empty(4, device="cuda")
            with device.at_step(41):
                d.copy_(p, non_blocking=True)
            with device.at_step(42):
                p.add_(1)
            assert [finding.step for finding in device.findings] in ([41], [42])


def test_the_same_findings_in_every_schedule():
    """The verdict is a function of what the program asked for; the schedule only supplies the witness."""

    def program():
        p, side = torch.zeros(8, pin_memory=True), torch.cuda.Stream()
        d, x = torch.empty(8, device="cuda"), torch.ones(8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        d.copy_(p, non_blocking=True)
        p[2:].add_(1)
        with torch.cuda.stream(side):
            y = x * 2
        x.add_(1)
        back = y.to("cpu", non_blocking=True)
        back.sum()
        del x
        torch.cuda.synchronize()

    found = set()
    for schedule in SCHEDULES:
        with virtual_device(schedule) as device:
            program()
        found.add(tuple((finding.code, finding.title, finding.where, finding.other) for finding in device.findings))
    assert len(found) == 1 and len(found.pop()) >= 4


class Exported:
    """An object that hands out a host tensor as device memory, as a UVA helper does; it does not keep the tensor."""

    def __init__(self, tensor):
        kind = np.dtype(str(tensor.dtype).removeprefix("torch.")).str
        shape = tuple(tensor.shape)
        self.__cuda_array_interface__ = {"data": (tensor.data_ptr(), False), "shape": shape, "typestr": kind}
