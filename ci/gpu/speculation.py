"""Figures of speculation on this GPU: acceptance, steps and tokens a second, with and without drafts.

Usage: python -m mrv2.ci.gpu.speculation FILE [--tiny]     FILE gets the figures as JSON; --tiny: a small model

The target has the shape of a 0.6B model and made-up weights, in which the layers behind the first few matter little, so
that a draft model of those layers is right now and then. Costs are real; acceptance is that of this model and says
nothing about a trained one. Every run's tokens are compared with those of the run without drafts.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from mrv2.ci.command.kernels import compiled_kernels
from mrv2.refrunner.api import Handle, InvariantViolation, NewRequest, SamplingParams, Step
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.engine import Engine
from mrv2.refrunner.model_runner import ModelRunner
from mrv2.refrunner.models.config import LlamaConfig
from mrv2.refrunner.models.self_drafts import first_layers, head_of_last_layers
from mrv2.refrunner.models.tiny import TINY_CONFIG, random_tensors
from mrv2.refrunner.models.weights import Checkpoint

SHAPE = LlamaConfig(
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    rope_theta=1_000_000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
)
DRAFT_LAYERS = 4
#: What is left of the contributions of the layers behind those.
DAMPING = 0.1
#: Of the target's state in what the head computes; made-up layers make nothing of a larger one.
SHARE_OF_STATE = 0.05
NEW_TOKENS, WARM_TOKENS = 128, 16
#: Graph modes, each with the numbers of requests in one batch: the largest, and with graphs one alone, too.
RUNS = {"eager": (8,), "full": (1, 8)}
MOST_REQUESTS = 8
#: Requests draw from so few tokens, each from its own, that what came before comes again.
FEW = 3


@dataclass(frozen=True)
class Figures:
    """One run.

    Attributes:
        proposer: who proposes; ``"none"`` for the run without drafts.
        num_drafts: drafts for each request and step.
        graph_mode: of the runner.
        requests: in one batch.
        tokens: generated.
        steps: that the runner executed.
        accepted: share of the drafts that were verified; None without drafts.
        seconds: from the first step to the last token on the host; kernels were loaded before.
        same_tokens: whether they are those of the run without drafts: of how many requests.
    """

    proposer: str
    num_drafts: int
    graph_mode: str
    requests: int
    tokens: int
    steps: int
    accepted: float | None
    seconds: float
    same_tokens: int

    def as_json(self) -> dict[str, Any]:
        """All fields, and tokens a second."""
        return {**asdict(self), "tokens_per_second": self.tokens / self.seconds}


class _Counting:
    """A runner that counts its steps."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self.steps = runner, 0

    def execute(self, step: Step) -> Handle:
        """See :class:`mrv2.refrunner.api.Runner`."""
        self.steps += bool(step.scheduled)
        return self._runner.execute(step)

    def check_request(self, request: NewRequest) -> NewRequest:
        """See :class:`mrv2.refrunner.engine.CheckingRunner`."""
        return self._runner.check_request(request)

    def invariants(self) -> list[InvariantViolation]:
        """See :class:`mrv2.refrunner.api.Runner`."""
        return self._runner.invariants()

    def close(self) -> None:
        """See :class:`mrv2.refrunner.api.Runner`."""
        self._runner.close()


def damped_model(shape: LlamaConfig, layers: int, dtype: torch.dtype) -> Checkpoint:
    """Made-up weights whose layers from ``layers`` on add a tenth of what they would."""
    late = tuple(f"model.layers.{layer}." for layer in range(layers, shape.num_layers))
    adding = (".o_proj.weight", ".down_proj.weight")
    tensors = {
        name: (tensor * DAMPING if name.startswith(late) and name.endswith(adding) else tensor).to(dtype)
        for name, tensor in random_tensors(shape, 0).items()
    }
    return Checkpoint("damped", None, "safetensors", shape, MappingProxyType(tensors), "made-up weights")


def prompts(vocab_size: int, requests: int, new_tokens: int, free: bool) -> list[tuple[list[int], SamplingParams]]:
    """Requests that repeat themselves; those that are not ``free`` draw from the tokens of their prompt only."""
    random, made = np.random.default_rng(new_tokens), []
    for _ in range(requests):
        few = [int(token) for token in random.choice(vocab_size, FEW, replace=False)]
        prompt = [few[place] for place in random.integers(0, FEW, 32)]
        made.append((prompt, SamplingParams(max_tokens=new_tokens, allowed_token_ids=None if free else tuple(few))))
    return made


def generate(
    target: Checkpoint, draft: Checkpoint | None, config: RunnerConfig, requests: int, free: bool
) -> tuple[list[tuple[int, ...]], Figures]:
    """Tokens of all requests in one batch, and the figures; a first batch, which is not measured, warms everything."""
    runner = _Counting(ModelRunner(config, target.config, target.tensors, draft=draft))
    engine = Engine(runner, config)
    for turn, new_tokens in (("warm", WARM_TOKENS), ("measured", NEW_TOKENS)):
        runner.steps, before = 0, replace(engine.speculation)
        asked = prompts(target.config.vocab_size, requests, new_tokens, free)
        for index, (prompt, sampling) in enumerate(asked):
            engine.add(f"{turn}-{index}", prompt, sampling)
        start = time.perf_counter()
        engine.drain()
        seconds = time.perf_counter() - start
    tokens = [engine.requests[f"measured-{index}"].output_token_ids for index in range(requests)]
    drafts = engine.speculation.drafts - before.drafts
    accepted = (engine.speculation.accepted - before.accepted) / drafts if drafts else None
    engine.close()
    count, most = sum(map(len, tokens)), config.num_drafts if config.drafts else 0
    return tokens, Figures(
        config.speculation, most, config.graph_mode, requests, count, runner.steps, accepted, seconds, 0
    )


def compare(target: Checkpoint, config: RunnerConfig, requests: int) -> list[Figures]:
    """Every proposer, and the run without drafts, on the same requests."""
    found = []
    drafts = {
        "draft": first_layers(target, DRAFT_LAYERS),
        "eagle": head_of_last_layers(first_layers(target, DRAFT_LAYERS), DRAFT_LAYERS, SHARE_OF_STATE),
    }
    for free, proposers in ((False, ("ngram",)), (True, ("draft", "eagle"))):
        plain, figures = generate(target, None, config, requests, free)
        found.append(replace(figures, same_tokens=requests))
        for proposer in proposers:
            for num_drafts in (1, 3, 7):
                speculating = replace(config, speculation=proposer, num_drafts=num_drafts)
                tokens, figures = generate(target, drafts.get(proposer), speculating, requests, free)
                same = sum(one == other for one, other in zip(plain, tokens, strict=True))
                found.append(replace(figures, same_tokens=same))
                print(found[-1], flush=True)
    return found


def measure(target: Checkpoint, device: str) -> Iterator[list[Figures]]:
    """All runs on a device, a batch at a time; graphs only on a GPU."""
    for graph_mode, batches in RUNS.items():
        if graph_mode != "eager" and device == "cpu":
            continue
        config = RunnerConfig(
            max_num_reqs=MOST_REQUESTS, max_num_batched_tokens=512, max_model_len=512,
            num_kv_blocks=MOST_REQUESTS * 33 + 1, device=device, attention="triton", graph_mode=graph_mode,
        )  # fmt: skip
        for requests in batches:
            yield compare(target, config, requests)


def main(arguments: list[str]) -> int:
    """Measure and write; 1 if a token differs in float32, where rounding is no excuse on these models.

    What was measured is written after each batch, so that a run that is cut off loses the last one only.
    """
    tiny, device = "--tiny" in arguments, "cuda" if torch.cuda.is_available() else "cpu"
    target = damped_model(replace(TINY_CONFIG, num_layers=6) if tiny else SHAPE, DRAFT_LAYERS, torch.float32)
    report = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "model": "tiny" if tiny else "0.6B shape, made-up weights",
        "dtype": "float32",
    }
    found: list[Figures] = []
    with compiled_kernels() if device == "cpu" else contextlib.nullcontext():
        for measured in measure(target, device):
            found += measured
            runs = {"runs": [figures.as_json() for figures in found]}
            Path(arguments[0]).write_text(json.dumps(report | runs, indent=1) + "\n", encoding="utf-8")
    return int(any(figures.same_tokens != figures.requests for figures in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
