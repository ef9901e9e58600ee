"""Draws of the reference sampler on a GPU against the enumerated law of its own noise."""

import json

import numpy as np
import pytest

from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.distributions import cliff
from mrv2.stats.gof import binomial_test
from mrv2.stats.noise import noise_law, tail_error, tail_mass

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
