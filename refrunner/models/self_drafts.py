"""Draft models by name; among them those of a model's own layers, for a target to which nobody has made one.

The latter are untrained, so they are right less often than a model made for it; the output is the target's in any case.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch

from ..errors import CheckpointError
from .checkpoint import BUILT_IN, load_checkpoint
from .eagle_head import load_eagle_head
from .faults import parsing
from .weights import EMBEDDING, FUSE, OUTPUT, Checkpoint

_LAYER = "model.layers.{}."


def load_draft(reference: str, target: Checkpoint, *, head: bool) -> Checkpoint | None:
    """A draft model by name; None for an empty one.

    Args:
        reference: as for ``load_checkpoint``, or ``"self:N"``.
        target: the model that it proposes for.
        head: of a target's own layers, make a head; a folder is that of a head, see ``eagle_head``.

    Raises:
        CheckpointError: there is no such model.
    """
    if not reference:
        return None
    count = reference.removeprefix("self:")
    if count == reference:
        if head and reference not in BUILT_IN and _is_folder(reference):
            return load_eagle_head(Path(reference), target)
        return load_checkpoint(reference, target.tensors[EMBEDDING].dtype)
    if not count.isdecimal():
        raise _no_such_part(target, count)
    return head_of_last_layers(target, int(count)) if head else first_layers(target, int(count))


def _is_folder(reference: str) -> bool:
    with parsing(f"draft model {reference!r}"):
        return Path(reference).is_dir()


def first_layers(target: Checkpoint, count: int) -> Checkpoint:
    """The target cut off behind its first layers (Zhang et al. 2023, "Draft & Verify", skips layers likewise).

    Raises:
        CheckpointError: it has fewer layers.
    """
    _check(target, count)
    kept = tuple(_LAYER.format(layer) for layer in range(count))
    tensors = {name: tensor for name, tensor in target.tensors.items() if not _is_layer(name) or name.startswith(kept)}
    return _part(target, tensors, count, f"first {count} layers of {target.name}")


def head_of_last_layers(target: Checkpoint, count: int, share_of_state: float = 1.0) -> Checkpoint:
    """An EAGLE-style head of the target's last layers, which get the token's embedding and the state before it, added.

    Args:
        share_of_state: what the state is multiplied by.

    Raises:
        CheckpointError: it has fewer layers.
    """
    _check(target, count)
    first = target.config.num_layers - count
    tensors = {"model.norm.weight": target.tensors["model.norm.weight"]}
    for layer in range(count):
        old, new = _LAYER.format(first + layer), _LAYER.format(layer)
        tensors |= {name.replace(old, new): tensor for name, tensor in target.tensors.items() if name.startswith(old)}
    identity = torch.eye(target.config.hidden_size, dtype=target.tensors[EMBEDDING].dtype)
    tensors[FUSE] = torch.cat([identity, identity * share_of_state], dim=1)
    return _part(target, tensors, count, f"head of the last {count} layers of {target.name}")


def _part(target: Checkpoint, tensors: dict[str, torch.Tensor], layers: int, name: str) -> Checkpoint:
    windows = target.config.sliding_windows[:layers]
    config = replace(target.config, num_layers=layers, sliding_windows=windows)
    return Checkpoint(name, target.path, target.format, config, MappingProxyType(tensors), name)


def _is_layer(name: str) -> bool:
    return name not in (EMBEDDING, OUTPUT) and name.startswith("model.layers.")


def _check(target: Checkpoint, count: int) -> None:
    if not 1 <= count <= target.config.num_layers:
        raise _no_such_part(target, str(count))


def _no_such_part(target: Checkpoint, count: str) -> CheckpointError:
    return CheckpointError(
        f"draft model {f'self:{count}'!r}",
        f"behind 'self:' stands a number of layers of {target.name}, from 1 to {target.config.num_layers}",
        "the target has no more, and without one there is no model",
        f"'self:{max(1, target.config.num_layers // 4)}'",
    )
