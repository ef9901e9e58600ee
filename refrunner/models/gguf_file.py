"""Reads a Llama model from a GGUF file: the library ``gguf`` parses and dequantises, this module translates.

GGUF stores the rows of the query and key projections in the order that a rotary embedding over neighbouring pairs
needs; the Hugging Face order, used everywhere else here, pairs the two halves of a head.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import CheckpointError
from .config import CAPPED, SCALED, SCALED_ROPE, LlamaConfig, refuse_unless, required, split_evenly, unsupported
from .faults import located, optional_module, parsing
from .hugging_face import check_regular_file
from .weights import EMBEDDING, OUTPUT, Checkpoint, count_parameters, read_tensors

_GLOBAL_NAMES = {"token_embd.weight": EMBEDDING, "output_norm.weight": "model.norm.weight", "output.weight": OUTPUT}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ACCEPTED: dict[str, tuple[tuple[object, ...], str]] = {
    "llama.rope.scaling.type": ((None, "none"), SCALED_ROPE),
    "llama.rope.scaling.factor": ((None, 0, 1), SCALED_ROPE),
    "llama.rope.scale_linear": ((None, 1), SCALED_ROPE),
    "llama.attention.sliding_window": ((None, 0), "attention is full here; a window is not implemented"),
    "llama.attention.causal": ((None, True), "every token sees only those before it here"),
    "llama.expert_count": ((None, 0), "there is one feed-forward layer here; experts are not implemented"),
    "llama.logit_scale": ((None, 1), SCALED),
    "llama.embedding_scale": ((None, 1), SCALED),
    "llama.residual_scale": ((None, 1), SCALED),
    "llama.attention.scale": ((None,), SCALED),
    "llama.attention.clamp_kqv": ((None,), CAPPED),
    "llama.attn_logit_softcapping": ((None,), CAPPED),
    "llama.final_logit_softcapping": ((None,), CAPPED),
}


def load_gguf(path: Path, dtype: torch.dtype) -> Checkpoint:
    """Read one ``.gguf`` file, dequantised to float32 and then rounded to ``dtype``.

    Raises:
        CheckpointError: the file is missing or damaged, or the model is not supported.
    """
    library = optional_module("gguf", "reading GGUF files")
    with located(str(path)):
        check_regular_file(path)
        with parsing("GGUF header"):
            reader = _bounded(library.GGUFReader)(path)
            metadata = {key: field.contents() for key, field in reader.fields.items() if _is_wanted(key)}
        _check_layout(reader)
        stored = {_hugging_face_name(tensor.name): tensor for tensor in reader.tensors}
        config = _read_config(metadata, {name: _shape(tensor) for name, tensor in stored.items()})
        tensors = read_tensors(config, _OpenedFile(library.dequantize, stored, config), dtype)
    quantisation = _main_type(stored)
    name = path.stem.removesuffix(f".{quantisation}").removesuffix(f"-{quantisation}")
    description = f"{name}, GGUF {quantisation}, {count_parameters(config)} parameters"
    return Checkpoint(name, path, "gguf", config, tensors, description)


class _OpenedFile:
    """The weight source over a parsed GGUF file."""

    def __init__(self, dequantise: Any, stored: Mapping[str, Any], config: LlamaConfig) -> None:
        self._dequantise = dequantise
        self._stored = stored
        self._config = config
        self.shapes = {name: _shape(tensor) for name, tensor in stored.items()}

    def read(self, name: str) -> torch.Tensor:
        stored = self._stored[name]
        plain = stored.data.dtype.kind == "i" or stored.data.dtype == np.float64
        # Damaged scales overflow; the check for finite values that follows says so better than a warning.
        with parsing(f"tensor {name!r} of type {stored.tensor_type.name}"), np.errstate(all="ignore"):
            values = stored.data if plain else self._dequantise(stored.data, stored.tensor_type)
            # Stored floats come as a view of the mapped file, dequantised ones as a new array.
            tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
        if name.endswith("q_proj.weight"):
            return halves_from_pairs(tensor, self._config.num_heads)
        if name.endswith("k_proj.weight"):
            return halves_from_pairs(tensor, self._config.num_kv_heads)
        return tensor


def halves_from_pairs(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorder the rows of a query or key projection from GGUF's order to that of Hugging Face.

    Within a head of width D, GGUF's rows 2i and 2i + 1 turn against each other, and become rows i and i + D/2.

    Args:
        weight: [num_heads * D, hidden].
        num_heads: heads of this projection (key heads for a key projection).

    Returns:
        a new tensor of the same shape and dtype.
    """
    pairs = weight.view(num_heads, -1, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _bounded(reader_class: Any) -> Any:
    """Return the library's reader with every access checked against the end of the file.

    As it comes, the reader returns what is left of the file, or nothing, so a damaged array length makes it loop
    2**60 times over nothing. This also keeps to plain arrays, which makes it five times as fast.
    """

    def get(reader: Any, offset: int, dtype: npt.DTypeLike, count: int = 1, **_order: Any) -> Any:
        if reader.byte_order != "I":
            raise ValueError("the file has the byte order of another processor")
        element, length = np.dtype(dtype), int(count)
        if offset + length * element.itemsize > reader.data.nbytes:
            raise ValueError(f"{length} elements at byte {offset} reach beyond the end of the file")
        return np.frombuffer(reader.data, element, length, offset) if length else np.empty(0, element)

    return type("BoundedReader", (reader_class,), {"_get": get})


def _check_layout(reader: Any) -> None:
    """Check that the tensors lie one after the other, as the format demands: a damaged offset or size shows here."""
    expected, alignment = int(reader.data_offset), int(reader.alignment)
    for tensor in reader.tensors:
        if tensor.data_offset != expected:
            raise CheckpointError(
                f"tensor {tensor.name!r} at byte {tensor.data_offset}",
                f"it must follow the tensor before it, at byte {expected}",
                "the header is damaged, and bytes of something else would become weights",
                "copy or download the file again",
            )
        expected += -(-tensor.n_bytes // alignment) * alignment


def _is_wanted(key: str) -> bool:
    # The vocabulary and its merges are long and are read by the tokenizer, not here.
    wanted = ("general.architecture", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id")
    return key in wanted or key.startswith("llama.")


def _hugging_face_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    if name == "rope_freqs.weight":
        raise unsupported(f"tensor {name!r}", "per-frequency factors", SCALED_ROPE)
    match = re.fullmatch(r"blk\.([0-9]+)\.([a-z_]+)\.weight", name)
    if match and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"
    return f"{name} (GGUF)"  # no name of ours, so the check for unexpected tensors reports it


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))


def _main_type(stored: Mapping[str, Any]) -> str:
    """The type that holds most of the weights, e.g. ``"Q4_1"``."""
    elements: Counter[str] = Counter()
    for tensor in stored.values():
        elements[tensor.tensor_type.name] += tensor.n_elements
    return elements.most_common(1)[0][0]


def _read_config(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> LlamaConfig:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise unsupported("general.architecture", architecture, "one architecture is implemented, readably: Llama")
    refuse_unless(metadata, _ACCEPTED)
    if EMBEDDING in shapes:
        metadata = {"llama.vocab_size": shapes[EMBEDDING][0], **metadata}
    hidden, heads = required(metadata, "llama.embedding_length"), required(metadata, "llama.attention.head_count")
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    return LlamaConfig(
        vocab_size=required(metadata, "llama.vocab_size"),
        hidden_size=hidden,
        intermediate_size=required(metadata, "llama.feed_forward_length"),
        num_layers=required(metadata, "llama.block_count"),
        num_heads=heads,
        num_kv_heads=metadata.get("llama.attention.head_count_kv", heads),
        head_dim=_head_dim(metadata, hidden, heads),
        rope_theta=_shortest(metadata.get("llama.rope.freq_base", 10_000.0)),
        rms_norm_eps=_shortest(required(metadata, "llama.attention.layer_norm_rms_epsilon")),
        max_position_embeddings=required(metadata, "llama.context_length"),
        tie_word_embeddings=OUTPUT not in shapes,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=() if eos is None else (eos,),
    )


def _head_dim(metadata: Mapping[str, Any], hidden: Any, heads: Any) -> Any:
    width = split_evenly(metadata.get("llama.attention.key_length"), hidden, heads)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if metadata.get(key, width) != width:
            raise unsupported(key, metadata[key], f"key, value and rotary width of a head are the same here, {width}")
    return width


def _shortest(value: Any) -> Any:
    """Return the shortest decimal that float32 rounds to ``value``: the file holds 1e-05 as 9.999999747378752e-06."""
    if not isinstance(value, float):
        return value
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else value
