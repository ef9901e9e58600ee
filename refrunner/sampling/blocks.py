"""How the vocabulary is cut into blocks, and how a sampling kernel is launched."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# On a GPU a block is what one program holds in registers. On the CPU a program costs about a millisecond whatever
# its size, so a row is cut into as few blocks as Triton's largest tensor (2**20 elements) allows; but into two, so
# that what combines the blocks of a row on a GPU is at work here too.
GPU_BLOCK = 1024
CPU_BLOCK = 2**17
CPU_SEARCH = 2**12
# A program that walks over a whole row, block by block, has registers for a larger one.
GPU_ROW_BLOCK = 4096
# Of a program that draws, and holds several numbers per token; measured, see `ci/gpu/README.md`.
GPU_DRAW_BLOCK = 2048
GPU_DRAW_WARPS = 4
GPU_LANE_GROUPS = 16
GPU_SEARCH = 128
# Blocks of a part whose groups are not worth a list: what it takes to make one is the time of some loads.
GPU_FEW_BLOCKS = 3
GPU_LIST_CHUNK = 256
# Programs of a batch up to so many rows, then two a row: few rows need no more than hide the time of a load, since
# every program ends with exact scores; more rows need full multiprocessors.
GPU_PROGRAMS = ((16, 264), (32, 352), (64, 576), (384, 768))
GPU_MOST_PARTS = 128
MOST_LANES = 512

# A product and a sum are two roundings on every device, or the CPU, which has no such fusion, would disagree.
LAUNCH = {"enable_fp_fusion": False}


@dataclass(frozen=True)
class Parts:
    """How a row of logits is divided among programs that each walk over their part, block by block.

    Attributes:
        number: of parts.
        most: no less than any number of parts on this device for this vocabulary, a power of two.
        blocks: of each part; the last one may have fewer.
        block: tokens, a power of two.
        groups: of four tokens, whose exact scores are computed at a time, of a lane; a power of two.
        search: likewise, of a whole part.
        lanes: in which bounds are handed on to the second launch; a power of two, no more than a quarter of ``block``.
        warps: of a program.
        few: blocks of a part that is read as a whole, whatever the groups of tokens in it are.
        chunk: groups of a longer part that are looked at at a time, a power of two.
    """

    number: int
    most: int
    blocks: int
    block: int
    groups: int
    search: int
    lanes: int
    warps: int
    few: int
    chunk: int


def parts_of(device: torch.device, count: int, vocab_size: int) -> Parts:
    """On a GPU as many programs as are fastest for the batch, or two a row; on the CPU two, of two blocks."""
    if device.type == "cpu":
        block = min(CPU_BLOCK, max(4, power_of_two(vocab_size) // 4))
        number = -(-vocab_size // (2 * block))
        lanes = block // 4
        chunk = 8 if vocab_size < 1024 else 1024
        return Parts(
            number, power_of_two(number), 2, block, 2, min(lanes, CPU_SEARCH), min(lanes, MOST_LANES), 4, 1, chunk
        )  # fmt: skip
    blocks = -(-vocab_size // GPU_DRAW_BLOCK)
    programs = next((programs for rows, programs in GPU_PROGRAMS if count <= rows), 0)
    number = min(GPU_MOST_PARTS, max(2, programs // max(1, count)))
    each = -(-blocks // number)
    return Parts(
        -(-blocks // each), GPU_MOST_PARTS, each, GPU_DRAW_BLOCK, GPU_LANE_GROUPS, GPU_SEARCH,
        min(GPU_DRAW_BLOCK // 4, power_of_two(-(-vocab_size // 4))), GPU_DRAW_WARPS,
        GPU_FEW_BLOCKS, GPU_LIST_CHUNK,
    )  # fmt: skip


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


@dataclass(frozen=True)
class Grouping:
    """Groups of neighbouring tokens, whose largest logits say where a row's largest ones are.

    Attributes:
        group: tokens, a power of two, four or more: so many have their random words together.
        tile: groups that a program reads at a time, a power of two.
        most: number of likeliest tokens that are looked for by groups; beyond it the whole row is read, several times.
        likely: number of likeliest tokens that top-p without top-k looks at beforehand.
        list: tokens that a program has room for on the way, a power of two.
        warps: of a program that finds a row's thresholds; one that finds its likeliest tokens is faster with four.
    """

    group: int
    tile: int
    most: int
    likely: int
    list: int
    warps: int


def grouping_of(device: torch.device, vocab_size: int) -> Grouping:
    """On the CPU such that small vocabularies, too, have more groups than one and can do without room."""
    if device.type != "cpu":
        return Grouping(128, 16, 512, 64, 2048, 8)
    group = max(4, min(128, block_of(device, vocab_size) // 16))
    return Grouping(group, 4, 8, 4, 16, 4) if vocab_size < 1024 else Grouping(group, 16, 512, 128, 2048, 4)


@dataclass(frozen=True)
class Search:
    """How the search for a share of a row's mass is divided; see ``kernels.nucleus``.

    Attributes:
        sample: tokens that stand for the row, a power of two, two runs or more.
        run: neighbours among them, which come from memory together.
        sample_warps: of a program that judges a sample.
        rounds: of passes over all of a row at once, two to ``ROUNDS``.
        slots: tokens in question that there is room for, a power of two.
        parts: of a row in such a pass, a program each.
        part_blocks: turns of each part.
        tile: groups of tokens in a turn, a power of two.
        warps: of a program.
        settle_block: tokens that a program looks at at a time where the rounds did not suffice, a power of two.
        settle_warps: of that program.
    """

    sample: int
    run: int
    sample_warps: int
    rounds: int
    slots: int
    parts: int
    part_blocks: int
    tile: int
    warps: int
    settle_block: int
    settle_warps: int


def search_of(device: torch.device, count: int, vocab_size: int, group: int) -> Search:
    """On a GPU about a thousand programs a pass, or eight a row, whose parts stay in the cache; on the CPU mostly two.

    Args:
        group: tokens of a group.
    """
    if device.type == "cpu":
        block = block_of(device, vocab_size)
        few = 32 if vocab_size < 1024 else 4096
        return Search(few, 2, 4, 4, few, -(-vocab_size // block), 1, block // group, 4, 64, 4)
    tile = 1024 // group
    turns = -(-vocab_size // 1024)
    number = min(turns, max(8, 1024 // max(1, count)))
    each = -(-turns // number)
    return Search(8192, 8, 16, 4, 4096, -(-turns // each), each, tile, 4, 2048, 4)


@dataclass(frozen=True)
class Survey:
    """How one pass over a row is divided.

    Attributes:
        number: of parts, a program each.
        most: no less than any number of parts on this device for this vocabulary, a power of two.
        blocks: of each part.
        block: tokens, a power of two.
        warps: of a program.
    """

    number: int
    most: int
    blocks: int
    block: int
    warps: int


def survey_of(device: torch.device, count: int, vocab_size: int) -> Survey:
    """On a GPU about as many programs as it holds at once, or two a row; on the CPU two."""
    if device.type == "cpu":
        block = block_of(device, vocab_size)
        number = -(-vocab_size // block)
        return Survey(number, power_of_two(number), 1, block, 4)
    blocks = -(-vocab_size // GPU_ROW_BLOCK)
    number = min(blocks, GPU_MOST_PARTS, max(2, 1024 // max(1, count)))
    each = -(-blocks // number)
    return Survey(-(-blocks // each), GPU_MOST_PARTS, each, GPU_ROW_BLOCK, 4)
