"""The shape of a Llama model, and its two-way translation to the ``config.json`` of Hugging Face."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short_repr
from typing import Any

from ..errors import CheckpointError

# Token ids and sizes are int32 on the device; a larger number in a file is damage or a lie.
LARGEST_SIZE = 2**31 - 1
SCALED_ROPE = "scaled rotary embeddings stretch the positions; only the plain one is implemented"
SCALED = "only attention is scaled here, by the root of a head's width; another factor gives other tokens"
CAPPED = "activations and logits are not capped here; a cap gives other tokens"
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
)
# Keys that would change the arithmetic: the values this model implements, and what another value means.
_ACCEPTED: dict[str, tuple[tuple[object, ...], str]] = {
    "hidden_act": (("silu",), "the feed-forward layer is SiLU-gated here; another activation gives other tokens"),
    "attention_bias": ((None, False), "the attention projections have no bias here; dropping it gives other tokens"),
    "mlp_bias": ((None, False), "the feed-forward projections have no bias here; dropping it gives other tokens"),
    "sliding_window": ((None,), "attention is full here; a window of visible tokens is not implemented"),
    "quantization_config": ((None,), "quantised safetensors need kernels and scales that this model does not have"),
    "partial_rotary_factor": ((None, 1), "the rotary embedding turns the whole head here"),
    "rope_interleaved": ((None, False), "the rotary embedding pairs the two halves of a head here, not neighbours"),
    "num_local_experts": ((None, 1), "there is one feed-forward layer here; experts are not implemented"),
    "logit_scale": ((None, 1), SCALED),
    "logits_scaling": ((None, 1), SCALED),
    "embedding_multiplier": ((None, 1), SCALED),
    "scale_emb": ((None, 1), SCALED),
    "residual_multiplier": ((None, 1), SCALED),
    "scale_depth": ((None,), SCALED),
    "attention_multiplier": ((None,), SCALED),
    "query_pre_attn_scalar": ((None,), SCALED),
    "final_logit_softcapping": ((None,), CAPPED),
    "attn_logit_softcapping": ((None,), CAPPED),
    "clip_qkv": ((None,), CAPPED),
    "use_qk_norm": ((None, False), "queries and keys are not normalised here"),
    "no_rope_layers": ((None,), "every layer has the rotary embedding here"),
}


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and constants of a Llama model (RMSNorm, rotary embedding, grouped-query attention, SiLU-gated MLP).

    Attributes:
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the gated feed-forward layer.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides ``num_heads``.
        head_dim: width of one head, even (the rotary embedding turns its two halves against each other).
        rope_theta: base of the rotary frequencies.
        rms_norm_eps: added to the mean square before its root.
        max_position_embeddings: positions run from 0 to this, exclusive.
        tie_word_embeddings: the output projection is the embedding itself.
        bos_token_id: token that starts a text, if the model has one.
        eos_token_ids: tokens that end a text; may be empty.
        sliding_windows: of each layer, how many tokens a position sees, its own included; 0 for all earlier ones. Empty
            means full attention throughout.

    Raises:
        CheckpointError: a value has the wrong type, is out of range, or contradicts another.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    sliding_windows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in _SIZES:
            _check_integer(name, getattr(self, name), 1, LARGEST_SIZE)
        for name in ("rope_theta", "rms_norm_eps"):
            _check_positive(name, getattr(self, name))
        if not isinstance(self.tie_word_embeddings, bool):
            raise _wrong("tie_word_embeddings", self.tie_word_embeddings, "must be true or false", "decides a weight")
        self._check_heads()
        self._check_special_tokens()
        self._check_windows()

    def _check_heads(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise _wrong(
                "num_kv_heads",
                self.num_kv_heads,
                f"must divide num_heads={self.num_heads}",
                "each key and value head serves the same number of query heads",
            )
        if self.head_dim % 2:
            raise _wrong(
                "head_dim", self.head_dim, "must be even", "the rotary embedding turns the two halves of a head"
            )

    def _check_special_tokens(self) -> None:
        if not isinstance(self.eos_token_ids, tuple):
            raise _wrong("eos_token_ids", self.eos_token_ids, "must be a tuple of token ids", "generation ends on them")
        bos = () if self.bos_token_id is None else (self.bos_token_id,)
        for name, ids in (("bos_token_id", bos), ("eos_token_ids", self.eos_token_ids)):
            for token_id in ids:
                _check_integer(name, token_id, 0, self.vocab_size - 1)

    def _check_windows(self) -> None:
        windows = self.sliding_windows
        if not isinstance(windows, tuple) or len(windows) not in (0, self.num_layers):
            rule = f"must be empty, or a tuple with a window for each of the {self.num_layers} layers"
            raise _wrong("sliding_windows", windows, rule, "each layer attends in its own way")
        for window in windows:
            _check_integer("sliding_windows", window, 0, LARGEST_SIZE)

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """``sliding_windows`` with one entry a layer, also where the model has none."""
        return self.sliding_windows or (0,) * self.num_layers

    @classmethod
    def from_hugging_face(cls, values: Mapping[str, Any]) -> LlamaConfig:
        """Read the content of a ``config.json``.

        Both layouts of the rotary base are read: the key ``rope_theta``, and ``rope_parameters`` (transformers 5).
        Where transformers has always had a default (key and value heads, head width, rotary base, tied embeddings)
        a missing key takes it; a missing special token means the model has none.

        Raises:
            CheckpointError: not a Llama model, a feature that changes the arithmetic and is not implemented here,
                a missing key, or a wrong value; the subject is the key.
        """
        _check_architecture(values)
        refuse_unless(values, _ACCEPTED)
        _check_layer_types(values)
        num_heads = required(values, "num_attention_heads")
        kv_heads = values.get("num_key_value_heads")
        return cls(
            vocab_size=required(values, "vocab_size"),
            hidden_size=required(values, "hidden_size"),
            intermediate_size=required(values, "intermediate_size"),
            num_layers=required(values, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_heads if kv_heads is None else kv_heads,
            head_dim=split_evenly(values.get("head_dim"), required(values, "hidden_size"), num_heads),
            rope_theta=_rope_theta(values),
            rms_norm_eps=required(values, "rms_norm_eps"),
            max_position_embeddings=required(values, "max_position_embeddings"),
            tie_word_embeddings=values.get("tie_word_embeddings", False),
            bos_token_id=values.get("bos_token_id"),
            eos_token_ids=_as_tuple(values.get("eos_token_id")),
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """Return the content of a ``config.json`` that transformers 4 and 5 both read, JSON values only.

        Raises:
            CheckpointError: the model has sliding windows, which its Hugging Face namesake does not know.
        """
        if any(self.sliding_windows):
            raise unsupported("sliding_windows", self.sliding_windows, "the Llama of transformers attends in full")
        eos: int | list[int] | None = list(self.eos_token_ids) or None
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_ids[0] if len(self.eos_token_ids) == 1 else eos,
        }


def split_evenly(head_dim: Any, hidden_size: Any, num_heads: Any) -> Any:
    """Return ``head_dim``, or when it is None the share of ``hidden_size`` that each head gets.

    Raises:
        CheckpointError: there is no ``head_dim`` and ``num_heads`` does not divide ``hidden_size``.
    """
    if head_dim is not None:
        return head_dim
    _check_integer("num_heads", num_heads, 1, LARGEST_SIZE)
    _check_integer("hidden_size", hidden_size, 1, LARGEST_SIZE)
    if hidden_size % num_heads:
        raise _wrong(
            "hidden_size", hidden_size, f"must be a multiple of num_heads={num_heads}", "head_dim is not given"
        )
    return hidden_size // num_heads


def required(values: Mapping[str, Any], key: str) -> Any:
    """Return ``values[key]``.

    Raises:
        CheckpointError: the key is missing.
    """
    if key not in values:
        raise CheckpointError(
            f"key {key!r}",
            "it is missing from the configuration",
            "the weights cannot be laid out without it, and a guess could give a model that runs and is wrong",
            f"add {key!r} with the value the model was trained with",
        )
    return values[key]


def _check_architecture(values: Mapping[str, Any]) -> None:
    model_type, architectures = values.get("model_type"), values.get("architectures")
    if model_type == "llama" and architectures in (None, ["LlamaForCausalLM"]):
        return
    raise CheckpointError(
        f"model_type={short_repr(model_type)}, architectures={short_repr(architectures)}",
        "this architecture is not supported",
        "the reference runner implements one architecture, Llama for text generation, and implements it readably",
        "a checkpoint with model_type 'llama' and architectures ['LlamaForCausalLM']",
    )


def _check_layer_types(values: Mapping[str, Any]) -> None:
    kinds = values.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)):
        raise unsupported("layer_types", kinds, "every layer has full attention here")


def _rope_theta(values: Mapping[str, Any]) -> Any:
    """Find the rotary base in either layout; the two may repeat each other but not disagree."""
    found = [values["rope_theta"]] if values.get("rope_theta") is not None else []
    for key in ("rope_scaling", "rope_parameters"):
        section = values.get(key)
        if section is None:
            continue
        if not isinstance(section, dict):
            raise _wrong(key, section, "must be an object", "it holds the settings of the rotary embedding")
        if section.get("rope_type", section.get("type", "default")) != "default":
            raise unsupported(key, section, SCALED_ROPE)
        if section.get("partial_rotary_factor", 1) != 1:
            raise unsupported(key, section, "the rotary embedding turns the whole head here")
        if section.get("rope_theta") is not None:
            found.append(section["rope_theta"])
    if any(theta != found[0] for theta in found):
        raise _wrong("rope_theta", found, "must be the same everywhere", "the two layouts contradict each other")
    return found[0] if found else 10_000.0


def _as_tuple(token_ids: Any) -> Any:
    if token_ids is None:
        return ()
    return tuple(token_ids) if isinstance(token_ids, list) else (token_ids,)


def _check_integer(name: str, value: Any, low: int, high: int) -> None:
    # bool is an int to Python, and "true" for a size is always a mistake.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(name, value, f"must be an integer between {low} and {high}", "tensors are laid out from it")


def _check_positive(name: str, value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= 1e30 or not math.isfinite(value):
        raise _wrong(name, value, "must be a positive, finite number", "any other value turns activations into NaN")


def _wrong(name: str, value: object, rule: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{name}={short_repr(value)}", rule, reason, "the value the model was trained with, from its original files"
    )


def refuse_unless(values: Mapping[str, Any], accepted: Mapping[str, tuple[tuple[object, ...], str]]) -> None:
    """Check settings that would change the arithmetic.

    Args:
        values: the settings found.
        accepted: per key the values that this model implements (the first one stands for a missing key), and what
            any other value means.

    Raises:
        CheckpointError: a key has another value.
    """
    for key, (allowed, reason) in accepted.items():
        if not any(values.get(key, allowed[0]) == value for value in allowed):
            raise unsupported(key, values[key], reason)


def unsupported(key: str, value: object, reason: str) -> CheckpointError:
    """Return the error that names a feature of a checkpoint which this model does not implement."""
    return CheckpointError(
        f"{key}={short_repr(value)}",
        "this feature is not supported by the reference runner",
        reason,
        "a Llama checkpoint without it, such as 'smollm2' or 'tiny'",
    )
