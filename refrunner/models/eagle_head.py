"""Reads an EAGLE head from a folder in the published layout: ``config.json``, and safetensors in one file or in shards.

Li et al. 2024, "EAGLE" and "EAGLE-2", which have the same head: ``fc`` joins the embedding of a token and the target's
last state before it, and decoder layers follow. As published, no norm stands before the first layer and none behind the
last; a file that has one is taken at its word. Embedding and output projection are the target's unless the file has
others. Names may begin with ``model.`` or not. A head in memory has the names that a Llama model has there, and ``fc``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from reprlib import repr as short_repr
from types import MappingProxyType
from typing import Any

import torch

from ..errors import CheckpointError
from .config import LlamaConfig
from .faults import located, parsing
from .hugging_face import (
    CONFIG_FILE,
    INDEX_FILE,
    WEIGHTS_FILE,
    OpenedFiles,
    open_weights,
    read_json_object,
    refuse_pickled,
)
from .weights import (
    EMBEDDING,
    FINAL_NORM,
    FUSE,
    FUSE_BIAS,
    OUTPUT,
    Checkpoint,
    check_nothing_else,
    check_tensor,
    convert,
    expected_tensors,
)

FIRST_NORM = "model.layers.0.input_layernorm.weight"
#: Norms that a head may have or not.
NORMS = (FIRST_NORM, FINAL_NORM)
#: What a head may leave to the target, or not have at all.
OPTIONAL = (EMBEDDING, OUTPUT, FUSE_BIAS, *NORMS)
_PREFIX = "model."
_LLAMA = ["LlamaForCausalLM"]
#: What publishers call such a head.
_ARCHITECTURES = (None, _LLAMA, ["LlamaForCausalLMEagle"], ["EagleLlamaForCausalLM"])


def load_eagle_head(folder: Path, target: Checkpoint) -> Checkpoint:
    """Read the folder of a head, in the target's dtype.

    Args:
        target: the model that it was made for. An embedding or output projection that is the target's is not kept.

    Returns:
        tensors ``fc.weight`` [H, 2 H] and ``model.layers.*``; ``fc.bias`` [H], norms, ``model.embed_tokens.weight`` and
        ``lm_head.weight`` [V, H] only where the head has its own.

    Raises:
        CheckpointError: a file is missing, damaged or unsafe; a tensor is missing, left over, or of the wrong shape or
            dtype; or the head is not supported, such as one of EAGLE-3.
    """
    _check_files(folder)
    with located(str(folder)), ExitStack() as opened:
        values = read_json_object(folder / CONFIG_FILE)
        source = open_weights(folder, opened)
        names = _by_own_name(source)
        shapes = {own: tuple(source.shapes[name]) for own, name in names.items()}
        _refuse_eagle3(values, shapes)
        with located(CONFIG_FILE):
            config = _read_config(values)
        present = _check_shapes(config, shapes, values)
        dtype = target.tensors[EMBEDDING].dtype
        tensors = {name: convert(own, source.read(names[own]), dtype) for name, own in present.items()}
        name = folder.resolve().name
        description = f"{name}, EAGLE head of {config.num_layers} layers, safetensors {source.stored_dtype()}"
    return Checkpoint(name, folder, "safetensors", config, MappingProxyType(_unshared(tensors, target)), description)


def _check_files(folder: Path) -> None:
    with parsing(f"folder {str(folder)!r}"):
        names = sorted(entry.name for entry in folder.iterdir())
    if WEIGHTS_FILE in names or INDEX_FILE in names:
        return
    refuse_pickled(folder, names)
    raise CheckpointError(
        f"folder {str(folder)!r}",
        f"a head is {CONFIG_FILE} with {WEIGHTS_FILE} or {INDEX_FILE}",
        "its layers come from nowhere else",
        "the folder of a head, or 'self:1', a head of the target's last layer",
    )


def _by_own_name(source: OpenedFiles) -> dict[str, str]:
    """Names in the file, by name without prefix."""
    names: dict[str, str] = {}
    for name in source.shapes:
        own = name.removeprefix(_PREFIX)
        if own in names:
            raise CheckpointError(
                f"tensors {names[own]!r} and {name!r}",
                "a head has one of the two",
                "one would be left out, and nobody could tell which one was trained",
                f"a file with {own!r} alone",
            )
        names[own] = name
    return names


def _refuse_eagle3(values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    sign = _sign_of_eagle3(values, shapes)
    if sign is not None:
        raise CheckpointError(
            sign,
            "heads of EAGLE-3 are not supported",
            "they continue three inner states of the target, and propose from a smaller vocabulary; the runner hands "
            "out the last state alone, and each draft is a token id of the target",
            "a head of EAGLE or EAGLE-2, 'self:1' (a head of the target's last layer), or speculation='ngram'",
        )


def _sign_of_eagle3(values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """What says that a head is one of EAGLE-3, in words; None if nothing does."""
    architectures = values.get("architectures")
    if "eagle3" in str(architectures).lower():
        return f"architectures={short_repr(architectures)}"
    draft_vocabulary = values.get("draft_vocab_size")
    if draft_vocabulary is not None and draft_vocabulary != values.get("vocab_size"):
        return f"draft_vocab_size={short_repr(draft_vocabulary)}"
    for name in sorted(shapes):
        if name in ("d2t", "t2d") or name.startswith("midlayer."):
            return f"tensor {name!r}"
    fuse = shapes.get(FUSE, ())
    if len(fuse) == 2 and fuse[1] == 3 * fuse[0]:
        return f"tensor {FUSE!r} of shape {list(fuse)}"
    return None


def _read_config(values: Mapping[str, Any]) -> LlamaConfig:
    known = values.get("architectures") in _ARCHITECTURES
    # Tied or not, a head that has no output projection takes the target's.
    changed = {"tie_word_embeddings": False, **({"architectures": _LLAMA} if known else {})}
    return LlamaConfig.from_hugging_face({**values, **changed})


def head_tensors(config: LlamaConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name in memory and shape of every tensor that a head can have."""
    width = config.hidden_size
    yield FUSE, (width, 2 * width)
    yield FUSE_BIAS, (width,)
    yield from expected_tensors(config)


def _check_shapes(
    config: LlamaConfig, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Any]
) -> dict[str, str]:
    """What the head has: names in memory, and without prefix.

    Raises:
        CheckpointError: a tensor is missing, left over, or of the wrong shape.
    """
    if FUSE not in shapes:
        raise CheckpointError(
            f"tensor {FUSE!r}",
            "it is missing from the weights, and a head has one",
            "it joins a token's embedding and the target's hidden state, which is what a head is computed from",
            "speculation='draft' for a whole model, or the folder of a head",
        )
    biased = _says_bias(values)
    present = {}
    for name, shape in head_tensors(config):
        own = name.removeprefix(_PREFIX)
        optional = name in OPTIONAL and not (name == FUSE_BIAS and biased)
        if own in shapes or not optional:
            check_tensor(own, shape, shapes)
            present[name] = own
    excluded = {FUSE_BIAS} if biased is False else set()
    left_over = (shapes.keys() - set(present.values())) | (shapes.keys() & excluded)
    check_nothing_else(left_over, "an EAGLE head")
    return present


def _says_bias(values: Mapping[str, Any]) -> bool | None:
    """Whether the configuration says that ``fc`` has a bias; None if it says nothing, and the file decides."""
    for key in ("eagle_fc_bias", "bias"):
        said = values.get(key)
        if isinstance(said, bool):
            return said
    return None


def _unshared(tensors: dict[str, torch.Tensor], target: Checkpoint) -> dict[str, torch.Tensor]:
    """Without copies of what is the target's: they would take its memory twice."""
    embedding = target.tensors[EMBEDDING]
    of_target = {EMBEDDING: embedding, OUTPUT: target.tensors.get(OUTPUT, embedding)}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name not in of_target or not torch.equal(tensor, of_target[name])
    }
