"""The tiny model: the same bits everywhere, on disk as in memory, and text that does not collapse."""

import hashlib
import json

import pytest
import torch
from torch.nn import functional

from mrv2.refrunner.errors import CheckpointError
from mrv2.refrunner.models import LlamaModel, load_checkpoint, tiny, tiny_checkpoint, write_tiny_checkpoint


def digest(checkpoint):
    content = hashlib.sha256()
    for name, tensor in sorted(checkpoint.tensors.items()):
        content.update(name.encode() + tensor.numpy().tobytes())
    return content.hexdigest()


def test_the_bits_never_change():
    """Recorded numbers of other machines and versions were made with these weights."""
    assert digest(tiny_checkpoint()) == "0f2e46fac0fdf920a08dc285c66980e82341982eedf228340d7b199949cecb7b"


def test_another_seed_is_another_model():
    assert digest(tiny_checkpoint(1)) != digest(tiny_checkpoint(0)) == digest(load_checkpoint("tiny"))


@pytest.mark.parametrize("seed", [0, 7])
def test_the_folder_holds_the_same_bits(tmp_path, seed):
    pytest.importorskip("safetensors")
    folder = write_tiny_checkpoint(tmp_path / "new" / "tiny", seed)
    loaded, made = load_checkpoint(str(folder)), tiny_checkpoint(seed)
    assert digest(loaded) == digest(made)
    assert loaded.config == made.config
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_two_writes_give_the_same_files(tmp_path):
    pytest.importorskip("safetensors")
    first, second = (write_tiny_checkpoint(tmp_path / name) for name in ("a", "b"))
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_a_dtype_is_a_rounding():
    narrow, wide = load_checkpoint("tiny", torch.bfloat16), tiny_checkpoint()
    assert all(torch.equal(tensor, wide.tensors[name].bfloat16()) for name, tensor in narrow.tensors.items())


def test_the_checkpoint_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        tiny_checkpoint().tensors["model.norm.weight"] = torch.zeros(64)


def test_an_empty_folder_is_filled_and_a_used_one_refused(tmp_path):
    pytest.importorskip("safetensors")
    used = tmp_path / "used"
    used.mkdir()
    write_tiny_checkpoint(used)
    before = {path.name: path.read_bytes() for path in used.iterdir()}
    with pytest.raises(CheckpointError, match="new or empty"):
        write_tiny_checkpoint(used, seed=1)
    assert {path.name: path.read_bytes() for path in used.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_nothing_is_left_after_an_error(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")

    def fail(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tiny.Path, "write_text", fail)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        write_tiny_checkpoint(tmp_path / "tiny")
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    assert list(tmp_path.iterdir()) == []


def test_a_negative_seed_is_refused():
    with pytest.raises(CheckpointError, match="seed=-1"):
        tiny_checkpoint(-1)


def generate(model, prompt, count):
    """Greedy decoding, the whole sequence anew for each token."""

    def attend(layer, query, key, value):
        heads = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
        return functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    tokens, deviations = list(prompt), []
    for _ in range(count):
        hidden = model.forward(torch.tensor(tokens), torch.arange(len(tokens)), attend)
        logits = model.compute_logits(hidden[-1:])[0]
        deviations.append(float(logits.std()))
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :], deviations


@pytest.mark.parametrize("prompt", [[0], list(b"Hello, world"), [200] * 8])
def test_greedy_text_does_not_collapse(prompt):
    checkpoint = tiny_checkpoint()
    tokens, deviations = generate(LlamaModel(checkpoint.config, checkpoint.tensors), prompt, 64)
    assert len(set(tokens)) > 32
    assert max(tokens.count(token) for token in tokens) < 8
    assert 1 < sum(deviations) / len(deviations) < 2


def test_an_earlier_token_changes_what_follows():
    checkpoint = tiny_checkpoint()
    model = LlamaModel(checkpoint.config, checkpoint.tensors)
    texts = [generate(model, [first, *range(19)], 8)[0] for first in range(100, 110)]
    assert len({tuple(text) for text in texts}) == len(texts)


def test_the_written_configuration_is_plain_json(tmp_path):
    pytest.importorskip("safetensors")
    config = json.loads((write_tiny_checkpoint(tmp_path / "t") / "config.json").read_text())
    assert (config["vocab_size"], config["num_hidden_layers"], config["max_position_embeddings"]) == (256, 2, 2048)
    assert (config["bos_token_id"], config["eos_token_id"]) == (None, None)
