"""Draws decided by the last bit of a float32, where no estimate of the noise may stand in for the noise."""

import numpy as np
import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.refrunner.sampling.gumbel import sample

VOCAB, ROWS = 2048, 96
SAMPLER = ReferenceSampler(compiled=True)
TEMPERATURES = (1.0, 0.7, 1e-3, 50.0)
OFFSETS = (0.0, 20.0, -300.0, 1e4)


def noise_of(seeds, positions):
    """Noise, float32 [N, V], and how far below its bound by the leading 32 bits each is, float64 [N, V]."""
    words = SAMPLER.words(seeds[:, None], positions[:, None], np.arange(VOCAB))
    noise, bound = (part(words.ravel()).reshape(words.shape) for part in (SAMPLER.noise, SAMPLER.noise_bound))
    return noise.astype(np.float32), bound - noise


def scores(raw, temperature, noise):
    return raw / temperature + noise


def raw_with_score(score, temperature, noise):
    """A float32 logit whose score comes as near to the one given as float32 lets it, for arrays of rows."""
    start = ((score.astype(np.float64) - noise) * temperature).astype(np.float32)
    step = np.spacing(np.maximum(np.abs(start), np.abs(score * temperature)).astype(np.float32))
    tried = (start[:, None] + step[:, None] * np.arange(-8, 9)).astype(np.float32)
    distance = np.abs(scores(tried, temperature, noise[:, None]).astype(np.float64) - score[:, None])
    return np.take_along_axis(tried, distance.argmin(axis=1)[:, None], axis=1)[:, 0]


def close_rows(random, temperature, offset):
    """Rows of two tokens whose scores are equal or one float32 apart; all others are far below, or beside them.

    One of the two has a noise far below what its leading bits allow, so that a search by bounds meets it first; the
    other's noise is as near to its bound as any in the row.
    """
    seeds = random.integers(0, 2**64, ROWS, dtype=np.uint64)
    positions = random.integers(1, 2**20, ROWS)
    noise, room = noise_of(seeds, positions)
    row = np.arange(ROWS)
    leader, rival = room.argmax(axis=1), room.argmin(axis=1)
    temperature = np.float32(temperature)
    best = np.float32(offset) + noise[row, leader]
    raw = np.full((ROWS, VOCAB), np.float32(-1e30), np.float32)
    raw[::2] = ((best[::2, None] - 60.0 - 10.0 * random.random((ROWS // 2, VOCAB))) * temperature).astype(np.float32)
    raw[row, leader] = raw_with_score(best, temperature, noise[row, leader])
    best = scores(raw[row, leader], temperature, noise[row, leader])
    wanted = best + np.spacing(best) * (row % 3 - 1).astype(np.float32)
    raw[row, rival] = raw_with_score(wanted, temperature, noise[row, rival])
    return seeds, positions, raw, noise


def drawn(raw, temperature, seeds, positions):
    count = torch.arange(len(raw), dtype=torch.int32)
    with triton_cpu.enabled():
        found = sample(
            torch.from_numpy(raw), count, torch.from_numpy(positions.astype(np.int32)),
            torch.full((len(raw),), temperature), torch.from_numpy(seeds.view(np.int64)),
        )  # fmt: skip
    return found.token_ids.numpy()


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_larger_score_wins_however_close(temperature, offset):
    random = np.random.default_rng([int(1000 * temperature), int(abs(offset))])
    seeds, positions, raw, noise = close_rows(random, temperature, offset)
    score = scores(raw, np.float32(temperature), noise)
    best, second = -np.sort(-score, axis=1)[:, :2].T
    assert (best - second <= 2 * np.spacing(np.maximum(np.abs(best), np.float32(16)))).mean() > 0.9, "not close"
    assert np.array_equal(drawn(raw, temperature, seeds, positions), score.argmax(axis=1))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_lowest_id_wins_where_all_scores_are_nearly_equal(temperature):
    random = np.random.default_rng(int(1000 * temperature))
    seeds, positions = random.integers(0, 2**64, ROWS, dtype=np.uint64), random.integers(1, 2**20, ROWS)
    noise, _ = noise_of(seeds, positions)
    raw = ((30.0 - noise.astype(np.float64)) * temperature).astype(np.float32)
    score = scores(raw, np.float32(temperature), noise)
    assert len(np.unique(score)) < 12
    assert np.array_equal(drawn(raw, temperature, seeds, positions), score.argmax(axis=1))
