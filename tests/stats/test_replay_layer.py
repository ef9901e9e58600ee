"""The replay layer on the correct sampler and on samplers that change a few draws in a thousand."""

import numpy as np
import pytest

from mrv2.fuzz.targets.plain_samplers import multinomial_sampler
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import BroadcastSeed, LostLastBlock, RoundedTemperature
from mrv2.stats.planted.lattice import LatticeSampler
from mrv2.stats.replay_layer import ReplayLayer, Width, noise_scores, rows_of

LAYER = ReplayLayer((Width("narrow rows", 500, 3000, 1e-3), Width("rows of the vocabulary", None, 40, 0.06)))
PLAN = AuditPlan(vocab_size=5003, seed=4)


def replayed(target):
    return LAYER.run(target, PLAN, Silent())


@pytest.mark.parametrize("target", [CleanSampler(), LatticeSampler("24 bits", 24, False)], ids=lambda t: t.name)
def test_draws_that_follow_their_own_bits_pass(target):
    result = replayed(target)
    assert [test.result.p_value for test in result.tests] == [1.0, 1.0]
    assert not any(test.short for test in result.tests)
    assert result.cases == ()
    assert result.replayed == 3040


def test_the_reference_passes():
    layer = ReplayLayer((Width("narrow rows", 200, 600, 0.01),))
    result = layer.run(ReferenceSampler(compiled=True), PLAN, Silent())
    assert result.tests[0].result.p_value == 1.0


@pytest.mark.parametrize("target", [RoundedTemperature(), BroadcastSeed(), LostLastBlock()], ids=lambda t: t.name)
def test_a_fault_shows(target):
    result = replayed(target)
    wrong = [test for test in result.tests if test.result.p_value == 0.0]
    assert wrong
    shown = wrong[0].evidence["examples"][0]
    case = result.cases[0]
    again = eval(shown["logits"].removeprefix("mrv2.stats.replay_layer."), {"rows_of": rows_of})
    np.testing.assert_array_equal(again, case.logits)
    scores = noise_scores(target)(case.logits, case.temperature, shown["seed"], shown["position"])
    assert scores.argmax() == shown["exact"] == case.mismatch.exact
    assert scores[shown["drawn"]] < scores[shown["exact"]]


def test_too_few_draws_are_no_proof():
    (test,) = ReplayLayer((Width("narrow rows", 500, 100, 1e-3),)).run(CleanSampler(), PLAN, Silent()).tests
    assert test.short
    assert 0.02 < test.could_see < 0.03


def test_without_bits_nothing_is_replayed():
    result = replayed(multinomial_sampler())
    assert "bits" in result.not_run
    assert result.tests == ()


def test_a_part_alone_and_a_scaled_plan():
    plan = PLAN.repeated(frozenset({"rows of the vocabulary"}))
    (test,) = LAYER.run(CleanSampler(), plan, Silent()).tests
    assert test.result.draws == 160


def test_a_token_outside_the_vocabulary_is_a_mismatch():
    class Beyond(CleanSampler):
        def sample(self, logits, *keys):
            return np.where(np.arange(len(logits)) == 0, logits.shape[1], super().sample(logits, *keys))

    result = replayed(Beyond())
    assert result.tests[0].evidence["outside"] > 0
    assert result.tests[0].result.p_value == 0.0
