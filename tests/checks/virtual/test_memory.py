"""Both allocators, row by row: who may hand a dropped block out while work on it is pending."""

import gc

import numpy as np
import pytest
import torch

from mrv2.checks.events import Space
from mrv2.checks.virtual import virtual_device

from .conftest import codes

POISONED = torch.frombuffer(bytearray([0xFB] * 4), dtype=torch.float32).item()


def side_work(x):
    """Work on ``x`` that a side stream has not yet done."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return side, x * 2


class TestDevice:
    def test_freed_while_used_on_another_stream(self, vd):
        x = torch.ones(4, device="cuda")
        _side, _y = side_work(x)
        del x
        torch.zeros(1, device="cuda")
        assert codes(vd) == ["MRV205"]

    def test_the_side_stream_reads_the_next_owners_bytes(self, late):
        x = torch.ones(4, device="cuda")
        side, y = side_work(x)
        del x
        torch.cuda.default_stream().synchronize()
        side.synchronize()
        with torch.cuda.stream(side):
            assert y.tolist() == [2 * POISONED] * 4

    def test_record_stream(self, vd):
        x = torch.ones(4, device="cuda")
        side, y = side_work(x)
        x.record_stream(side)
        del x
        torch.cuda.default_stream().synchronize()
        side.synchronize()
        with torch.cuda.stream(side):
            assert y.tolist() == [2] * 4
        assert codes(vd) == []

    def test_waiting_before_the_free(self, vd):
        x = torch.ones(4, device="cuda")
        side, y = side_work(x)
        torch.cuda.current_stream().wait_stream(side)
        del x
        assert y.tolist() == [2] * 4 and codes(vd) == []

    def test_the_stream_of_the_allocation_decides(self, vd):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            x = torch.ones(4, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        y = x * 2
        with torch.cuda.stream(side):
            del x
            torch.zeros(1, device="cuda")
        assert codes(vd) == ["MRV205"]
        torch.cuda.synchronize()
        del y

    def test_freed_on_its_own_stream(self, vd):
        total = torch.zeros(4, device="cuda")
        for _ in range(5):
            total += torch.ones(4, device="cuda") * 2
        assert total.tolist() == [10] * 4 and codes(vd) == []

    def test_views_keep_the_block(self, late):
        x = torch.ones(8, device="cuda")
        y = x[2:6].view(2, 2)
        del x
        torch.cuda.synchronize()
        assert y.tolist() == [[1, 1], [1, 1]] and codes(late) == []

    def test_fresh_memory_is_poisoned(self):
        for poison in (0xFB, 0x5A):
            with virtual_device("late", poison=poison):
                fresh = torch.empty(4, dtype=torch.uint8, device="cuda")
                assert fresh.tolist() == [poison] * 4
                assert torch.empty(4, dtype=torch.uint8, pin_memory=True).tolist() == [poison] * 4

    def test_addresses_are_withheld_while_work_is_pending(self, late):
        runtime = late.runtime
        x = torch.ones(4, device="cuda")
        address = x.data_ptr()
        y = x * 2
        del x
        torch.zeros(1, device="cuda")
        assert runtime.find_block(address) is not None
        y.tolist()
        torch.zeros(1, device="cuda")
        block = runtime.find_block(address)
        assert block is None or not block.freed

    def test_accounting(self, late):
        x = torch.empty(1000, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 1000 == torch.accelerator.memory_allocated()
        assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 1000
        free, total = torch.cuda.mem_get_info()
        assert total - free == 1000
        del x
        torch.empty(10, dtype=torch.uint8, device="cuda")
        assert torch.cuda.max_memory_allocated() == 1000
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() < 1000

    def test_cycles_are_freed_by_the_collector(self, late):
        cycle = [torch.ones(4, device="cuda")]
        cycle.append(cycle)
        del cycle
        gc.collect()
        torch.empty(0, device="cuda")
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == 0


SAFE_ALIASES = {
    "copy_": lambda p, d: d.copy_(p, non_blocking=True),
    "to": lambda p, d: p.to("cuda", non_blocking=True),
    "slice": lambda p, d: d[:4].copy_(p[4:], non_blocking=True),
    "view": lambda p, d: d[:7].copy_(p.view(8)[1:], non_blocking=True),
    "from_numpy": lambda p, d: d.copy_(torch.from_numpy(p.numpy()), non_blocking=True),
    "memoryview": lambda p, d: d.copy_(torch.frombuffer(memoryview(p.numpy()), dtype=p.dtype), non_blocking=True),
    "dlpack": lambda p, d: d.copy_(torch.from_dlpack(p), non_blocking=True),
    "conversion": lambda p, d: p.to("cuda", torch.float16, non_blocking=True),
    "foreach": lambda p, d: torch._foreach_copy_([d], [p], non_blocking=True),
}
INTERIOR_ALIASES = {
    "numpy slice": lambda p: torch.from_numpy(p.numpy()[2:]),
    "slice of the alias": lambda p: torch.from_numpy(p.numpy())[2:],
    "alias of a slice": lambda p: torch.from_numpy(p[2:].numpy()),
    "frombuffer": lambda p: torch.frombuffer(memoryview(p.numpy()), dtype=p.dtype, offset=8),
}


class TestPinned:
    @pytest.mark.parametrize("row", SAFE_ALIASES)
    def test_a_pending_torch_copy_protects_the_block(self, vd, row):
        p, d = torch.ones(8, pin_memory=True), torch.zeros(8, device="cuda")
        kept = SAFE_ALIASES[row](p, d)
        del p
        torch.zeros(1, device="cuda")
        result = (kept if isinstance(kept, torch.Tensor) else d).float().max().item()
        assert result == 1 and codes(vd) == []

    @pytest.mark.parametrize("row", INTERIOR_ALIASES)
    def test_an_interior_alias_defeats_the_allocator(self, vd, row):
        p, d = torch.ones(8, pin_memory=True), torch.zeros(6, device="cuda")
        d.copy_(INTERIOR_ALIASES[row](p), non_blocking=True)
        del p
        torch.zeros(1, device="cuda")
        assert codes(vd) == ["MRV206"]

    def test_the_device_gets_the_next_owners_bytes(self, late):
        p, d = torch.ones(8, pin_memory=True), torch.zeros(6, device="cuda")
        d.copy_(torch.from_numpy(p.numpy()[2:]), non_blocking=True)
        del p
        assert d.tolist() == [POISONED] * 6

    def test_a_download_protects_its_target(self, vd):
        p, d = torch.ones(8, pin_memory=True), torch.zeros(8, device="cuda")
        p.copy_(d, non_blocking=True)
        del p
        torch.cuda.synchronize()
        assert codes(vd) == []

    def test_a_download_through_an_interior_alias_does_not(self, vd):
        p, d = torch.ones(8, pin_memory=True), torch.zeros(6, device="cuda")
        torch.from_numpy(p.numpy()[2:]).copy_(d, non_blocking=True)
        del p
        torch.cuda.synchronize()
        assert codes(vd) == ["MRV206"]

    def test_a_kernel_that_reads_in_place_is_not_tracked(self, vd):
        p = torch.ones(8, pin_memory=True)
        d = as_device_view(p) * 2
        del p
        torch.zeros(1, device="cuda")
        assert codes(vd) == ["MRV206"]
        torch.cuda.synchronize()
        del d

    def test_record_stream_of_a_view_does_nothing(self, vd):
        p = torch.ones(8, pin_memory=True)
        view = as_device_view(p)
        view.record_stream(torch.cuda.current_stream())
        d = view * 2
        del p, view
        torch.zeros(1, device="cuda")
        assert codes(vd) == ["MRV206"]
        del d

    def test_record_stream_of_a_pinned_tensor_is_refused(self, late):
        with pytest.raises(NotImplementedError):
            torch.ones(8, pin_memory=True).record_stream(torch.cuda.current_stream())

    def test_a_view_keeps_the_block(self, late):
        p = torch.ones(8, pin_memory=True)
        view = as_device_view(p)
        assert view.is_cuda and not view.is_pinned() and view.data_ptr() == p.data_ptr()
        del p
        assert (view * 2).tolist() == [2] * 8 and codes(late) == []

    def test_a_numpy_alias_keeps_the_block(self, late):
        alias = torch.ones(8, pin_memory=True).numpy()
        d = torch.zeros(8, device="cuda")
        d.copy_(torch.from_numpy(alias), non_blocking=True)
        assert d.tolist() == [1] * 8 and codes(late) == []

    def test_pageable_memory_has_no_device_view(self, late):
        with pytest.raises(RuntimeError, match="pinned memory"):
            torch.as_tensor(Exported(torch.ones(4)), device="cuda")

    def test_in_place_reads_race_with_the_host(self, vd):
        p = torch.ones(8, pin_memory=True)
        d = as_device_view(p) * 2
        p.add_(1)
        assert codes(vd) == ["MRV202"]
        del d

    def test_pinned_tensors_outlive_the_device(self):
        with virtual_device("late"):
            p = torch.arange(4.0, pin_memory=True)
            alias = p.numpy()
        assert p.tolist() == [0, 1, 2, 3] and not p.is_pinned()
        p.add_(1)
        del p
        assert alias.tolist() == [1, 2, 3, 4]

    def test_blocks_are_told_with_their_space(self, sink):
        with virtual_device("late", sink=sink):
            torch.empty(8, pin_memory=True)
            torch.empty(8, device="cuda")
        assert [(args[2], args[3]) for args, _ in sink.named("allocate")] == [(32, Space.PINNED), (32, Space.DEVICE)]


class Exported:
    """An object that hands out a host tensor as device memory, as a UVA helper does."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "typestr": np.dtype(str(tensor.dtype).removeprefix("torch.")).str,
            "strides": None,
            "version": 3,
        }


def as_device_view(tensor):
    return torch.as_tensor(Exported(tensor), device="cuda")
