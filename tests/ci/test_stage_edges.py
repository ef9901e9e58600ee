"""Faults at the edges of ranges: each is found by the stage whose edge it is, on a run of that edge alone."""

import numpy as np
import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.ci.stages import runner_oracle
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.runner_oracle import RunnerAgainstOracle
from mrv2.ci.stages.sampler_edges import RARE_KEY, TAIL_WIDTH, check_edges
from mrv2.ci.stages.workloads import edges_workload, quick_workload
from mrv2.fuzz.mutants import EDGES, mutant
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Workload, WorkloadRequest, run_target
from mrv2.refrunner.api import SamplingParams
from mrv2.refrunner.oracle.noise import gumbel
from mrv2.stats.replay import gumbel_scores

VOCAB = 256
LOGITS = (np.random.default_rng(5).normal(size=(4, VOCAB)) * 1.7).astype(np.float32)
BY_NAME = {mutation.name: mutation for mutation in EDGES}
# What the long workload shows in its inputs, and the field that is wrong; no oracle is needed for that.
INPUTS = {
    "staged_write_of_one_block": "input_ids",
    "ids_of_one_block": "input_ids",
    "block_size_is_sixteen": "slot_mapping",
}
# What a sequence longer than 256 tokens shows; the long workload has one, and a shorter one is cheaper to judge.
OUTPUTS = {"rotary_wraps", "context_is_cut", "draw_position_wraps"}
# What the quick workload shows.
SHORT = {
    "seed_loses_a_bit": {"MRV302"},
    "greedy_inherits_temperature": {"MRV302"},
    # Under a grammar the first block may be empty; the log-probability is infinite then, which is no number.
    "sum_of_the_first_block": {"MRV303", "MRV307"},
}
# What the stage of state and poison shows; see its own tests.
STATE = {"token_table_not_updated", "padding_keeps_its_length", "padding_clears_a_slot"}
# What the sampler shows, and the edge.
SAMPLER = {
    "vocabulary_mask_off_by_one": "vocabulary of -1 columns",
    "greedy_below_a_half": "far seeds, positions and temperatures",
    "highest_of_ties": "greedy rows with ties, -inf and NaN",
    "noise_of_32_bits": "tails of the noise",
    "careless_logarithm": "tails of the noise",
}


def only_request():
    return Workload((WorkloadRequest("x", (1, 2, 3), SamplingParams(max_tokens=2)),), quick(0).capacities, VOCAB)


def quick(seed):
    return quick_workload(VOCAB, seed, 8)


def verify(oracle, progress, name):
    with mutant(BY_NAME[name]) as target:
        return RunnerAgainstOracle("tiny", VOCAB, oracle).run(target, Budget(new_tokens=8), progress)


def test_every_fault_has_a_stage_that_must_find_it():
    assert set(BY_NAME) == {*INPUTS, *OUTPUTS, *SHORT, *STATE, *SAMPLER, "temperature_of_one_decimal"}


@pytest.mark.parametrize("name", INPUTS)
def test_the_inputs_of_the_long_workload_show_it(name):
    with mutant(BY_NAME[name]) as target:
        trace = run_target(target, {"model": "tiny"}, edges_workload(VOCAB, 0))
    assert trace.mismatch[1].field == INPUTS[name]


@pytest.mark.parametrize("name", sorted(OUTPUTS))
def test_the_tokens_of_a_long_sequence_show_it(tiny_oracle, progress, name):
    long = WorkloadRequest("long", tuple(range(256)) + (7,) * 30, SamplingParams(0.8, 2**64 - 1, 6))
    workload = Workload((long,), edges_workload(VOCAB, 0).capacities, VOCAB)
    with mutant(BY_NAME[name]) as target:
        trace = run_target(target, {"model": "tiny"}, workload)
    judged = RunnerAgainstOracle("tiny", VOCAB, tiny_oracle).judge(workload, trace, progress)
    assert trace.mismatch is None
    assert judged.findings[0].code == "MRV302"


@pytest.mark.parametrize("name", SHORT)
def test_the_quick_workload_shows_it(tiny_oracle, progress, monkeypatch, name):
    monkeypatch.setattr(runner_oracle, "edges_workload", lambda *args: only_request())
    result = verify(tiny_oracle, progress, name)
    assert result.verdict is RunVerdict.FAIL
    assert {finding.code for finding in result.findings} == SHORT[name]


def test_both_workloads_together_show_a_rounded_temperature(tiny_oracle, progress):
    # It changes few draws: neither workload alone has enough of them with every seed.
    result = verify(tiny_oracle, progress, "temperature_of_one_decimal")
    assert result.verdict is RunVerdict.FAIL
    assert {finding.code for finding in result.findings} == {"MRV302"}


@pytest.mark.parametrize("name", SAMPLER)
def test_the_sampler_shows_it(name):
    with mutant(BY_NAME[name]) as target:
        result = check_edges(target.sampler(), LOGITS, gumbel_scores(gumbel), 0)
    assert SAMPLER[name] in result.wrong
    assert {finding.code for finding in result.findings} <= {"MRV402", "MRV403"}


def test_the_reference_sampler_is_right_at_every_edge():
    assert check_edges(ReferenceTarget().sampler(), LOGITS, gumbel_scores(gumbel), 1).wrong == {}


def test_the_rare_key_of_the_runners_noise_is_rare():
    noise = gumbel(*RARE_KEY, TAIL_WIDTH)
    assert (int(noise.argmax()), float(noise.max())) == (179, pytest.approx(22.706, abs=1e-3))
