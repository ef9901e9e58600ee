"""Configuration and sampling parameters: wrong values are refused by name before anything is allocated."""

import math

import pytest
import torch

from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import ConfigurationError, RequestError, shown

SIZES = (
    "max_num_reqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "num_kv_blocks",
    "pad_to",
    "steps_in_flight",
)


def is_in_four_parts(error):
    return all((error.subject, error.rule, error.reason, error.remedy))


@pytest.mark.parametrize("value", [0, -1, 1.0, "16", None, True, math.nan])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_whole_and_positive(name, value):
    with pytest.raises(ConfigurationError) as caught:
        RunnerConfig(**{name: value})
    assert f"RunnerConfig.{name}={value!r}" in caught.value.subject
    assert is_in_four_parts(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dtype": "float64"}, "dtype='float64'"),
        ({"dtype": torch.float32}, "dtype=torch.float32"),
        ({"num_drafts": 1025}, "num_drafts=1025"),
        ({"num_drafts": 2}, "num_drafts=2 with speculation='none'"),
        ({"num_drafts": 2**31, "speculation": "ngram"}, "num_drafts=2147483648"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"device": "meta"}, "device='meta'"),
        ({"device": 0}, "device=0"),
        ({"poison": 1}, "poison=1"),
        ({"num_kv_blocks": 1}, "at least two blocks"),
    ],
)
def test_other_wrong_values(settings, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        RunnerConfig(**settings)
    assert is_in_four_parts(caught.value)


def test_cuda_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="no CUDA device"):
        RunnerConfig(device="cuda:0")


def test_cuda_with_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert RunnerConfig(device="cuda:1").device == "cuda:1"


@pytest.mark.parametrize(
    ("length", "block", "columns"), [(48, 4, 12), (49, 4, 13), (1, 16, 1), (16, 16, 1), (17, 16, 2)]
)
def test_columns_of_a_block_table(length, block, columns):
    assert RunnerConfig(max_model_len=length, block_size=block).max_blocks_per_request == columns


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes(dtype):
    assert RunnerConfig(dtype=dtype).torch_dtype is getattr(torch, dtype)


BAD_PARAMETERS = [
    {"temperature": -1.0},
    {"temperature": -1e-40},
    {"temperature": math.nan},
    {"temperature": math.inf},
    {"temperature": "warm"},
    {"temperature": None},
    # Smaller ones would make float32 quotients infinite, and infinite scores tie: the lowest id would win.
    {"temperature": 1e-38},
    {"temperature": 1e-320},
    {"temperature": 1e39},
    {"temperature": 10**400},
    {"temperature": 10**10_000},
    {"temperature": True},
    {"seed": True},
    {"max_tokens": True},
    {"stop_token_ids": (True,)},
    {"stop_token_ids": (2, -1)},
    {"seed": 2**64},
    {"seed": 10**10_000},
    {"seed": -(2**63) - 1},
    {"seed": 1.5},
    {"seed": "7"},
    {"max_tokens": 0},
    {"max_tokens": -5},
    {"max_tokens": 2.5},
    {"max_tokens": math.nan},
    {"max_tokens": None},
    {"stop_token_ids": 5},
    {"stop_token_ids": [5]},
    {"stop_token_ids": ("a",)},
]


@pytest.mark.parametrize("parameters", BAD_PARAMETERS, ids=shown)
def test_sampling_parameters_that_mean_nothing(parameters):
    ((name, value),) = parameters.items()
    with pytest.raises(RequestError) as caught:
        SamplingParams(**parameters)
    assert f"SamplingParams.{name}={shown(value)}" in caught.value.subject
    assert is_in_four_parts(caught.value)


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0},
        {"temperature": 1},
        {"temperature": 1e-30, "seed": 0},
        {"temperature": 1e30, "seed": -(2**63)},
        {"seed": 2**64 - 1},
        {"max_tokens": 1},
        {"stop_token_ids": (5, 6)},
    ],
    ids=str,
)
def test_sampling_parameters_at_the_edge(parameters):
    params = SamplingParams(**parameters)
    assert all(getattr(params, name) == value for name, value in parameters.items())
