"""A token that is as good as the best one is never screened out: the rule's roundings, in float32, on the worst words.

The kernel leaves out a token whose bound lies below a line under the best exact score. That a bound is not below its
token's noise is enumerated (``mrv2.ci.gpu.noise_certificate``); here the arithmetic of the comparison is repeated, for
words whose bound is tight, which no search for keys would find.
"""

import numpy as np
import pytest

from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.refrunner.kernels import draw

SAMPLER = ReferenceSampler(compiled=True)
COUNT = 20_000
TEMPERATURES = (1e-15, 1e-3, 0.7, 1.0, 1.3, 50.0, 1e15)
SCORES = (0.0, 1.0, 25.0, -300.0, 1e4, -1e6, 1e9)
OFFSET, RELATIVE = np.float32(draw._OFFSET.value), np.float32(draw._RELATIVE.value)


def tight_words(random):
    """High words near powers of two, where the bound touches the logarithm, and small, where it touches the noise."""
    power = random.integers(32, 56, COUNT)
    word = (np.uint64(1) << power.astype(np.uint64)) + (random.random(COUNT) * 2.0 ** (power - 18)).astype(np.uint64)
    return np.where(random.random(COUNT) < 0.8, word, random.integers(0, 2**64, COUNT, dtype=np.uint64))


def rounded_fma(x, y, z):
    """float32(x * y + z), the product exact."""
    return (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(np.float32)


def bounds_and_lines(random, temperature, score, offset=OFFSET, relative=RELATIVE):
    """Bounds of tokens, and the lines under their own scores, below which they would be left out: float32."""
    words, scale = tight_words(random), np.float32(temperature)
    noise = SAMPLER.noise(words).astype(np.float32)
    wanted = np.float32(score) + (random.random(COUNT) * 8.0).astype(np.float32)
    raw = ((wanted.astype(np.float64) - noise) * temperature).astype(np.float32)
    best = raw / scale + noise
    coarse = ((96.0 - SAMPLER.noise_bound(words) / np.log(2.0)) * 2.0**17).astype(np.float32)
    spread = np.full(COUNT, -np.float32(draw._UNIT.value) * scale)
    line = (best - offset - np.abs(best) * relative) * scale
    assert best.dtype == line.dtype == np.float32 and np.isfinite(line).all()
    return rounded_fma(coarse, spread, raw), line


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_best_token_is_above_its_own_line(temperature, score):
    bound, line = bounds_and_lines(np.random.default_rng(1), temperature, score)
    assert (bound >= line).all()


@pytest.mark.parametrize("score", [25.0, 1e4])
def test_without_its_slack_the_rule_would_lose_tokens(score):
    exact = np.float32(96.0 * np.log(2.0))
    bound, line = bounds_and_lines(np.random.default_rng(1), 0.7, score, exact, np.float32(0.0))
    assert (bound < line).any()


def test_lines_are_close_below_the_bounds_of_tight_words():
    bound, line = bounds_and_lines(np.random.default_rng(1), 1.0, 25.0)
    assert np.median(bound - line) < 1e-3
