"""Operators of extensions: declared once, then they run like torch's own."""

import pytest
import torch

from mrv2.checks.virtual import UnsupportedOperationError, VirtualDeviceError, register_op, uva_view, virtual_device

from .conftest import codes


def _scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def _store(out: torch.Tensor, source: torch.Tensor) -> None:
    out.copy_(source)


def _total(x: torch.Tensor) -> float:
    return x.sum().item()


def _refuse(x: torch.Tensor) -> torch.Tensor:
    raise LookupError(f"not {x.tolist()}")


def _view(x: torch.Tensor) -> torch.Tensor:
    return uva_view(x)


register_op("mrv2_test::scale", _scale, reads=("x",), writes=())
register_op("mrv2_test::store", _store, reads=("source",), writes=("out",))
register_op("mrv2_test::total", _total, reads=("x",), writes=(), syncs=True)
register_op("mrv2_test::refuse", _refuse, reads=("x",), writes=(), syncs=True)
register_op("mrv2_test::view_of_pinned", _view, reads=(), writes=())
undeclared = torch.library.Library("mrv2_other", "FRAGMENT")
undeclared.define("mystery(Tensor x) -> Tensor")
undeclared.impl("mystery", lambda x: x + 1, "CPU")


@pytest.mark.parametrize("inference", [False, True])
def test_results(vd, inference):
    with torch.inference_mode(inference):
        x, out = torch.arange(4.0, device="cuda"), torch.zeros(4, device="cuda")
        y = torch.ops.mrv2_test.scale(x, 3.0)
        torch.ops.mrv2_test.store(out, y)
        assert y.is_cuda and out.tolist() == [0, 3, 6, 9]
        assert torch.ops.mrv2_test.total(out) == 18 and codes(vd) == []


def test_work_is_deferred_and_accesses_are_told(late):
    x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    torch.ops.mrv2_test.store(x, y)
    before = late.runtime.engine.oldest()
    with torch.cuda.stream(torch.cuda.Stream()):
        y.add_(1)
    assert before < late.runtime.engine.submitted and codes(late) == ["MRV204"]


def test_pinned_memory_is_read_in_place_and_later(late):
    p, out = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda")
    torch.ops.mrv2_test.store(out, p)
    p.fill_(7)
    assert out.tolist() == [7] * 4 and codes(late) == ["MRV202"]


def test_pageable_memory_is_read_at_the_call(late):
    p, out = torch.zeros(4), torch.zeros(4, device="cuda")
    torch.ops.mrv2_test.store(out, p)
    p.fill_(7)
    assert out.tolist() == [0] * 4 and codes(late) == []


def test_waiting_operator_orders(vd):
    p, x = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda")
    x.copy_(p, non_blocking=True)
    assert torch.ops.mrv2_test.total(x) == 0
    p.add_(1)
    assert codes(vd) == []


def test_what_the_twin_of_a_waiting_operator_raises_is_raised(vd):
    with pytest.raises(LookupError, match=r"not \[1.0, 1.0\]"):
        torch.ops.mrv2_test.refuse(torch.ones(2, device="cuda"))


def test_view_helper(vd):
    p = torch.arange(4.0).pin_memory()
    view = torch.ops.mrv2_test.view_of_pinned(p)
    assert view.is_cuda and view.data_ptr() == p.data_ptr()
    out = view + 1
    p[0] = 5
    assert codes(vd) == ["MRV202"]
    torch.cuda.synchronize()
    assert out.tolist()[1:] == [2, 3, 4]
    with pytest.raises(VirtualDeviceError, match="pinned memory"):
        torch.ops.mrv2_test.view_of_pinned(torch.ones(2))


def test_undeclared(late):
    with pytest.raises(UnsupportedOperationError) as caught:
        torch.ops.mrv2_other.mystery(torch.ones(4, device="cuda"))
    assert "register_op('mrv2_other::mystery'" in caught.value.remedy
    assert torch.ops.mrv2_other.mystery(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("name", "reads"), [("no_namespace", ("x",)), ("aten::add", ("x",)), ("mrv2_test::scale", ("y",))]
)
def test_wrong_declarations(name, reads):
    with pytest.raises(VirtualDeviceError) as caught:
        register_op(name, _scale, reads=reads, writes=())
    assert caught.value.remedy


def test_in_a_graph(vd):
    x, out = torch.arange(4.0, device="cuda"), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ops.mrv2_test.store(out, torch.ops.mrv2_test.scale(x, 2.0))
    x.add_(1)
    graph.replay()
    assert out.tolist() == [2, 4, 6, 8] and codes(vd) == []


def test_outside_of_a_device():
    with virtual_device("late"):
        pass
    with pytest.raises(VirtualDeviceError, match="virtual_device block"):
        uva_view(torch.ones(2))
