"""The reference sampler's noise, certified without a draw; MRV2_LONG=1 looks at every coarse word and 2**22 keys."""

import os

import numpy as np

from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.gof import binomial_test
from mrv2.stats.noise import enumerate_transform, noise_law, tail_error, tail_mass
from mrv2.stats.noise_keys import duplicate_rows, key_domain
from mrv2.stats.targets import Purpose

from .noises import LADDER, TAIL, sampled_ladder

LONG = bool(os.environ.get("MRV2_LONG"))
REFERENCE = ReferenceSampler(compiled=True)


def test_tails_are_certified():
    law = noise_law(REFERENCE.noise, REFERENCE.noise_bits)
    for gap in np.arange(0.0, 18.5, 3.0).tolist():
        assert abs(tail_error(law, gap, 262_143)) < 1e-5, gap
    for gap in (20.0, 22.0, 25.0):
        assert abs(tail_error(law, gap, 262_143)) < 1e-3, gap


def test_the_sampled_ladder_agrees_with_the_law():
    law = noise_law(REFERENCE.noise, REFERENCE.noise_bits)
    best, head = sampled_ladder(REFERENCE.noise, REFERENCE.noise_bits, 2_000_000, falls=True)
    for gap in LADDER:
        wins = int((best > head + gap).sum())
        assert binomial_test(wins, head.size, tail_mass(law, gap, TAIL)).p_value > 1e-4, gap


def test_the_transform_is_the_quantile_of_every_coarse_word():
    errors = enumerate_transform(REFERENCE.noise, REFERENCE.noise_bits, 32 if LONG else 16)
    assert errors.not_finite == 0
    assert errors.winning_error < 3e-6, "a few units of float32 at 16"


def test_no_two_keys_have_the_same_noise():
    keys = key_domain(2**22 if LONG else 2**14, np.random.default_rng(0))
    assert duplicate_rows(REFERENCE, keys, (Purpose.TARGET, Purpose.DRAFT), 151_936) == []
