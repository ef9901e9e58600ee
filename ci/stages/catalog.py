"""The stages of ``mrv2 verify``, in the order in which they run: each trusts what the ones before it have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mrv2.fuzz.targets.protocols import Feature, RunnerTarget

from .base import Stage

if TYPE_CHECKING:
    from mrv2.refrunner.models.checkpoint import Checkpoint
    from mrv2.refrunner.oracle.oracle import Oracle

# One pass of the oracle gives a row of logits per token; the sampler stage picks the rows with most to choose from.
CONTEXT_TOKENS = 24


def stages_for(target: RunnerTarget, reference: str, checkpoint: Checkpoint, device: str = "virtual") -> list[Stage]:
    """The stages on a model, with its oracle.

    Args:
        target: what will be verified; a target without seeded sampling has no draws that could be replayed.
        reference: what a target loads the model by: ``"smollm2"``, ``"tiny"``, or a path.
        checkpoint: the same model, loaded.
        device: where the stages races and sync run: ``"virtual"`` or ``"cuda"``.
    """
    from mrv2.refrunner.oracle.llama import LlamaOracle
    from mrv2.refrunner.oracle.noise import gumbel
    from mrv2.refrunner.oracle.oracle import Oracle
    from mrv2.stats.replay import gumbel_scores

    from .oracle_transformers import OracleAgainstTransformers
    from .races import Races
    from .runner_oracle import RunnerAgainstOracle
    from .sampler_audit import SamplerAudit
    from .sampler_distribution import SamplerDistribution
    from .state import StateAndPoison
    from .sync import Sync

    oracle = Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors))
    vocab_size = checkpoint.config.vocab_size
    exact_scores = gumbel_scores(gumbel) if Feature.SEEDED_SAMPLING in target.features else None
    return [
        OracleAgainstTransformers(checkpoint, oracle),
        RunnerAgainstOracle(reference, vocab_size, oracle),
        StateAndPoison(reference, vocab_size, oracle),
        Races(device),
        Sync(device),
        SamplerDistribution(lambda: logits_of(oracle), exact_scores),
        SamplerAudit(vocab_size),
    ]


def logits_of(oracle: Oracle) -> NDArray[np.float32]:
    """Logits of the model after each token of a fixed random context: float32 [CONTEXT_TOKENS, V]."""
    vocab_size = oracle.model.config.vocab_size
    context = np.random.default_rng(0).integers(vocab_size, size=CONTEXT_TOKENS)
    return oracle.model.logits([int(token) for token in context]).numpy().astype(np.float32)
