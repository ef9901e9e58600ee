"""The script that splits what the trap costs a decode step, on a device that is played."""

import pytest
import torch
from triton import knobs

from mrv2.checks.cuda import sync_trap
from mrv2.ci.gpu import trap_costs
from mrv2.refrunner.models.config import LlamaConfig

from ..checks.cuda.conftest import virtual_cuda

TINY = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16,
    rope_theta=1e4, rms_norm_eps=1e-6, max_position_embeddings=512, tie_word_embeddings=True,
)  # fmt: skip


@pytest.fixture
def gpu(monkeypatch):
    with virtual_cuda() as device:
        monkeypatch.setattr(sync_trap, "require_cuda", lambda subject: None)
        monkeypatch.setattr(sync_trap, "CudaDevice", lambda: device)
        monkeypatch.setattr(trap_costs, "WARM_UP", 1)
        monkeypatch.setattr(trap_costs, "BLOCK", 2)
        yield device


def test_each_part_is_measured_and_the_whole_trap_is_counted(gpu):
    figures = trap_costs.measure(lambda: trap_costs.decoding(TINY, 2), rounds=1)
    for way in ("ahead of the device", "device idle before each step"):
        assert set(figures[way]["parts"]) == set(trap_costs.PARTS)
        assert all(row["least, ms"] > 0 for row in figures[way]["parts"].values())
        assert figures[way]["parts"]["nothing"]["median, share"] == 0
    calls = figures["calls of the trap in a step"]
    assert calls["CudaTrap._indexing.<locals>.indexing"] > 3
    assert figures["ms from step to step"] > 0
    assert gpu.mode == 0


def test_only_the_parts_that_are_asked_for_are_wrapped(gpu):
    def wrapped():
        methods = torch.Tensor.item, torch.cuda.Event.record
        return [*(hasattr(one, "__wrapped__") for one in methods), bool(knobs.runtime.launch_enter_hook.calls)]

    before = wrapped()
    for name, expected in (
        ("trap without wrappers", [False, False, False]),
        ("trap, calls of the table", [True, False, False]),
        ("trap, Triton launches", [False, False, True]),
        ("trap", [True, True, True]),
    ):
        with trap_costs.PARTS[name]():
            assert [now and not then for now, then in zip(wrapped(), before, strict=True)] == expected, name
        assert wrapped() == before
