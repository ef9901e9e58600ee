"""Calls that no operator shows as what they are: functions for each element, and conversions called by their name."""

import pytest
import torch

from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.tensor import DeviceTensor

from .conftest import codes

_aten = torch.ops.aten
ELEMENTWISE = {
    "apply_": lambda host: host.apply_(lambda value: value + 1),
    "map_": lambda host: host.map_(torch.ones(4), lambda value, one: value + one),
    "map2_": lambda host: host.map2_(torch.ones(4), torch.ones(4), lambda value, one, two: value + one * two),
}
READING = {
    "map_": lambda host: torch.zeros(4).map_(host, lambda zero, value: value),
    "map2_": lambda host: torch.zeros(4).map2_(torch.zeros(4), host, lambda zero, one, value: value),
}
CPU = torch.device("cpu")
#: Downloads that need not be waited for.
DOWNLOADS = {
    "_to_copy.default": lambda x: _aten._to_copy.default(x, device="cpu", non_blocking=True),
    "_to_copy": lambda x: _aten._to_copy(x, device=CPU, non_blocking=True),
    "to.device": lambda x: _aten.to.device(x, CPU, torch.float32, True),
    "to.dtype_layout": lambda x: _aten.to.dtype_layout(x, dtype=torch.float32, device=CPU, non_blocking=True),
    "to.other": lambda x: _aten.to.other(x, torch.zeros(1), True),
    "to": lambda x: _aten.to(x, CPU, torch.float32, True),
    "Tensor.to": lambda x: x.to("cpu", non_blocking=True),
}
#: Those that wait.
BLOCKING = {
    "_to_copy.default": lambda x: _aten._to_copy.default(x, device="cpu"),
    "to.other": lambda x: _aten.to.other(x, torch.zeros(1)),
    "type_as": lambda x: x.type_as(torch.zeros(1)),
    "type": lambda x: x.type(torch.FloatTensor),
    "type by name": lambda x: x.type("torch.FloatTensor"),
}
UPLOADS = {
    "_to_copy.default": lambda h: _aten._to_copy.default(h, device="cuda", non_blocking=True),
    "to.device": lambda h: _aten.to.device(h, torch.device("cuda"), torch.float32, True),
    "to.other": lambda h: _aten.to.other(h, torch.zeros(1, device="cuda"), True),
}
WITHIN = {
    "_to_copy.default": lambda x: _aten._to_copy.default(x, dtype=torch.float64),
    "_to_copy to itself": lambda x: _aten._to_copy.default(x, device="cuda", dtype=torch.float64),
    "to.other": lambda x: _aten.to.other(x, torch.zeros(1, device="cuda", dtype=torch.float64)),
    "type_as": lambda x: x.type_as(torch.zeros(1, device="cuda", dtype=torch.float64)),
    "double": lambda x: x.double(),
}


def downloaded():
    host = torch.zeros(4, pin_memory=True)
    host.copy_(torch.ones(4, device="cuda"), non_blocking=True)
    return host


@pytest.mark.parametrize("name", ELEMENTWISE)
class TestEachElement:
    def test_a_pending_download_is_read(self, vd, name):
        ELEMENTWISE[name](downloaded())
        assert "MRV203" in codes(vd)

    def test_a_pending_source_is_written(self, vd, name):
        host = torch.zeros(4, pin_memory=True)
        data = host.to("cuda", non_blocking=True)
        ELEMENTWISE[name](host)
        assert codes(vd) == ["MRV201"]
        del data

    def test_after_a_wait_it_is_right(self, vd, name):
        host = downloaded()
        torch.cuda.synchronize()
        assert ELEMENTWISE[name](host).tolist() == [2.0] * 4
        assert codes(vd) == []

    def test_a_tensor_of_the_device_is_refused_as_by_torch(self, late, name):
        with pytest.raises(TypeError, match="only implemented on CPU tensors"):
            ELEMENTWISE[name](torch.zeros(4, device="cuda"))


@pytest.mark.parametrize("name", READING)
def test_the_other_tensors_are_read(vd, name):
    host = downloaded()
    READING[name](host)
    assert codes(vd) == ["MRV203"]


@pytest.mark.parametrize("name", DOWNLOADS)
class TestDownloads:
    def test_they_are_pinned_and_must_be_waited_for(self, vd, name):
        host = DOWNLOADS[name](torch.ones(4, device="cuda"))
        assert (host.device, host.is_pinned()) == (CPU, True)
        host.tolist()
        assert codes(vd) == ["MRV203"]

    def test_after_a_wait_they_are_right(self, vd, name):
        host = DOWNLOADS[name](torch.ones(4, device="cuda"))
        torch.cuda.synchronize()
        assert host.tolist() == [1.0] * 4
        assert codes(vd) == []


@pytest.mark.parametrize("name", BLOCKING)
def test_downloads_that_wait(vd, name):
    host = BLOCKING[name](torch.ones(4, device="cuda"))
    assert (host.device, host.is_pinned(), host.tolist()) == (CPU, False, [1.0] * 4)
    assert codes(vd) == []


@pytest.mark.parametrize("name", UPLOADS)
def test_uploads_read_their_source_later(vd, name):
    host = torch.zeros(4, pin_memory=True)
    data = UPLOADS[name](host)
    assert type(data) is DeviceTensor
    host.add_(1)
    assert codes(vd) == ["MRV201"]


@pytest.mark.parametrize("name", WITHIN)
def test_conversions_on_the_device_stay_there(vd, name):
    data = WITHIN[name](torch.ones(4, device="cuda"))
    assert (type(data), data.dtype, data.tolist()) == (DeviceTensor, torch.float64, [1.0] * 4)
    assert codes(vd) == []


def test_ordinary_tensors_are_converted_as_ever():
    with virtual_device("late") as device:
        host = torch.ones(4)
        assert _aten._to_copy.default(host, dtype=torch.float64).dtype is torch.float64
        assert _aten.to(host, CPU, torch.float64).tolist() == [1.0] * 4
        assert host.type_as(torch.zeros(1, dtype=torch.int64)).tolist() == [1] * 4
        assert device.findings == []
