"""Causes of faults that only many draws show, from counts made by their law; and of speculative decoding."""

import numpy as np
import pytest

from mrv2.stats.causes.draws import distribution_causes
from mrv2.stats.causes.parts import _SPECULATION, speculation_causes
from mrv2.stats.decision import run_audit
from mrv2.stats.distribution_layer import DistributionLayer, RowPlan, draws_needed
from mrv2.stats.distributions import half_head, ladder, zipf
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import RoundedTemperature, TokensOnly
from mrv2.stats.planted.lattice import LatticeSampler
from mrv2.stats.tail_profile import SOUND, tail_profile

V = 262_144
PLAN = AuditPlan(V, 3)


def audited(target, rows, more=1.0):
    layer = DistributionLayer([RowPlan(row, int(draws_needed(row, PLAN) * more)) for row in rows], 0)
    return run_audit([layer], target, PLAN, Silent())


def profile_of(target, gaps, more=1.0):
    found = audited(target, ladder(V, gaps), more)
    return tail_profile({name: [draws] for name, draws in found.results[0].draws.items()})


@pytest.mark.parametrize(
    ("bits", "clamped", "gaps", "name"),
    [
        (24, False, (16.0, 18.0, 20.0), "24-bit noise"),
        (24, True, (16.0, 18.0, 20.0), "24-bit noise, zero raised"),
        (31, True, (20.0, 23.25), "31-bit noise"),
    ],
)
def test_tails_name_the_noise(bits, clamped, gaps, name):
    profile = profile_of(TokensOnly(LatticeSampler("bits", bits, clamped)), gaps, 1.25)
    assert profile.named is not None
    assert profile.named.name == name


def test_tails_of_a_correct_sampler_name_nothing():
    profile = profile_of(CleanSampler(), (16.0, 18.0, 20.0))
    likelihoods = {model.name: model.log_likelihood for model in profile.models}
    assert max(likelihoods.values()) - likelihoods[SOUND] < 3
    assert profile.named is None


def test_tails_that_no_known_defect_explains_name_nothing():
    class Halved(CleanSampler):
        def counts_of(self, logits, temperature, draws, random):
            counts = super().counts_of(logits, temperature, draws, random)
            head = int(logits.argmax())
            kept = random.binomial(counts, 0.5)
            kept[head] = draws - kept.sum() + kept[head]
            return kept

    assert profile_of(Halved(), (16.0, 18.0, 20.0)).named is None


def test_a_rounded_temperature_shows_in_counts_too():
    found = audited(TokensOnly(RoundedTemperature()), [half_head(V), zipf(V)], 4.0)
    (cause,) = distribution_causes(found, found.decision.failed)
    assert cause.kind == "temperature rounded to bfloat16"


class TestSpeculation:
    class Failed:
        layer = "speculative"

    @pytest.mark.parametrize(("cause", "model"), _SPECULATION, ids=lambda value: getattr(value, "kind", ""))
    def test_known_faults_are_told_apart(self, cause, model):
        assert [found.kind for found in speculation_causes([self.Failed], model)] == [cause.kind]

    def test_an_unknown_fault_is_not_named(self):
        class AlwaysAccepts(CleanSampler):
            def accepted(self, target_p, draft_p, drafts, seeds, positions):
                return np.ones(len(drafts), np.bool_)

        (cause,) = speculation_causes([self.Failed], AlwaysAccepts())
        assert cause.kind == "speculative decoding"
