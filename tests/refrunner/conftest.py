"""What the tests of the runner share: the tiny model, its oracle, and a runner made of them."""

from collections.abc import Callable
from typing import Any

import pytest

from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.checkpoint import Checkpoint
from mrv2.refrunner.models.tiny import tiny_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle

SMALL = {"max_num_reqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "block_size": 4, "num_kv_blocks": 25}


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return tiny_checkpoint()


@pytest.fixture(scope="session")
def oracle(checkpoint: Checkpoint) -> Oracle:
    return Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors))


@pytest.fixture(scope="session")
def make_runner(checkpoint: Checkpoint) -> Callable[..., ModelRunner]:
    """Makes a runner of the tiny model with small capacities, each of which may be given another value."""

    def make(**settings: Any) -> ModelRunner:
        return ModelRunner(RunnerConfig(**{**SMALL, **settings}), checkpoint.config, checkpoint.tensors)

    return make
