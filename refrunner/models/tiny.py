"""A tiny Llama model made from a seed, for tests and demonstrations that must not download anything.

Its weights are built from the raw output of a bit generator by exact arithmetic, so they are the same bits on every
processor and under every version of the libraries (``torch.randn`` promises neither).
"""

from __future__ import annotations

import json
import math
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from ..errors import CheckpointError
from .config import LlamaConfig
from .faults import optional_module
from .hugging_face import CONFIG_FILE, WEIGHTS_FILE
from .tokenizer import TOKENIZER_FILE, byte_tokenizer_json
from .weights import EMBEDDING, Checkpoint, count_parameters, expected_tensors

TINY_CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=2048,
)
#: The same weights, with a window in the first layer and full attention in the second.
TINY_SLIDING_CONFIG = replace(TINY_CONFIG, sliding_windows=(8, 0))
# Gains over 1 / sqrt(inputs). They make a stale or missing cache entry visible: with these, changing one of 20 earlier
# tokens changes the next greedy token in half of all cases (one of 100: in 3 of 10); with 1 throughout, in 2 of 10
# (2 of 100).
_GAINS = {"embed_tokens": 1.0, "q_proj": 2.0, "k_proj": 2.0, "o_proj": 3.0, "down_proj": 3.0, "lm_head": 1.5}


def tiny_checkpoint(seed: int = 0, dtype: torch.dtype = torch.float32, config: LlamaConfig = TINY_CONFIG) -> Checkpoint:
    """Make the tiny model in memory: the same bits as ``write_tiny_checkpoint`` with this seed puts on disk.

    Args:
        seed: 0 or above; another seed gives another model.
        dtype: floating dtype of the tensors; they are made in float32 and rounded.
        config: another shape, such as ``TINY_SLIDING_CONFIG``; then nothing has ever put it on disk.

    Raises:
        CheckpointError: the seed is negative.
    """
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(config, seed).items()}
    name = "tiny-sliding" if any(config.sliding_windows) else "tiny"
    description = f"{name}, made from seed {seed}, {count_parameters(config)} parameters"
    return Checkpoint(name, None, "safetensors", config, MappingProxyType(tensors), description)


def random_tensors(config: LlamaConfig, seed: int) -> dict[str, torch.Tensor]:
    """Make float32 CPU weights for any configuration, by Hugging Face name.

    Logits come out with a deviation of 1 to 2, or about 8 where the embeddings are tied.

    Raises:
        CheckpointError: the seed is negative.
    """
    if seed < 0:
        raise CheckpointError(
            f"seed={seed}",
            "it must be 0 or above",
            "the bit generator takes no negative seed, and dropping the sign would give two seeds one model",
            "seed=0",
        )
    bits = np.random.PCG64(seed)
    return {name: _random_tensor(bits, name, shape) for name, shape in expected_tensors(config)}


def _random_tensor(bits: np.random.PCG64, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    top_24_bits = (bits.random_raw(math.prod(shape)) >> np.uint64(40)).astype(np.int64)
    uniform = (2 * top_24_bits + 1 - 2**24).astype(np.float32) / np.float32(2**24)  # exact, in (-1, 1)
    values = torch.from_numpy(uniform.reshape(shape))
    if len(shape) == 1:  # a norm: far enough from 1 that a forgotten one shows
        return 1 + values / 2
    inputs = 1 if name == EMBEDDING else shape[1]
    return values * (_GAINS.get(name.split(".")[-2], 1.0) * math.sqrt(3 / inputs))


def write_tiny_checkpoint(folder: str | Path, seed: int = 0) -> Path:
    """Write the tiny model as a Hugging Face folder: ``config.json``, ``model.safetensors``, ``tokenizer.json``.

    The folder appears complete or not at all.

    Args:
        folder: where to write; must not exist yet, or be empty. Missing parents are made.
        seed: 0 or above.

    Returns:
        the folder.

    Raises:
        CheckpointError: the folder is in use or cannot be written, or ``safetensors`` is not installed.
    """
    target = Path(folder)
    library = optional_module("safetensors.torch", "writing safetensors")
    content = library.save(random_tensors(TINY_CONFIG, seed), metadata={"format": "pt"})
    staging = target.parent / f".{target.name}-{uuid.uuid4().hex}"
    try:
        staging.mkdir(parents=True)
        (staging / WEIGHTS_FILE).write_bytes(content)
        for name, values in ((CONFIG_FILE, TINY_CONFIG.to_hugging_face()), (TOKENIZER_FILE, byte_tokenizer_json())):
            (staging / name).write_text(json.dumps(values, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
        staging.rename(target)
    except OSError as error:
        raise CheckpointError(
            f"folder {str(target)!r}",
            f"it must be new or empty, and writable ({error.strerror})",
            "a checkpoint that mixes two models would load and be wrong",
            "another folder, or delete this one first",
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target
