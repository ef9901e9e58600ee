"""The reference runner, unchanged, on the virtual device: the tokens of the CPU, and nothing to report."""

import dataclasses

import pytest
import torch

from mrv2.checks.virtual import virtual_device
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.llm import LLM, default_config
from mrv2.refrunner.models.tiny import tiny_checkpoint

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


@pytest.fixture(scope="module")
def checkpoint():
    return tiny_checkpoint()


def tokens(checkpoint, device):
    torch.set_num_threads(1)
    config = dataclasses.replace(default_config(checkpoint), device=device, max_model_len=32)
    with LLM(checkpoint, config) as engine:
        done = engine.generate(PROMPTS, SamplingParams(max_tokens=4, temperature=1.0, seed=3))
    return [completion.token_ids for completion in done]


@pytest.fixture(scope="module")
def expected(checkpoint):
    return tokens(checkpoint, "cpu")


@pytest.mark.parametrize("schedule", ["late", "early", "random:0", "starve:0", "starve:1"])
def test_tokens_and_findings(checkpoint, expected, schedule):
    with virtual_device(schedule) as device:
        assert tokens(checkpoint, "cuda") == expected
    assert device.findings == []
    assert not device.runtime.without_meta
