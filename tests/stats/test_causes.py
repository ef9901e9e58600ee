"""Causes of faults that only many draws show, from counts made by their law; and of speculative decoding."""

import numpy as np
import pytest

from mrv2.stats.causes.draws import change, contract_causes, distribution_causes
from mrv2.stats.causes.parts import _SPECULATION, filter_causes, speculation_causes
from mrv2.stats.contract_layer import ContractLayer
from mrv2.stats.decision import run_audit
from mrv2.stats.distribution_layer import DistributionLayer, RowPlan, draws_needed
from mrv2.stats.distributions import flat, half_head, ladder, zipf
from mrv2.stats.filters_layer import FiltersLayer
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.planted.clean import CleanSampler, multinomial
from mrv2.stats.planted.faults import RoundedTemperature, TokensOnly
from mrv2.stats.planted.lattice import LatticeSampler
from mrv2.stats.strata import log_softmax
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


class RunningSum(CleanSampler):
    """Searches a cumulative sum of float32 probabilities, which moves in steps of 6e-8 once it is near 1."""

    def counts_of(self, logits, temperature, draws, random):
        shares = np.exp(log_softmax(logits, temperature)).astype(np.float32)
        return multinomial(np.diff(np.cumsum(shares), prepend=0).astype(np.float64), draws, random)


def test_a_running_sum_in_float32_is_named_and_a_lattice_is_not_called_one():
    named = []
    for target in (RunningSum(), LatticeSampler("24 bits", 24, False)):
        found = audited(TokensOnly(target), ladder(V, (16.0, 18.0, 20.0)), 1.25)
        (cause,) = distribution_causes(found, found.decision.failed)
        named.append(cause.kind)
    assert named == ["a running sum too coarse for rare tokens", "24-bit noise"]


def test_a_rounded_temperature_shows_in_counts_too():
    found = audited(TokensOnly(RoundedTemperature()), [half_head(V), zipf(V)], 4.0)
    (cause,) = distribution_causes(found, found.decision.failed)
    assert cause.kind == "temperature rounded to bfloat16"


class _FewHeads(CleanSampler):
    """The likeliest token comes too rarely, and so do ids behind the first block where all are alike."""

    def counts_of(self, logits, temperature, draws, random):
        law = np.exp(log_softmax(logits, temperature))
        part = slice(1024, None) if np.ptp(logits) == 0 else logits.argmax()
        law[part] *= 0.9
        return multinomial(law, draws, random)


def test_a_row_that_no_temperature_explains_refutes_it():
    """The tail behind a head moves as at another temperature, but then a flat row would stay as it is."""
    target, rows = TokensOnly(_FewHeads()), [half_head(3003), flat(3003)]
    alone, both = (audited(target, some, 0.3) for some in (rows[:1], rows))
    assert [cause.kind for cause in distribution_causes(alone, alone.decision.failed)] == ["wrong temperature"]
    assert [cause.kind for cause in distribution_causes(both, both.decision.failed)] == ["no known cause"]


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


def test_an_ignored_temperature_is_named_by_the_contract():
    class IgnoresTemperature(CleanSampler):
        def sample(self, logits, temperature, seeds, positions):
            return super().sample(logits, np.where(temperature > 0, 1, 0).astype(np.float32), seeds, positions)

    found = run_audit([ContractLayer()], IgnoresTemperature(), AuditPlan(1100, 3), Silent())
    (cause,) = contract_causes(found.decision.failed, IgnoresTemperature())
    assert cause.kind == "a low temperature is not applied"
    assert "at temperature 0.001" in cause.detail


def test_an_error_says_for_which_rows_it_came():
    class RefusesGreedy(CleanSampler):
        def sample(self, logits, temperature, seeds, positions):
            if not temperature.all():
                raise ZeroDivisionError("logits / temperature")
            return super().sample(logits, temperature, seeds, positions)

    found = run_audit([ContractLayer()], RefusesGreedy(), AuditPlan(1100, 3), Silent())
    (cause,) = contract_causes(found.decision.failed, RefusesGreedy())
    assert cause.kind == "the sampler raises an error"
    assert "temperatures [0.0]" in cause.detail


def test_filters_wrong_only_in_odd_rows_are_told_by_their_test():
    """Cuts among equal tokens behind top-p, which five tokens of different shares do not show."""

    class CutsTies(CleanSampler):
        def kept(self, logits, temperature, filters):
            kept = super().kept(logits, temperature, filters)
            for row, mask, top_p in zip(logits, kept, filters.top_p, strict=True):
                last = np.flatnonzero(mask & (row == row[mask].min()))
                if top_p < 1 and last.size > 1:
                    mask[last[-1]] = False
            return kept

    found = run_audit([FiltersLayer(400)], CutsTies(), AuditPlan(1100, 3), Silent())
    (cause,) = filter_causes(found.decision.failed, CutsTies())
    assert "top-p inside a group of ties" in cause.detail
    assert "equal logits" in cause.remedy


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (-1.0, "never"),
        (-0.996, "250 times too rarely"),
        (-0.28, "28 % too rarely"),
        (-5e-4, "0.05 % too rarely"),
        (0.072, "7.2 % too often"),
        (3.0, "4 times too often"),
    ],
)
def test_a_change_of_a_rate_in_words(error, text):
    assert change(error) == text
