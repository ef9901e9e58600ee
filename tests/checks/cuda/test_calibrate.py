"""Calibration, rehearsed on the virtual device: there the table of rules is true."""

import pytest
import torch

from mrv2.checks.cuda import calibrate as module
from mrv2.checks.cuda.calibrate import calibrate
from mrv2.checks.errors import CheckError
from mrv2.checks.sync.probes import FREE, WAITING
from mrv2.checks.sync.waits import WaitKind


def test_on_the_virtual_device_nothing_differs(warning_device, monkeypatch):
    monkeypatch.setattr(module, "WAITING", {name: WAITING[name] for name in ("item", "empty_cache", "histc")})
    monkeypatch.setattr(module, "FREE", {name: FREE[name] for name in ("topk", "pin_nb")})
    told = []
    with warning_device() as device:
        measured = calibrate(lambda: told.append(None), device=device)
        assert device.mode == 0
    assert [(one.name, one.waits, one.warns, one.codes) for one in measured] == [
        ("item", True, True, ("MRV101",)),
        ("empty_cache", True, False, ("MRV106",)),
        ("histc", True, True, ("MRV109",)),
        ("topk", False, False, ()),
        ("pin_nb", False, False, ()),
    ]
    assert all(one.as_in_table and one.trapped for one in measured) and len(told) == 10


def test_a_wrong_table_and_a_blind_trap_are_seen(warning_device, monkeypatch):
    monkeypatch.setattr(module, "WAITING", {"topk": FREE["topk"]})
    monkeypatch.setattr(module, "FREE", {"histc": WAITING["histc"]})
    with warning_device(silent=[WaitKind.INSIDE]) as device:
        wrong, missed = calibrate(device=device)
    assert not wrong.as_in_table and wrong.trapped
    assert not missed.as_in_table and not missed.trapped


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_is_refused():
    with pytest.raises(CheckError, match="there must be a CUDA device"):
        calibrate()
