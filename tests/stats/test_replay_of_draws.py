import math
from functools import partial

import numpy as np
import pytest

from mrv2.stats.errors import ArgumentError
from mrv2.stats.replay import (
    Mismatch,
    float32_guard,
    gumbel_scores,
    merge,
    min_changed_share,
    min_replayed,
    replay,
)

V = 50
SEEDS = np.arange(200, dtype=np.uint64) + np.uint64(2**64 - 300)
POSITIONS = np.arange(200, dtype=np.int64) * 3


def noise(seed, position, vocab_size):
    return np.random.default_rng([seed, position]).gumbel(size=vocab_size)


LOGITS = np.random.default_rng(0).normal(size=V).astype(np.float32)
SCORES = partial(gumbel_scores(noise), LOGITS, 0.7)


def exact_tokens():
    keys = zip(SEEDS.tolist(), POSITIONS.tolist(), strict=True)
    return np.array([SCORES(*key).argmax() for key in keys])


def test_scores_divide_by_the_float32_temperature_in_float64():
    expected = LOGITS.astype(np.float64) / float(np.float32(0.7)) + noise(5, 6, V)
    assert (SCORES(5, 6) == expected).all()


def test_equal_draws_have_no_mismatch():
    result = replay(exact_tokens(), SEEDS, POSITIONS, SCORES, guard=0.0)
    assert (result.replayed, result.ambiguous, result.mismatches) == (200, 0, ())


def test_a_mismatch_tells_key_tokens_and_scores():
    tokens = exact_tokens()
    tokens[17] = (tokens[17] + 1) % V
    (mismatch,) = replay(tokens, SEEDS, POSITIONS, SCORES, guard=1e-6).mismatches
    scores = SCORES(int(SEEDS[17]), int(POSITIONS[17]))
    right = int(scores.argmax())
    wrong = (right + 1) % V
    assert mismatch == Mismatch(int(SEEDS[17]), 51, wrong, right, float(scores[wrong]), float(scores[right]))
    assert mismatch.gap == scores[right] - scores[wrong]


@pytest.mark.parametrize(("gap", "ambiguous"), [(0.9e-5, 1), (1.1e-5, 0)])
def test_only_a_gap_above_the_guard_counts(gap, ambiguous):
    result = replay(np.array([1]), SEEDS[:1], POSITIONS[:1], lambda *_: np.array([gap, 0.0]), guard=1e-5)
    assert (result.ambiguous, len(result.mismatches)) == (ambiguous, 1 - ambiguous)


def test_a_masked_token_is_a_mismatch():
    scores = np.array([0.0, -np.inf])
    (mismatch,) = replay(np.array([1]), SEEDS[:1], POSITIONS[:1], lambda *_: scores, guard=1.0).mismatches
    assert mismatch.gap == math.inf


def test_guard_grows_with_the_score():
    assert float32_guard(1.0) == pytest.approx(4 * 2**-23 + 2.1e-6)
    assert float32_guard(-64.0) == pytest.approx(4 * 2**-17 + 2.1e-6)


def test_results_merge_in_order():
    wrong = (exact_tokens() + 1) % V
    parts = [replay(wrong[part], SEEDS[part], POSITIONS[part], SCORES, 0.0) for part in (slice(3), slice(3, 5))]
    assert [mismatch.position for mismatch in merge(parts).mismatches] == [0, 3, 6, 9, 12]
    assert merge(parts).replayed == 5


def test_design_of_a_replay():
    # Survey: 2.3 / share draws show a defect that changes this share, with probability 0.9.
    assert min_replayed(0.01, 0.1) == pytest.approx(2.3 / 0.01, rel=0.01)
    assert 1 - (1 - min_changed_share(230, 0.1)) ** 230 == pytest.approx(0.9)
    assert min_changed_share(0, 0.1) == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: replay(np.array([1, 2]), SEEDS[:1], POSITIONS[:1], SCORES, 0.0),
        lambda: replay(np.array([V]), SEEDS[:1], POSITIONS[:1], SCORES, 0.0),
        lambda: replay(np.array([-1]), SEEDS[:1], POSITIONS[:1], SCORES, 0.0),
        lambda: replay(np.array([0]), SEEDS[:1], POSITIONS[:1], lambda *_: np.array([0.0, np.nan]), 0.0),
        lambda: min_replayed(0.0, 0.1),
        lambda: min_changed_share(10, 1.0),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ArgumentError):
        call()
