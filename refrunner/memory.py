"""How much memory a runner asks for, and the error when it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .config import RunnerConfig
from .errors import ConfigurationError
from .grammar.masks import mask_bytes
from .kv_groups import KVGroups
from .models.config import LlamaConfig
from .request_states import COUNTERS
from .sampling.tables import table_bytes
from .staging import ALIGNMENT

LARGEST_TENSOR = 2**63 - 1
# Beside the tensors: an entry of a Python list of ints, for the free rows and the free blocks.
LIST_ENTRY = 36


def padded(count: int, multiple: int) -> int:
    """``count`` rounded up."""
    return -(-count // multiple) * multiple


def tensor_bytes(config: RunnerConfig, model: LlamaConfig, draft: LlamaConfig | None = None) -> int:
    """Bytes of the tables, input buffers and KV cache that a runner allocates; weights and activations come on top.

    Prompts that are read in place count, too, though they are in the host's memory.
    """
    rows, columns = config.max_num_reqs, config.max_blocks_per_request
    requests, tokens = padded(rows, config.pad_to), padded(config.max_num_batched_tokens, config.pad_to)
    prompts = rows * config.max_model_len * 4
    states = padded(COUNTERS * 4 * rows, ALIGNMENT) + padded(prompts, ALIGNMENT) + table_bytes(config, model.vocab_size)
    states += prompts if config.prompt_tokens == "uva" else 0
    states += mask_bytes(config.max_logits, model.vocab_size) if config.grammars else 0
    groups = KVGroups.of_layers(model.layer_windows)
    states += _speculation_bytes(config, model, draft)
    tables = len(groups.windows) * ((rows + requests) * columns * 4 + tokens * 8 + 4)
    inputs = tokens * (4 + 8) + requests * 4 + (requests + 1) * 4
    return states + tables + inputs + _cache_bytes(config, model)


def _cache_bytes(config: RunnerConfig, model: LlamaConfig) -> int:
    """Keys and values of one model in the blocks of the pool."""
    layers = KVGroups.of_layers(model.layer_windows).layers_per_group
    slots = config.num_kv_blocks * config.block_size
    return layers * 2 * slots * model.num_kv_heads * model.head_dim * config.torch_dtype.itemsize


def _speculation_bytes(config: RunnerConfig, model: LlamaConfig, draft: LlamaConfig | None) -> int:
    """What is allocated for drafts: positions of logits, distributions, and all that a draft model keeps."""
    if not config.drafts:
        return 0
    size = 4 * config.max_logits
    if config.draws_drafts:
        size += 4 * config.max_num_reqs * config.drafts * model.vocab_size
    if draft is not None:
        lanes, requests = draft_capacity(config)
        width = model.hidden_size if config.speculation == "eagle" else 0
        size += lanes * (4 + 8 + 8) + requests * 4 + (requests + 1) * 4
        size += (config.max_num_reqs + lanes) * width * config.torch_dtype.itemsize + _cache_bytes(config, draft)
    return size


def draft_capacity(config: RunnerConfig) -> tuple[int, int]:
    """Lanes and requests of a draft model's largest batch: all that the target computes, and a newest token each."""
    requests = padded(config.max_num_reqs, config.pad_to)
    return max(config.max_num_batched_tokens + config.max_num_reqs, 2 * requests), requests


@contextmanager
def allocating(config: RunnerConfig, model: LlamaConfig, draft: LlamaConfig | None = None) -> Iterator[None]:
    """Scope in which the runner allocates its tensors.

    Raises:
        ConfigurationError: the memory is not there; nothing stays allocated.
    """
    needed = tensor_bytes(config, model, draft)
    try:
        _require(config, needed)
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ConfigurationError(
            f"RunnerConfig(max_num_reqs={config.max_num_reqs}, max_model_len={config.max_model_len}, "
            f"max_num_batched_tokens={config.max_num_batched_tokens}, num_kv_blocks={config.num_kv_blocks}, "
            f"block_size={config.block_size}, pad_to={config.pad_to})",
            f"its tables and KV cache take {needed:,} bytes, and device {config.device!r} does not give them",
            "everything that a step needs is allocated at start, so that no step can run out of memory",
            "smaller capacities, or a device with more memory",
        ) from error


def _require(config: RunnerConfig, needed: int) -> None:
    """Ask for all at once: table by table, the last one would fail, or the machine, when the others fill memory."""
    needed += LIST_ENTRY * (config.max_num_reqs + config.num_kv_blocks)
    if needed > LARGEST_TENSOR:
        raise MemoryError
    if torch.device(config.device).type != "cpu":
        return  # a GPU refuses by itself, and a trial would leave its allocator with a block of this size
    try:
        torch.empty(needed, dtype=torch.uint8)
    except RuntimeError as error:
        raise MemoryError from error
