"""What happens before the first step: the trial batch, how many KV blocks fit, and what the log says of it all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from .config import RunnerConfig
from .device import Device
from .errors import ConfigurationError
from .graphs.candidates import Candidate
from .input_batch import BatchShape
from .kv_groups import KVGroups
from .memory import tensor_bytes
from .models.config import LlamaConfig

logger = logging.getLogger(__name__)


def largest_shape(config: RunnerConfig) -> BatchShape:
    """The largest batch of any step.

    It stands for all: no kernel is compiled anew for another number of lanes or requests.
    """
    return BatchShape(max(config.max_num_batched_tokens, config.max_num_reqs), config.max_num_reqs)


def blocks_that_fit(
    config: RunnerConfig,
    model: LlamaConfig,
    device: Device,
    run: Callable[[], None],
    draft: LlamaConfig | None = None,
) -> int:
    """How many KV blocks fit into the share of the device's memory that the configuration grants.

    Args:
        config: with the smallest pool; everything but the pool is allocated.
        model: the architecture.
        device: where it all lives; CUDA.
        run: computes the largest batch once.
        draft: the draft model, which has keys and values of its own in every block.

    Raises:
        ConfigurationError: they would not hold one request of ``max_model_len``.
    """
    device.synchronize()
    torch.cuda.empty_cache()  # what others of this process have left in the allocator is free, and does not look so
    torch.cuda.reset_peak_memory_stats(device.torch_device)
    before = torch.cuda.memory_allocated(device.torch_device)
    run()
    device.synchronize()
    activations = torch.cuda.max_memory_allocated(device.torch_device) - before
    free, total = torch.cuda.mem_get_info(device.torch_device)
    # The allocator keeps what the run has used, so that it is not free, and steps will find it there again.
    granted = int(config.memory_fraction * total) - (total - free)
    one_more = replace(config, num_kv_blocks=config.num_kv_blocks + 1)
    per_block = tensor_bytes(one_more, model, draft) - tensor_bytes(config, model, draft)
    blocks = granted // per_block
    logger.info(
        "profile: activations take %s bytes at most; %s bytes are left for keys and values, %d blocks of %s bytes",
        f"{activations:,}", f"{max(granted, 0):,}", max(blocks, 0), f"{per_block:,}",
    )  # fmt: skip
    longest = len(KVGroups.of_layers(model.layer_windows).windows) * config.max_blocks_per_request
    if blocks <= longest:
        raise ConfigurationError(
            f"RunnerConfig.memory_fraction={config.memory_fraction!r}",
            f"room for {max(blocks, 0)} KV blocks is left, and one request of max_model_len={config.max_model_len} "
            f"takes up to {longest} and the null block",
            "a request that cannot have its blocks would preempt itself for ever",
            "a larger memory_fraction, or a smaller max_model_len or max_num_batched_tokens",
        )
    return blocks


def log_start(config: RunnerConfig, model: LlamaConfig, description: str, captured: tuple[Candidate, ...]) -> None:
    """Say which of several ways each part takes; nothing is chosen in silence."""
    lanes = ", ".join(str(candidate.num_tokens) for candidate in reversed(captured))
    graphs = f"{config.graph_mode}, captured for {lanes} lanes" if captured else config.graph_mode
    size = f"{tensor_bytes(config, model):,} bytes of tables and cache"
    for part, way in {
        "runner": f"refrunner on {config.device}, {description}, {config.dtype}",
        "attention": config.attention,
        "graphs": f"{graphs}; the sampler outside",
        "sampler": f"Triton, {'every stage for everybody' if config.force_sampler_stages else 'stages as asked for'}; "
        f"reports {config.logprobs_mode}",
        "grammars": "llguidance, masks on a stream of their own" if config.grammars else "refused",
        "prompt tokens": config.prompt_tokens,
        "staged writes": config.staged_writes,
        "scheduler": f"{config.scheduling}, {config.steps_in_flight} steps in flight; prefix caching "
        f"{'on' if config.prefix_caching else 'off'}",
        "KV cache": f"{config.num_kv_blocks} blocks of {config.block_size} tokens; {size}",
        "speculation": _speculation(config),
        "poison": "in everything that is dead" if config.poison else "none",
    }.items():
        logger.info("%s: %s", part, way)


def _speculation(config: RunnerConfig) -> str:
    if not config.drafts:
        return "none"
    return f"{config.speculation}, up to {config.drafts} drafts a step; verification {config.verification}"
