"""Code that says ``device="cuda"`` runs unchanged and computes what it would on the host."""

import copy

import numpy as np
import pytest
import torch

from mrv2.checks.virtual import virtual_device


def test_factories_and_views_say_cuda(vd):
    device = torch.device("cuda:0")
    v = torch.arange(12.0, device="cuda").view(3, 4)
    assert v.device == device and v.is_cuda and not v.is_cpu and v[1:].device == device and v.T.device == device
    assert v.get_device() == 0 and v.type() == "torch.cuda.FloatTensor"
    for made in (
        torch.zeros_like(v), v.new_zeros(3), v.new_empty(2), v.new_full((2,), 1.0), torch.zeros(2, device=v.device),
        torch.ones(2, device="cuda:0"), torch.full((2,), 3, device=device), torch.rand(2, device="cuda"),
        torch.linspace(0, 1, 3, device="cuda"), torch.eye(2, device="cuda"), torch.empty_like(v), v.clone(),
        torch.tensor([1, 2], device="cuda"), torch.as_tensor(np.ones(2), device="cuda"), v.new_tensor([1.0]),
        torch.asarray([1, 2], device="cuda"), torch.randint(0, 5, (2,), device="cuda"),
        torch.ones(2).cuda(), torch.ones(2).to("cuda"), torch.ones(2).to(v),
        torch.ones(2).type("torch.cuda.HalfTensor"),
        torch.nn.functional.one_hot(torch.tensor([1, 0], device="cuda")),
    ):  # fmt: skip
        assert made.is_cuda
    for made in (torch.zeros_like(v, device="cpu"), v.cpu(), v.to("cpu"), v.new_zeros(2, device="cpu"), torch.ones(2)):
        assert not made.is_cuda and made.device.type == "cpu"
    assert v[1].data_ptr() - v.data_ptr() == 16
    assert vd.findings == []


def test_values(vd):
    v = torch.arange(12.0, device="cuda").view(3, 4)
    v[0] = 5.0
    v[:, 1] += 1
    v[torch.tensor([1, 2], device="cuda"), 0] = -1.0
    torch.add(v, 1, out=v)
    assert v.tolist() == [[6, 7, 6, 6], [0, 7, 7, 8], [0, 11, 11, 12]]
    assert v[v > 10].cpu().tolist() == [11, 11, 12] and v.nonzero().shape == (10, 2)
    assert (v > 0).any().item() is True and bool(v.sum() > 3) and float(v[0, 0]) == 6
    x = torch.from_numpy(np.ones(4, np.float32)).to("cuda")
    assert (x @ v.T).cpu().tolist() == [25, 22, 34]
    a, b = v.split(2, dim=1)
    a.zero_()
    assert v.cpu()[:, :2].sum() == 0 and b.sum().item() > 0
    values, indices = v.topk(2, dim=1)
    assert values.is_cuda and indices.is_cuda and values.cpu()[2].tolist() == [12, 11]
    assert vd.findings == []


def test_views_that_change_in_place(vd):
    x = torch.arange(4.0, device="cuda")
    y = x.unsqueeze(0)
    z = y * 2
    y.squeeze_()
    assert y.shape == (4,)
    x.resize_(2)
    assert x.shape == (2,) and z.tolist() == [[0, 2, 4, 6]] and y.tolist() == [0, 1, 2, 3]
    x.resize_(6)
    assert x.tolist()[:2] == [0, 1]
    out = torch.empty(0, device="cuda")
    torch.cumsum(y, 0, out=out)
    assert out.tolist() == [0, 1, 3, 6] and vd.findings == []


def test_sides_do_not_mix(vd):
    v = torch.ones(3, 4, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        v + torch.ones(3, 4)
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([v, torch.ones(3, 4)])
    assert (v + torch.tensor(1.0)).sum().item() == 24
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        v.numpy()
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        np.asarray(v)
    with pytest.raises(RuntimeError, match="only dense CPU"):
        v.pin_memory()
    with pytest.raises(RuntimeError, match="indices should be"):
        torch.ones(3)[torch.tensor([1], device="cuda")]
    for make in (lambda: torch.ones(2, device="cuda:1"), lambda: v.to("cuda:1"), lambda: torch.ones(2).to("cuda:1")):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            make()
    with pytest.raises(RuntimeError, match=r"[Ss]hape|size"):
        v + torch.ones(5, device="cuda")
    with pytest.raises(RuntimeError, match=r"[Ss]hape|size"):
        v.add_(torch.ones(5, device="cuda"))


def test_modules(vd):
    torch.manual_seed(0)
    made = torch.nn.Linear(4, 4, device="cuda")
    assert made.weight.is_cuda and isinstance(made.weight, torch.nn.Parameter)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    x = torch.ones(2, 4)
    with torch.no_grad():
        expected = module(x)
        module.to("cuda")
        assert module[0].weight.is_cuda
        assert torch.allclose(module(x.cuda()).cpu(), expected, atol=1e-6)
        module[0].weight.data = torch.zeros(8, 4, device="cuda")
        module[0].weight.data.copy_(torch.ones(8, 4))
        assert module[0].weight.sum().item() == 32
        twin = copy.deepcopy(module)
        twin[0].weight.zero_()
        assert twin[0].weight.is_cuda and module[0].weight.sum().item() == 32
        module.cpu()
        assert not module[0].weight.is_cuda and module[0].weight.sum().item() == 32
    assert vd.findings == []


def test_tensors_of_tensors(vd):
    v = torch.tensor([1.5, 2.0], device="cuda")
    assert torch.tensor([v[0], v[1], 3.0]).tolist() == [1.5, 2, 3]
    assert torch.stack([v, v]).tolist() == [[1.5, 2], [1.5, 2]] and torch.tensor(v).is_cuda
    w = torch.zeros(3, device="cuda")
    w.set_(v)
    v.add_(1)
    assert w.tolist() == [2.5, 3] and vd.findings == []


def test_parts_of_torch_that_are_written_in_python(vd):
    rows, columns = torch.unravel_index(torch.tensor([3, 5], device="cuda"), (2, 4))
    assert rows.is_cuda and columns.tolist() == [3, 1]
    x = torch.arange(4.0, device="cuda").view(1, 1, 4)
    assert torch.nn.functional.pad(x, (1, 1), mode="circular").tolist() == [[[3, 0, 1, 2, 3, 0]]]
    loss = torch.nn.functional.binary_cross_entropy
    assert loss(x / 4, x / 4).item() == loss(x.cpu() / 4, x.cpu() / 4).item()
    assert [part.tolist() for part in torch.unsafe_split(x[0, 0], 2)] == [[0, 1], [2, 3]]
    assert vd.findings == []


def test_copies_of_the_object(vd):
    v = torch.arange(4.0, device="cuda")
    shallow, deep = copy.copy(v), copy.deepcopy(v)
    v.add_(1)
    assert shallow.is_cuda and deep.is_cuda and shallow.tolist() == [1, 2, 3, 4] and deep.tolist() == [0, 1, 2, 3]


def test_a_training_step_is_that_of_the_host(schedule):
    def train(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, target = torch.arange(32.0).view(4, 8).to(device) / 32, torch.arange(4).to(device)
        for _ in range(3):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x), target).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        return {name: value.cpu().tolist() for name, value in model.state_dict().items()}

    expected = train("cpu")
    with virtual_device(schedule) as device:
        assert train("cuda") == expected and device.findings == []


def test_backward(vd):
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    (weight * torch.arange(4.0, device="cuda")).sum().backward()
    assert weight.grad.is_cuda and weight.grad.tolist() == [0, 1, 2, 3] and vd.findings == []


def test_default_device(vd):
    with torch.device("cuda"):
        assert torch.ones(3).is_cuda and torch.tensor([1.0]).is_cuda
    assert not torch.ones(3).is_cuda


def test_repr_and_format(vd):
    v = torch.tensor([1.5, 2.0], device="cuda")
    assert repr(v) == "tensor([1.5000, 2.0000], device='cuda:0')"
    assert f"{v[0]:.1f}" == "1.5" and "cuda:0" in f"{v}"


@pytest.mark.parametrize("inference", [False, True])
def test_conversions(vd, inference):
    with torch.inference_mode(inference):
        v = torch.tensor([1.5, -2.5], device="cuda")
        assert v.to(torch.int64).tolist() == [1, -2] and v.half().is_cuda
        assert v.to("cpu", torch.float64).dtype is torch.float64
        assert v.to("cuda") is v and v.cuda() is v
        assert v.to("cuda", copy=True).data_ptr() != v.data_ptr()
        assert v.type_as(torch.ones(1, dtype=torch.int32, device="cuda")).is_cuda
        assert v.reshape(2, 1).contiguous().is_cuda and v.to(v.dtype) is v


def test_program_of_many_operators_is_the_same_as_on_the_host(schedule):
    def program(device):
        torch.manual_seed(0)
        x = torch.arange(24.0).reshape(4, 6).to(device)
        w = torch.linspace(-1, 1, 36).reshape(6, 6).to(device)
        h = torch.nn.functional.silu(x @ w).softmax(-1)
        h = torch.where(h > 0.1, h, torch.zeros((), device=device))
        i = h.argsort(dim=-1, descending=True)
        h = h.gather(1, i).cumsum(-1)
        h[:, 2:4] = h[:, 0:2]
        h.index_fill_(1, torch.tensor([5], device=device), 9.0)
        h.scatter_(1, i[:, :1], -1.0)
        q = h.view(1, 4, 1, 6).expand(1, 4, 3, 6).contiguous()
        h = torch.nn.functional.scaled_dot_product_attention(q, q, q).flatten()
        h = torch.repeat_interleave(h, torch.full((72,), 2, device=device), output_size=144)
        return torch.cat([h, torch.stack([h.max(), h.min(), h.norm()])]).cpu()

    expected = program("cpu")
    with virtual_device(schedule) as device:
        assert torch.equal(program("cuda"), expected)
        assert device.findings == []


def test_tensors_made_from_lists_of_device_numbers(vd):
    x, i = torch.arange(3.0, device="cuda") * 2, torch.arange(3, device="cuda", dtype=torch.int32) + 1
    made = torch.tensor([x[1], x[2]]), torch.as_tensor([(i[0], i[1])], device="cuda"), i.new_tensor([i[2], 7])
    assert [part.tolist() for part in made] == [[2.0, 4.0], [[1, 2]], [3, 7]]
    assert [part.dtype for part in made] == [torch.float32, torch.int32, torch.int32]
    assert [part.device.type for part in made] == ["cpu", "cuda", "cuda"] and vd.findings == []
