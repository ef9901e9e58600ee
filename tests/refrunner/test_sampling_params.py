"""Sampling parameters are refused where they are written: by name, with the rule, the reason and a remedy."""

import dataclasses

import pytest

from mrv2.refrunner.api import Grammar, SamplingParams
from mrv2.refrunner.errors import RequestError

NAN, INF = float("nan"), float("inf")
REFUSED = {
    "top_k": (-1, 2.0, True, 2**31, None),
    "top_p": (0, 0.0, -0.1, 1.01, 1e-31, NAN, "1", True, None),
    "min_p": (-0.1, 1.5, 1e-31, NAN, True, None),
    "repetition_penalty": (0, 0.009, 101, -1.0, NAN, INF, "1", True),
    "frequency_penalty": (101, -100.1, NAN, INF, None),
    "presence_penalty": (101, -100.1, NAN, INF, None),
    "min_tokens": (-1, 17, 1.0, True),
    "stop_token_ids": ([1], (1.0,), (-1,), (True,), "12", tuple(range(129))),
    "logprob_token_ids": ([1], (-1,), tuple(range(129))),
    "allowed_token_ids": ((), [1], (-1,), (1.5,)),
    "logit_bias": (((1,),), ((1, NAN),), ((1, 1e7),), ((1, "2"),), ((1, 1.0), (1, 2.0)), [(1, 1.0)], {1: 1.0}),
    "bad_words": (((),), (1,), [(1,)], ((1, -1),), ((1,),) * 129, ((1,) * 1025,)),
    "logprobs": (-2, 1025, 1.0, True),
    "prompt_logprobs": (-2, 1025, "1"),
    "grammar": ("[0-9]", ("regex", "a"), Grammar("yaml", "a"), Grammar("regex", b"a"), Grammar(None, "a")),
}
ACCEPTED = {
    "top_k": (0, 1, 2**31 - 1),
    "top_p": (1, 1e-30, 0.5),
    "min_p": (0, 1, 1e-30),
    "repetition_penalty": (0.01, 100, 1),
    "frequency_penalty": (-100, 100.0),
    "presence_penalty": (-100, 100.0),
    "min_tokens": (0, 16),
    "stop_token_ids": ((), tuple(range(128))),
    "logprob_token_ids": ((), tuple(range(128))),
    "allowed_token_ids": (None, (0,), tuple(range(100_000))),
    "logit_bias": ((), ((0, -1e6), (1, 1e6)), tuple((token, 1) for token in range(1024))),
    "bad_words": ((), ((0,),) * 128, (tuple(range(1024)),)),
    "logprobs": (None, -1, 0, 1024),
    "prompt_logprobs": (None, -1, 0, 1024),
    "grammar": (None, Grammar("regex", "a"), Grammar("json_schema", "{}"), Grammar("ebnf", "")),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in REFUSED for value in REFUSED[name]])
def test_refused(name, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    error = caught.value
    assert error.subject.startswith(f"SamplingParams.{name}=")
    assert all((error.rule, error.reason, error.remedy))


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in ACCEPTED for value in ACCEPTED[name]])
def test_accepted(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_every_attribute_has_its_cases():
    known = {field.name for field in dataclasses.fields(SamplingParams)}
    elsewhere = {"temperature", "seed", "max_tokens"}  # in test_engine.py
    assert set(REFUSED) == set(ACCEPTED) == known - elsewhere


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(stop_token_ids=(3, 9)),
        SamplingParams(allowed_token_ids=(9,)),
        SamplingParams(logprob_token_ids=(9,)),
        SamplingParams(logit_bias=((3, 1.0), (9, 1.0))),
        SamplingParams(bad_words=((3,), (3, 9, 3))),
    ],
)
def test_tokens_outside_a_vocabulary_are_named(params):
    assert params.outside(9)[1] == 9
    assert getattr(params, params.outside(9)[0])
    assert params.outside(10) is None


def test_parameters_can_be_hashed_and_compared():
    params = SamplingParams(logit_bias=((3, 1.0),), bad_words=((1, 2),))
    assert len({params, dataclasses.replace(params)}) == 1
