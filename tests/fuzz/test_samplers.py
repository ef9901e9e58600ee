"""The samplers that can be audited: the reference in three forms, its specification, torch's, any function."""

import numpy as np
import pytest

from mrv2.checks import triton_cpu
from mrv2.fuzz.targets.plain_samplers import (
    CallableSampler,
    OracleSampler,
    exponential_race_sampler,
    multinomial_sampler,
)
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.refrunner.oracle import noise as specification
from mrv2.stats import targets
from mrv2.stats.gof import g_test
from mrv2.stats.strata import log_softmax

V = 203
RANDOM = np.random.default_rng(3)
LOGITS = RANDOM.normal(scale=2, size=(6, V)).astype(np.float32)
WARM = np.array([0.7, 1.0, 1.3, 0.0, 2.0, 1.0], np.float32)
SEEDS = RANDOM.integers(0, 2**64, 6, dtype=np.uint64)
POSITIONS = RANDOM.integers(0, 2**31, 6)
FILTERS = targets.Filters(
    np.array([0, 5, 0, 0, 50, 0], np.int32),
    np.array([1, 1, 0.5, 1, 0.9, 1], np.float32),
    np.array([0, 0, 0, 0, 0.01, 0.1], np.float32),
)


@pytest.fixture(scope="module")
def compiled():
    return ReferenceSampler(compiled=True)


class TestReference:
    def test_has_every_part(self, compiled):
        for part in (
            targets.SamplerTarget, targets.CountingTarget, targets.NoiseTarget, targets.FilteringTarget,
            targets.MaskTarget, targets.LogprobTarget, targets.RankTarget, targets.PromptLogprobTarget,
        ):  # fmt: skip
            assert isinstance(compiled, part)

    def test_compiled_interpreted_and_specification_draw_the_same(self, compiled):
        keys = SEEDS, POSITIONS
        exact = OracleSampler().sample(LOGITS, WARM, *keys)
        assert (compiled.sample(LOGITS, WARM, *keys) == exact).all()
        assert (ReferenceSampler().sample(LOGITS, WARM, *keys) == exact).all()

    @pytest.mark.gpu
    def test_on_a_gpu_it_draws_the_same(self):
        exact = OracleSampler().sample(LOGITS, WARM, SEEDS, POSITIONS)
        assert (ReferenceSampler(device="cuda").sample(LOGITS, WARM, SEEDS, POSITIONS) == exact).all()

    def test_filters_as_the_specification_does(self, compiled):
        exact = OracleSampler()
        assert (compiled.kept(LOGITS, WARM, FILTERS) == exact.kept(LOGITS, WARM, FILTERS)).all()
        arguments = LOGITS, WARM, SEEDS, POSITIONS, FILTERS
        assert (compiled.sample_filtered(*arguments) == exact.sample_filtered(*arguments)).all()

    def test_reads_nothing_outside_of_its_tensors(self):
        with triton_cpu.enabled() as session:
            own = ReferenceSampler()
            own.kept(np.tile(LOGITS, (4, 1)), np.tile(WARM, 4), targets.Filters.same(24, top_k=5, top_p=0.9))
            own.logprobs(LOGITS, WARM)
            own.count(LOGITS[0], 0.7, 1, 0, 50)
        assert session.findings == []

    def test_reports_log_probabilities_and_ranks(self, compiled):
        exact = np.stack([log_softmax(row, 1.0) for row in LOGITS])
        assert np.abs(compiled.logprobs(LOGITS, WARM) - exact).max() < 3e-6
        tokens = np.arange(6) * 30
        assert (compiled.ranks(LOGITS, tokens) == OracleSampler().ranks(LOGITS, tokens)).all()
        found = compiled.prompt_logprobs(LOGITS, tokens)
        assert np.abs(found - exact[np.arange(5), tokens[1:]]).max() < 3e-6

    def test_counts_what_it_draws(self, compiled):
        positions = np.arange(5, 905)
        drawn = compiled.sample(LOGITS[0], np.full(900, 0.7, np.float32), np.full(900, 9, np.uint64), positions)
        assert (compiled.count(LOGITS[0], 0.7, 9, 5, 900) == np.bincount(drawn, minlength=V + 1)).all()

    @pytest.mark.parametrize("purpose", list(targets.Purpose))
    def test_words_are_those_of_the_contract(self, compiled, purpose):
        tokens = np.array([0, 3, 4, 90, 7])
        of_one = [
            specification.words(int(seed), int(position), tokens, specification.Purpose[purpose.name])
            for seed, position in zip(SEEDS, POSITIONS, strict=True)
        ]
        assert (compiled.words(SEEDS[:, None], POSITIONS[:, None], tokens, purpose) == np.stack(of_one)).all()
        assert (compiled.words(SEEDS[:5], POSITIONS[:5], tokens, purpose) == np.stack(of_one)[range(5), range(5)]).all()

    def test_its_noise_is_the_kernels(self, compiled):
        ends = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
        words = np.concatenate([ends, RANDOM.integers(0, 2**64, 5000, dtype=np.uint64)])
        difference = compiled.noise(words) - OracleSampler().noise(words)
        assert 0 < np.abs(difference).max() < 2.1e-6


@pytest.mark.parametrize("sampler", [multinomial_sampler(), exponential_race_sampler()], ids=lambda s: s.name)
class TestTorch:
    def test_draws_follow_the_softmax(self, sampler):
        row = LOGITS[0, :8]
        expected = 4000 * np.exp(log_softmax(row, 0.7))
        drawn = sampler.sample(row, np.full(4000, 0.7, np.float32), np.arange(4000, dtype=np.uint64), np.arange(4000))
        counted = sampler.count(row, 0.7, 1, 0, 4000)
        assert counted[-1] == 0
        for observed in (np.bincount(drawn, minlength=8), counted[:8]):
            assert g_test(observed, expected).p_value > 1e-3

    def test_is_greedy_at_temperature_zero_and_repeats(self, sampler):
        first, again = (sampler.sample(LOGITS, WARM, SEEDS, POSITIONS) for _ in range(2))
        assert (first == again).all()
        assert first[3] == LOGITS[3].argmax()


def test_a_function_is_a_sampler():
    def largest(logits, temperature, seeds, positions):
        return np.broadcast_to(logits, (len(seeds), np.shape(logits)[-1])).argmax(axis=1)

    sampler = CallableSampler(largest)
    assert sampler.name.endswith("largest")
    assert isinstance(sampler, targets.SamplerTarget)
    assert not isinstance(sampler, targets.NoiseTarget | targets.CountingTarget)
    assert (sampler.sample(LOGITS, WARM, SEEDS, POSITIONS) == LOGITS.argmax(axis=1)).all()
