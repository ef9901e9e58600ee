"""A runner of a model of any shape, with random weights."""

from typing import Any

import torch

from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.weights import expected_tensors


def runner_of(model: LlamaConfig, **settings: Any) -> ModelRunner:
    """A runner on ``"cuda"`` with Triton attention; the weights are the same ones every time."""
    generator = torch.Generator("cuda").manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator, device="cuda") * 0.02 for name, shape in expected_tensors(model)
    }
    return ModelRunner(RunnerConfig(device="cuda", attention="triton", **settings), model, weights)
