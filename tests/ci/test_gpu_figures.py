"""The scripts that measure speculation and grammars on a GPU, with one small run each on the CPU."""

import dataclasses

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.ci.gpu import grammars, speculation
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.models.tiny import TINY_CONFIG, random_tensors

CAPACITIES = {"max_num_batched_tokens": 128, "max_model_len": 64, "num_kv_blocks": 40, "attention": "triton"}


def test_masks_are_counted_and_timed():
    pytest.importorskip("llguidance")
    settings = {**CAPACITIES, "max_num_reqs": 3, "grammars": True}
    with triton_cpu.enabled():
        figures = grammars.measure(TINY_CONFIG, random_tensors(TINY_CONFIG, 0), settings, 2, 4)
        uploads = grammars.upload_times("cpu", TINY_CONFIG.vocab_size, 3)
    assert (figures.tokens, figures.masks, figures.accepted) == (12, 8, None)
    assert 0 < figures.fill_seconds < figures.seconds
    assert figures.as_json()["tokens_per_second"] == 12 / figures.seconds
    assert [upload["masks"] for upload in uploads] == [1, 1, 3]


def test_tokens_with_drafts_are_compared_with_those_without(monkeypatch):
    monkeypatch.setattr(speculation, "NEW_TOKENS", 8)
    monkeypatch.setattr(speculation, "WARM_TOKENS", 2)
    shape = dataclasses.replace(TINY_CONFIG, num_layers=5)
    target = speculation.damped_model(shape, speculation.DRAFT_LAYERS, torch.float32)
    config = RunnerConfig(max_num_reqs=2, **CAPACITIES)
    with triton_cpu.enabled():
        plain, none = speculation.generate(target, None, config, 2, free=False)
        drafted = dataclasses.replace(config, speculation="ngram", num_drafts=1)
        tokens, figures = speculation.generate(target, None, drafted, 2, free=False)
    assert tokens == plain and (none.tokens, figures.tokens) == (16, 16)
    assert none.accepted is None and figures.accepted > 0
    assert figures.steps < none.steps
