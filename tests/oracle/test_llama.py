"""The model's formulas: against scalar loops with complex rotations, and against the symmetries they must have."""

import ast
import cmath
import dataclasses
import math
from pathlib import Path

import pytest
import torch

import mrv2.refrunner.oracle
from mrv2.refrunner.errors import CheckpointError, RequestError
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.tiny import random_tensors
from mrv2.refrunner.oracle.llama import LlamaOracle, places, weight_shapes

SHAPE = LlamaConfig(
    vocab_size=11,
    hidden_size=6,
    intermediate_size=5,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rope_theta=100.0,
    rms_norm_eps=1e-3,
    max_position_embeddings=16,
)
TOKENS = (3, 0, 10, 3, 7)


def model(config=SHAPE, seed=0, kind=LlamaOracle):
    return kind(config, random_tensors(config, seed))


class Loops:
    """The same model in scalar Python: no tensor operation, rotary pairs as complex numbers."""

    def __init__(self, config, tensors):
        self.config = config
        self.weights = {name: tensor.double().tolist() for name, tensor in tensors.items()}

    def linear(self, name, x):
        return [math.fsum(w * v for w, v in zip(row, x, strict=True)) for row in self.weights[f"{name}.weight"]]

    def norm(self, name, x):
        scale = 1 / math.sqrt(math.fsum(v * v for v in x) / len(x) + self.config.rms_norm_eps)
        return [v * scale * w for v, w in zip(x, self.weights[f"{name}.weight"], strict=True)]

    def rotated(self, x, position):
        """Heads of x; component i + i * (component i + D/2) turns by position * theta^(-2i/D)."""
        size, half = self.config.head_dim, self.config.head_dim // 2
        heads = []
        for start in range(0, len(x), size):
            pairs = [
                complex(x[start + i], x[start + half + i])
                * cmath.exp(1j * position * self.config.rope_theta ** (-2 * i / size))
                for i in range(half)
            ]
            heads.append([pair.real for pair in pairs] + [pair.imag for pair in pairs])
        return heads

    def attention(self, layer, normed, position):
        config, size = self.config, self.config.head_dim
        name = f"model.layers.{layer}.self_attn"
        window = config.layer_windows[layer] or position + 1
        seen = range(max(0, position + 1 - window), position + 1)
        queries = self.rotated(self.linear(f"{name}.q_proj", normed[position]), position)
        keys = [self.rotated(self.linear(f"{name}.k_proj", normed[p]), p) for p in seen]
        values = [self.linear(f"{name}.v_proj", normed[p]) for p in seen]
        mixed = []
        for head, query in enumerate(queries):
            group = head // (config.num_heads // config.num_kv_heads)
            scores = [math.fsum(a * b for a, b in zip(query, key[group], strict=True)) / size**0.5 for key in keys]
            weights = [math.exp(score - max(scores)) for score in scores]
            for i in range(size):
                weighted = math.fsum(w * v[group * size + i] for w, v in zip(weights, values, strict=True))
                mixed.append(weighted / math.fsum(weights))
        return self.linear(f"{name}.o_proj", mixed)

    def mlp(self, name, x):
        gate, up = self.linear(f"{name}.gate_proj", x), self.linear(f"{name}.up_proj", x)
        return self.linear(f"{name}.down_proj", [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)])

    def logits(self, token_ids):
        states = [self.weights["model.embed_tokens.weight"][token] for token in token_ids]
        for layer in range(self.config.num_layers):
            name = f"model.layers.{layer}"
            normed = [self.norm(f"{name}.input_layernorm", x) for x in states]
            added = [self.attention(layer, normed, p) for p in range(len(states))]
            states = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(states, added, strict=True)]
            added = [self.mlp(f"{name}.mlp", self.norm(f"{name}.post_attention_layernorm", x)) for x in states]
            states = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(states, added, strict=True)]
        output = "model.embed_tokens" if self.config.tie_word_embeddings else "lm_head"
        return torch.tensor([self.linear(output, self.norm("model.norm", x)) for x in states], dtype=torch.float64)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_logits_are_those_of_scalar_loops(tied, kv_heads):
    config = dataclasses.replace(SHAPE, tie_word_embeddings=tied, num_kv_heads=kv_heads)
    close(model(config).logits(TOKENS), Loops(config, random_tensors(config, 0)).logits(TOKENS))


@pytest.mark.parametrize("windows", [(1, 3), (3, 0), (2, 2), (9, 0)])
def test_windows_are_those_of_scalar_loops(windows):
    config = dataclasses.replace(SHAPE, sliding_windows=windows)
    close(model(config).logits(TOKENS), Loops(config, random_tensors(config, 0)).logits(TOKENS))
    if min(filter(None, windows)) < len(TOKENS):
        assert (model(config).logits(TOKENS) - model().logits(TOKENS))[-1].abs().max() > 1e-3


def test_a_wrong_loop_is_noticed():
    tensors = random_tensors(SHAPE, 0)
    loops = Loops(dataclasses.replace(SHAPE, rope_theta=101.0), tensors)
    assert (LlamaOracle(SHAPE, tensors).logits(TOKENS) - loops.logits(TOKENS)).abs().max() > 1e-6


def test_one_token_by_hand():
    config = dataclasses.replace(SHAPE, hidden_size=2, num_layers=1, vocab_size=2, rms_norm_eps=1e-30)
    tensors = {name: torch.zeros(shape) for name, shape in weight_shapes(config).items()}
    tensors["model.embed_tokens.weight"] = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    tensors["model.norm.weight"] = torch.tensor([1.0, 2.0])
    tensors["lm_head.weight"] = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # The layer adds nothing; (3, 4) has root mean square 5 / sqrt 2.
    expected = torch.tensor([[3.0, 8.0]], dtype=torch.float64) * 2**0.5 / 5
    close(LlamaOracle(config, tensors).logits([0]), expected)


def test_later_tokens_change_nothing_before_them():
    oracle = model()
    close(oracle.logits((*TOKENS[:3], 9, 9))[:3], oracle.logits(TOKENS)[:3])


def test_only_differences_of_positions_matter():
    class Shifted(LlamaOracle):
        def positions(self, length):
            return super().positions(length) + 7

    class Stretched(LlamaOracle):
        def positions(self, length):
            return super().positions(length) * 2

    close(model(kind=Shifted).logits(TOKENS), model().logits(TOKENS))
    assert (model(kind=Stretched).logits(TOKENS) - model().logits(TOKENS)).abs().max() > 1e-3


def test_grouped_heads_are_repeated_heads():
    tensors = random_tensors(SHAPE, 0)
    repeated = {
        name: tensor.unflatten(0, (2, 1, 4)).expand(2, 2, 4, -1).flatten(0, 2)
        if name.endswith(("k_proj.weight", "v_proj.weight"))
        else tensor
        for name, tensor in tensors.items()
    }
    full = LlamaOracle(dataclasses.replace(SHAPE, num_kv_heads=4), repeated)
    close(full.logits(TOKENS), LlamaOracle(SHAPE, tensors).logits(TOKENS))


def test_tied_output_is_the_embedding():
    tied = random_tensors(dataclasses.replace(SHAPE, tie_word_embeddings=True), 0)
    untied = LlamaOracle(SHAPE, tied | {"lm_head.weight": tied["model.embed_tokens.weight"]})
    close(LlamaOracle(dataclasses.replace(SHAPE, tie_word_embeddings=True), tied).logits(TOKENS), untied.logits(TOKENS))


def test_forward_names_its_hidden_states():
    forward = model().forward(TOKENS)
    assert places(SHAPE) == ("embedding", "layer 0", "layer 1", "final norm")
    assert [tuple(state.shape) for state in forward.hidden] == [(5, 6)] * 4
    assert forward.logits.shape == (5, 11)
    assert {state.dtype for state in (*forward.hidden, forward.logits)} == {torch.float64}
    assert not forward.logits.requires_grad


def test_dtype_is_the_dtype_of_everything():
    single = LlamaOracle(SHAPE, random_tensors(SHAPE, 0), torch.float32)
    assert single.logits(TOKENS).dtype == torch.float32
    assert {weight.dtype for weight in single.weights.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("token_ids", "subject"),
    [
        ((), "a sequence of 0 tokens"),
        ((1,) * 17, "a sequence of 17 tokens"),
        ((0, 11), "token id 11"),
        ((-1,), "token id -1"),
    ],
)
def test_sequences_without_an_answer_are_refused(token_ids, subject):
    with pytest.raises(RequestError) as caught:
        model().logits(token_ids)
    assert caught.value.subject == subject


def test_longest_sequence_is_accepted():
    assert model().logits((1,) * 16).shape == (16, 11)


def test_missing_weight_is_named():
    tensors = random_tensors(SHAPE, 0)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"weight model\.layers\.1\.mlp\.up_proj\.weight"):
        LlamaOracle(SHAPE, tensors)


def test_transposed_weight_is_named():
    tensors = random_tensors(SHAPE, 0)
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].T
    with pytest.raises(CheckpointError, match=r"up_proj\.weight of shape \(6, 5\): its shape must be \(5, 6\)"):
        LlamaOracle(SHAPE, tensors)


def test_oracle_shares_nothing_with_the_runner_but_requests_and_errors():
    files = list(Path(mrv2.refrunner.oracle.__file__).parent.glob("*.py"))
    own = {path.stem for path in files}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert (node.level, node.module) in {(1, name) for name in own} | {(2, "api"), (2, "errors")}
            elif isinstance(node, ast.Import | ast.ImportFrom):
                module = node.names[0].name if isinstance(node, ast.Import) else node.module
                assert module.split(".")[0] not in {"mrv2", "triton"}, f"{path.name} imports {module}"
