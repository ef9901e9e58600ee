"""Parts of torch.cuda that are not there say so; names imported before a block work; memory has an end."""

import operator

import pytest
import torch
from torch.cuda import StreamContext, graph

from mrv2.checks.virtual import VirtualDeviceError, virtual_device
from mrv2.checks.virtual.errors import UnsupportedOperationError

REFUSED = (
    ("set_sync_debug_mode", "warn"),
    ("set_sync_debug_mode", 2),
    ("memory_snapshot",),
    ("memory.memory_snapshot",),
    ("memory._record_memory_history",),
    ("memory._dump_snapshot", "x"),
    ("caching_allocator_alloc", 64),
    ("memory.change_current_allocator", None),
    ("host_memory_stats",),
    ("utilization",),
    ("current_blas_handle",),
)


@pytest.mark.parametrize("call", REFUSED, ids=str)
def test_what_is_not_there_is_refused_in_four_parts(late, call):
    path, *arguments = call
    with pytest.raises(UnsupportedOperationError) as caught:
        operator.attrgetter(path)(torch.cuda)(*arguments)
    assert caught.value.subject.startswith(f"torch.cuda.{path.rpartition('.')[2]}")
    assert caught.value.rule and caught.value.reason and caught.value.remedy


@pytest.mark.parametrize("name", ["cudaHostRegister", "cudaMemcpy"])
def test_functions_of_cuda_itself_are_refused(late, name):
    with pytest.raises(UnsupportedOperationError, match=name):
        getattr(torch.cuda.cudart(), name)(0, 64, 0)


@pytest.mark.parametrize("kind", ["cuda", "generic"])
def test_events_of_other_processes_are_refused(late, kind):
    event = torch.cuda.Event() if kind == "cuda" else torch.Event("cuda")
    with pytest.raises(UnsupportedOperationError, match="ipc_handle"):
        event.ipc_handle()
    with pytest.raises(UnsupportedOperationError, match="ipc_handle"):
        type(event).from_ipc_handle("cuda:0", b"")


def test_what_does_nothing_here_is_allowed(late):
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.set_sync_debug_mode(0)
    assert torch.cuda.get_sync_debug_mode() == 0
    with torch.cuda.profiler.profile():
        torch.ones(4, device="cuda")
    data = torch.ones(256, device="cuda")
    assert f"{torch.cuda.memory_allocated()} bytes" in torch.cuda.memory_summary()
    del data


def test_the_raw_stream_is_the_pointer_of_the_current_one():
    had = hasattr(torch._C, "_cuda_getCurrentRawStream")
    with virtual_device("late"):
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            pointer = torch.cuda.current_stream().cuda_stream
            assert torch._C._cuda_getCurrentRawStream(0) == pointer != 0
        assert torch._C._cuda_getCurrentRawStream(0) == 0
    assert hasattr(torch._C, "_cuda_getCurrentRawStream") == had


def test_classes_imported_before_the_block_work(vd):
    x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
    captured = torch.cuda.CUDAGraph()
    with graph(captured):
        x.add_(1)
    captured.replay()
    side.wait_stream(torch.cuda.current_stream())
    with StreamContext(side):
        assert torch.cuda.current_stream() == side
        x.add_(1)
    torch.cuda.synchronize()
    assert x.tolist() == [2.0] * 4
    assert vd.findings == []


def test_classes_imported_before_are_torchs_own_again_afterwards():
    before = [vars(kind).get("__new__") for kind in (graph, StreamContext)]
    with virtual_device("late"):
        pass
    assert [vars(kind).get("__new__") for kind in (graph, StreamContext)] == before


def test_more_than_the_device_has_is_torchs_error(late):
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(1 << 40, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1, device="cuda").expand(1 << 40).contiguous()
    assert torch.ones(4, device="cuda").tolist() == [1.0] * 4


def test_a_fraction_is_a_limit(late):
    total = torch.cuda.get_device_properties().total_memory
    torch.cuda.set_per_process_memory_fraction(4096 / total)
    assert torch.cuda.get_per_process_memory_fraction() == 4096 / total
    data = torch.empty(2048, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(4096, dtype=torch.uint8, device="cuda")
    del data
    torch.empty(4096, dtype=torch.uint8, device="cuda")
    for bad in (2.0, -0.5):
        with pytest.raises(ValueError, match="fraction"):
            torch.cuda.set_per_process_memory_fraction(bad)
    with pytest.raises(TypeError):
        torch.cuda.set_per_process_memory_fraction(1)


def test_an_out_of_memory_error_is_no_error_of_ours(late):
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 40, device="cuda")
    assert not isinstance(caught.value, VirtualDeviceError)
