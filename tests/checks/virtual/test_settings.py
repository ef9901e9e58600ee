"""Settings of the process are those of the call, whenever the work is done."""

from collections.abc import Iterator

import pytest
import torch

from mrv2.checks.virtual import virtual_device

from .conftest import codes


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")


def put(x):
    return x.put_(torch.zeros(1, dtype=torch.int64, device="cuda"), torch.ones(1, device="cuda"))


def test_work_that_is_pending_runs_under_the_old_setting(vd):
    x = torch.zeros(4, device="cuda")
    put(x).add_(1)
    torch.use_deterministic_algorithms(True)
    assert x.tolist() == [2, 1, 1, 1] and codes(vd) == []


def test_work_after_the_change_runs_under_the_new_setting(vd):
    x = torch.zeros(4, device="cuda")
    put(x)
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="deterministic"):
        put(x)
    torch.use_deterministic_algorithms(False)
    put(x).add_(1)
    torch.use_deterministic_algorithms(True)
    torch.cuda.synchronize()
    assert x.tolist() == [2, 1, 1, 1] and codes(vd) == []


def test_settings_made_between_two_devices():
    with virtual_device("late"):
        put(torch.zeros(4, device="cuda"))
    torch.use_deterministic_algorithms(True)
    with virtual_device("late") as device, pytest.raises(RuntimeError, match="deterministic"):
        put(torch.zeros(4, device="cuda"))
    assert codes(device) == []


def test_default_dtype(vd):
    whole = torch.arange(4, device="cuda")
    before = torch.sqrt(whole), whole / 2
    torch.set_default_dtype(torch.float64)
    after = torch.sqrt(whole), whole / 2
    torch.set_default_dtype(torch.float32)
    again = torch.sqrt(whole), whole / 2
    assert {x.dtype for x in (*before, *again)} == {torch.float32} and {x.dtype for x in after} == {torch.float64}
    assert after[0].tolist()[2] == 2**0.5 != before[0].tolist()[2] and codes(vd) == []


@pytest.mark.parametrize("change", [torch.set_float32_matmul_precision, torch.use_deterministic_algorithms])
def test_a_change_orders_nothing(vd, change):
    x, host = torch.zeros(4, device="cuda"), torch.zeros(4, pin_memory=True)
    x.copy_(host, non_blocking=True)
    change("high" if change is torch.set_float32_matmul_precision else True)
    assert vd.runtime.engine.busy() == []
    host.fill_(1)
    assert codes(vd) == ["MRV201"]
