"""config.json: both layouts are read, what is not supported is refused by name, nothing is guessed."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrv2.refrunner.errors import CheckpointError
from mrv2.refrunner.models import TINY_CONFIG, LlamaConfig

PLAIN = TINY_CONFIG.to_hugging_face()


def without(*keys):
    return {key: value for key, value in PLAIN.items() if key not in keys}


def refusal(values):
    with pytest.raises(CheckpointError) as caught:
        LlamaConfig.from_hugging_face(values)
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy))
    return error


@pytest.mark.parametrize(
    "config",
    [
        TINY_CONFIG,
        replace(TINY_CONFIG, tie_word_embeddings=True, bos_token_id=1, eos_token_ids=(2,)),
        replace(TINY_CONFIG, head_dim=32, eos_token_ids=(0, 255), rope_theta=5e5),
    ],
)
def test_writing_and_reading_gives_the_same_configuration(config):
    assert LlamaConfig.from_hugging_face(json.loads(json.dumps(config.to_hugging_face()))) == config


def test_sliding_windows_are_checked_and_have_no_hugging_face_form():
    config = replace(TINY_CONFIG, sliding_windows=(8, 0))
    assert (config.layer_windows, TINY_CONFIG.layer_windows) == ((8, 0), (0, 0))
    for wrong in ((8,), (8, -1), (8, 1.5), [8, 0], 8):
        with pytest.raises(CheckpointError, match="sliding_windows"):
            replace(TINY_CONFIG, sliding_windows=wrong)
    with pytest.raises(CheckpointError, match="sliding_windows"):
        config.to_hugging_face()


def test_rotary_base_is_read_from_both_layouts():
    old = without("rope_parameters") | {"rope_theta": 5e5}
    new = without("rope_theta") | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert LlamaConfig.from_hugging_face(old).rope_theta == 5e5
    assert LlamaConfig.from_hugging_face(new).rope_theta == 5e5
    assert LlamaConfig.from_hugging_face(without("rope_theta", "rope_parameters")).rope_theta == 10_000.0


def test_rotary_bases_that_disagree_are_refused():
    error = refusal(PLAIN | {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert "rope_theta" in error.subject


def test_missing_keys_take_only_the_defaults_of_transformers():
    config = LlamaConfig.from_hugging_face(
        without("num_key_value_heads", "head_dim", "tie_word_embeddings", "bos_token_id", "eos_token_id")
    )
    assert (config.num_kv_heads, config.head_dim, config.tie_word_embeddings) == (4, 16, False)
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
        "max_position_embeddings",
    ],
)
def test_a_missing_key_is_named(key):
    error = refusal(without(key))
    assert key in error.subject
    assert "missing" in error.rule


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "mistral"),
        ("architectures", ["LlamaForSequenceClassification"]),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("sliding_window", 4096),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("quantization_config", {"quant_method": "gptq"}),
        ("partial_rotary_factor", 0.5),
        ("rope_interleaved", True),
        ("num_local_experts", 8),
        ("logit_scale", 0.0625),
        ("logits_scaling", 8.0),
        ("embedding_multiplier", 12.0),
        ("scale_emb", 12),
        ("residual_multiplier", 0.22),
        ("scale_depth", 1.4),
        ("attention_multiplier", 0.0625),
        ("query_pre_attn_scalar", 256),
        ("final_logit_softcapping", 30.0),
        ("attn_logit_softcapping", 50.0),
        ("clip_qkv", 8.0),
        ("use_qk_norm", True),
        ("no_rope_layers", [1, 1]),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(key, value):
    error = refusal(PLAIN | {key: value})
    assert key in error.subject
    assert "not supported" in error.rule


def test_neutral_values_of_unsupported_features_are_accepted():
    neutral = {"sliding_window": None, "rope_scaling": None, "layer_types": ["full_attention"] * 2, "torch_dtype": "x"}
    neutral |= {"logit_scale": 1.0, "final_logit_softcapping": None, "embedding_multiplier": 1, "use_qk_norm": False}
    assert LlamaConfig.from_hugging_face(PLAIN | neutral) == TINY_CONFIG


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("vocab_size", 0, "vocab_size"),
        ("hidden_size", True, "hidden_size"),
        ("hidden_size", 64.0, "hidden_size"),
        ("num_hidden_layers", "2", "num_layers"),
        ("num_hidden_layers", 2**31, "num_layers"),
        ("num_key_value_heads", 3, "num_kv_heads"),
        ("num_attention_heads", [4], "num_heads"),
        ("head_dim", 15, "head_dim"),
        ("rms_norm_eps", 0, "rms_norm_eps"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps"),
        ("rms_norm_eps", 10**400, "rms_norm_eps"),
        ("rope_theta", "1e4", "rope_theta"),
        ("rope_parameters", [], "rope_parameters"),
        ("tie_word_embeddings", 1, "tie_word_embeddings"),
        ("bos_token_id", 256, "bos_token_id"),
        ("eos_token_id", [1, -1], "eos_token_ids"),
        ("eos_token_id", {"id": 1}, "eos_token_ids"),
    ],
)
def test_a_wrong_value_is_refused_by_name(key, value, field):
    assert field in refusal(PLAIN | {key: value}).subject


def test_heads_must_share_the_hidden_size_when_their_width_is_not_given():
    assert "hidden_size" in refusal(without("head_dim") | {"hidden_size": 65}).subject


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*PLAIN, "rope_scaling", "sliding_window", "layer_types"]), JSON, max_size=3))
def test_any_json_gives_a_valid_configuration_or_a_refusal(changes):
    try:
        config = LlamaConfig.from_hugging_face(PLAIN | changes)
    except CheckpointError:
        return
    assert config.num_heads % config.num_kv_heads == 0
    assert LlamaConfig.from_hugging_face(config.to_hugging_face()) == config


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_what_we_write_and_we_read_what_it_writes(tmp_path, tied):
    transformers = pytest.importorskip("transformers")
    ours = replace(TINY_CONFIG, tie_word_embeddings=tied, rope_theta=5e5)
    (tmp_path / "config.json").write_text(json.dumps(ours.to_hugging_face()))
    theirs = transformers.LlamaConfig.from_pretrained(tmp_path, local_files_only=True)
    assert theirs.rope_parameters["rope_theta"] == 5e5
    theirs.save_pretrained(tmp_path)
    assert LlamaConfig.from_hugging_face(json.loads((tmp_path / "config.json").read_text())) == ours
