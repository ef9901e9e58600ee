"""What the tests of the runner share: the tiny model, its oracle, and a runner made of them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from mrv2.checks import triton_cpu
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.checkpoint import Checkpoint
from mrv2.refrunner.models.tiny import tiny_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.noise import gumbel
from mrv2.refrunner.oracle.oracle import Oracle, ScoredToken
from mrv2.refrunner.oracle.rounding import log_softmax_error, near_tie_gap

SMALL = {"max_num_reqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "block_size": 4, "num_kv_blocks": 25}


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where a test of kernels alone runs them."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def compiled_kernels() -> Iterator[None]:
    """On the CPU kernels run compiled; the interpreter, whose bits others compare, takes tens of times as long."""
    with triton_cpu.enabled():
        yield


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


def score_draw(logits: Tensor, params: SamplingParams, position: int, token: int) -> ScoredToken:
    """What the oracle makes of a token drawn from float32 logits [V]."""
    row = logits.cpu().numpy().astype(np.float64)
    temperature = float(np.float32(params.temperature))
    scores = row / temperature + gumbel(params.seed or 0, position, len(row)) if temperature else row
    logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
    choice = int(scores.argmax())
    return ScoredToken(
        index=0,
        position=position,
        choice=choice,
        observed=token,
        gap=float(scores[choice] - scores[token]),
        logprob=float(logprobs[token]),
        choice_logprob=float(logprobs[choice]),
        scores=(float(scores[choice]), float(scores[token])),
        logits=(float(row[choice]), float(row[token])),
        top_logit=float(row.max()),
        mean_drop=float(np.exp(logprobs) @ (row.max() - row)),
    )


@pytest.fixture(scope="session")
def judge_draw() -> Callable[[Tensor, SamplingParams, int, int, float], bool]:
    """Asserts that a token is the oracle's or ties within rounding, and its logprob within its bound.

    Returns whether it is the oracle's own.
    """

    def judge(logits: Tensor, params: SamplingParams, position: int, token: int, logprob: float) -> bool:
        scored = score_draw(logits, params, position, token)
        assert scored.gap <= near_tie_gap(scored, params, 0.0), (params, scored)
        assert abs(logprob - scored.logprob) <= log_softmax_error(scored, len(logits)), (params, scored, logprob)
        return scored.choice == token

    return judge
