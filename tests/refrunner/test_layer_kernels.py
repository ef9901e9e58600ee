"""Norm, rotary embedding and gate in Triton: against their definitions in float64, and as parts of the model."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from mrv2.checks import triton_cpu
from mrv2.refrunner.models import TINY_CONFIG, LlamaModel, tiny_checkpoint
from mrv2.refrunner.models.layers import TorchLayerOperations, TritonLayerOperations

#: Roundings of one result, each of half a unit in the last place at most, and float32 sums of 100 terms.
BOUNDS = {torch.float32: 4e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
DTYPES = pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
ODD = replace(TINY_CONFIG, num_heads=6, num_kv_heads=3, head_dim=12, hidden_size=100)


@pytest.fixture(autouse=True)
def _compiled():
    """Kernels run compiled: the interpreter would take seconds a launch."""
    with triton_cpu.enabled() as session:
        yield
    assert session.findings == []


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rotary_table(config, positions=40):
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), config.rope_theta**-exponents)
    return torch.cat([angles.cos(), angles.sin()], 1).float()


def operations(config=ODD, device="cpu"):
    return TritonLayerOperations(config, rotary_table(config).to(device))


def close(found, expected, dtype):
    assert found.dtype == dtype
    torch.testing.assert_close(found.cpu().double(), expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


def normalised(hidden, weight, epsilon=ODD.rms_norm_eps):
    wide = hidden.double()
    return wide / (wide.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


def check_norm(dtype, width, device="cpu"):
    hidden, added, weight = draw(5, width, dtype=dtype), draw(5, width, dtype=dtype, seed=1), draw(width, dtype=dtype)
    ours = operations(device=device)
    stream = hidden.to(device, copy=True)
    close(ours.norm(stream, weight.to(device)), normalised(hidden, weight), dtype)
    assert torch.equal(stream.cpu(), hidden)
    after, normed = ours.add_and_norm(stream, added.to(device), weight.to(device))
    assert torch.equal(after.cpu(), hidden + added)
    close(normed, normalised(hidden + added, weight), dtype)


def check_rotation(dtype, config, device="cpu"):
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    qkv = draw(7, (heads + 2 * kv_heads) * width, dtype=dtype)
    positions = torch.tensor([0, 1, 39, 5, 5, 0, 20])
    ours = operations(config, device)
    found = ours.rotate(qkv.to(device, copy=True), ours.angles(positions.to(device)))
    split = qkv.view(7, -1, width).split([heads, kv_heads, kv_heads], dim=1)
    cos, sin = rotary_table(config).double()[positions].unsqueeze(1).chunk(2, dim=-1)
    for turned, given in zip(found[:2], split[:2], strict=True):
        first, second = given.double().chunk(2, dim=-1)
        close(turned, torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1), dtype)
        assert turned.stride(-1) == 1
    assert torch.equal(found[2].cpu(), split[2])


def check_gate(dtype, width, device="cpu"):
    gate_up = draw(5, 2 * width, dtype=dtype)
    gate_up[0, :2] = torch.tensor([-100.0, 100.0])  # where the sigmoid is 0 and 1
    gate, up = gate_up.double().chunk(2, dim=-1)
    close(operations(device=device).gate(gate_up.to(device)), functional.silu(gate) * up, dtype)


@DTYPES
@pytest.mark.parametrize("width", [64, 100, 1])
def test_norm(dtype, width):
    check_norm(dtype, width)


def test_norm_of_large_numbers_in_half_precision():
    """Their squares are beyond float16."""
    hidden = torch.full((1, 64), 1e4, dtype=torch.float16)
    assert torch.equal(operations().norm(hidden, torch.ones(64)), torch.ones(1, 64, dtype=torch.float16))


@DTYPES
@pytest.mark.parametrize("config", [TINY_CONFIG, ODD], ids=["tiny", "odd"])
def test_rotation(dtype, config):
    check_rotation(dtype, config)


@DTYPES
@pytest.mark.parametrize("width", [128, 1100])
def test_gate(dtype, width):
    check_gate(dtype, width)


@pytest.mark.gpu
@DTYPES
def test_all_on_a_gpu(dtype):
    check_norm(dtype, 100, "cuda")
    check_rotation(dtype, ODD, "cuda")
    check_gate(dtype, 1100, "cuda")


def attend(layer, query, key, value):
    """Every token sees itself only."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1) + query * key.sum()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-4), (torch.bfloat16, 0.25)])
def test_a_model_of_kernels_is_the_model(dtype, bound):
    """The bounds are those of ``test_llama_model``: a rounding of bfloat16 is 2**16 of float32, on average."""
    tokens, positions = torch.arange(0, 240, 11), torch.arange(22) * 3
    logits = []
    for kernels in (False, True):
        model = LlamaModel(TINY_CONFIG, tiny_checkpoint().tensors, dtype=dtype, kernels=kernels)
        logits.append(model.compute_logits(model.forward(tokens, positions, attend)))
    difference = (logits[0] - logits[1]).abs()
    assert (difference.max() if dtype == torch.float32 else difference.mean()) < bound


def test_which_operations_a_model_uses():
    tensors = tiny_checkpoint().tensors
    assert type(LlamaModel(TINY_CONFIG, tensors)._operations) is TorchLayerOperations
    assert type(LlamaModel(TINY_CONFIG, tensors, kernels=True)._operations) is TritonLayerOperations
