"""Bounds that a correct float32 computation meets, that a less precise one breaks, and verdicts on tokens."""

import dataclasses

import numpy as np
import pytest
import torch

from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.errors import ConfigurationError
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.tiny import random_tensors
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.noise import exponential, gumbel
from mrv2.refrunner.oracle.oracle import Oracle, ScoredToken
from mrv2.refrunner.oracle.rounding import (
    LOG_SOFTMAX_BLOCK,
    UNIT_ROUNDOFF,
    Float32Twins,
    Judgement,
    log_softmax_error,
    near_tie_gap,
)

CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=128,
)


def tensors(seed=0):
    return random_tensors(CONFIG, seed)


def sequences(count=4, seed=0):
    generator = np.random.default_rng(seed)
    return [tuple(map(int, generator.integers(256, size=length))) for length in (1, 2, 9, 30)[:count]]


def ratios(run, measured):
    """Largest logit difference of a run at each position, divided by its bound."""
    return (run.logits - measured.exact.logits).abs().amax(dim=-1) / measured.logit_bounds


class RunningSum(LlamaOracle):
    """Adds up every product of a projection one after the other, without fused multiply-add."""

    def _linear(self, name, x):
        weight = self.weights[f"{name}.weight"]
        total = torch.zeros(len(x), len(weight), dtype=self.dtype)
        for k in range(weight.shape[1]):
            total = total + x[:, k : k + 1] * weight[:, k]
        return total


class InBlocks(LlamaOracle):
    """Adds up every product of a projection in blocks of 16."""

    def _linear(self, name, x):
        blocks = zip(x.split(16, dim=1), self.weights[f"{name}.weight"].split(16, dim=1), strict=True)
        return sum(part @ weight.T for part, weight in blocks)


class TensorFloat32(LlamaOracle):
    """Rounds the factors of every projection to TF32's 10 bits of fraction."""

    def _linear(self, name, x):
        return self.shortened(x) @ self.shortened(self.weights[f"{name}.weight"]).T

    @staticmethod
    def shortened(x):
        return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("kind", [RunningSum, InBlocks])
def test_other_orders_of_addition_stay_within_the_bound(kind):
    found = []
    for seed in range(5):
        twins, other = Float32Twins(LlamaOracle(CONFIG, tensors(seed))), kind(CONFIG, tensors(seed), torch.float32)
        found += [ratios(other.forward(ids), twins.measure(ids)) for ids in sequences(seed=seed)]
    all_ratios = torch.cat(found)
    assert all_ratios.max() < 0.6
    assert all_ratios.median() > 0.02  # a bound far above real errors would mean nothing


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(TensorFloat32, torch.float32), (LlamaOracle, torch.float16), (LlamaOracle, torch.bfloat16)],
)
def test_less_precision_breaks_the_bound_at_every_position(kind, dtype):
    for seed in range(3):
        twins, other = Float32Twins(LlamaOracle(CONFIG, tensors(seed))), kind(CONFIG, tensors(seed), dtype)
        for ids in sequences(seed=seed):
            assert ratios(other.forward(ids), twins.measure(ids)).min() > 1


def test_bounds_have_a_value_per_position():
    measured = Float32Twins(LlamaOracle(CONFIG, tensors())).measure(sequences()[2])
    assert measured.logit_bounds.shape == measured.logprob_bounds.shape == (9,)
    assert measured.hidden_bounds.shape == (4, 9)
    assert (measured.logprob_bounds <= 2 * measured.logit_bounds).all()
    assert (measured.logit_bounds > 0).all()


def test_measuring_twice_gives_the_same_bounds():
    twins = Float32Twins(LlamaOracle(CONFIG, tensors()))
    first, second = (twins.measure(sequences()[2]) for _ in range(2))
    assert torch.equal(first.logit_bounds, second.logit_bounds)
    assert torch.equal(first.hidden_bounds, second.hidden_bounds)


def test_hidden_states_of_another_order_stay_within_their_bounds():
    twins, other = Float32Twins(LlamaOracle(CONFIG, tensors())), InBlocks(CONFIG, tensors(), torch.float32)
    for ids in sequences():
        measured = twins.measure(ids)
        for ours, theirs, bound in zip(
            measured.exact.hidden, other.forward(ids).hidden, measured.hidden_bounds, strict=True
        ):
            assert ((ours - theirs).norm(dim=-1) <= bound).all()


def test_a_wrong_model_cannot_hide_behind_a_large_bound():
    class Unmasked(LlamaOracle):
        def mask(self, length):
            return torch.zeros(length, length, dtype=torch.bool)

    ids = sequences()[2]
    right, wrong = (Float32Twins(kind(CONFIG, tensors())).measure(ids) for kind in (LlamaOracle, Unmasked))
    assert wrong.logit_bounds.max() < 20 * right.logit_bounds.max()
    assert (wrong.exact.logits - right.exact.logits).abs().max() > 100 * wrong.logit_bounds.max()


def test_reference_must_be_float64():
    with pytest.raises(ConfigurationError, match=r"an oracle in torch\.float32"):
        Float32Twins(LlamaOracle(CONFIG, tensors(), torch.float32))


def scored_token(row, choice, observed, scores=None):
    row = np.asarray(row, dtype=np.float64)
    logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
    scores = row if scores is None else scores
    return ScoredToken(
        index=0,
        position=1,
        choice=choice,
        observed=observed,
        gap=scores[choice] - scores[observed],
        logprob=logprobs[observed],
        choice_logprob=logprobs[choice],
        scores=(scores[choice], scores[observed]),
        logits=(row[choice], row[observed]),
        top_logit=row.max(),
        mean_drop=np.exp(logprobs) @ (row.max() - row),
    )


def test_log_softmax_error_by_hand():
    token = scored_token(np.zeros(256), 0, 3)
    log_v = np.log(256)
    assert log_softmax_error(token, 256) == pytest.approx(UNIT_ROUNDOFF * (3 * log_v + 1 + 10 + 4), rel=1e-12)


@pytest.mark.parametrize("kind", ["normal", "head", "offset"])
def test_log_softmax_error_covers_a_serial_float32_kernel(kind):
    generator = np.random.default_rng(0)
    size = 40 * LOG_SOFTMAX_BLOCK
    row = generator.normal(scale=3, size=size).astype(np.float32)
    if kind == "head":
        row[7] += np.float32(25)
    if kind == "offset":
        row += np.float32(100)
    total = np.float32(0)
    for block in np.exp(row - row.max()).reshape(-1, LOG_SOFTMAX_BLOCK):
        while len(block) > 1:
            block = block[::2] + block[1::2]
        total += block[0]
    computed = (row - row.max()) - np.log(total)
    for observed in (7, int(row.argmax()), int(row.argmin())):
        token = scored_token(row, int(row.argmax()), observed)
        assert abs(float(computed[observed]) - token.logprob) <= log_softmax_error(token, size) < 2e-5


@pytest.mark.parametrize("temperature", [0.05, 0.7, 3.0])
def test_near_tie_gap_covers_float32_scores(temperature):
    row = np.random.default_rng(0).normal(scale=5, size=4096).astype(np.float32)
    noise = gumbel(3, 1, 4096)
    scores = row.astype(np.float64) / float(np.float32(temperature)) + noise
    rounded = row / np.float32(temperature) + noise.astype(np.float32)
    sampling = SamplingParams(temperature=temperature, seed=3)
    for token in range(4096):
        # Both errors of the gap are this token's, so half of it is what one score may be off.
        allowed = near_tie_gap(scored_token(row, token, token, scores), sampling, 0.0) / 2
        assert abs(float(rounded[token]) - scores[token]) <= allowed < 1e-4


def test_noise_error_covers_float32_noise():
    words = (
        np.random.default_rng(0).integers(2**64, size=20_000, dtype=np.uint64)
        >> np.arange(20_000, dtype=np.uint64) % 60
    )
    exact = -np.log(exponential(words))
    single = -np.log(exponential(words).astype(np.float32))
    token = scored_token([0.0, 0.0], 0, 1)
    for value, computed in zip(exact, single, strict=True):
        drawn = dataclasses.replace(token, scores=(value, value))
        allowed = near_tie_gap(drawn, SamplingParams(temperature=1.0, seed=0), 0.0) / 2
        assert abs(float(computed) - value) <= allowed


def test_greedy_near_ties_are_twice_the_logit_bound():
    token = scored_token([1.0, 0.0], 0, 1)
    assert near_tie_gap(token, SamplingParams(), 0.25) == 0.5
    assert near_tie_gap(token, SamplingParams(temperature=0.5, seed=0), 0.25) == pytest.approx(1.0, abs=1e-5)


def judged(weights, sampling, observed):
    model = LlamaOracle(CONFIG, weights)
    request = NewRequest("r", (5, 6, 7), 3, sampling)
    oracle = Oracle(model)
    tokens = oracle.generate(request).token_ids if observed is None else observed
    return Float32Twins(model).bounds(request, oracle.score(request, tokens))


@pytest.mark.parametrize(
    "sampling", [SamplingParams(max_tokens=6), SamplingParams(temperature=0.9, seed=4, max_tokens=6)]
)
def test_own_tokens_are_equal_and_others_are_wrong(sampling):
    own = judged(tensors(), sampling, None)
    assert [bound.judgement for bound in own] == [Judgement.EQUAL] * 6
    assert all(0 < bound.logprob_error < 1e-4 for bound in own)
    others = judged(tensors(), sampling, (0, 1, 2, 3))
    assert [bound.judgement for bound in others] == [Judgement.WRONG] * 4


def test_token_that_ties_with_the_choice_is_a_near_tie():
    weights = tensors()
    best = Oracle(LlamaOracle(CONFIG, weights)).generate(NewRequest("r", (5, 6, 7), 3)).token_ids[0]
    other = (best + 1) % 256
    weights["lm_head.weight"][other] = weights["lm_head.weight"][best]
    (bound,) = judged(weights, SamplingParams(), (max(best, other),))
    assert bound.judgement is Judgement.NEAR_TIE
    weights["lm_head.weight"][max(best, other)] *= 0.999
    (bound,) = judged(weights, SamplingParams(), (max(best, other),))
    assert bound.judgement is Judgement.WRONG


def test_no_tokens_no_bounds():
    assert judged(tensors(), SamplingParams(), ()) == ()
