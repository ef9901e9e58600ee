"""What a Llama checkpoint must contain, and the one place where every tensor of it is checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

import torch

from ..errors import CheckpointError
from .config import LlamaConfig

WEIGHT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"
FINAL_NORM = "model.norm.weight"
#: Of an EAGLE head: projection [H, 2 H] of an embedding and a state of the target to the head's own input; its bias.
FUSE = "fc.weight"
FUSE_BIAS = "fc.bias"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A complete, checked Llama model in host memory, or an EAGLE head (see ``eagle_head``).

    Attributes:
        name: short name, e.g. ``"SmolLM2-135M-Instruct"``.
        path: the folder or file it came from; None for the tiny model, which is made in memory.
        format: how it is stored.
        config: its sizes.
        tensors: Hugging Face name to a contiguous CPU tensor, all of one floating dtype, every value finite; each
            owns its memory. ``lm_head.weight`` is absent when the embeddings are tied.
        description: one line for logs, e.g. ``"SmolLM2-135M-Instruct, GGUF Q4_1, 135 M parameters"``.
    """

    name: str
    path: Path | None
    format: Literal["safetensors", "gguf"]
    config: LlamaConfig
    tensors: Mapping[str, torch.Tensor]
    description: str


class WeightSource(Protocol):
    """An opened weight file: shapes are known before any weight is read."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor in the file, by Hugging Face name."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor on the CPU, in the dtype it is stored in (dequantised if it was quantised)."""
        ...


def expected_tensors(config: LlamaConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the Hugging Face name and the shape of every tensor of a model, projections as [out, in]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    per_layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    yield EMBEDDING, (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        for name, shape in per_layer.items():
            yield f"model.layers.{layer}.{name}", shape
    yield FINAL_NORM, (hidden,)
    if not config.tie_word_embeddings:
        yield OUTPUT, (config.vocab_size, hidden)


def check_shapes(config: LlamaConfig, shapes: Mapping[str, tuple[int, ...]], without: Collection[str] = ()) -> None:
    """Check that exactly the tensors of ``config`` are there, each with its shape.

    Args:
        without: those that the model has not.

    Raises:
        CheckpointError: a tensor is missing, unexpected, or of another shape; it is named.
    """
    known = set()
    # Stops at the first missing name: a damaged layer count may promise two billion layers.
    for name, shape in expected_tensors(config):
        if name not in without:
            check_tensor(name, shape, shapes)
            known.add(name)
    check_nothing_else(shapes.keys() - known, "a plain Llama checkpoint")


def check_tensor(name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that one tensor is there, with its shape.

    Raises:
        CheckpointError: it is missing, or of another shape; it is named.
    """
    if name not in shapes:
        raise CheckpointError(
            f"tensor {name!r}",
            "it is missing from the weights",
            "a model with a part left out still generates text, only wrong text",
            "a complete checkpoint whose configuration belongs to its weights",
        )
    if tuple(shapes[name]) != shape:
        raise CheckpointError(
            f"tensor {name!r} of shape {list(shapes[name])}",
            f"the configuration asks for shape {list(shape)}",
            "weights and configuration belong to different models, or one of them is damaged",
            "the configuration that was published with these weights",
        )


def check_nothing_else(unexpected: Collection[str], wanted: str) -> None:
    """Check that no tensor is left over.

    Args:
        unexpected: names that the model has no place for.
        wanted: what to load instead, a checkpoint without such tensors.

    Raises:
        CheckpointError: there is one; it is named.
    """
    # Old Llama files carry the rotary frequencies, which follow from the configuration.
    left_over = sorted(name for name in unexpected if not name.endswith(".rotary_emb.inv_freq"))
    if left_over:
        raise CheckpointError(
            f"tensor {left_over[0]!r}" + (f" and {len(left_over) - 1} more" if len(left_over) > 1 else ""),
            "the model has no place for it",
            "a weight that is left out changes the output without any error",
            f"{wanted} without biases, adapters, quantisation scales or experts",
        )


def read_tensors(config: LlamaConfig, source: WeightSource, dtype: torch.dtype) -> Mapping[str, torch.Tensor]:
    """Read and check every tensor of a model.

    Returns:
        a read-only mapping from Hugging Face name to a contiguous CPU tensor of ``dtype`` that owns its memory.

    Raises:
        CheckpointError: a tensor is missing, unexpected, of the wrong shape or dtype, or not finite.
    """
    shapes = dict(source.shapes)
    if config.tie_word_embeddings and shapes.pop(OUTPUT, None) is not None:
        _check_tied(source)
    check_shapes(config, shapes)
    return MappingProxyType({name: convert(name, source.read(name), dtype) for name, _ in expected_tensors(config)})


def _check_tied(source: WeightSource) -> None:
    """Some files store a tied output projection a second time: a copy is fine, another matrix is not."""
    if not torch.equal(source.read(OUTPUT), source.read(EMBEDDING)):
        raise CheckpointError(
            f"tensor {OUTPUT!r}",
            f"it differs from {EMBEDDING!r} although the configuration ties them",
            "one of the two would be ignored, and nobody could tell which one was trained",
            "tie_word_embeddings=false, or weights without a second output projection",
        )


def convert(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A weight as it was read in the dtype asked for, contiguous.

    Raises:
        CheckpointError: it is of a dtype that is none of a weight, or not finite.
    """
    if tensor.dtype not in WEIGHT_DTYPES:
        raise CheckpointError(
            f"tensor {name!r} of {tensor.dtype}",
            "weights must be float64, float32, bfloat16 or float16",
            "integers and 8-bit floats need scales that a plain Llama checkpoint does not hold",
            "a checkpoint in a floating dtype, or a GGUF file for quantised weights",
        )
    converted = tensor.to(dtype).contiguous()
    low, high = torch.aminmax(converted)  # one pass, no temporary; NaN comes through as NaN
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise CheckpointError(
            f"tensor {name!r}",
            f"it holds values that are not finite in {dtype}",
            "one NaN or infinity spreads to every logit of every request",
            "the original weights; a dtype with a larger range (bfloat16, float32) if they overflow in this one",
        )
    return converted


def check_dtype(dtype: torch.dtype, supported: tuple[torch.dtype, ...] = WEIGHT_DTYPES) -> None:
    """Check a dtype that the caller asks for.

    Raises:
        CheckpointError: it is not among ``supported``.
    """
    if dtype not in supported:
        names = ", ".join(str(each) for each in supported)
        raise CheckpointError(
            f"dtype={dtype!r}",
            f"it must be one of {names}",
            "weights in any other dtype lose their values or have no matrix product",
            f"dtype={supported[0]}",
        )


def count_parameters(config: LlamaConfig) -> str:
    """Return the number of parameters in words, e.g. ``"135 M"``; tied embeddings count once."""
    total = sum(torch.Size(shape).numel() for _, shape in expected_tensors(config))
    for unit, word in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if total >= unit:
            return f"{total / unit:.3g} {word}"
    return str(total)
