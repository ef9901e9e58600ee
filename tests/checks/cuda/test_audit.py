"""Trap, bounds and recorder of one run on CUDA: what one of them finds does not depend on the others."""

import pytest
import torch
from torch.cuda import _gpu_trace as trace

from mrv2.checks.cuda import audit
from mrv2.checks.cuda.audit import cuda_audit
from mrv2.checks.cuda.callbacks import _trace_state
from mrv2.checks.cuda.memory_account import CudaAccount
from mrv2.checks.hot_path import hot_path
from mrv2.checks.memory import MemoryBoundError, memory_bound
from mrv2.checks.sync.memory import MemoryWatch

from .conftest import virtual_cuda
from .facade import Allocator, for_recorder, recorder_over


def waits():
    """Calls that wait, wrapped by the trap and not, and through ``torch.ops``."""
    x = torch.ones(8, device="cuda")
    with hot_path("decode"):
        torch.nonzero(x)
        torch.histc(x)
        torch.ops.aten.nonzero(x)
        torch.cuda.synchronize()
        x[0].item()


def operations(races):
    with cuda_audit(races=races) as opened:
        waits()
    assert (opened.recorder is not None) is races and opened.races == []
    return [finding.evidence["operation"] for finding in opened.waits]


@pytest.fixture
def gpu(monkeypatch):
    """A device that is played."""
    with for_recorder(), virtual_cuda() as device:
        monkeypatch.setattr(audit, "require_cuda", lambda subject: None)
        monkeypatch.setattr(audit, "CudaDevice", lambda: device)
        monkeypatch.setattr(audit, "race_recorder", lambda **more: recorder_over(device.opened, **more))
        monkeypatch.setattr(audit, "CachingAllocator", lambda index: Allocator(device.opened.runtime))
        yield device


def test_waits_have_the_same_names_beside_a_recorder(gpu):
    assert operations(True) == operations(False) and len(operations(False)) == 5


@pytest.mark.gpu
def test_waits_have_the_same_names_beside_a_recorder_on_a_gpu():
    names = operations(False)
    assert operations(True) == names
    assert names == ["torch.nonzero", "torch.histc", "aten::nonzero", "torch.cuda.synchronize", "Tensor.item"]


def test_a_slow_call_says_nothing_beside_a_recorder(gpu):
    """A clock that leaps by a second in each call: alone it is a full queue."""
    seconds = iter(range(0, 10**15, 10**9))
    gpu.now_ns = lambda: next(seconds)

    def codes(races):
        with cuda_audit(races=races) as opened, hot_path("decode"):
            torch.zeros(4, device="cuda").copy_(torch.zeros(4, pin_memory=True), non_blocking=True)
        return [finding.code for finding in opened.waits]

    assert codes(False) == ["MRV108"] and codes(True) == []


def registered():
    flag = _trace_state()
    return list(trace.MemoryAllocationCallbacks.callback_list), flag is not None and flag.value


def test_torch_calls_back_only_while_a_region_is_open(gpu):
    before = registered()
    with cuda_audit() as opened:
        assert registered() == before
        with memory_bound("outer", bytes=64), memory_bound("inner", bytes=0):
            assert len(registered()[0]) == len(before[0]) + 1
            torch.empty(8, device="cuda")
        assert registered() == before
    (finding,) = opened.waits
    assert finding.evidence["region"] == "inner" and registered() == before


def test_findings_carry_the_step(gpu):
    with cuda_audit(races=True) as opened, memory_bound("decode", bytes=0):
        opened.step(7)
        torch.empty(8, device="cuda")
    assert [finding.step for finding in opened.waits] == [7]


class Mute:
    """An allocator that tells nothing."""

    obstacle = "the allocator is cudaMallocAsync"

    def figures(self):
        return 0, 0


def test_an_allocator_that_tells_nothing_is_refused():
    with MemoryWatch() as watch:
        undo = watch.attach(CudaAccount(Mute()))
        with pytest.raises(MemoryBoundError, match=r"where the allocator is cudaMallocAsync.*caching allocator"):
            memory_bound("decode", bytes=0).__enter__()
        assert watch.entries == {}
        undo()


class Failing:
    obstacle = None
    figures_of = iter([(0, 0)])

    def figures(self):
        return next(self.figures_of)


def test_a_failure_in_a_callback_comes_out_at_the_end_of_the_region():
    with MemoryWatch() as watch:
        undo = watch.attach(CudaAccount(Failing()))
        with pytest.raises(StopIteration), memory_bound("decode", bytes=0):
            trace.MemoryAllocationCallbacks.fire_callbacks(0)
        undo()
