"""Reads a Hugging Face folder: ``config.json`` and safetensors, in one file or in shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch

from ..errors import CheckpointError
from .config import LlamaConfig
from .faults import located, optional_module, parsing
from .weights import FUSE, Checkpoint, count_parameters, read_tensors

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def load_hugging_face(folder: Path, dtype: torch.dtype) -> Checkpoint:
    """Read a folder with ``config.json`` and ``model.safetensors`` (or its index and shards).

    Raises:
        CheckpointError: a file is missing, damaged or unsafe, or the model is not supported.
    """
    with located(str(folder)), ExitStack() as opened:
        with located(CONFIG_FILE):
            config = LlamaConfig.from_hugging_face(read_json_object(folder / CONFIG_FILE))
        source = open_weights(folder, opened)
        _refuse_head(source.shapes)
        tensors = read_tensors(config, source, dtype)
        name = folder.resolve().name
        description = f"{name}, safetensors {source.stored_dtype()}, {count_parameters(config)} parameters"
    return Checkpoint(name, folder, "safetensors", config, tensors, description)


def open_weights(folder: Path, opened: ExitStack) -> OpenedFiles:
    """Open ``model.safetensors``, or its index and shards.

    Args:
        opened: closes the files.

    Raises:
        CheckpointError: a file is missing, damaged or unsafe.
    """
    library = optional_module("safetensors", "reading safetensors")

    def open_file(name: str) -> Any:
        check_regular_file(folder / name)
        with parsing(f"file {name!r}"):
            return opened.enter_context(library.safe_open(folder / name, framework="pt"))

    return OpenedFiles(_files_by_tensor(folder, open_file))


def refuse_pickled(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder whose weights are pickled; nothing of it is opened.

    Args:
        names: of the files in it, none of which is a weight file that can be read.

    Raises:
        CheckpointError: it holds pickled weights.
    """
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if pickled:
        raise CheckpointError(
            f"folder {str(folder)!r}",
            f"its weights must be safetensors or GGUF; pickled weights, here {pickled[0]!r}, are refused",
            "unpickling a file runs whatever code its author put there",
            "the safetensors version of the model; or convert it yourself, away from what you would not lose: "
            f"weights = torch.load({pickled[0]!r}, map_location='cpu', weights_only=True), then "
            "safetensors.torch.save_file({name: tensor.clone() for name, tensor in weights.items()}, "
            f"{WEIGHTS_FILE!r})",
        )


def _refuse_head(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A head has the configuration of a Llama model; what it lacks would be told as if it were damaged."""
    if FUSE in shapes or f"model.{FUSE}" in shapes:
        raise CheckpointError(
            f"tensor {FUSE!r}",
            "a model of its own has no such tensor",
            "it is part of an EAGLE head, which can only go on from the hidden states of the model it was made for",
            "this folder as the draft model of that one, with speculation='eagle'",
        )


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file whose top level is an object.

    Raises:
        CheckpointError: the file is missing, not a regular file, not JSON, not an object, or names a key twice.
    """
    check_regular_file(path)
    with parsing(f"file {path.name!r}"):
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    if not isinstance(content, dict):
        raise CheckpointError(
            f"file {path.name!r}",
            f"its top level must be an object, not {type(content).__name__}",
            "its settings are looked up by name",
            "the file that was published with the weights",
        )
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a file; of two values for one key, readers differ in which they take."""
    content = dict(pairs)
    if len(content) < len(pairs):
        repeated = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"key {repeated!r} occurs twice")
    return content


def check_regular_file(path: Path) -> None:
    """Check that ``path`` is a regular file: to read a folder fails, to read a pipe may hang.

    Raises:
        CheckpointError: it is not.
    """
    with parsing(f"file {path.name!r}"):
        found = path.is_file()
    if not found:
        raise CheckpointError(
            f"file {path.name!r}",
            "it must exist and be a regular file",
            "a checkpoint is read as a whole or not at all",
            "a complete copy of the checkpoint",
        )


class OpenedFiles:
    """The weight source over opened safetensors files; see ``weights.WeightSource``."""

    def __init__(self, files_by_tensor: Mapping[str, Any]) -> None:
        self._files = files_by_tensor
        with parsing("safetensors header"):
            self.shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in files_by_tensor.items()}

    def read(self, name: str) -> torch.Tensor:
        """See ``weights.WeightSource``."""
        with parsing(f"tensor {name!r}"):
            # The library may hand out a view of the mapped file; a copy survives that file being replaced.
            tensor: torch.Tensor = self._files[name].get_tensor(name).clone()
        return tensor

    def stored_dtype(self) -> str:
        """The dtype of the first tensor as safetensors spells it, e.g. ``"BF16"``."""
        name, file = next(iter(self._files.items()))
        return str(file.get_slice(name).get_dtype())


def _files_by_tensor(folder: Path, open_file: Callable[[str], Any]) -> dict[str, Any]:
    """Open every weight file, and say for each tensor which of them holds it."""
    if (folder / WEIGHTS_FILE).exists():
        file = open_file(WEIGHTS_FILE)
        return dict.fromkeys(file.keys(), file)
    with located(INDEX_FILE):
        file_names = _read_index(folder)
        files = {name: open_file(name) for name in sorted(set(file_names.values()))}
        for file_name, file in files.items():
            _check_shard(file_name, set(file.keys()), {t for t, owner in file_names.items() if owner == file_name})
    return {tensor: files[file_name] for tensor, file_name in file_names.items()}


def _read_index(folder: Path) -> dict[str, str]:
    """Return the index's table from tensor to file, after checking that every file lies in the folder."""
    table = read_json_object(folder / INDEX_FILE).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise CheckpointError(
            "key 'weight_map'",
            "it must map tensor names to file names",
            "shards are found through it",
            "the index that was published with the shards",
        )
    for file_name in set(table.values()):
        _check_inside_folder(file_name)
    return table


def _check_inside_folder(file_name: str) -> None:
    # Both path grammars, so that a file made on one system cannot escape on another.
    plain = PurePosixPath(file_name).name == file_name == PureWindowsPath(file_name).name
    if not plain or not file_name.endswith(".safetensors"):
        raise CheckpointError(
            f"shard {file_name!r}",
            "it must be the plain name of a .safetensors file in the same folder",
            "a downloaded index must not make this program read files elsewhere, or files that can run code",
            "a name such as 'model-00001-of-00002.safetensors'",
        )


def _check_shard(file_name: str, held: set[str], promised: set[str]) -> None:
    if held == promised:
        return
    tensor = min(held ^ promised)
    raise CheckpointError(
        f"tensor {tensor!r} in {file_name!r}",
        "the index promises it there, but the shard lacks it"
        if tensor in promised
        else "the shard holds it, but the index does not list it there",
        "index and shards belong to different versions of the model",
        "index and shards from one download",
    )
