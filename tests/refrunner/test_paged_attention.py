"""Attention in Triton: against dense attention in float64, against the torch backend, and on the virtual device."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.checks.virtual import virtual_device
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.attention.triton_paged import TritonPagedAttention
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.device import Device
from mrv2.refrunner.errors import ConfigurationError
from mrv2.refrunner.llm import LLM, default_config
from mrv2.refrunner.models.tiny import tiny_checkpoint

#: (computed before, computed now) of each request.
BATCHES = {
    "one token": [(0, 1)],
    "decode": [(5, 1), (40, 1), (0, 1)],
    "prefill": [(0, 7), (0, 33)],
    "mixed, chunked": [(16, 3), (31, 1), (0, 20), (63, 5)],
}
SHAPES = {"grouped": (4, 2, 16), "three a group": (6, 2, 8), "one each": (3, 3, 32), "odd width": (2, 1, 12)}


@pytest.fixture(autouse=True)
def _compiled():
    """Kernels run compiled: the interpreter would take seconds a launch."""
    with triton_cpu.enabled() as session:
        yield
    assert session.findings == []


def problem(lengths, shape, dtype, block_size, padding=3, device="cpu", window=0):
    """A batch in the middle of its life: what is in the cache, and the step's own queries, keys and values."""
    heads, kv_heads, dim = shape
    generator = torch.Generator().manual_seed(len(lengths) * dim)
    totals = [before + now for before, now in lengths]
    counts = [-(-total // block_size) for total in totals]
    blocks = 1 + torch.randperm(sum(counts), generator=generator)
    table = torch.zeros(len(lengths) + padding, max(counts) + 2, dtype=torch.int32)
    for request, (first, count) in enumerate(zip([0, *torch.tensor(counts).cumsum(0)], counts, strict=False)):
        table[request, :count] = blocks[first : first + count].int()
    sizes = torch.tensor([now for _, now in lengths])
    lanes = int(sizes.sum())
    starts = torch.cat([torch.zeros(1), sizes.cumsum(0), torch.full((padding,), lanes)]).int()
    positions = torch.cat([torch.arange(before, before + now) for before, now in lengths] + [torch.zeros(padding)])
    owner = torch.repeat_interleave(torch.arange(len(lengths)), sizes)
    places = positions[:lanes].long()
    slots = table[owner, places // block_size].long() * block_size + places % block_size
    qkv = torch.randn(lanes + padding, heads + 2 * kv_heads, dim, generator=generator).to(dtype)
    config = RunnerConfig(block_size=block_size, num_kv_blocks=sum(counts) + 1, dtype=str(dtype)[6:], poison=True)
    model = SimpleNamespace(layer_windows=(window,), num_heads=heads, num_kv_heads=kv_heads, head_dim=dim)
    backend = TritonPagedAttention(config, model, Device(device))
    past = torch.randn(2, sum(counts) * block_size + block_size, kv_heads, dim, generator=generator).to(dtype)
    for request, (before, _) in enumerate(lengths):
        place = torch.arange(before)
        at = table[request, place // block_size].long() * block_size + place % block_size
        backend.cache[0][:, at.to(device)] = past[:, at].to(device)
    batch = SimpleNamespace(
        num_requests=len(lengths),
        block_table=table.to(device)[None],
        query_start_loc=starts.to(device),
        positions=positions.long().to(device),
        slot_mapping=torch.cat([slots, torch.full((padding,), -1)]).to(device)[None],
    )
    return backend, batch, qkv, owner


def dense(backend, batch, qkv, owner, block_size, window):
    """The definition, in float64, token by token."""
    heads, kv_heads = backend._heads, backend._kv_heads
    keys, values = backend.cache[0].cpu().double()
    out = torch.zeros(len(qkv), heads, qkv.shape[2], dtype=torch.float64)
    for lane, request in enumerate(owner.tolist()):
        place = torch.arange(int(batch.positions[lane]) + 1)[-window:]
        at = batch.block_table[0, request].cpu()[place // block_size].long() * block_size + place % block_size
        for head in range(heads):
            key_head = head // (heads // kv_heads)
            score = keys[at, key_head] @ qkv[lane, head].double() * qkv.shape[2] ** -0.5
            out[lane, head] = score.softmax(0) @ values[at, key_head]
    return out


def check(lengths, shape, dtype, block_size, device="cpu", window=0):
    backend, batch, qkv, owner = problem(lengths, shape, dtype, block_size, device=device, window=window)
    heads, kv_heads, _ = shape
    backend.begin(batch)
    moved = qkv.to(device)
    query, key, value = moved.split([heads, kv_heads, kv_heads], dim=1)
    got = backend.forward(0, query, key, value).cpu()
    real = len(owner)
    slots = batch.slot_mapping[0, :real]
    assert torch.equal(backend.cache[0][0, slots], key[:real])
    assert torch.equal(backend.cache[0][1, slots], value[:real])
    assert torch.count_nonzero(got[real:]) == 0
    bound = {torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(
        got.double(), dense(backend, batch, qkv, owner, block_size, window), rtol=bound, atol=bound
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=list(BATCHES))
def test_equals_dense_attention(lengths, shape, dtype):
    check(lengths, shape, dtype, block_size=16)


@pytest.mark.parametrize("block_size", [1, 5, 32, 64])
def test_block_sizes(block_size):
    check(BATCHES["mixed, chunked"], SHAPES["grouped"], torch.float32, block_size)


@pytest.mark.parametrize("window", [1, 2, 17, 32, 1000])
def test_windows(window):
    check(BATCHES["mixed, chunked"], SHAPES["grouped"], torch.float32, 16, window=window)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_equals_dense_attention_on_a_gpu(shape, dtype):
    for lengths in BATCHES.values():
        check(lengths, shape, dtype, block_size=16, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("window", [1, 17, 1000])
def test_windows_on_a_gpu(window):
    check(BATCHES["mixed, chunked"], SHAPES["grouped"], torch.float32, 16, device="cuda", window=window)


def generate(device, attention, **settings):
    checkpoint = tiny_checkpoint()
    config = replace(default_config(checkpoint), device=device, attention=attention, **settings)
    prompts = [[1, 2, 3], list(range(60)), [7], [200, 3] * 9]
    sampling = [
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=6, temperature=1.0, seed=3),
        SamplingParams(max_tokens=9),
        SamplingParams(max_tokens=7, temperature=2.5, seed=11),
    ]
    with LLM(checkpoint, config) as engine:
        return [completion.token_ids for completion in engine.generate(prompts, sampling)]


TIGHT = {"max_num_batched_tokens": 24, "num_kv_blocks": 14, "max_model_len": 128}


def test_tokens_of_the_torch_backend():
    expected = generate("cpu", "torch", **TIGHT)
    assert generate("cpu", "triton", **TIGHT) == expected
    assert generate("cpu", "triton", poison=True, pad_to=8, **TIGHT) == expected


@pytest.mark.parametrize("schedule", ["late", "starve:0", "random:0"])
def test_no_race_on_the_virtual_device(schedule):
    expected = generate("cpu", "torch", **TIGHT)
    with virtual_device(schedule) as device:
        assert generate("cuda", "triton", poison=True, pad_to=8, **TIGHT) == expected
        assert device.findings == []


@pytest.mark.gpu
def test_tokens_on_a_gpu():
    assert generate("cuda", "triton", **TIGHT) == generate("cpu", "torch", **TIGHT)


def test_another_backend_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="'torch', 'triton'"):
        RunnerConfig(attention="flash")
