"""Requests in, tokens and scores out: generation and scoring are two views of one definition."""

import dataclasses

import numpy as np
import pytest

from mrv2.refrunner.api import NewRequest, SamplingParams
from mrv2.refrunner.errors import RequestError
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.tiny import random_tensors
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.noise import gumbel
from mrv2.refrunner.oracle.oracle import Oracle, runner_temperature

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rope_theta=1000.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=24,
)
PROMPT = (3, 60, 1, 3, 17)
SAMPLINGS = [
    SamplingParams(max_tokens=8),
    SamplingParams(temperature=0.7, seed=11, max_tokens=8),
    SamplingParams(temperature=2.5, seed=-3, max_tokens=8),
]


@pytest.fixture(scope="module")
def oracle():
    return Oracle(LlamaOracle(CONFIG, random_tensors(CONFIG, 0)))


def request(sampling=SAMPLINGS[0], token_ids=PROMPT, prompt_len=5):
    return NewRequest("r", token_ids, prompt_len, sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_scoring_agrees_with_generating(oracle, sampling):
    made = oracle.generate(request(sampling))
    scored = oracle.score(request(sampling), made.token_ids)
    assert len(made.token_ids) == sampling.max_tokens
    assert [token.choice for token in scored] == [token.observed for token in scored] == list(made.token_ids)
    assert [token.gap for token in scored] == [0.0] * 8
    assert [token.logprob for token in scored] == pytest.approx(made.logprobs, abs=1e-12)
    assert [token.index for token in scored] == list(range(8))
    assert [token.position for token in scored] == list(range(5, 13))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_each_token_is_judged_on_the_observed_prefix(oracle, sampling):
    made = oracle.generate(request(sampling)).token_ids
    observed = (*made[:2], (made[2] + 1) % 64, *made[3:])
    scored = oracle.score(request(sampling), observed)
    assert scored[2].choice == made[2]
    assert scored[2].gap == scored[2].scores[0] - scored[2].scores[1] > 0
    for cut in range(3, 8):
        after = dataclasses.replace(request(sampling), token_ids=PROMPT + observed[:cut])
        assert scored[cut].choice == oracle.generate(after).token_ids[0]


def test_scored_token_holds_the_row_it_was_judged_on(oracle):
    sampling = SAMPLINGS[1]
    (token,) = oracle.score(request(sampling), (9,))
    row = oracle.model.logits(PROMPT)[-1].numpy()
    scores = row / float(np.float32(0.7)) + gumbel(11, 5, 64)
    logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
    assert token.choice == scores.argmax()
    assert token.scores == (scores.max(), scores[9])
    assert token.logits == (row[token.choice], row[9])
    assert token.top_logit == row.max()
    assert (token.choice_logprob, token.logprob) == pytest.approx((logprobs[token.choice], logprobs[9]), abs=1e-14)
    assert token.mean_drop == pytest.approx(np.exp(logprobs) @ (row.max() - row), abs=1e-13)


def test_logprobs_ignore_the_temperature(oracle):
    cold, hot = (oracle.score(request(SamplingParams(temperature=t, seed=1)), (9, 8)) for t in (0.1, 3.0))
    assert [token.logprob for token in cold] == [token.logprob for token in hot]


def test_logprobs_of_a_row_are_a_distribution(oracle):
    logprobs = [oracle.score(request(), (token,))[0].logprob for token in range(64)]
    assert np.exp(logprobs).sum() == pytest.approx(1, abs=1e-14)


def test_temperature_is_rounded_as_the_device_stores_it():
    assert runner_temperature(SamplingParams(temperature=0.1, seed=0)) == 0.10000000149011612
    assert runner_temperature(SamplingParams()) == 0.0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_resumed_request_continues_as_if_never_stopped(oracle, sampling):
    made = oracle.generate(request(sampling))
    resumed = request(sampling, PROMPT + made.token_ids[:3])
    assert oracle.generate(resumed).token_ids == made.token_ids[3:]
    assert oracle.score(resumed, made.token_ids[3:])[0].index == 3
    assert oracle.generate(request(sampling, PROMPT + made.token_ids)).token_ids == ()


def test_stop_token_ends_generation_and_is_part_of_it(oracle):
    made = oracle.generate(request(SAMPLINGS[1])).token_ids
    stopping = dataclasses.replace(SAMPLINGS[1], stop_token_ids=(made[4],))
    assert oracle.generate(request(stopping)).token_ids == made[: made.index(made[4]) + 1]


def test_draws_depend_on_the_seed(oracle):
    made = {oracle.generate(request(SamplingParams(temperature=2.0, seed=seed))).token_ids for seed in range(4)}
    assert len(made) == 4


def test_lowest_token_id_wins_a_tie():
    tensors = random_tensors(CONFIG, 0)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:1].expand(64, -1)
    (token,) = Oracle(LlamaOracle(CONFIG, tensors)).score(request(), (5,))
    assert (token.choice, token.gap) == (0, 0.0)


def test_last_observed_token_needs_no_position_of_its_own(oracle):
    longest = request(token_ids=(1,) * 24, prompt_len=24)
    assert len(oracle.score(longest, (2,))) == 1
    with pytest.raises(RequestError, match="a sequence of 25 tokens"):
        oracle.score(longest, (2, 2))


def test_nothing_observed_needs_no_verdict(oracle):
    assert oracle.score(request(), ()) == ()


@pytest.mark.parametrize("call", ["generate", "score"])
@pytest.mark.parametrize(
    ("broken", "subject"),
    [
        (request(SamplingParams(temperature=0.5)), "request 'r' with temperature=0.5 and seed=None"),
        (request(prompt_len=0), "request 'r' with prompt_len=0"),
        (request(prompt_len=6), "request 'r' with prompt_len=6"),
        (request(token_ids=(0, 64), prompt_len=2), "token id 64"),
    ],
)
def test_requests_without_an_answer_are_refused(oracle, call, broken, subject):
    with pytest.raises(RequestError) as caught:
        oracle.generate(broken) if call == "generate" else oracle.score(broken, (1,))
    assert caught.value.subject == subject


@pytest.mark.parametrize("observed", [(1, -1), (64, 1)])
def test_observed_token_must_exist(oracle, observed):
    with pytest.raises(RequestError, match="token ids must lie in 0 to 63"):
        oracle.score(request(), observed)
