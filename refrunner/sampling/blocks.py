"""How the vocabulary is cut into blocks, and how a sampling kernel is launched."""

from __future__ import annotations

import torch

# On a GPU a block is what one program holds in registers. On the CPU a program costs about a millisecond whatever
# its size, so a row is cut into as few blocks as Triton's largest tensor (2**20 elements) allows; but into two, so
# that what combines the blocks of a row on a GPU is at work here too.
GPU_BLOCK = 1024
CPU_BLOCK = 2**17
# A program that walks over a whole row, block by block, has registers for a larger one.
GPU_ROW_BLOCK = 4096

# A product and a sum are two roundings on every device, or the CPU, which has no such fusion, would disagree.
LAUNCH = {"enable_fp_fusion": False}


def block_of(device: torch.device, vocab_size: int) -> int:
    """Tokens per program where the blocks of a row are programs of their own, a power of two."""
    if device.type != "cpu":
        return GPU_BLOCK
    return min(CPU_BLOCK, max(4, power_of_two(vocab_size) // 2))


def row_block_of(device: torch.device, vocab_size: int) -> int:
    """Tokens per turn where one program walks over a row, a power of two."""
    return block_of(device, vocab_size) if device.type == "cpu" else GPU_ROW_BLOCK


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below a positive number."""
    return 1 << (number - 1).bit_length()
