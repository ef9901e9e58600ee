"""Triton kernels that are compiled while the device is open."""

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.replay import record_replay

from .conftest import codes


@triton.jit
def fill(out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), 1.0)


def test_compiling_tells_nothing_so_a_cold_run_and_a_warm_one_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    kernel = type(fill)(fill.fn)

    def program():
        out = torch.zeros(8, device="cuda")
        kernel[(1,)](out, BLOCK=8)
        return out.tolist()

    cold, _ = record_replay(program, {}, "late")
    assert list(tmp_path.rglob("*.so"))
    warm, run = record_replay(program, {}, "late")
    assert (cold.events, cold.sha256) == (warm.events, warm.sha256)
    assert run.findings == ()


@triton.jit
def count(out, BLOCK: tl.constexpr):
    tl.atomic_add(out + tl.arange(0, BLOCK) * 0, 1)


@pytest.mark.parametrize(("streams", "found"), [(1, []), (2, ["MRV204"])])
def test_atomics_need_no_order_within_a_stream_but_between_streams(vd, streams, found):
    """The limit that the page of MRV204 names."""
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    for stream in [torch.cuda.Stream() for _ in range(streams)]:
        with torch.cuda.stream(stream):
            count[(4,)](out, BLOCK=8)
    torch.cuda.synchronize()
    assert out.tolist() == [32 * streams]
    assert codes(vd) == found


@triton.jit
def follow(table, out, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + lane, tl.load(source + lane))


@triton.jit
def beyond(x, out, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out + lane, tl.load(x + lane))


KINDS = ("compiled", "interpreted")


@pytest.mark.parametrize("kernels", KINDS)
def test_no_block_is_named_for_a_stray_pointer_that_was_loaded(kernels):
    """Where the allocator put an argument says nothing about a pointer out of a table."""
    with virtual_device("late", kernels=kernels) as device:
        out, table = torch.zeros(4, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
        table.fill_(max(out.data_ptr(), table.data_ptr()) + 4096)  # in neither of them, and near to one
        torch.cuda.synchronize()
        follow[(1,)](table, out, BLOCK=4)
        torch.cuda.synchronize()
        (finding,) = device.findings
    assert finding.code == "MRV212"
    assert not {"block", "bytes"} & set(finding.evidence)
    assert finding.allocation == ()


@pytest.mark.parametrize("kernels", KINDS)
def test_the_argument_is_named_that_the_lanes_stray_from(kernels):
    with virtual_device("late", kernels=kernels) as device:
        x, out = torch.zeros(4, device="cuda"), torch.zeros(8, device="cuda")
        torch.cuda.synchronize()
        beyond[(1,)](x, out, BLOCK=8)
        torch.cuda.synchronize()
        (finding,) = device.findings
    assert finding.code == "MRV212"
    assert finding.evidence["block"]["size"] == 16
    assert finding.evidence["bytes"] == [16, 32]


@pytest.mark.parametrize("kernels", KINDS)
def test_a_launch_keeps_no_argument_alive(kernels):
    with virtual_device("late", kernels=kernels) as device:
        x, out = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
        beyond[(1,)](x, out, BLOCK=8)
        held = torch.cuda.memory_allocated()
        del x
        device.findings  # noqa: B018 - memory settles
        assert torch.cuda.memory_allocated() == held - 32


def test_a_kernel_runs_when_its_turn_comes():
    with virtual_device("late") as device:
        out = torch.zeros(8, device="cuda")
        fill[(1,)](out, BLOCK=8)
        assert device.runtime.engine.oldest() < device.runtime.engine.submitted
        assert out.tolist() == [1.0] * 8
        assert device.findings == []
