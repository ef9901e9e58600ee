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
from ..models.llama import Attend, LlamaModel
from ..models.weights import EMBEDDING, OUTPUT, Checkpoint, check_tensor

#: Projection [H, 2 H] of an embedding and a state of the target to the head's own input.
FUSE = "fc.weight"


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
    """One or few layers on the target's hidden states, with the target's embedding and output projection.

    A token is computed from its embedding and the target's state of the token before it, in which the target foretold
    it (Li et al. 2024, "EAGLE: speculative sampling requires rethinking feature uncertainty"). What stands in a slot
    depends on no later token, so a prefix may be shared like the target's.
    """

    def __init__(
        self, target: LlamaModel, config: LlamaConfig, tensors: Mapping[str, Tensor], *, kernels: bool
    ) -> None:
        """Take the head's own weights, and the two that it shares with the target.

        Args:
            target: the model whose states it continues.
            config: of the head.
            tensors: ``fc.weight``, ``model.layers.*`` and ``model.norm.weight``.

        Raises:
            CheckpointError: one of them is missing, or of another shape.
        """
        width = config.hidden_size
        check_tensor(FUSE, (width, 2 * width), {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        shared = {EMBEDDING: target.embedding, OUTPUT: target.output}
        own = {name: tensor for name, tensor in tensors.items() if name != FUSE}
        untied = replace(config, tie_word_embeddings=False)
        self._model = LlamaModel(untied, {**own, **shared}, target.device, target.dtype, kernels=kernels)
        self._fuse = tensors[FUSE].to(device=target.device, dtype=target.dtype)
        self.config = untied

    def forward(self, input_ids: Tensor, positions: Tensor, states: Tensor, attend: Attend) -> Tensor:
        """See :class:`DraftModel`."""
        embedded = functional.embedding(input_ids, self._model.embedding)
        fused = functional.linear(torch.cat([embedded, states], dim=1), self._fuse)
        return self._model.transform(fused, positions, attend)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See :class:`DraftModel`."""
        return self._model.compute_logits(hidden)


def check_draft(target: LlamaConfig, draft: LlamaConfig, windows: tuple[int, ...], *, head: bool) -> None:
    """Refuse a draft model that cannot propose for a target.

    Args:
        windows: of the target's KV groups.
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
    if draft.max_position_embeddings < target.max_position_embeddings:
        raise ConfigurationError(
            f"draft model for {draft.max_position_embeddings} positions",
            f"the target goes up to {target.max_position_embeddings}",
            "beyond its own it would propose nonsense, and every step would pay for it",
            "a draft model with the target's range, or a target configured with a shorter one",
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
            "draft_model='self:1', a head of the target's last layer, or speculation='draft' for a whole model",
        )
    if not head and FUSE in draft.tensors:
        raise ConfigurationError(
            f"RunnerConfig.speculation='draft' with draft model {draft.name!r}",
            f"a model of its own has no tensor {FUSE!r}",
            "that is part of a head, which can only go on from the target's hidden states",
            "speculation='eagle', or draft_model='self:1', the target's first layer",
        )
