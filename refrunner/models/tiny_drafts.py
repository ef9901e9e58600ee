"""What proposes drafts for the tiny model, made from its own weights; right now and then, which is what tests need."""

from __future__ import annotations

from types import MappingProxyType

import torch

from .tiny import TINY_CONFIG, tiny_checkpoint
from .weights import EMBEDDING, OUTPUT, Checkpoint

# How much of the target's state the head takes in: with more it agrees less often with the tiny model.
_SHARE_OF_STATE = 0.15


def tiny_draft(dtype: torch.dtype = torch.float32) -> Checkpoint:
    """The tiny model with its last layer halved: it agrees with the tiny model on many tokens."""
    halved = ("model.layers.1.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight")
    tensors = {
        name: tensor / 2 if name in halved else tensor for name, tensor in tiny_checkpoint(dtype=dtype).tensors.items()
    }
    return Checkpoint("tiny-draft", None, "safetensors", TINY_CONFIG, MappingProxyType(tensors), "drafts for tiny")


def tiny_eagle(dtype: torch.dtype = torch.float32) -> Checkpoint:
    """A head with the tiny model's layers, fed with the token's embedding and a little of the state before it."""
    target = tiny_checkpoint(dtype=dtype).tensors
    tensors = {name: tensor for name, tensor in target.items() if name not in (EMBEDDING, OUTPUT)}
    identity = torch.eye(TINY_CONFIG.hidden_size, dtype=dtype)
    tensors["fc.weight"] = torch.cat([identity, _SHARE_OF_STATE * identity], dim=1)
    return Checkpoint("tiny-eagle", None, "safetensors", TINY_CONFIG, MappingProxyType(tensors), "EAGLE head for tiny")
