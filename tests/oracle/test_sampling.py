"""The sampling stages by hand-made cases, by their definitions, and against transformers where both define the same."""

import numpy as np
import pytest
import torch

from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.oracle.sampling import error_gain, filtered, is_plain, log_softmax, process, report, top_p_error

V = 40
PROMPT, OUTPUT = (3, 7, 7, 12), (5, 7, 5)
TOKENS = PROMPT + OUTPUT
SHARES = (0.1, 0.5, 0.9, 0.999)


def rows(count=6, seed=0, scale=3.0):
    return np.random.default_rng(seed).normal(size=(count, V)) * scale


def request(**params):
    return NewRequest("a", TOKENS, len(PROMPT), SamplingParams(**params))


def changed(**params):
    """Where the stages move a row, and by how much."""
    row = rows(1)[0]
    made = process(row, request(**params), TOKENS)
    return row, made, set(np.flatnonzero(made != row).tolist())


def test_plain_parameters_change_nothing():
    row, made, where = changed()
    assert where == set() and made is not row
    assert is_plain(SamplingParams(temperature=0.3, seed=1, logprobs=3, stop_token_ids=(1,)))
    assert not is_plain(SamplingParams(top_k=3))


def test_each_stage_by_its_definition():
    row, made, where = changed(allowed_token_ids=(1, 2))
    assert np.isneginf(made[sorted(where)]).all() and where == set(range(V)) - {1, 2}
    row, made, where = changed(logit_bias=((4, 1.5),))
    assert where == {4} and made[4] == row[4] + 1.5
    for minimum, forbidden in ((3, set()), (4, {1, 2})):
        _, made, where = changed(min_tokens=minimum, stop_token_ids=(1, 2))
        assert where == forbidden and np.isneginf(made[sorted(where)]).all()
    row, made, where = changed(frequency_penalty=0.5)
    assert where == {5, 7} and (made[5], made[7]) == (row[5] - 1.0, row[7] - 0.5)
    row, made, where = changed(presence_penalty=0.5)
    assert where == {5, 7} and (made[5], made[7]) == (row[5] - 0.5, row[7] - 0.5)
    _, _, where = changed(repetition_penalty=1.5)
    assert where == {3, 5, 7, 12}
    _, made, where = changed(bad_words=((1,), (7, 5, 2), (5, 7, 3), (9, 5, 4)))
    assert where == {1, 2} and np.isneginf(made[[1, 2]]).all()
    row, made, _ = changed(temperature=0.5, seed=1)
    assert np.array_equal(made, row / 0.5)


def test_the_order_of_the_stages_matters():
    """Bias before penalties, penalties before the temperature: any other order gives other numbers."""
    params = {"logit_bias": ((5, 2.0),), "repetition_penalty": 2.0, "frequency_penalty": 0.5, "temperature": 0.5}
    row = np.zeros(V)
    made = process(row, request(seed=1, **params), TOKENS)
    assert made[5] == ((0 + 2.0) / 2.0 - 2 * 0.5) / 0.5


def test_nan_is_minus_infinity():
    row = np.array([np.nan, 1.0, np.nan])
    assert process(row, NewRequest("a", (0,), 1, SamplingParams(logit_bias=((0, 5.0),))), (0,)).tolist() == [
        -np.inf, 1.0, -np.inf
    ]  # fmt: skip
    assert np.isnan(row[0])


def test_the_type_of_the_logits_is_kept():
    made = process(rows(1)[0].astype(np.float32), request(repetition_penalty=1.1, temperature=0.7, seed=1), TOKENS)
    assert made.dtype == np.float32


def test_float32_is_float64_up_to_rounding():
    params = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "temperature": 0.7, "logit_bias": ((5, 0.3),)}
    row = rows(1)[0].astype(np.float32)
    exact = process(row.astype(np.float64), request(seed=1, **params), TOKENS)
    assert np.abs(process(row, request(seed=1, **params), TOKENS) - exact).max() < 1e-5 * np.abs(exact).max()
    assert error_gain(SamplingParams(temperature=0.5, repetition_penalty=0.25)) == 8.0


# Filters


def exact(row, **params):
    kept = filtered(row, SamplingParams(**params))
    assert np.array_equal(kept.surely, kept.possibly)
    return kept.surely


@pytest.mark.parametrize("k", [1, 2, 5, V, V + 3])
def test_top_k_by_sorting(k):
    for row in (*rows(), *np.round(rows(seed=1))):
        assert np.array_equal(exact(row, top_k=k), row >= np.sort(row)[::-1][min(k, V) - 1])


@pytest.mark.parametrize("share", SHARES)
def test_top_p_by_its_definition(share):
    for row in (*rows(), *np.round(rows(seed=1))):
        p = np.exp(log_softmax(row))
        above = np.array([p[row > value].sum() for value in row])
        assert np.array_equal(exact(row, top_p=share), above < float(np.float32(share)))


def test_min_p_by_its_definition():
    for row in rows():
        p = np.exp(log_softmax(row))
        assert np.array_equal(exact(row, min_p=0.1), p >= 0.1 * p.max())


def test_the_largest_is_always_kept():
    for row in (*rows(), np.zeros(V)):
        for params in ({"top_k": 1}, {"top_p": 1e-30}, {"min_p": 1.0}):
            assert exact(row, **params)[row.argmax()]


def test_filters_work_on_what_the_one_before_left():
    row = np.log([0.4, 0.3, 0.2, 0.1])
    assert exact(row, top_p=0.5).tolist() == [True, True, False, False]
    # Of the two that top-k leaves the first has 4/7 of the probability, more than a half.
    assert exact(row, top_k=2, top_p=0.5).tolist() == [True, False, False, False]


def test_nothing_left_is_nothing_kept():
    kept = filtered(np.full(4, -np.inf), SamplingParams(top_k=2, top_p=0.5, min_p=0.5))
    assert not kept.possibly.any()


@pytest.mark.parametrize(
    "params", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.8, "min_p": 0.01}]
)
def test_slack_covers_every_error_of_its_size(params):
    """Moved by up to the slack, a row keeps no token but the possible ones, and all of the sure ones."""
    random, slack = np.random.default_rng(3), 0.05
    narrowed = 0
    for row in rows(scale=1.0):
        kept = filtered(row, SamplingParams(**params), slack)
        assert not (kept.surely & ~kept.possibly).any()
        for _ in range(40):
            moved = exact(row + random.choice((-slack, 0.0, slack), V), **params)
            assert not (moved & ~kept.possibly).any() and not (kept.surely & ~moved).any()
        narrowed += kept.surely.any() and not kept.possibly.all()
    assert narrowed  # the two sets say something


@pytest.mark.parametrize("slack", [400.0, 1e6])
def test_a_slack_beyond_float64_leaves_nothing_certain_but_a_token_alone(slack):
    """Logits over the smallest temperature: e to the slack is no number any more."""
    row = np.array([3.0, 2.0, -np.inf, -3 * slack])
    kept = filtered(row, SamplingParams(top_p=0.5), slack)
    assert kept.possibly.tolist() == [True, True, False, True]
    assert kept.surely.tolist() == [False] * 4
    alone = filtered(np.array([3.0, -5 * slack]), SamplingParams(top_p=0.5), slack)
    assert alone.surely.tolist() == [True, False]


def test_the_error_of_top_p_is_small():
    assert 2.0**-20 < max(map(top_p_error, rows())) < 1e-5


def test_reports():
    values = log_softmax(np.array([0.0, 2.0, 1.0, 2.0]))
    told = report(values, 2, 2, (0,))
    assert (told.rank, told.token_ids, told.fixed) == (3, (1, 3), (values[0],))
    assert told.value == values[2] and told.values == (values[1], values[3])
    assert report(values, 1, -1).token_ids == (0, 1, 2, 3) and report(values, 3, 0).rank == 1


# Against transformers


def theirs(processors, row):
    """What transformers makes of a row after the tokens of this file."""
    transformers = pytest.importorskip("transformers")
    scores = torch.from_numpy(row)[None]
    for name, arguments in processors:
        scores = getattr(transformers, name)(**arguments)(torch.tensor([TOKENS]), scores)
    return scores[0].numpy()


def same(params, *processors):
    for row in rows():
        made = process(row, request(**params), TOKENS)
        made = np.where(filtered(made, SamplingParams(**params)).possibly, made, -np.inf)
        expected = theirs(processors, row)
        assert np.array_equal(np.isneginf(made), np.isneginf(expected))
        finite = np.isfinite(made)
        assert np.abs(made[finite] - expected[finite]).max(initial=0.0) < 1e-6


def test_repetition_penalty_is_transformers():
    same({"repetition_penalty": 1.5}, ("RepetitionPenaltyLogitsProcessor", {"penalty": 1.5}))


def test_bad_words_are_transformers():
    words = ((1,), (7, 5, 2), (5, 7, 3), (5, 6))
    same({"bad_words": words}, ("NoBadWordsLogitsProcessor", {"bad_words_ids": [list(w) for w in words]}))


@pytest.mark.parametrize("minimum", [3, 4])
def test_minimum_of_tokens_is_transformers(minimum):
    arguments = {
        "prompt_length_to_skip": len(PROMPT),
        "min_new_tokens": minimum,
        "eos_token_id": [1, 2],
        "device": "cpu",
    }
    same({"min_tokens": minimum, "stop_token_ids": (1, 2)}, ("MinNewTokensLengthLogitsProcessor", arguments))


@pytest.mark.parametrize("k", [1, 5, V])
def test_top_k_is_transformers(k):
    same({"top_k": k}, ("TopKLogitsWarper", {"top_k": k}))


@pytest.mark.parametrize("share", SHARES)
def test_top_p_is_transformers(share):
    same({"top_p": share}, ("TopPLogitsWarper", {"top_p": share}))


@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_min_p_is_transformers(share):
    same({"min_p": share}, ("MinPLogitsWarper", {"min_p": share}))


def test_together_they_are_transformers_in_this_order():
    params = {"repetition_penalty": 1.3, "temperature": 0.5, "seed": 1, "min_p": 0.001, "top_k": 12, "top_p": 0.9}
    same(
        params,
        ("RepetitionPenaltyLogitsProcessor", {"penalty": 1.3}),
        ("TemperatureLogitsWarper", {"temperature": 0.5}),
        ("MinPLogitsWarper", {"min_p": 0.001}),
        ("TopKLogitsWarper", {"top_k": 12}),
        ("TopPLogitsWarper", {"top_p": 0.9}),
    )
