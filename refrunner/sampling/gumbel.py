"""Host side of the Gumbel-max sampler."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.gumbel import combine_blocks, sample_blocks

# On a GPU a block is what one program holds in registers. On the CPU a program costs about a millisecond whatever
# its size, so a row is cut into as few blocks as Triton's largest tensor (2**20 elements) allows; but into two, so
# that what combines the blocks of a row on a GPU is at work here too.
GPU_BLOCK = 1024
CPU_BLOCK = 2**17


@dataclass(frozen=True)
class Sampled:
    """One drawn token per row, on the device of the logits, written on the current stream.

    Attributes:
        token_ids: int32 [N].
        logprobs: float32 [N], natural logarithm, under the softmax of the raw logits.
    """

    token_ids: Tensor
    logprobs: Tensor


def sample(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    *,
    block_size: int | None = None,
) -> Sampled:
    """Draw one token per row of logits; enqueues two launches and waits for nothing.

    Args:
        logits: float32 [N, V], unit stride in V; not modified.
        rows: int32 [N], row of the parameter tables that each logits row belongs to.
        positions: int32 [N], number of tokens before the one drawn.
        temperature: float32 [R]; 0 is greedy.
        seeds: int64 [R], the 64 bits of the seed.
        block_size: tokens per program, a power of two from 4 to 2**20; by default what suits the device.
    """
    count, vocab_size = logits.shape
    block = block_size or _block_size(logits)
    num_blocks = -(-vocab_size // block)
    # Not parts of one tensor: their alignment would change with the batch, and the kernel would be compiled anew.
    best_score, best_logit, max_logit, sum_exp = (
        torch.empty(count, num_blocks, dtype=torch.float32, device=logits.device) for _ in range(4)
    )
    best_token = torch.empty(count, num_blocks, dtype=torch.int32, device=logits.device)
    token_ids = torch.empty(count, dtype=torch.int32, device=logits.device)
    logprobs = torch.empty(count, dtype=torch.float32, device=logits.device)
    sample_blocks[(count, num_blocks)](
        logits, logits.stride(0), rows, positions, temperature, seeds,
        best_score, best_token, best_logit, max_logit, sum_exp,
        vocab_size, num_blocks, BLOCK=block,
    )  # fmt: skip
    combine_blocks[(count,)](
        best_score, best_token, best_logit, max_logit, sum_exp,
        token_ids, logprobs, num_blocks, BLOCKS=_power_of_two(num_blocks),
    )  # fmt: skip
    return Sampled(token_ids, logprobs)


def _block_size(logits: Tensor) -> int:
    if logits.device.type != "cpu":
        return GPU_BLOCK
    return min(CPU_BLOCK, max(4, _power_of_two(logits.shape[1]) // 2))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
