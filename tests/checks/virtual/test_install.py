"""Entering replaces CUDA, leaving puts everything back, whatever happened in between."""

import contextlib
import subprocess
import sys
import threading

import pytest
import torch

from mrv2.checks.virtual import StaleObjectError, VirtualDeviceError, virtual_device
from mrv2.checks.virtual.install import Patches, patch_torch
from mrv2.checks.virtual.runtime import Runtime
from mrv2.checks.virtual.schedules import Late

from .conftest import codes


def touched(sink):
    """Every attribute that a device replaces."""
    with contextlib.ExitStack() as stack:
        patches = Patches(stack)
        patch_torch(Runtime(sink, Late(), poison=0), patches)
        return patches.touched


def state(sink):
    values = {}
    for target, name in touched(sink):
        value = vars(target).get(name, "missing")
        values[str(target), name] = value
    values["modes"] = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    return values


class Boom(Exception):
    pass


def normal():
    torch.ones(4, device="cuda").add_(1)


def raises():
    torch.ones(4, device="cuda").add_(1)
    raise Boom


def raises_in_deferred_work():
    table = torch.zeros(4, device="cuda")
    table[torch.tensor(9, device="cuda").view(1)] += 1
    raise Boom


def raises_in_a_capture():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(4, device="cuda").sum().item()


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize("body", [normal, raises, raises_in_deferred_work, raises_in_a_capture, interrupted])
def test_leaving_undoes_every_patch(schedule, sink, body):
    before = state(sink)
    assert len(before) > 60
    with contextlib.suppress(Boom, RuntimeError, KeyboardInterrupt), virtual_device(schedule):
        assert torch.cuda.is_available()
        body()
    assert state(sink) == before
    assert not torch.cuda.is_available()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(2).to("cuda")


def test_torch_remembers_none_of_our_functions():
    with virtual_device("late"), torch.device("cuda"):
        assert torch.tensor([1.0]).is_cuda
        torch.overrides.get_overridable_functions()
    with torch.device("meta"):
        assert torch.tensor([1.0]).is_meta
    assert torch.overrides.is_tensor_method_or_property(torch.Tensor.to)


def test_hooks_are_undone_in_reverse_order(sink):
    undone = []

    def hook(name):
        return lambda runtime: lambda: undone.append((name, runtime.active))

    with pytest.raises(Boom), virtual_device("late", sink=sink, hooks=(hook("first"), hook("second"))):
        raise Boom
    assert undone == [("second", False), ("first", False)]


def test_a_hook_that_fails_leaves_nothing_behind(sink):
    def bad(runtime):
        raise Boom

    before = state(sink)
    with pytest.raises(Boom), virtual_device("late", hooks=(bad,)):
        pass
    assert state(sink) == before
    with virtual_device("late"):
        assert torch.ones(1, device="cuda").item() == 1


def test_nesting_is_refused_in_four_parts():
    with virtual_device("late"):
        with pytest.raises(VirtualDeviceError) as caught, virtual_device("early"):
            pass
        assert torch.ones(1, device="cuda").item() == 1
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy))


def test_an_unknown_schedule_is_refused():
    with pytest.raises(VirtualDeviceError, match="late, early"), virtual_device("someday"):
        pass


def test_a_tensor_of_an_earlier_device_is_refused():
    with virtual_device("late"):
        old = torch.ones(4, device="cuda")
    assert "gone" in repr(old)
    with pytest.raises(StaleObjectError, match="virtual_device block"):
        old + 1
    with virtual_device("late") as device:
        fresh = torch.ones(4, device="cuda")
        for use in (
            lambda: old + 1, lambda: fresh.copy_(old), old.cpu, lambda: old.to("cpu"), old.sum,
            lambda: torch.cat([fresh, old]), lambda: old[1:], lambda: old.record_stream(torch.cuda.Stream()),
        ):  # fmt: skip
            with pytest.raises(StaleObjectError):
                use()
        assert fresh.tolist() == [1] * 4 and codes(device) == []
        assert torch.cuda.memory_allocated() == 16


def test_graphs_of_an_earlier_device_are_refused():
    with virtual_device("late"):
        x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
    with virtual_device("late"):
        with pytest.raises(RuntimeError, match="virtual_device block"):
            graph.replay()
        del graph
        assert torch.ones(1, device="cuda").item() == 1


def test_work_left_over_runs_before_the_end(schedule):
    with virtual_device(schedule):
        target = torch.zeros(4, pin_memory=True)
        target.copy_(torch.ones(4, device="cuda"), non_blocking=True)
    assert target.tolist() == [1] * 4


def test_names_imported_before(schedule):
    program = (
        "from torch.cuda import Event, Stream\n"
        "import torch\n"
        "from mrv2.checks.virtual import virtual_device\n"
        f"with virtual_device({schedule!r}) as device:\n"
        "    side, event, x = Stream(), Event(), torch.zeros(4, device='cuda')\n"
        "    event.record()\n"
        "    side.wait_event(event)\n"
        "    with torch.cuda.stream(side):\n"
        "        x.add_(1)\n"
        "    side.synchronize()\n"
        "    assert x.tolist() == [1] * 4 and device.findings == []\n"
    )
    if schedule == "late":
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_importing_is_cheap_and_changes_nothing():
    program = (
        "import mrv2.checks.virtual, torch, sys\n"
        "assert not torch.cuda.is_available()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "with mrv2.checks.virtual.virtual_device('late'):\n"
        "    x = torch.ones(4, 4, device='cuda').add_(1)\n"
        "    ((x + x) @ x).softmax(-1).argmax(-1).tolist()\n"
        "assert 'torch._dynamo' not in sys.modules, 'the compiler takes seconds to import'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_enter_thread_gives_lane_and_modes(sink):
    with virtual_device("late", sink=sink) as device:
        lanes = [device.runtime.host_lane()]

        def work():
            with device.runtime.enter_thread():
                lanes.append(device.runtime.host_lane())
                assert torch.ones(2).to("cuda").is_cuda
                assert torch.cuda.current_stream().stream_id == 0

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert lanes[0] != lanes[1]
        assert ((lanes[1],), {}) in sink.named("end_lane")


def test_a_thread_without_modes_may_still_compute(late):
    x, results = torch.ones(4, device="cuda"), []
    thread = threading.Thread(target=lambda: results.append((x * 2).cpu().tolist()))
    thread.start()
    thread.join()
    assert results == [[2] * 4]


def test_what_the_program_asks_about_the_device(late):
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (9, 0) and torch.cuda.get_device_properties(0).total_memory > 0
    assert torch.cuda.get_device_name() and torch.cuda.is_bf16_supported()
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "cuda"
    assert torch.accelerator.device_count() == 1 and torch.accelerator.current_device_index() == 0
    torch.cuda.set_device(0)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(1)
    with torch.cuda.device(0):
        assert torch.ones(1, device="cuda").is_cuda
    with torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.range_push("inner")
        torch.cuda.nvtx.range_pop()
    torch.cuda._sleep(1000)
    torch.cuda.empty_cache()
    torch.accelerator.synchronize()
    assert torch.get_device_module("cuda") is torch.cuda


def test_generators(vd):
    a, b = torch.Generator(device="cuda"), torch.Generator(device="cuda")
    assert a.device.type == "cuda" and isinstance(a, torch.Generator) and torch.Generator().device.type == "cpu"
    a.manual_seed(3)
    b.manual_seed(3)
    first = torch.rand(4, device="cuda", generator=a)
    assert torch.equal(first, torch.rand(4, device="cuda", generator=b))
    state = a.get_state()
    second = torch.empty(4, device="cuda").exponential_(generator=a)
    a.set_state(state)
    assert torch.equal(second, torch.empty(4, device="cuda").exponential_(generator=a))
    assert not torch.equal(first, torch.rand(4, device="cuda", generator=a))
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(4, device="cuda", generator=torch.Generator())
    torch.manual_seed(5)
    x = torch.randn(4, device="cuda")
    torch.cuda.manual_seed(5)
    assert torch.equal(x, torch.randn(4, device="cuda")) and torch.cuda.initial_seed() == 5


def test_random_numbers_do_not_depend_on_the_schedule_nor_touch_the_host_generator():
    results = set()
    for schedule in ("late", "early", "random:0", "random:1", "starve:0"):
        torch.manual_seed(1)
        with virtual_device(schedule):
            torch.cuda.manual_seed(7)
            side, a = torch.cuda.Stream(), torch.empty(3, device="cuda").exponential_()
            with torch.cuda.stream(side):
                b = torch.rand(3, device="cuda")
            c = torch.nn.functional.dropout(torch.ones(8, device="cuda"))
            torch.cuda.synchronize()
            results.add(str([a.tolist(), b.tolist(), c.tolist(), torch.rand(2).tolist()]))
    assert len(results) == 1
