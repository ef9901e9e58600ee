"""Models that propose: one of its own, or a head on the target's hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import ConfigurationError
from ..models.config import LlamaConfig
from ..models.eagle_head import NORMS, head_tensors
from ..models.llama import Attend, LlamaModel
from ..models.weights import EMBEDDING, FUSE, FUSE_BIAS, OUTPUT, Checkpoint, check_tensor


class DraftModel(Protocol):
    """Hidden states of drafts, and logits from them; everything enqueues on the current stream.

    Attributes:
        config: shape of the layers that have keys and values.
    """

    config: LlamaConfig

    def forward(self, input_ids: Tensor, positions: Tensor, states: Tensor, attend: Attend) -> Tensor:
        """Hidden states [D, H'].

        Args:
            input_ids: int32 [D].
            positions: int64 [D].
            states: [D, H], of the token before each lane: the target's, or this model's own where the target has not
                been.
            attend: see ``models.llama.Attend``.
        """
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [n, V] of hidden states [n, H']."""
        ...


class StandaloneDraft:
    """A model that knows the tokens only."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.config = model.config

    def forward(self, input_ids: Tensor, positions: Tensor, states: Tensor, attend: Attend) -> Tensor:
        """See :class:`DraftModel`; ``states`` are not looked at."""
        return self._model.forward(input_ids, positions, attend)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See :class:`DraftModel`."""
        return self._model.compute_logits(hidden)


class EagleHead:
    """One or few layers on the target's hidden states, with its embedding and output projection or others.

    A token is computed from its embedding and the target's state of the token before it, in which the target foretold
    it (Li et al. 2024, "EAGLE: speculative sampling requires rethinking feature uncertainty"). What stands in a slot
    depends on no later token, so a prefix may be shared like the target's.
    """

    def __init__(
        self, target: LlamaModel, config: LlamaConfig, tensors: Mapping[str, Tensor], *, kernels: bool
    ) -> None:
        """Take the head's own weights, and from the target what it has not.

        Args:
            target: the model whose states it continues.
            config: of the head.
            tensors: see ``models.eagle_head.load_eagle_head``.

        Raises:
            CheckpointError: one of them is missing, or of another shape.
        """
        self.config = replace(config, tie_word_embeddings=False)
        self._fuse, self._bias = _fusion(target, config, tensors)
        layers = {name: tensor for name, tensor in tensors.items() if name not in (FUSE, FUSE_BIAS)}
        whole = {EMBEDDING: target.embedding, OUTPUT: target.output, **layers}
        without = [name for name in NORMS if name not in tensors]
        self._model = LlamaModel(self.config, whole, target.device, target.dtype, without=without, kernels=kernels)

    def forward(self, input_ids: Tensor, positions: Tensor, states: Tensor, attend: Attend) -> Tensor:
        """See :class:`DraftModel`."""
        embedded = functional.embedding(input_ids, self._model.embedding)
        fused = functional.linear(torch.cat([embedded, states], dim=1), self._fuse, self._bias)
        return self._model.transform(fused, positions, attend)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See :class:`DraftModel`."""
        return self._model.compute_logits(hidden)


def _fusion(target: LlamaModel, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """``fc`` and its bias, if it has one, on the target's device."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, shape in head_tensors(config):
        if name == FUSE or (name == FUSE_BIAS and name in shapes):
            check_tensor(name, shape, shapes)
    placed = [
        tensor.to(device=target.device, dtype=target.dtype)
        for tensor in map(tensors.get, (FUSE, FUSE_BIAS))
        if tensor is not None
    ]
    return placed[0], placed[1] if len(placed) > 1 else None


def check_draft(target: LlamaConfig, draft: LlamaConfig, windows: tuple[int, ...], longest: int, *, head: bool) -> None:
    """Refuse a draft model that cannot propose for a target.

    Args:
        windows: of the target's KV groups.
        longest: sequence of the runner, in tokens.
        head: it continues the target's states.

    Raises:
        ConfigurationError: another vocabulary, width or range of positions, or layers with a sliding window.
    """
    if draft.vocab_size != target.vocab_size or (head and draft.hidden_size != target.hidden_size):
        raise ConfigurationError(
            f"draft model with {draft.vocab_size} tokens and {draft.hidden_size} columns",
            f"the target has {target.vocab_size} tokens and {target.hidden_size} columns",
            "a draft is a token id of the target, and a head continues the target's hidden states",
            "a draft model that was made for this target",
        )
    if windows[0] != 0 or any(draft.layer_windows):
        raise ConfigurationError(
            "a draft model with a sliding window, or for a target that has nothing else",
            "draft models keep their keys in the blocks of the target's full attention",
            "blocks below a window are given to other requests",
            "speculation='ngram'",
        )
    if draft.max_position_embeddings < longest:
        raise ConfigurationError(
            f"draft model for {draft.max_position_embeddings} positions",
            f"sequences are up to max_model_len={longest} tokens long",
            "beyond its own positions it would propose nonsense, and every step would pay for it",
            f"max_model_len={draft.max_position_embeddings}, or a draft model with a longer range",
        )


def check_draft_kind(draft: Checkpoint, *, head: bool) -> None:
    """Refuse a whole model as a head, and a head as a whole model.

    Raises:
        ConfigurationError: the draft model is not of the kind that the speculation needs.
    """
    if head and FUSE not in draft.tensors:
        raise ConfigurationError(
            f"RunnerConfig.speculation='eagle' with draft model {draft.name!r}",
            f"a head has a tensor {FUSE!r}, and this model has none",
            "it joins a token's embedding and the target's hidden state, which is what a head is computed from",
            "the folder of a head, draft_model='self:1' (a head of the target's last layer), or speculation='draft' "
            "for a whole model",
        )
    if not head and FUSE in draft.tensors:
        raise ConfigurationError(
            f"RunnerConfig.speculation='draft' with draft model {draft.name!r}",
            f"a model of its own has no tensor {FUSE!r}",
            "that is part of a head, which can only go on from the target's hidden states",
            "speculation='eagle', or draft_model='self:1', the target's first layer",
        )
