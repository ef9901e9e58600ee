"""Kernels that cannot be compiled for the CPU: the interpreter takes over."""

from __future__ import annotations

import warnings

import pytest
import torch

from mrv2.checks.triton_cpu import InterpretedKernel, enabled, prepared
from mrv2.checks.triton_cpu.errors import Unsupported

from .test_enable import add, annotated, fills, fresh, halves, last_program_wins, numbers, through_table


@pytest.fixture
def unsupported(monkeypatch):
    """No kernel can be compiled."""

    def refuse(variant, **options):
        raise Unsupported("operation tt.strange")

    monkeypatch.setattr(prepared, "compiled", refuse)


def test_the_interpreter_takes_over_with_one_notice(unsupported):
    kernel = annotated(add)
    x, y, out = numbers()
    with enabled() as session, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            kernel[(2,)](x, y, out, 100, BLOCK=64)
        kernel[(4,)](x, y, out, 100, BLOCK=32)
    assert torch.equal(out, x + y)
    (notice,) = said
    assert notice.category is InterpretedKernel
    assert "kernel add runs in Triton's interpreter" in str(notice.message)
    assert "tt.strange" in str(notice.message)
    assert notice.filename == __file__
    assert session.findings == []


@pytest.mark.filterwarnings("ignore::mrv2.checks.triton_cpu.fallback.InterpretedKernel")
def test_the_interpreter_finds_conflicts_and_keeps_the_order(unsupported):
    out = torch.zeros(1, dtype=torch.int32)
    with enabled(order="reverse") as session:
        fresh(last_program_wins)[(3,)](out)
    assert [finding.code for finding in session.findings] == ["MRV211"]
    assert out.item() == 0


@pytest.mark.filterwarnings("ignore::mrv2.checks.triton_cpu.fallback.InterpretedKernel")
def test_the_interpreter_finds_lanes_outside_and_leaves_them_out(unsupported):
    memory = torch.full((16,), 7.0)
    with enabled() as session:
        annotated(fills)[(1,)](torch.from_numpy(memory.numpy()[:8]), VALUE=1, BLOCK=16)
    assert memory.tolist() == [1.0] * 8 + [7.0] * 8
    (finding,) = session.findings
    assert (finding.code, finding.evidence["bytes"], finding.evidence["lanes"]) == ("MRV212", [32, 64], 8)


@pytest.mark.filterwarnings("ignore::mrv2.checks.triton_cpu.fallback.InterpretedKernel")
def test_the_interpreter_follows_pointers_from_memory(unsupported):
    target, out = torch.tensor([5], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with enabled() as session:
        fresh(through_table)[(1,)](torch.tensor([target.data_ptr()]), out)
    assert (out.item(), session.findings) == (5, [])


@pytest.mark.filterwarnings("ignore::mrv2.checks.triton_cpu.fallback.InterpretedKernel")
@pytest.mark.parametrize("check", [True, False])
def test_the_interpreter_fills_masked_lanes_too(unsupported, check):
    x, out = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    kernel = annotated(halves)
    for byte in (0, 0x7F):
        with enabled(check=check, masked_lanes=byte):
            kernel[(1,)](x, out, BLOCK=8)
        assert out.tolist() == [0, 1, 2, 3] + [byte * 0x01010101] * 4


@pytest.mark.filterwarnings("ignore::mrv2.checks.triton_cpu.fallback.InterpretedKernel")
def test_without_a_compiler_everything_is_interpreted(monkeypatch):
    monkeypatch.setenv("CC", "nosuchcc")
    x, y, out = numbers()
    with enabled():
        annotated(add)[(2,)](x, y, out, 100, BLOCK=64)
    assert torch.equal(out, x + y)
