"""A Llama decoder written as its formulas: one sequence, no cache, no batch, no kernel.

Sources: Touvron et al. 2023, "LLaMA" (the block), Zhang and Sennrich 2019 (RMSNorm), Su et al. 2021 (rotary
positions, here in the half-split order that GPT-NeoX introduced and Hugging Face checkpoints use), Ainslie et al.
2023 (grouped-query attention), Shazeer 2020 (SwiGLU).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..errors import CheckpointError, RequestError


class LlamaShape(Protocol):
    """The numbers that define a Llama decoder; any object with these attributes will do."""

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        ...

    @property
    def num_heads(self) -> int:
        """Number of query heads."""
        ...

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads; divides ``num_heads``."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of one head; even."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        ...

    @property
    def intermediate_size(self) -> int:
        """Width inside the feed-forward part."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def rope_theta(self) -> float:
        """Base of the rotary frequencies."""
        ...

    @property
    def rms_norm_eps(self) -> float:
        """Added to the mean square before the root."""
        ...

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether the embedding is the output projection, too."""
        ...

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """Tokens that a position sees in each layer, its own included; 0 for all earlier ones."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence."""
        ...


@dataclass(frozen=True)
class Forward:
    """What one pass over a whole sequence of n tokens computes.

    Attributes:
        hidden: [n, hidden_size] each, in the order of :func:`places`: the embedding, the residual stream after
            every layer, and the final norm.
        logits: [n, vocab_size]; row i scores the token at position i + 1.
    """

    hidden: tuple[Tensor, ...]
    logits: Tensor


def places(config: LlamaShape) -> tuple[str, ...]:
    """Names of the entries of ``Forward.hidden``, num_layers + 2 of them."""
    return ("embedding", *(f"layer {index}" for index in range(config.num_layers)), "final norm")


def weight_shapes(config: LlamaShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight that a model of this shape has, in Hugging Face's names ([out, in])."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        shapes.update({f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()})
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


class LlamaOracle:
    """The specification of the model: token ids in, logits out.

    Every weight is converted once, when the instance is made, so a float64 instance takes 8 bytes per parameter.
    The methods that a wrong implementation typically gets wrong (positions, rotation, mask) stand on their own so
    that a negative control can break one of them.

    Args:
        config: the model's shape.
        tensors: weights in Hugging Face names, any floating dtype, on the CPU; others are ignored.
        dtype: dtype of every weight and every operation.

    Raises:
        CheckpointError: a weight is missing or has another shape than ``config`` says.
    """

    def __init__(self, config: LlamaShape, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float64) -> None:
        self.config = config
        self.dtype = dtype
        self.weights: dict[str, Tensor] = {}
        for name, shape in weight_shapes(config).items():
            self.weights[name] = checked_weight(name, shape, tensors).detach().to(dtype)

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits of the token that follows each position: ``dtype`` [len(token_ids), vocab_size].

        Raises:
            RequestError: no token, an id outside the vocabulary, or more tokens than the model has positions.
        """
        return self.forward(token_ids).logits

    def forward(self, token_ids: Sequence[int]) -> Forward:
        """One pass over the whole sequence, with the hidden states that lead to the logits.

        Raises:
            RequestError: see :meth:`logits`.
        """
        return self.decode(self.embed(token_ids))

    def embed(self, token_ids: Sequence[int]) -> Tensor:
        """Rows of the embedding: ``dtype`` [len(token_ids), hidden_size].

        Raises:
            RequestError: see :meth:`logits`.
        """
        _check_length(len(token_ids), self.config)
        check_vocabulary(token_ids, self.config)
        return self.weights["model.embed_tokens.weight"][torch.tensor(list(token_ids))]

    @torch.no_grad()
    def decode(self, embedded: Tensor) -> Forward:
        """Everything after the embedding, ``dtype`` [n, hidden_size]."""
        hidden = [embedded]
        angles = self.angles(self.positions(len(embedded)))
        for index in range(self.config.num_layers):
            hidden.append(self._layer(index, hidden[-1], angles))
        hidden.append(self._norm("model.norm", hidden[-1]))
        output = "model.embed_tokens" if self.config.tie_word_embeddings else "lm_head"
        return Forward(tuple(hidden), self._linear(output, hidden[-1]))

    def positions(self, length: int) -> Tensor:
        """Position of each token: ``dtype`` [length]."""
        return torch.arange(length, dtype=self.dtype)

    def angles(self, positions: Tensor) -> Tensor:
        """Rotation of pair i at position p, p * theta^(-2i / head_dim): ``dtype`` [length, head_dim / 2]."""
        exponents = torch.arange(0, self.config.head_dim, 2, dtype=self.dtype) / self.config.head_dim
        return positions[:, None] * (1.0 / self.config.rope_theta**exponents)

    def rotate(self, vectors: Tensor, angles: Tensor) -> Tensor:
        """Rotate component i against component i + head_dim / 2 of every head.

        Args:
            vectors: ``dtype`` [length, heads, head_dim].
            angles: ``dtype`` [length, head_dim / 2].
        """
        cosine, sine = angles.cos()[:, None, :], angles.sin()[:, None, :]
        first, second = vectors.chunk(2, dim=-1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)

    def mask(self, length: int) -> Tensor:
        """Which key (column) a query (row) may not see: bool [length, length], true after the query's position."""
        return torch.ones(length, length, dtype=torch.bool).triu(diagonal=1)

    def below_window(self, length: int, window: int) -> Tensor:
        """Which key (column) has fallen out of a query's (row's) window: bool [length, length]; none if it is 0."""
        fallen = torch.ones(length, length, dtype=torch.bool).tril(diagonal=-window)
        return fallen if window else torch.zeros_like(fallen)

    def _layer(self, index: int, hidden: Tensor, angles: Tensor) -> Tensor:
        prefix = f"model.layers.{index}"
        hidden = hidden + self._attention(index, self._norm(f"{prefix}.input_layernorm", hidden), angles)
        return hidden + self._mlp(prefix, self._norm(f"{prefix}.post_attention_layernorm", hidden))

    def _attention(self, index: int, x: Tensor, angles: Tensor) -> Tensor:
        prefix = f"model.layers.{index}"
        hidden_keys = self.mask(len(x)) | self.below_window(len(x), self.config.layer_windows[index])
        query = self.rotate(self._heads(f"{prefix}.self_attn.q_proj", x), angles)
        key = self.rotate(self._heads(f"{prefix}.self_attn.k_proj", x), angles)
        value = self._heads(f"{prefix}.self_attn.v_proj", x)
        return self._linear(f"{prefix}.self_attn.o_proj", self.mix(query, key, value, hidden_keys))

    def mix(self, query: Tensor, key: Tensor, value: Tensor, hidden_keys: Tensor) -> Tensor:
        """Values mixed by how well keys answer queries: ``dtype`` [q, heads * head_dim].

        Args:
            query: ``dtype`` [q, heads, head_dim], rotated.
            key: ``dtype`` [k, kv_heads, head_dim], rotated.
            value: likewise, as it is.
            hidden_keys: bool [q, k], which key a query may not see.
        """
        group = self.config.num_heads // self.config.num_kv_heads
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / self.config.head_dim**0.5
        weights = scores.masked_fill(hidden_keys, -torch.inf).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)

    def _heads(self, name: str, x: Tensor) -> Tensor:
        return self._linear(name, x).reshape(len(x), -1, self.config.head_dim)

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        gate = self._linear(f"{prefix}.mlp.gate_proj", x)
        return self._linear(f"{prefix}.mlp.down_proj", gate * gate.sigmoid() * self._linear(f"{prefix}.mlp.up_proj", x))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.config.rms_norm_eps)
        return x * scale * self.weights[f"{name}.weight"]


def check_vocabulary(token_ids: Sequence[int], config: LlamaShape) -> None:
    """Refuse token ids that the model does not know.

    Raises:
        RequestError: an id is not between 0 and ``vocab_size`` - 1.
    """
    unknown = [token for token in token_ids if not 0 <= token < config.vocab_size]
    if unknown:
        raise RequestError(
            f"token id {unknown[0]}",
            f"token ids must lie in 0 to {config.vocab_size - 1}",
            "the embedding has no row for others, and a negative index would silently read from its end",
            "ids made by the tokenizer of this very checkpoint",
        )


def _check_length(length: int, config: LlamaShape) -> None:
    if not 1 <= length <= config.max_position_embeddings:
        raise RequestError(
            f"a sequence of {length} tokens",
            f"a sequence must have 1 to {config.max_position_embeddings} tokens",
            "the model is defined for these positions only",
            "a shorter prompt, or fewer max_tokens",
        )


def checked_weight(name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> Tensor:
    """One weight of a model.

    Raises:
        CheckpointError: it is missing or has another shape.
    """
    if name not in tensors:
        raise CheckpointError(
            f"weight {name}",
            "every weight that the configuration implies must be present",
            "a missing weight would have to be invented",
            "a complete checkpoint, in Hugging Face's names (tie_word_embeddings=True if there is no lm_head.weight)",
        )
    if tuple(tensors[name].shape) != shape:
        raise CheckpointError(
            f"weight {name} of shape {tuple(tensors[name].shape)}",
            f"its shape must be {shape}",
            "the configuration implies it, and a transposed or padded weight would compute something else",
            "a configuration and weights of one and the same model",
        )
    return tensors[name]
