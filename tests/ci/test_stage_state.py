"""Stage 3 on the tiny model: poison changes nothing in the runner, and shows in each runner that reads dead memory."""

import json
from types import SimpleNamespace

import pytest

from mrv2.checks.findings import RunVerdict
from mrv2.ci.stages import state
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.state import NEEDED, StateAndPoison
from mrv2.ci.stages.workloads import quick_workload
from mrv2.fuzz.mutants import EDGES, MUTATIONS, Mutation, mutant
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Workload, WorkloadRequest
from mrv2.refrunner.api import SamplingParams

VOCAB = 256
BUDGET = Budget(new_tokens=8)


@pytest.fixture
def stage(tiny_oracle):
    return StateAndPoison("tiny", VOCAB, tiny_oracle)


def named(name):
    (mutation,) = [mutation for mutation in (*MUTATIONS, *EDGES, *UNPOISONED) if mutation.name == name]
    return mutation


def is_json(result):
    json.dumps([result.metrics, result.coverage, [dict(f.evidence) for f in result.findings]], allow_nan=False)
    return True


def test_the_runner_passes(stage, progress, reference_with):
    closed = []

    def change(runner):
        runner.close = lambda: closed.append(runner)
        return runner

    result = stage.run(reference_with(change=change), BUDGET, progress)
    assert len(closed) == 3
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    assert progress.done == progress.total == 4
    assert all(result.coverage[name] > 0 for name in ("preempted", "resumed", "aborted", "chunked", "rows used again"))
    assert is_json(result)


# What the stage must say of those faults of the catalogue that concern state: code, and field or rule.
STATE_FAULTS = {
    "row_not_reset": ("MRV304", "seq_lens"),
    "block_table_off_by_one": ("MRV304", "block_tables"),
    "position_off_by_one": ("MRV304", "positions"),
    "last_sampled_not_set_on_resume": ("MRV304", "input_ids"),
    "chunk_counts_as_decode": ("MRV306", "counter"),
    "token_table_not_updated": ("MRV306", "newest-token"),
    "padding_keeps_its_length": ("MRV306", "padding"),
}


@pytest.mark.parametrize("name", STATE_FAULTS)
def test_faults_of_the_bookkeeping_are_found_and_named(stage, progress, name):
    with mutant(named(name)) as target:
        result = stage.run(target, BUDGET, progress)
    assert result.verdict is RunVerdict.FAIL
    code, what = STATE_FAULTS[name]
    first = result.findings[0]
    assert first.code == code
    assert first.evidence.get("field", first.title.split()[2]) == what
    assert first.step is not None
    assert is_json(result)


# Faults that no input shows: something dead is read, and only its content decides whether that matters.
INHERITS = next(mutation for mutation in EDGES if mutation.name == "greedy_inherits_temperature")
DEAD_READS = {
    INHERITS: "MRV305",
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
        "context.append(slots[:length])",
        "context.append(slots)",
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
    for finding in result.findings:
        if finding.title.endswith("when dead memory is poisoned"):
            assert finding.evidence["without poison"] + finding.evidence["with poison"]
    assert is_json(result)


UNPOISONED = (
    Mutation(
        "row_not_poisoned",
        "model_runner.py",
        "            self._states.poison(row)\n",
        "            pass\n",
        "freed rows keep their values",
    ),
    Mutation(
        "lanes_not_poisoned",
        "input_batch.py",
        "            self._input_ids[num_tokens:].fill_(self._poison_token)\n",
        "",
        "padding lanes keep their token ids",
    ),
    Mutation(
        "cache_not_poisoned",
        "attention/paged_cache.py",
        "        if config.poison:\n",
        "        if not config:\n",
        "blocks that were never handed out hold zeros",
    ),
)
# Poison that is left out, and what is then missing.
IGNORED = {
    "row_not_poisoned": "no poison in freed rows",
    "lanes_not_poisoned": "no poison in padding lanes",
    "cache_not_poisoned": "no poison in unused blocks",
}


@pytest.mark.parametrize("name", IGNORED)
def test_poison_that_is_not_there_is_missed(stage, progress, name):
    with mutant(named(name)) as target:
        result = stage.run(target, BUDGET, progress)
    assert (result.verdict, result.findings) == (RunVerdict.INCONCLUSIVE, ())
    assert result.summary == f"not exercised: {IGNORED[name]}"


@pytest.mark.parametrize(
    ("setting", "words"),
    [("poison", "no poison in freed rows, no poison in freed blocks"), ("pad_to", "no step with padding tokens")],
)
def test_a_target_that_ignores_a_setting_does_not_pass(stage, progress, reference_with, setting, words):
    target = reference_with()
    build = target.build
    target.build = lambda config: build({name: value for name, value in config.items() if name != setting})
    result = stage.run(target, BUDGET, progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert words in result.summary


def test_faults_of_padding_itself_are_found(stage, progress):
    """The poisoned run has the same padding and the same fault, so only the plain one shows it."""
    with mutant(named("padding_clears_a_slot")) as target:
        result = stage.run(target, BUDGET, progress)
    assert result.verdict is RunVerdict.FAIL
    assert {finding.code for finding in result.findings} == {"MRV305"}
    assert result.findings[0].title.endswith("output changes when the batch is padded")
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
