"""The runner's Llama forward pass: flat batches, fused projections, attention left to the caller.

Nothing here waits for the device or looks at a value: the same code is captured in a CUDA graph, queued on the
virtual device, and run eagerly on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .config import LlamaConfig
from .layers import LayerOperations, TorchLayerOperations, TritonLayerOperations
from .weights import EMBEDDING, FINAL_NORM, OUTPUT, check_dtype, check_shapes

MODEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INPUT_NORM = "input_layernorm.weight"
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, query [T, heads, D], key [T, kv_heads, D], value [T, kv_heads, D]) -> [T, heads, D]``.

Rotary embedding has been applied. The three are views into one projection: the last dimension is contiguous, the
first has a stride of its own. The paged cache lives behind this call.
"""


@dataclass(frozen=True)
class _Layer:
    attention_norm: Tensor | None  # [H]
    qkv: Tensor  # [(heads + 2 kv_heads) D, H]
    attention_output: Tensor  # [H, heads D]
    mlp_norm: Tensor  # [H]
    gate_up: Tensor  # [2 I, H]
    down: Tensor  # [H, I]


class LlamaModel:
    """Weights of a Llama model on one device, and its forward pass.

    Args:
        config: sizes of the model.
        tensors: Hugging Face name to weight, as ``Checkpoint.tensors``; not changed.
        device: where the weights go, e.g. ``"cuda"``.
        dtype: dtype of weights and activations: float32, bfloat16 or float16.
        without: tensors that the model has not: the norm before the first layer, or the one behind the last. What
            stands in its place is the residual stream itself.
        kernels: norms, rotary embedding and gates are Triton kernels, one launch each; else operations of torch.

    Raises:
        CheckpointError: another dtype, or a tensor is missing, unexpected or of the wrong shape.
    """

    def __init__(
        self,
        config: LlamaConfig,
        tensors: Mapping[str, Tensor],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        without: Collection[str] = (),
        kernels: bool = False,
    ) -> None:
        check_dtype(dtype, MODEL_DTYPES)
        check_shapes(config, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, without)
        self.config = config
        self.device = torch.device(device)
        self.dtype = dtype

        def place(*names: str) -> Tensor:
            parts = [tensors[name] for name in names]
            return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(device=self.device, dtype=dtype)

        def place_norm(name: str) -> Tensor | None:
            return None if name in without else place(name)

        self._embedding = place(EMBEDDING)
        prefixes = [f"model.layers.{layer}" for layer in range(config.num_layers)]
        self._layers = [_load_layer(place, prefix, place_norm(f"{prefix}.{INPUT_NORM}")) for prefix in prefixes]
        self._final_norm = place_norm(FINAL_NORM)
        self._output = self._embedding if config.tie_word_embeddings else place(OUTPUT)
        rotary_table = _rotary_table(config).to(self.device)
        self._operations: LayerOperations = (
            TritonLayerOperations(config, rotary_table)
            if kernels
            else TorchLayerOperations(config, rotary_table, dtype)
        )

    @property
    def embedding(self) -> Tensor:
        """[V, H]."""
        return self._embedding

    @property
    def output(self) -> Tensor:
        """[V, H], the projection to logits."""
        return self._output

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Compute the hidden states of a flat batch of tokens.

        Enqueues on the current stream and does not wait.

        Args:
            input_ids: int32 or int64 [T], each below ``vocab_size``; padded lanes need a valid id too.
            positions: int64 [T], each below ``max_position_embeddings``.
            attend: attention over whatever the caller keeps of earlier tokens; called once per layer, in order.

        Returns:
            [T, H] in the model's dtype, after the final norm.
        """
        return self.transform(functional.embedding(input_ids, self._embedding), positions, attend)

    def transform(self, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The layers alone, of what stands for the embedding of each token: [T, H], the caller's no longer."""
        layers, operations = self._layers, self._operations
        angles = operations.angles(positions)
        first_norm = layers[0].attention_norm
        normed = hidden if first_norm is None else operations.norm(hidden, first_norm)
        following = [*(layer.attention_norm for layer in layers[1:]), self._final_norm]
        for index, (layer, next_norm) in enumerate(zip(layers, following, strict=True)):
            query, key, value = operations.rotate(functional.linear(normed, layer.qkv), angles)
            attended = attend(index, query, key, value).flatten(1)
            projected = functional.linear(attended, layer.attention_output)
            hidden, normed = operations.add_and_norm(hidden, projected, layer.mlp_norm)
            gated = operations.gate(functional.linear(normed, layer.gate_up))
            hidden, normed = self._add_and_norm(hidden, functional.linear(gated, layer.down), next_norm)
        return normed

    def _add_and_norm(self, hidden: Tensor, added: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """The residual stream with something added, and its norm, or itself where there is no norm."""
        if weight is None:
            total = hidden + added
            return total, total
        return self._operations.add_and_norm(hidden, added, weight)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Project hidden states [n, H] to float32 logits [n, V]."""
        logits = functional.linear(hidden, self._output)
        return logits if logits.dtype == torch.float32 else logits.float()


def _load_layer(place: Callable[..., Tensor], prefix: str, attention_norm: Tensor | None) -> _Layer:
    projections = [f"{prefix}.self_attn.{name}_proj.weight" for name in ("q", "k", "v")]
    return _Layer(
        attention_norm=attention_norm,
        qkv=place(*projections),
        attention_output=place(f"{prefix}.self_attn.o_proj.weight"),
        mlp_norm=place(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=place(f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight"),
        down=place(f"{prefix}.mlp.down_proj.weight"),
    )


def _rotary_table(config: LlamaConfig) -> Tensor:
    """Return float32 [max_position_embeddings, D]: the cosines of a position's D/2 angles, then their sines.

    Angles are float64: in float32 the angle of position 8,000 is already off by 5e-4.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
    angles = torch.outer(positions, config.rope_theta**-exponents)
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()
