"""EAGLE heads from folders: the published layout is read, and proposes what it does in memory, or is refused."""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

from mrv2.checks import triton_cpu
from mrv2.ci.command.app import app
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import CheckpointError
from mrv2.refrunner.llm import LLM
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.models.eagle_head import load_eagle_head
from mrv2.refrunner.models.llama import LlamaModel
from mrv2.refrunner.models.self_drafts import load_draft
from mrv2.refrunner.models.tokenizer import load_tokenizer
from mrv2.refrunner.models.weights import Checkpoint
from mrv2.refrunner.speculation.draft_models import EagleHead

save_file = pytest.importorskip("safetensors.torch").save_file

TARGET, HEAD = load_checkpoint("tiny"), load_checkpoint("tiny-eagle")
NORMS = ("layers.0.input_layernorm.weight", "norm.weight")
BIAS = torch.linspace(-0.2, 0.2, 64)
#: As published: one layer, names without a prefix, no norm at either end, a bias, and a copy of the embedding.
PUBLISHED = {
    "embed_tokens.weight": TARGET.tensors["model.embed_tokens.weight"],
    "fc.bias": BIAS,
    **{
        name: tensor
        for name, tensor in ((name.removeprefix("model."), tensor) for name, tensor in HEAD.tensors.items())
        if not name.startswith("layers.1.") and name not in NORMS
    },
}
CONFIG = {**replace(HEAD.config, num_layers=1).to_hugging_face(), "max_position_embeddings": 128}
PROMPTS = [[1, 2, 3], [7, 8, 9, 10, 11]]
SAMPLING = SamplingParams(temperature=0.9, seed=3, max_tokens=10)


def write(folder, tensors=None, **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file({name: tensor.clone() for name, tensor in (tensors or PUBLISHED).items()}, folder / "model.safetensors")
    return folder


def refusal(folder, load=load_eagle_head):
    with pytest.raises(CheckpointError) as caught:
        load(folder, TARGET)
    assert all((caught.value.subject, caught.value.rule, caught.value.reason, caught.value.remedy))
    return caught.value


def generated(draft, verification="token"):
    config = RunnerConfig(max_model_len=64, attention="triton", speculation="eagle", verification=verification)
    with triton_cpu.enabled(), LLM(TARGET, config, load_tokenizer(TARGET), draft) as llm:
        tokens = [done.token_ids for done in llm.generate(PROMPTS, SAMPLING)]
        return tokens, llm.speculation


def in_memory():
    tensors = {name if name.startswith("fc.") else f"model.{name}": tensor for name, tensor in PUBLISHED.items()}
    return Checkpoint("head", None, "safetensors", replace(HEAD.config, num_layers=1), tensors, "")


def test_a_head_from_a_folder_proposes_what_the_same_head_in_memory_does(tmp_path):
    head = load_draft(str(write(tmp_path / "head")), TARGET, head=True)
    assert "model.embed_tokens.weight" not in head.tensors, "it is the target's"
    assert head.description == "head, EAGLE head of 1 layers, safetensors F32"
    tokens, stats = generated(head)
    assert (tokens, stats) == generated(in_memory()) and stats.accepted > 0
    assert generated(head, "equal")[0] == generated(HEAD, "equal")[0], "drafts that are compared change no token"


def test_a_whole_head_that_is_written_comes_back(tmp_path):
    """With its norms, and under the names that it has in memory."""
    config = HEAD.config.to_hugging_face()
    head = load_eagle_head(write(tmp_path / "head", dict(HEAD.tensors), **config), TARGET)
    assert head.tensors.keys() == HEAD.tensors.keys() and head.config == HEAD.config
    assert all(torch.equal(head.tensors[name], tensor) for name, tensor in HEAD.tensors.items())


@pytest.mark.parametrize("kernels", [False, True])
def test_the_published_layer_is_computed_as_its_formula_says(tmp_path, kernels):
    """One token attends to itself alone: its value comes out of the attention."""
    checkpoint = load_eagle_head(write(tmp_path / "head"), TARGET)
    head = EagleHead(LlamaModel(TARGET.config, TARGET.tensors), checkpoint.config, checkpoint.tensors, kernels=kernels)
    before = torch.linspace(-1, 1, 64)[None]

    def attend(layer, query, key, value):
        return value.repeat_interleave(2, dim=1)

    state = head.forward(torch.tensor([5], dtype=torch.int32), torch.tensor([0]), before, attend)
    assert torch.allclose(state, _published_layer(5, before), atol=1e-5)
    assert torch.allclose(head.compute_logits(state), state @ TARGET.tensors["lm_head.weight"].T, atol=1e-5)


def _published_layer(token, before):
    weight = {name.removeprefix("layers.0.").removesuffix(".weight"): tensor for name, tensor in PUBLISHED.items()}
    stream = torch.cat([weight["embed_tokens"][token][None], before], dim=1) @ weight["fc"].T + BIAS
    value = (stream @ weight["self_attn.v_proj"].T).view(1, 2, 16).repeat_interleave(2, dim=1).flatten(1)
    stream = stream + value @ weight["self_attn.o_proj"].T
    normed = functional.rms_norm(stream, (64,), weight["post_attention_layernorm"], HEAD.config.rms_norm_eps)
    gated = functional.silu(normed @ weight["mlp.gate_proj"].T) * (normed @ weight["mlp.up_proj"].T)
    return stream + gated @ weight["mlp.down_proj"].T


def test_an_embedding_and_an_output_of_its_own_are_used(tmp_path):
    own = {"embed_tokens.weight": -PUBLISHED["embed_tokens.weight"], "lm_head.weight": torch.ones(256, 64)}
    checkpoint = load_eagle_head(write(tmp_path / "head", {**PUBLISHED, **own}), TARGET)
    head = EagleHead(LlamaModel(TARGET.config, TARGET.tensors), checkpoint.config, checkpoint.tensors, kernels=False)
    assert torch.equal(head._model.embedding, own["embed_tokens.weight"])
    assert head.compute_logits(torch.ones(1, 64)).tolist() == [[64.0] * 256]


def test_the_command_takes_a_folder(tmp_path):
    folder = write(tmp_path / "head")
    options = ["--speculation", "eagle", "--draft-model", str(folder), "--max-model-len", "64", "--max-tokens", "4"]
    result = CliRunner().invoke(app, ["generate", "--model", "tiny", "--prompt", "abc", *options])
    assert result.exit_code == 0, result.output
    assert "drafts accepted in" in result.stderr


def without(*names):
    return {name: tensor for name, tensor in PUBLISHED.items() if name not in names}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (without("fc.weight"), "tensor 'fc.weight'"),
        (without("layers.0.mlp.up_proj.weight"), "tensor 'layers.0.mlp.up_proj.weight'"),
        (PUBLISHED | {"fc.weight": torch.zeros(64, 64)}, "tensor 'fc.weight' of shape [64, 64]"),
        (PUBLISHED | {"fc.bias": torch.zeros(128)}, "tensor 'fc.bias' of shape [128]"),
        (PUBLISHED | {"norm.weight": torch.ones(3)}, "tensor 'norm.weight' of shape [3]"),
        (PUBLISHED | {"layers.1.extra": torch.ones(3), "x": torch.ones(1)}, "tensor 'layers.1.extra' and 1 more"),
        (PUBLISHED | {"model.fc.weight": PUBLISHED["fc.weight"]}, "tensors 'fc.weight' and 'model.fc.weight'"),
        (PUBLISHED | {"fc.bias": BIAS * float("nan")}, "tensor 'fc.bias'"),
        (PUBLISHED | {"fc.bias": torch.zeros(64, dtype=torch.int64)}, "tensor 'fc.bias' of torch.int64"),
    ],
    ids=["no fc", "no layer", "fc", "bias", "norm", "surplus", "twice", "not finite", "integers"],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, tensors, words):
    assert words in refusal(write(tmp_path / "head", tensors)).subject


@pytest.mark.parametrize(
    ("tensors", "config", "sign"),
    [
        ({}, {"architectures": ["LlamaForCausalLMEagle3"]}, "architectures"),
        ({}, {"draft_vocab_size": 32}, "draft_vocab_size=32"),
        ({"d2t": torch.zeros(32, dtype=torch.int64)}, {}, "tensor 'd2t'"),
        ({"midlayer.hidden_norm.weight": torch.ones(64)}, {}, "tensor 'midlayer.hidden_norm.weight'"),
        ({"fc.weight": torch.zeros(64, 192)}, {}, "tensor 'fc.weight' of shape [64, 192]"),
    ],
    ids=["architecture", "vocabulary", "map", "layer", "states"],
)
def test_eagle_3_is_refused_by_what_says_so(tmp_path, tensors, config, sign):
    error = refusal(write(tmp_path / "head", PUBLISHED | tensors, **config))
    assert sign in error.subject and "EAGLE-3" in error.rule and "EAGLE-2" in error.remedy


@pytest.mark.parametrize("key", ["bias", "eagle_fc_bias"])
def test_a_bias_that_the_configuration_denies_or_promises_is_told(tmp_path, key):
    assert "fc.bias" in refusal(write(tmp_path / "denied", **{key: False})).subject
    assert "missing" in refusal(write(tmp_path / "promised", without("fc.bias"), **{key: True})).rule
    assert load_eagle_head(write(tmp_path / "kept", **{key: True}), TARGET).tensors.keys() >= {"fc.bias"}
    assert "fc.bias" not in load_eagle_head(write(tmp_path / "none", without("fc.bias")), TARGET).tensors


@pytest.mark.parametrize("name", [["LlamaForCausalLM"], ["LlamaForCausalLMEagle"], ["EagleLlamaForCausalLM"]])
def test_names_of_the_architecture(tmp_path, name):
    assert load_eagle_head(write(tmp_path / "head", architectures=name), TARGET).config.num_layers == 1
    assert "architecture" in refusal(write(tmp_path / "other", architectures=[*name, "x"])).rule


class Trap:
    def __reduce__(self):
        return (exec, ("raise AssertionError('it was opened')",))


def test_pickled_weights_are_refused_with_how_to_convert_them(tmp_path):
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert "model.safetensors" in refusal(folder).rule
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    error = refusal(folder)
    assert "'pytorch_model.bin'" in error.rule and "weights_only=True" in error.remedy
    assert "safetensors.torch.save_file" in error.remedy


def test_the_conversion_that_is_named_makes_a_folder_that_is_read(tmp_path, monkeypatch):
    folder = tmp_path / "head"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    torch.save(PUBLISHED, folder / "pytorch_model.bin")
    remedy = refusal(folder).remedy
    load, save = remedy.split("lose: ")[1].split(", then ")
    exec(f"import torch, safetensors.torch\n{load}\n{save}", {})  # what the error says
    assert load_eagle_head(folder, TARGET).tensors.keys() >= {"fc.weight", "fc.bias"}


def test_a_head_is_not_taken_for_a_whole_model_nor_a_model_for_a_head(tmp_path):
    error = refusal(write(tmp_path / "head"), lambda folder, _: load_checkpoint(str(folder)))
    assert "'fc.weight'" in error.subject and "speculation='eagle'" in error.remedy
    whole = write(tmp_path / "whole", dict(TARGET.tensors), **TARGET.config.to_hugging_face())
    assert "speculation='draft'" in refusal(whole).remedy


def test_no_folder_hides_behind_the_name_of_what_is_built_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "tiny-eagle")
    assert load_draft("tiny-eagle", TARGET, head=True).path is None
    assert load_draft("./tiny-eagle", TARGET, head=True).path is not None
