from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mrv2.checks.codes import CODES
from mrv2.ci.stages import catalog
from mrv2.fuzz.targets.protocols import Feature
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle


def test_stages_are_those_that_the_codes_name() -> None:
    stages = catalog.stages_for(ReferenceTarget(), "tiny", load_checkpoint("tiny"))
    names = [stage.name for stage in stages]
    assert len(names) == len(set(names))
    assert set(names) == {info.stage for info in CODES.values() if info.stage != "any"}


def test_logits_are_the_models_own() -> None:
    checkpoint = load_checkpoint("tiny")
    oracle = Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors))
    logits = catalog.logits_of(oracle)
    assert logits.shape == (catalog.CONTEXT_TOKENS, checkpoint.config.vocab_size)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    assert np.array_equal(logits, catalog.logits_of(oracle))


@pytest.mark.parametrize(("features", "replayed"), [({Feature.SEEDED_SAMPLING}, True), (set(), False)])
def test_draws_are_replayed_only_if_they_are_seeded(
    features: set[Feature], replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def keep(_logits: Any, exact_scores: Any) -> SimpleNamespace:
        given.append(exact_scores)
        return SimpleNamespace(name="sampler distribution")

    monkeypatch.setattr("mrv2.ci.stages.sampler_distribution.SamplerDistribution", keep)
    target: Any = SimpleNamespace(name="t", features=frozenset(features), knobs={}, build=None)
    catalog.stages_for(target, "tiny", load_checkpoint("tiny"))
    assert (given[0] is not None) is replayed
