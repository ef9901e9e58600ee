"""The runner's forward pass: against transformers on the same weights, in every dtype, alone and in a flat batch."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from mrv2.refrunner.errors import CheckpointError
from mrv2.refrunner.models import TINY_CONFIG, LlamaModel, tiny_checkpoint
from mrv2.refrunner.models.tiny import random_tensors

TOKENS = torch.randint(0, 256, (48,), generator=torch.Generator().manual_seed(0))
POSITIONS = torch.arange(48)
CONFIGS = {
    "tiny": TINY_CONFIG,
    "tied, one key head": replace(TINY_CONFIG, tie_word_embeddings=True, num_kv_heads=1),
    "wide heads, other rotary base": replace(TINY_CONFIG, head_dim=32, rope_theta=5e5, num_kv_heads=4),
}


def attend_in(positions, owners):
    """Dense attention where a token sees those of its own request at its own and earlier positions."""
    visible = (owners[:, None] == owners[None, :]) & (positions[:, None] >= positions[None, :])

    def attend(layer, query, key, value):
        queries, keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
        out = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=visible, enable_gqa=True)
        return out[0].transpose(0, 1)

    return attend


def logits_of(model, tokens=TOKENS, positions=POSITIONS, owners=None):
    owners = torch.zeros_like(positions) if owners is None else owners
    return model.compute_logits(model.forward(tokens, positions, attend_in(positions, owners)))


@pytest.mark.parametrize(("name", "stride", "bound"), [*((name, 1, 3e-4) for name in CONFIGS), ("tiny", 11, 2e-3)])
def test_logits_are_those_of_transformers(name, stride, bound):
    """At the first positions, and at some far apart, where angles that wrap or are cut would show."""
    transformers = pytest.importorskip("transformers")
    config = CONFIGS[name]
    tensors = random_tensors(config, 0)
    settings = transformers.LlamaConfig(**config.to_hugging_face(), attn_implementation="eager")
    theirs = transformers.LlamaForCausalLM(settings).eval()
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert (set(missing) - {"lm_head.weight"}, unexpected) == (set(), [])
    with torch.no_grad():
        expected = theirs(TOKENS[None], position_ids=stride * POSITIONS[None]).logits[0]

    # About 20 float32 operations in a row, each with sums of at most 128 terms, on numbers up to 30 (attention scores)
    # that end as logits up to 8: 20 * sqrt(128) * 2**-24 * 8 = 1e-4, twice that for both sides; transformers' float32
    # angles add 48 * 2**-24 rad on scores up to 30, again 1e-4, and with the stride 11 times that. A wrong layout, a
    # wrong angle or a lost norm moves logits by above 1.
    found = logits_of(LlamaModel(config, tensors), positions=stride * POSITIONS)
    assert (found - expected).abs().max() < bound


@pytest.mark.parametrize("lost", ["input_layernorm", "post_attention_layernorm", "model.norm"])
def test_every_norm_weight_counts(lost):
    tensors = random_tensors(TINY_CONFIG, 0)
    without = {name: torch.ones_like(tensor) if lost in name else tensor for name, tensor in tensors.items()}
    model, other = LlamaModel(TINY_CONFIG, tensors), LlamaModel(TINY_CONFIG, without)
    assert (logits_of(model) - logits_of(other)).abs().max() > 0.5


def test_a_flat_batch_of_two_requests_is_two_requests():
    model = LlamaModel(TINY_CONFIG, tiny_checkpoint().tensors)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(20), torch.arange(28)])
    owners = torch.cat([torch.zeros(20), torch.ones(28)]).long()
    batched = torch.empty(48, 256)
    batched[order] = logits_of(model, TOKENS[order], positions[order], owners[order])
    for first, last in ((0, 20), (20, 48)):
        alone = logits_of(model, TOKENS[first:last], positions[first:last])
        # Other batch sizes sum in another order: the rounding bound of the test above.
        assert (batched[first:last] - alone).abs().max() < 2e-4


def test_token_ids_may_be_int32():
    model = LlamaModel(TINY_CONFIG, tiny_checkpoint().tensors)
    assert torch.equal(logits_of(model, TOKENS.int()), logits_of(model))


@pytest.mark.parametrize(("dtype", "digits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_narrow_dtypes_follow_float32(dtype, digits):
    tensors = tiny_checkpoint().tensors
    model = LlamaModel(TINY_CONFIG, tensors, dtype=dtype)
    hidden = model.forward(TOKENS, POSITIONS, attend_in(POSITIONS, torch.zeros(48)))
    assert (hidden.dtype, hidden.shape) == (dtype, (48, 64))
    logits = model.compute_logits(hidden)
    assert (logits.dtype, logits.shape) == (torch.float32, (48, 256))
    # The average error, since single logits may jump where attention is sharp: some 20 roundings of 2**-digits, all
    # in one direction, on logits of deviation 1.5.
    wide = logits_of(LlamaModel(TINY_CONFIG, tensors))
    assert (logits - wide).abs().mean() < 20 * 1.5 * 2**-digits


def test_norms_keep_float32_statistics():
    model = LlamaModel(TINY_CONFIG, tiny_checkpoint().tensors, dtype=torch.bfloat16)
    # 64 squares of 1 + 2**-7: a bfloat16 sum stops growing before it has counted them all.
    hidden = torch.full((1, 64), 1 + 2**-7, dtype=torch.bfloat16)
    assert torch.equal(model._operations.norm(hidden, torch.ones(64)), torch.ones(1, 64, dtype=torch.bfloat16))
    large = torch.full((1, 64), 1e4)
    half = LlamaModel(TINY_CONFIG, tiny_checkpoint().tensors, dtype=torch.float16)
    assert torch.equal(half._operations.norm(large.half(), torch.ones(64)), torch.ones(1, 64, dtype=torch.float16))


def test_attention_gets_every_layer_in_order_with_rotated_heads():
    model = LlamaModel(TINY_CONFIG, tiny_checkpoint().tensors)
    seen = []

    def attend(layer, query, key, value):
        seen.append((layer, query.shape, key.shape, value.shape))
        assert {tensor.stride(-1) for tensor in (query, key, value)} == {1}
        return query

    model.forward(TOKENS, POSITIONS, attend)
    assert seen == [(layer, (48, 4, 16), (48, 2, 16), (48, 2, 16)) for layer in range(2)]


def test_the_forward_pass_reads_no_value_on_the_host():
    """Meta tensors hold no data: any ``.item()`` or data-dependent branch would fail."""
    model = LlamaModel(TINY_CONFIG, tiny_checkpoint().tensors, device="meta", dtype=torch.bfloat16)
    tokens, positions = TOKENS.to("meta"), POSITIONS.to("meta")
    logits = model.compute_logits(model.forward(tokens, positions, lambda layer, query, key, value: query))
    assert (logits.shape, logits.dtype) == ((48, 256), torch.float32)


def test_the_checkpoint_is_left_alone():
    tensors = tiny_checkpoint().tensors
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    logits_of(LlamaModel(TINY_CONFIG, tensors))
    assert all(torch.equal(tensors[name], before[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(CheckpointError) as caught:
        LlamaModel(TINY_CONFIG, tiny_checkpoint().tensors, dtype=dtype)
    error = caught.value
    assert str(dtype) in error.subject
    assert all((error.rule, error.reason, error.remedy))


def test_weights_of_another_shape_are_refused():
    with pytest.raises(CheckpointError, match="q_proj"):
        LlamaModel(replace(TINY_CONFIG, num_heads=8), tiny_checkpoint().tensors)
