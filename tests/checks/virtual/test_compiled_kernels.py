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


def test_a_kernel_runs_when_its_turn_comes():
    with virtual_device("late") as device:
        out = torch.zeros(8, device="cuda")
        fill[(1,)](out, BLOCK=8)
        assert device.runtime.engine.oldest() < device.runtime.engine.submitted
        assert out.tolist() == [1.0] * 8
        assert device.findings == []
