"""Common programs of torch compute on the device what they compute on the host, without a finding."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's habit
from torch import nn

from mrv2.checks.virtual import UnsupportedOperationError, virtual_device


def values(*shape):
    count = torch.Size(shape).numel()
    return torch.arange(count).reshape(shape).float() % 11 / 11 - 0.4


def trained(module, *inputs, reduce=lambda out: out):
    """What a module returns, and all gradients of it."""
    out = reduce(module(*inputs))
    out.sum().backward()
    return [out, *(parameter.grad for parameter in module.parameters())]


def transformer(device):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).to(device)
    return trained(layer, values(2, 5, 16).to(device)), layer.eval()(values(2, 5, 16).to(device))


def attention(device):
    x = values(2, 4, 5, 8).to(device).requires_grad_()
    mask = torch.ones(5, 5, dtype=torch.bool).tril().to(device)
    F.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()
    few = x[:, :2]
    return [
        x.grad,
        F.scaled_dot_product_attention(x, x, x, attn_mask=mask),
        F.scaled_dot_product_attention(x, few, few, enable_gqa=True),
    ]


def masked_attention(device):
    module, x = nn.MultiheadAttention(16, 4, batch_first=True).to(device), values(2, 5, 16).to(device)
    padding = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool).to(device)
    return module(x, x, x, key_padding_mask=padding)


def convolution(device):
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
    module = nn.Sequential(*layers, nn.ConvTranspose2d(4, 2, 2, 2), nn.GroupNorm(1, 2)).to(device)
    return trained(module, values(2, 3, 8, 8).to(device)), module[1].running_mean


def lstm(device):
    module = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True).to(device)
    return trained(module, values(2, 5, 4).to(device), reduce=lambda out: out[0])


def packed(device):
    module = nn.GRU(4, 6).to(device)
    sequence = nn.utils.rnn.pack_padded_sequence(values(5, 2, 4).to(device), [5, 3])
    return trained(module, sequence, reduce=lambda out: nn.utils.rnn.pad_packed_sequence(out[0])[0])


def embedding(device):
    table, bag = nn.Embedding(10, 4, padding_idx=0).to(device), nn.EmbeddingBag(10, 4, mode="mean").to(device)
    offsets = torch.tensor([0, 2]).to(device)
    return trained(table, torch.tensor([[1, 2, 0], [3, 3, 9]]).to(device)), bag(torch.arange(4).to(device), offsets)


def ordering(device):
    x = values(3, 7).to(device)
    return [
        x.topk(3), x.sort(descending=True, stable=True), x.argsort(), x.kthvalue(2), x.median(), x.mode(),
        x.cumsum(1), x.logcumsumexp(1), x.cummax(0), x.unique(return_inverse=True, return_counts=True),
        x.quantile(0.3), x.histc(4), torch.bincount(torch.tensor([1, 1, 3]).to(device)), x.aminmax(),
    ]  # fmt: skip


def scattering(device):
    x, index = torch.zeros(3, 5).to(device), torch.tensor([[0, 1, 1], [2, 2, 4]]).to(device)
    source, twice = values(2, 3).to(device), torch.tensor([0, 0]).to(device)
    return [
        x.scatter(1, index, 1.0), x.scatter_add(1, index, source), x.scatter_reduce(1, index, source, "mean"),
        x.index_put((twice, twice), torch.tensor([1.0, 2.0]).to(device), accumulate=True),
    ]  # fmt: skip


def masks(device):
    x = values(3, 4).to(device)
    mask, zeroed, doubled = x > 0, x.clone(), x.clone()
    zeroed[mask] = 0
    doubled[mask] = x[mask] * 2
    return [
        zeroed, doubled, x.masked_fill(mask, 9), x.masked_select(mask), torch.where(mask), torch.where(mask, x, 0.0),
        x.masked_scatter(mask, values(20).to(device)), mask.nonzero(), mask.argwhere(), x[mask.any(1)], mask.sum(),
    ]  # fmt: skip


def products(device):
    a, b = values(2, 3, 4).to(device), values(2, 4, 5).to(device)
    return [
        torch.einsum("bij,bjk->bik", a, b), torch.einsum("...i,...i", a, a), torch.tensordot(a, b, ([0], [0])),
        torch.kron(a[0], b[0]), torch.cdist(a, a), torch.block_diag(a[0], b[0]), torch.combinations(a[0, 0]),
    ]  # fmt: skip


def spectra(device):
    x, z = values(4, 8).to(device), torch.complex(values(3, 3), values(3, 3) * 2).to(device)
    window = torch.hann_window(4).to(device)
    return [
        torch.fft.fft(x), torch.fft.irfft(torch.fft.rfft(x)), torch.fft.fftshift(x), z @ z, z.mH, z.conj().imag,
        torch.stft(x, 4, return_complex=True, window=window), z.abs(), torch.view_as_real(z), z * 2j, z.sum(),
    ]  # fmt: skip


def casts(device):
    x = values(4, 4).to(device)
    low = x.bfloat16()
    return [
        low @ low, x.half().float(), x.to(torch.float8_e4m3fn).float(), x.to(torch.float8_e5m2).to(torch.bfloat16),
        x.view(torch.int32), low.view(torch.int16), x.to(torch.float8_e4m3fn).view(torch.uint8), x.char(), x.bool(),
    ]  # fmt: skip


def factorisations(device):
    a = (torch.eye(3) * 3 + values(3, 3)).to(device)
    positive = a @ a.T
    return [
        torch.linalg.inv(a), torch.linalg.det(a), torch.linalg.solve(a, values(3, 2).to(device)), torch.matrix_exp(a),
        torch.linalg.svdvals(a), torch.linalg.cholesky(positive), torch.linalg.eigvalsh(positive), torch.linalg.pinv(a),
    ]  # fmt: skip


def losses(device):
    x, target = values(4, 5).to(device), torch.tensor([0, 1, 4, 2]).to(device)
    return [
        F.cross_entropy(x, target, ignore_index=4, label_smoothing=0.1), F.nll_loss(x.log_softmax(1), target),
        F.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean"), F.huber_loss(x, x * 2),
        F.binary_cross_entropy_with_logits(x, x.sigmoid()), F.triplet_margin_loss(x, x + 1, x - 1),
    ]  # fmt: skip


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def derivatives(device):
    x = values(4).to(device).requires_grad_()
    Square.apply(x).sum().backward()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    plain = values(4).to(device)
    return [
        x.grad, first, second, torch.func.grad(lambda x: (x * x).sum())(plain), torch.func.jacrev(torch.sin)(plain),
        torch.vmap(lambda a: (a * 2).sum())(values(3, 4).to(device)),
        torch.func.jvp(torch.sin, (plain,), (plain,)), torch.autograd.functional.hessian(lambda x: (x**3).sum(), plain),
    ]  # fmt: skip


def lists(device):
    tensors = [values(3).to(device), values(2, 2).to(device)]
    torch._foreach_add_(tensors, 1.0)
    torch._foreach_mul_(tensors, tensors)
    return tensors, torch._foreach_norm(tensors), torch._foreach_sqrt(tensors), torch._foreach_max(tensors)


def autocast(device):
    module = nn.Linear(4, 4).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = module(values(2, 4).to(device))
    out.float().sum().backward()
    return out, module.weight.grad


def optimiser(name, **options):
    def train(device):
        module = nn.Linear(4, 3).to(device)
        steps = getattr(torch.optim, name)(module.parameters(), lr=0.1, **options)
        for _ in range(2):
            steps.zero_grad()
            F.mse_loss(module(values(5, 4).to(device)), values(5, 3).to(device)).backward()
            steps.step()
        return list(module.parameters())

    return train


PROGRAMS = {
    function.__name__: function
    for function in (
        transformer, attention, masked_attention, convolution, lstm, packed, embedding, ordering, scattering, masks,
        products, spectra, casts, factorisations, losses, derivatives, lists, autocast,
    )
} | {
    f"{name} {options}": optimiser(name, **options)
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam")
    for options in ({}, {"foreach": True})
}  # fmt: skip


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().resolve_conj().resolve_neg()
    return [plain(item) for item in value]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype is b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    return len(a) == len(b) and all(map(same, a, b))


@pytest.mark.filterwarnings("ignore")  # of what torch itself has deprecated
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_it_is_the_same_as_on_the_host(program):
    torch.manual_seed(0)
    expected = plain(program("cpu"))
    torch.manual_seed(0)
    with virtual_device("late") as device:
        assert same(plain(program("cuda")), expected)
        assert device.findings == []


REFUSED = {
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:1]]),
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "lazy": lambda x: nn.LazyLinear(3).to("cuda"),
}


@pytest.mark.filterwarnings("ignore")  # that such tensors are in beta
@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED.keys())
def test_tensors_that_are_not_dense_memory_are_refused_in_four_parts(late, use):
    x = values(3, 3).to("cuda")
    with pytest.raises(UnsupportedOperationError) as caught:
        use(x)
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy))
    assert torch.equal(x.cpu(), values(3, 3)) and late.findings == []
