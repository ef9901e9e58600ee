"""Stage 3 on the tiny model: poison changes nothing in the runner, and shows in each runner that reads dead memory."""

import json
from types import SimpleNamespace

import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.ci.stages import state
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.state import NEEDED, StateAndPoison
from mrv2.ci.stages.workloads import quick_workload
from mrv2.fuzz.mutants import MUTATIONS, Mutation, mutant
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Workload, WorkloadRequest
from mrv2.refrunner.api import SamplingParams

VOCAB = 256
BUDGET = Budget(new_tokens=8)


@pytest.fixture
def stage():
    return StateAndPoison("tiny", VOCAB)


def is_json(result):
    json.dumps([result.metrics, result.coverage, [dict(f.evidence) for f in result.findings]], allow_nan=False)
    return True


def test_the_runner_passes(stage, progress, reference_with):
    closed = []

    def change(runner):
        runner.close = lambda: closed.append(runner)
        return runner

    result = stage.run(reference_with(change=change), BUDGET, progress)
    assert len(closed) == 2
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    assert progress.done == progress.total == 2
    assert all(result.coverage[name] > 0 for name in ("preempted", "resumed", "aborted", "chunked", "rows used again"))
    assert is_json(result)


# What the stage must say of those faults of the catalogue that concern state: code, and field or rule.
STATE_FAULTS = {
    "row_not_reset": ("MRV304", "seq_lens"),
    "block_table_off_by_one": ("MRV304", "block_tables"),
    "position_off_by_one": ("MRV304", "positions"),
    "last_sampled_not_set_on_resume": ("MRV304", "input_ids"),
    "chunk_counts_as_decode": ("MRV306", "counter"),
}


@pytest.mark.parametrize("name", STATE_FAULTS)
def test_faults_of_the_bookkeeping_are_found_and_named(stage, progress, name):
    (mutation,) = [mutation for mutation in MUTATIONS if mutation.name == name]
    with mutant(mutation) as target:
        result = stage.run(target, BUDGET, progress)
    assert result.verdict is RunVerdict.FAIL
    code, what = STATE_FAULTS[name]
    first = result.findings[0]
    assert first.code == code
    assert first.evidence.get("field", first.title.split()[2]) == what
    assert first.step is not None
    assert is_json(result)


# Faults that no input shows: something dead is read, and only its content decides whether that matters.
DEAD_READS = {
    Mutation(
        "temperature_not_reset",
        "request_states.py",
        "        self._temperature.stage_write(0, row, [request.sampling.temperature])\n",
        "        if request.sampling.temperature:\n"
        "            self._temperature.stage_write(0, row, [request.sampling.temperature])\n",
        "a greedy request inherits the temperature of its row",
    ): "MRV305",
    Mutation(
        "padding_writes_to_a_block",
        "attention/torch_reference.py",
        "batch.slot_mapping.clamp_min(NULL_BLOCK)",
        "batch.slot_mapping.where(batch.slot_mapping >= 0, self._block_size)",
        "padding lanes write their keys to the first real block",
    ): "MRV305",
    Mutation(
        "unused_slot_in_the_sum",
        "attention/torch_reference.py",
        "self._context_slots.append(slots[:length])",
        "self._context_slots.append(slots)",
        "attention masks what a block does not hold yet by weight 0, and 0 times NaN is NaN",
    ): "MRV307",
}


@pytest.mark.parametrize("mutation", DEAD_READS, ids=lambda mutation: mutation.name)
def test_reads_of_dead_memory_are_found_by_poison(stage, progress, mutation):
    with mutant(mutation) as target:
        result = stage.run(target, BUDGET, progress)
    assert result.verdict is RunVerdict.FAIL
    # Either the output changes, or it becomes NaN and is refused as no output at all.
    assert {finding.code for finding in result.findings} == {DEAD_READS[mutation]}
    first = result.findings[0]
    if first.code == "MRV305":
        assert first.evidence["without poison"] + first.evidence["with poison"]
    assert is_json(result)


@pytest.mark.parametrize("feature", NEEDED)
def test_a_target_that_lacks_a_feature_is_not_judged(stage, progress, reference_with, feature):
    result = stage.run(reference_with(ReferenceTarget.features - {feature}), BUDGET, progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert result.summary == f"the target lacks: {feature.value}"
    assert progress.total == 0


def test_a_workload_without_events_is_inconclusive(stage, progress, monkeypatch):
    capacities = quick_workload(VOCAB, 0, 8).capacities
    calm = Workload((WorkloadRequest("r0", (1, 2, 3), SamplingParams(max_tokens=2)),), capacities, VOCAB)
    monkeypatch.setattr(state, "quick_workload", lambda *args: calm)
    result = stage.run(ReferenceTarget(), BUDGET, progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    for what in (
        "preempted 0 of 2",
        "aborted 0 of 1",
        "chunked 0 of 1",
        "no row used twice",
        "no resume in another row",
    ):
        assert what in result.summary


def test_a_runner_that_breaks_down_fails(stage, progress, reference_with):
    def fail(step):
        raise OSError("no more paper")

    def change(runner):
        return SimpleNamespace(execute=fail, invariants=runner.invariants, close=runner.close)

    result = stage.run(reference_with(change=change), BUDGET, progress)
    assert result.verdict is RunVerdict.FAIL
    assert {finding.code for finding in result.findings} == {"MRV307"}
