"""The memory that a runner asks for: counted as it is allocated, and refused as a configuration."""

from dataclasses import replace

import pytest
import torch

from mrv2.refrunner import memory
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import ConfigurationError
from mrv2.refrunner.llm import LLM
from mrv2.refrunner.memory import tensor_bytes
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.tiny import TINY_CONFIG, random_tensors
from mrv2.refrunner.tensors import tensors_of


def allocated(runner):
    """Bytes of every tensor that the runner holds beside the weights."""
    owners = (runner._states, runner._sampler, runner._builder, runner._attention)
    tensors = [tensor for owner in owners for _, tensor in tensors_of(owner)]
    # Tables may share their memory.
    return sum({s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in tensors)}.values())


@pytest.mark.parametrize(
    "settings",
    [{}, {"pad_to": 7}, {"prompt_tokens": "uva"}, {"dtype": "bfloat16"}, {"max_model_len": 33, "block_size": 5}],
)
def test_bytes_are_counted_as_they_are_allocated(make_runner, checkpoint, settings):
    runner = make_runner(**settings)
    assert tensor_bytes(runner.config, checkpoint.config) == allocated(runner)


@pytest.mark.parametrize("windows", [(8, 8, 0), (4, 8, 16), (3, 3, 3)])
def test_bytes_of_layers_with_windows(windows):
    model = replace(TINY_CONFIG, num_layers=3, sliding_windows=windows)
    runner = ModelRunner(RunnerConfig(max_model_len=48), model, random_tensors(model, 0))
    assert tensor_bytes(runner.config, model) == allocated(runner)


@pytest.mark.parametrize("value", [10**12, 10**17, 10**30])
@pytest.mark.parametrize("name", ["max_num_reqs", "max_num_batched_tokens", "num_kv_blocks", "block_size", "pad_to"])
def test_memory_that_is_not_there_is_a_configuration_error(checkpoint, name, value):
    config = replace(RunnerConfig(max_model_len=48), **{name: value})
    with pytest.raises(ConfigurationError) as caught:
        LLM(checkpoint, config)
    error = caught.value
    assert f"{name}={value}" in error.subject
    assert f"{tensor_bytes(config, checkpoint.config):,} bytes" in error.rule
    assert error.reason and error.remedy


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_device_that_refuses_half_way_is_a_configuration_error(checkpoint, monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr("mrv2.refrunner.attention.backends.TorchReferenceAttention", refuse)
    with pytest.raises(ConfigurationError, match="bytes"):
        ModelRunner(RunnerConfig(max_model_len=48), checkpoint.config, checkpoint.tensors)


def test_other_errors_of_an_allocation_are_not_disguised(checkpoint, monkeypatch):
    def fail(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr("mrv2.refrunner.attention.backends.TorchReferenceAttention", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        ModelRunner(RunnerConfig(max_model_len=48), checkpoint.config, checkpoint.tensors)


def test_no_trial_is_made_on_a_gpu(monkeypatch, checkpoint):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = RunnerConfig(max_model_len=48, num_kv_blocks=10**12, device="cuda")
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("a block of this size would stay"))
    with memory.allocating(config, checkpoint.config):
        pass
