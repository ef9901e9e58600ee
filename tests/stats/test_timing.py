"""Time is kept: layers stop between calls, what was cut is INCONCLUSIVE, what was seen before still counts."""

import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.stats.audit import NO_TIME, audit, settings
from mrv2.stats.contract_layer import ContractLayer
from mrv2.stats.decision import decide
from mrv2.stats.distribution_layer import DistributionLayer, RowPlan, count_draws
from mrv2.stats.distributions import cliff, zipf
from mrv2.stats.filters_layer import FiltersLayer
from mrv2.stats.layers import AuditPlan, Silent
from mrv2.stats.logprob_layer import LogprobLayer
from mrv2.stats.noise_layer import NoiseLayer
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import PLANTED, TokensOnly
from mrv2.stats.profiles import AffordableDistribution, profile_of
from mrv2.stats.replay_layer import ReplayLayer, Width
from mrv2.stats.report import LINES, could_have_missed, screen
from mrv2.stats.speculative import speculation_cases
from mrv2.stats.speculative_layer import SpeculativeLayer
from mrv2.stats.strata import log_softmax
from mrv2.stats.timing import Pace, TimeBudget

from .timed import Clock, Compiling, timed

V = 500
LAYERS = {
    "contract": ContractLayer(),
    "noise": NoiseLayer(8, 2**12, random_words=2**15),
    "replay": ReplayLayer((Width("narrow", 300, 2400, 0.002), Width("wide", 600, 600, 0.01))),
    "filters": FiltersLayer(100),
    "distribution": DistributionLayer([RowPlan(cliff(V, 7.0), 20_000), RowPlan(zipf(V), 20_000)], 800),
    "speculative": SpeculativeLayer(20_000, speculation_cases()[:2]),
    "logprobs": LogprobLayer(1),
}


def run(layer, end, target=None, scale=1, **costs):
    target, clock = timed(target or CleanSampler(), **costs)
    result = layer.run(target, AuditPlan(V, 0, scale=scale, time=TimeBudget(clock, end)), Silent())
    return result, clock


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_is_cut_ends_after_its_call_and_does_not_pass(name):
    whole, clock = run(LAYERS[name], 1e9)
    assert not any(test.cut for test in whole.tests)
    for share in (0.0, 0.3, 0.7):
        result, shorter = run(LAYERS[name], share * clock.now)
        assert shorter.now <= share * clock.now + 6 * max(shorter.longest, 0.25), share
        assert any(test.cut and test.short for test in result.tests), share
        assert decide([result], {}, 1e-4).verdict is RunVerdict.INCONCLUSIVE, share
        assert all("\n" not in test.missed() for test in result.tests if test.short)


@pytest.mark.parametrize("name", ["contract", "filters"])
def test_a_fault_that_was_seen_before_the_cut_fails(name):
    fault = [planted for planted in PLANTED if planted.layer == name][-1]
    _, clock = run(LAYERS[name], 1e9, fault.make())
    result, _ = run(LAYERS[name], 0.9 * clock.now, fault.make())
    assert any(test.cut for test in result.tests)
    assert decide([result], {}, 1e-4).verdict is RunVerdict.FAIL


@pytest.mark.parametrize(("seconds", "draw"), [(2.0, 1e-4), (2.0, 0.1), (60.0, 1e-2), (60.0, 1.0)])
def test_an_audit_ends_in_its_time_however_slow_the_sampler_is(seconds, draw):
    target, clock = timed(CleanSampler(), call=0.01, draw=draw)
    report = audit(target, settings(seconds=seconds, vocab_size=V), clock=clock)
    # One call more than there was time for, and those that time the sampler.
    assert report.seconds <= seconds + max(2.0, 8 * clock.longest)
    if report.verdict is not RunVerdict.PASS:
        assert report.verdict is RunVerdict.INCONCLUSIVE
        assert len(screen(report)) <= LINES
        assert could_have_missed(report)
    late = any(result.not_run == NO_TIME for result in report.audit.results)
    short = any(test.first.short for test in report.audit.decision.tests)
    assert (report.verdict is RunVerdict.PASS) == (not short and not late)


class Lawful:
    """Counts by the law, at once; its tokens are for flat rows only."""

    name = "lawful"

    def sample(self, logits, temperature, seeds, positions):
        return np.random.default_rng(int(seeds[0])).integers(0, logits.shape[-1], len(seeds))

    def count(self, logits, temperature, seed, first_position, draws):
        probabilities = np.exp(log_softmax(logits, temperature))
        random = np.random.default_rng([seed, first_position])
        return np.append(random.multinomial(draws, probabilities / probabilities.sum()), 0)


class WithBits(Lawful):
    noise_bits = 64
    words = noise = None


@pytest.mark.parametrize("kind", [Lawful, WithBits])
def test_calls_that_compile_are_not_taken_for_the_speed_of_a_sampler(kind):
    """On an H200 an audit of 130 s ended after 34 without a row: a call of a new size had compiled a kernel."""
    drawn = []
    for slow_calls in (0, 1, 3):
        clock = Clock()
        chosen = settings(seconds=130.0, vocab_size=1003, layers=("distribution",))
        report = audit(Compiling(kind(), clock, slow_calls, 1e-5), chosen, clock=clock)
        assert report.seconds <= 130.0
        drawn.append({test.first.part for test in report.audit.decision.tests if not test.first.short})
    assert {"last block", "zipf"} <= drawn[0] == drawn[1] == drawn[2]


@pytest.mark.parametrize("slow_calls", [0, 1])
def test_a_call_that_compiles_makes_no_narrow_rows(slow_calls):
    clock = Clock()
    target = Compiling(WithBits(), clock, slow_calls, 1e-8)
    plan = AuditPlan(20_003, 0, time=TimeBudget(clock, 130.0))
    chosen = AffordableDistribution(profile_of("pr", 130.0)).chosen(target, plan)
    assert chosen.rows[1] == chosen.pairs[1] == plan.vocab_size
    assert not chosen.left_out


def test_without_a_time_the_profile_may_take_longer_than_its_own():
    assert (settings().limit, settings(seconds=60.0).limit) == (180.0, 60.0)


class TestPace:
    def sizes(self, cost, count, most, end=100.0):
        clock = Clock()
        parts = []
        for part in Pace(TimeBudget(clock, end)).calls(count, most):
            parts.append(part.stop - part.start)
            clock.spend(cost(parts[-1]))
        return parts

    def test_calls_grow_while_they_are_quick(self):
        assert self.sizes(lambda size: 1e-6 * size, 20_000, 8192) == [16, 128, 1024, 8192, 8192, 2448]

    def test_and_shrink_when_they_are_slow(self):
        assert self.sizes(lambda size: 0.3 * size, 24, 64) == [16, 8]
        assert self.sizes(lambda size: 3.0, 24, 64)[:4] == [16, 8]

    def test_the_first_call_is_made_in_any_case_and_none_after_the_end(self):
        assert self.sizes(lambda size: 1.0, 1000, 64, end=0.0) == [16]
        assert self.sizes(lambda size: 50.0, 1000, 64) == [16, 8]

    def test_a_price_of_each_call_does_not_keep_calls_small(self):
        assert self.sizes(lambda size: 0.3, 10_000, 8192)[:5] == [16, 48, 160, 528, 1744]

    def test_without_an_end_calls_are_as_large_as_they_may_be(self):
        assert [part.stop - part.start for part in TimeBudget().calls(100, 64)] == [64, 36]


def test_draws_do_not_depend_on_the_calls_they_are_made_in():
    row = zipf(200)
    fast, slow = (run_counts(row, cost) for cost in (1e-9, 5e-2))
    assert fast.sum() == 3000
    np.testing.assert_array_equal(fast, slow)


def run_counts(row, cost):
    target, clock = timed(TokensOnly(CleanSampler()), call=0.0, draw=cost)
    target.count = None
    plan = AuditPlan(200, 0, time=TimeBudget(clock, 1e9))
    return count_draws(_SampleOnly(target), row, 3000, plan, Silent())


class _SampleOnly:
    name = "draws only"

    def __init__(self, target):
        self.sample = target.sample
