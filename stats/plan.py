"""Which draws to ask for: keys that vary in one way at a time, spread over rows, temperatures and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError

GREEDY_SHARE = 16  # one draw in 16 is greedy: it has one right answer, and a few of each row are enough
REPLAY_SHARE = 4  # one draw in 4 is replayed: the exact noise of a row costs about as much as its draw
SEEDS, POSITIONS = 0, 1  # what differs between the two keys of a pair
VARIATION = ("seeds", "positions")


@dataclass(frozen=True, eq=False)
class DrawPlan:
    """N draws in the order in which they are asked for; no two share a key.

    The draws with a temperature form pairs that share row and temperature and differ in one part of the key: half of
    the pairs have one position for all and seeds that differ in one of their 64 bits (each in turn), half have one seed
    for all and neighbouring positions. Draws of one pair, row or temperature land in any lane of any batch.

    Attributes:
        rows: int64 [N], which row of logits.
        temperatures: float32 [N], 0 for greedy.
        seeds: uint64 [N].
        positions: int64 [N].
        pairs: int64 [P, 2], indices of the draws of each pair.
        variation: int64 [P], ``SEEDS`` or ``POSITIONS``.
        bits: int64 [P], the seed bit in which the keys of a pair differ; -1 for pairs in ``POSITIONS``.
        replayed: bool [N], draws to replay, about one in ``REPLAY_SHARE``, none of them greedy.
    """

    rows: NDArray[np.int64]
    temperatures: NDArray[np.float32]
    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]
    pairs: NDArray[np.int64]
    variation: NDArray[np.int64]
    bits: NDArray[np.int64]
    replayed: NDArray[np.bool_]


def plan_draws(draws: int, rows: int, temperatures: Sequence[float], seed: int) -> DrawPlan:
    """Make a plan.

    Args:
        draws: N, at least 1. One in ``GREEDY_SHARE`` is greedy (one more if the rest is odd).
        rows: number of rows of logits, used in turn.
        temperatures: each above 0, used in turn.
        seed: root of every random choice; one seed, one plan.

    Returns:
        the plan.

    Raises:
        ArgumentError: there is no draw, row or temperature.
    """
    if draws < 1 or rows < 1 or not temperatures:
        raise ArgumentError(
            f"draws={draws}, rows={rows}, temperatures={tuple(temperatures)}",
            "at least one of each",
            "an empty plan tests nothing",
            "2000 draws of 4 rows at temperatures 0.7, 1.0 and 1.3, say",
        )
    rng = np.random.default_rng(seed)
    pair_count = (draws - draws // GREEDY_SHARE) // 2
    greedy = draws - 2 * pair_count
    pair = np.arange(pair_count)
    variation = pair % 2
    # Mixed radix, so that rows, temperatures and variations occur in all combinations.
    temperature = np.asarray(temperatures, np.float32)[pair // 2 % len(temperatures)]
    row = pair // (2 * len(temperatures)) % rows
    bits = np.where(variation == SEEDS, pair // 2 % 64, -1)
    seeds, positions = _pair_keys(bits, rng)
    order = rng.permutation(draws)
    place = np.empty(draws, np.int64)
    place[order] = np.arange(draws)
    return DrawPlan(
        rows=np.concatenate([np.repeat(row, 2), np.arange(greedy) % rows])[order],
        temperatures=np.concatenate([np.repeat(temperature, 2), np.zeros(greedy, np.float32)])[order],
        seeds=np.concatenate([seeds.ravel(), _seeds(rng, greedy)])[order],
        positions=np.concatenate([positions.ravel(), np.arange(greedy)])[order],
        pairs=place[: 2 * pair_count].reshape(-1, 2),
        variation=variation,
        bits=bits,
        replayed=((np.arange(draws) < 2 * pair_count) & (rng.random(draws) < 1 / REPLAY_SHARE))[order],
    )


def _pair_keys(bits: NDArray[np.int64], rng: np.random.Generator) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Seeds uint64 [P, 2] and positions int64 [P, 2] of pairs that differ in a seed bit, or in the position at -1."""
    by_position = bits < 0
    seeds = np.repeat(_seeds(rng, bits.size)[:, np.newaxis], 2, axis=1)
    seeds[~by_position, 1] ^= np.uint64(1) << bits[~by_position].astype(np.uint64)
    seeds[by_position] = _seeds(rng, 1)
    positions = np.full(seeds.shape, rng.integers(1, 4096), np.int64)
    positions[by_position] = np.arange(2 * by_position.sum()).reshape(-1, 2)
    return seeds, positions


def _seeds(rng: np.random.Generator, count: int) -> NDArray[np.uint64]:
    return rng.integers(0, 2**64, count, dtype=np.uint64)
