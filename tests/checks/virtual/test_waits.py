"""Which calls make the host wait: the table of synchronous calls that was measured on hardware, call by call."""

import copy
import math
import pickle

import pytest
import torch

from mrv2.checks.events import SyncKind
from mrv2.checks.semantics import isin_waits
from mrv2.checks.virtual import virtual_device

from .conftest import codes


def x():
    return torch.arange(8.0, device="cuda")


def ones():
    return torch.ones((), device="cuda")


WAITS = {
    "item": lambda a, i: a[0].item(),
    "tolist": lambda a, i: a.tolist(),
    "cpu": lambda a, i: a.cpu(),
    "to cpu": lambda a, i: a.to("cpu"),
    "bool": lambda a, i: bool(a[0]),
    "int": lambda a, i: int(a[0]),
    "float": lambda a, i: float(a[0]),
    "format": lambda a, i: f"{a[0]:.1f}",
    "str": lambda a, i: str(a),
    "repr": lambda a, i: repr(a),
    "range": lambda a, i: range(i[0]),
    "math": lambda a, i: math.sqrt(a[0]),
    "pickle": lambda a, i: pickle.dumps(a),
    "tensor": lambda a, i: torch.tensor([1.0], device="cuda"),
    "new_tensor": lambda a, i: a.new_tensor([1.0]),
    "arange of a device number": lambda a, i: torch.arange(i[1], device="cuda"),
    "alpha of a device number": lambda a, i: torch.add(a, a, alpha=a[1]),
    "element = number": lambda a, i: a.__setitem__(3, 2.0),
    "list index": lambda a, i: a[[1, 2]],
    "host index": lambda a, i: a[torch.tensor([1, 2])],
    "pinned index": lambda a, i: a[torch.tensor([1, 2]).pin_memory()],
    "host index write": lambda a, i: a.__setitem__(torch.tensor([1, 2]), a[:2] + 1),
    "device index = number": lambda a, i: a.__setitem__(i, 1.0),
    "mask": lambda a, i: a[a > 2],
    "mask = device number": lambda a, i: a.__setitem__(a > 2, ones()),
    "slice = host tensor": lambda a, i: a.__setitem__(slice(3), torch.zeros(3)),
    "0-dim device index": lambda a, i: a[i[0]],
    "nonzero": lambda a, i: a.nonzero(),
    "where": lambda a, i: torch.where(a > 2),
    "argwhere": lambda a, i: torch.argwhere(a > 2),
    "unique": lambda a, i: a.unique(),
    "unique_consecutive": lambda a, i: a.unique_consecutive(),
    "repeat_interleave": lambda a, i: torch.repeat_interleave(a, i.new_ones(8)),
    "bincount": lambda a, i: i.bincount(),
    "bincount with minlength": lambda a, i: i.bincount(minlength=4),
    "histc": lambda a, i: a.histc(),
    "allclose": lambda a, i: torch.allclose(a, a),
    "equal": lambda a, i: torch.equal(a, a),
    "isin, many": lambda a, i: torch.isin(a, torch.arange(100.0, device="cuda")),
}
DOES_NOT_WAIT = {
    "mask = number": lambda a, i: a.__setitem__(a > 2, 0.0),
    "element = device number": lambda a, i: a.__setitem__(3, ones()),
    "slice = number": lambda a, i: a.__setitem__(slice(3), 2.0),
    "device index = device number": lambda a, i: a.__setitem__(i, ones()),
    "index_fill_": lambda a, i: a.index_fill_(0, i, 1.0),
    "index_put_": lambda a, i: a.index_put_((i,), a[:3].clone()),
    "scatter_": lambda a, i: a.scatter_(0, i, 1.0),
    "masked_scatter": lambda a, i: a.masked_scatter(a > 2, a),
    "masked_fill": lambda a, i: a.masked_fill(a > 2, 1.0),
    "nonzero_static": lambda a, i: torch.nonzero_static(a, size=4),
    "full": lambda a, i: torch.full((3,), 2.0, device="cuda"),
    "multinomial": lambda a, i: a.multinomial(2),
    "sort": lambda a, i: a.sort(),
    "topk": lambda a, i: a.topk(2),
    "cumsum": lambda a, i: a.cumsum(0),
    "randperm": lambda a, i: torch.randperm(4, device="cuda"),
    "isin, few": torch.isin,
    "repeat_interleave with size": lambda a, i: torch.repeat_interleave(a, i.new_ones(8), output_size=8),
    "index": lambda a, i: a[i],
    "allocation": lambda a, i: torch.empty(1 << 20, device="cuda"),
    "pinned allocation": lambda a, i: torch.empty(1 << 16, pin_memory=True),
    "pin_memory": lambda a, i: torch.ones(4).pin_memory(),
    "record_stream": lambda a, i: a.record_stream(torch.cuda.Stream()),
    "is_pinned": lambda a, i: torch.ones(4).is_pinned(),
    "query": lambda a, i: torch.cuda.current_stream().query(),
    "views": lambda a, i: a[2:4].view(2, 1).t().expand(2, 2).shape,
    "host number": lambda a, i: a * torch.tensor(2.0),
    "scaled_dot_product_attention": lambda a, i: torch.nn.functional.scaled_dot_product_attention(
        *(a.view(1, 1, 4, 2),) * 3),
    "deepcopy": lambda a, i: copy.deepcopy(a),
    "data": lambda a, i: a.data.add_(1),
    "one_hot with classes": lambda a, i: a.new_zeros(3, 8).scatter_(1, i.view(3, 1), 1.0),
}  # fmt: skip


@pytest.fixture(params=[False, True], ids=["", "inference"])
def inference(request):
    with torch.inference_mode(request.param):
        yield


def waited(sink, call):
    with virtual_device("late", sink=sink):
        a, i = x(), torch.tensor([1, 5, 2]).cuda()
        before = len(sink.named("sync", 1, SyncKind.IMPLICIT))
        call(a, i)
        return len(sink.named("sync", 1, SyncKind.IMPLICIT)) > before


@pytest.mark.usefixtures("inference")
@pytest.mark.parametrize("row", WAITS)
def test_waits(row, sink):
    assert waited(sink, WAITS[row])


@pytest.mark.usefixtures("inference")
@pytest.mark.parametrize("row", DOES_NOT_WAIT)
def test_does_not_wait(row, sink):
    assert not waited(sink, DOES_NOT_WAIT[row])


@pytest.mark.parametrize("row", ["item", "mask", "nonzero", "device index = number", "slice = host tensor"])
def test_a_wait_is_an_order(vd, row):
    p, a, i = torch.zeros(8, pin_memory=True), x(), torch.tensor([1, 5, 2]).cuda()
    a.copy_(p, non_blocking=True)
    WAITS[row](a, i)
    p.add_(1)
    assert codes(vd) == []


def test_masks_compute_what_they_should(vd):
    a = x()
    a[a > 5] = 0.0
    a[a == 1] = ones()
    a[torch.tensor([2, 3], device="cuda")] = 9.0
    assert a.tolist() == [0, 1, 9, 9, 4, 5, 0, 0] and a[a > 4].tolist() == [9, 9, 5] and codes(vd) == []


def test_isin_rule():
    assert not isin_waits(10, 10) and isin_waits(1000, 100)


def test_operators_without_a_meta_kernel_are_counted(late):
    torch.ones(3, device="cuda") + 1
    assert not late.runtime.without_meta
