"""Ladders drawn on a GPU, every word of every token, against the enumerated law of the noise."""

import json

import numpy as np
import pytest

from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.distributions import cliff
from mrv2.stats.gof import binomial_test
from mrv2.stats.noise import noise_law, tail_error, tail_mass

from .noises import LADDER, TAIL, flip_31, race_24, top_24

VOCAB = 262_144
DRAWS = 2_000_000


@pytest.mark.gpu
def test_the_sampled_ladder_agrees_with_the_law_of_the_noise(record_property):
    sampler = ReferenceSampler(device="cuda")
    law = noise_law(sampler.noise, sampler.noise_bits)
    p_values = {}
    for gap in (12.5, 16.0, 18.0, 20.0):
        row = cliff(VOCAB, gap)
        counts = sampler.count(row.logits, 1.0, 2024, 1000, DRAWS)
        wins = int(counts[:-1][row.events[0].tokens].sum())
        p_values[f"{gap:g}"] = binomial_test(wins, DRAWS, tail_mass(law, gap, VOCAB - 1)).p_value
        assert abs(tail_error(law, gap, VOCAB - 1)) < 1e-5
    record_property("ladder_p_values", json.dumps(p_values))
    assert np.all(np.array(list(p_values.values())) > 1e-4), p_values


def drawn_ladder(bits, draws, at_once, falls, device):
    """Words of the best of a tail's tokens and of the head, uint64 [draws] each; all words are drawn."""
    import torch

    generator = torch.Generator(device).manual_seed(bits)
    tails, heads = [], []
    for start in range(0, draws, at_once):
        rows = min(at_once, draws - start)
        words = torch.randint(2**bits, (rows, TAIL + 1), dtype=torch.int32, device=device, generator=generator)
        tail = words[:, 1:]
        tails.append((tail.amin(dim=1) if falls else tail.amax(dim=1)).cpu().numpy())
        heads.append(words[:, 0].cpu().numpy())
    return (np.concatenate(parts).astype(np.uint64) for parts in (tails, heads))


def ladder_p_values(transform, bits, draws, at_once, device):
    """Of the wins at each gap, under the law of the noise."""
    law = noise_law(transform, bits)
    best, head = (transform(w) for w in drawn_ladder(bits, draws, at_once, transform is not top_24, device))
    wins = {gap: int((best > head + gap).sum()) for gap in LADDER}
    return {f"{gap:g}": binomial_test(wins[gap], draws, tail_mass(law, gap, TAIL)).p_value for gap in LADDER}


NOISES = pytest.mark.parametrize(
    ("transform", "bits"), [(top_24, 24), (race_24, 24), (flip_31, 31)], ids=["top_24", "race_24", "flip_31"]
)


@NOISES
def test_a_short_ladder_of_known_defects_agrees_with_their_law(transform, bits):
    p_values = ladder_p_values(transform, bits, 200, 100, "cpu")
    assert np.all(np.array(list(p_values.values())) > 1e-4), p_values


def test_every_word_is_drawn():
    best, head = drawn_ladder(2, 100, 50, falls=False, device="cpu")
    assert set(best.tolist()) == {3} and set(head.tolist()) == {0, 1, 2, 3}


@pytest.mark.gpu
@NOISES
def test_the_ladder_of_known_defects_agrees_with_their_law(transform, bits, record_property):
    p_values = ladder_p_values(transform, bits, DRAWS, 2000, "cuda")
    record_property("ladder_p_values", json.dumps(p_values))
    assert np.all(np.array(list(p_values.values())) > 1e-4), p_values
