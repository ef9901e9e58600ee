"""Stage 2 on the tiny model: the runner passes, each planted fault fails with its place named, nothing idle passes."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mrv2.checks.findings import RunVerdict, Soundness, Verdict
from mrv2.ci.stages import runner_oracle
from mrv2.ci.stages.base import Budget
from mrv2.ci.stages.runner_oracle import NEEDED, RunnerAgainstOracle
from mrv2.ci.stages.workloads import edges_workload, quick_workload
from mrv2.fuzz.mutants import MASKS, MUTATIONS, mutant
from mrv2.fuzz.targets.protocols import Feature
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Workload, WorkloadRequest
from mrv2.refrunner.api import SamplingParams, StepOutput
from mrv2.refrunner.models.tiny import TINY_CONFIG
from mrv2.refrunner.oracle import rounding
from mrv2.refrunner.oracle.rounding import Judgement, TokenBound

VOCAB = 256
BUDGET = Budget(new_tokens=8)
QUICK = quick_workload(VOCAB, BUDGET.seed, BUDGET.new_tokens)
SMALL_EDGES = Workload((WorkloadRequest("e0", (1, 2, 3), SamplingParams(max_tokens=2)),), QUICK.capacities, VOCAB)


@pytest.fixture
def stage(tiny_oracle, monkeypatch):
    """The stage without the long edges and grammars, which have tests of their own."""
    monkeypatch.setattr(runner_oracle, "edges_workload", lambda *args: SMALL_EDGES)
    monkeypatch.setattr(runner_oracle, "knows_grammars", lambda target: False)
    return RunnerAgainstOracle("tiny", VOCAB, tiny_oracle)


@pytest.fixture
def with_grammars(tiny_oracle, monkeypatch):
    """The stage without the long edges."""
    pytest.importorskip("llguidance")
    monkeypatch.setattr(runner_oracle, "edges_workload", lambda *args: SMALL_EDGES)
    return RunnerAgainstOracle("tiny", VOCAB, tiny_oracle)


def test_a_target_that_knows_grammars_is_asked_for_texts(with_grammars, progress):
    result = with_grammars.run(ReferenceTarget(), BUDGET, progress)
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    assert progress.done == progress.total
    assert "; grammars: " in result.summary
    assert result.coverage["grammars"]["resumed"] and result.coverage["grammars"]["steps"] > 30
    assert is_json(result)


def test_a_target_that_does_not_is_not(with_grammars, progress):
    target = ReferenceTarget()
    target.features -= {Feature.GRAMMARS}
    result = with_grammars.run(target, BUDGET, progress)
    assert result.verdict is RunVerdict.PASS and "grammars" not in result.summary
    assert result.coverage["grammars"] is None


@pytest.mark.parametrize("name", ["mask_row_off_by_one", "grammar_starts_again_on_resume"])
def test_a_fault_of_the_masks_is_found(with_grammars, progress, name):
    (mutation,) = [mutation for mutation in MASKS if mutation.name == name]
    with mutant(mutation) as target:
        result = with_grammars.run(target, Budget(new_tokens=8, seed=5), progress)
    assert result.verdict is RunVerdict.FAIL
    assert {"MRV302", "MRV307"} & {finding.code for finding in result.findings}


def is_json(result):
    json.dumps([result.metrics, result.coverage, [dict(f.evidence) for f in result.findings]], allow_nan=False)
    return True


@pytest.mark.parametrize("seed", [0, 7])
def test_the_runner_passes(stage, progress, seed):
    result = stage.run(ReferenceTarget(), Budget(seed=seed, new_tokens=8), progress)
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    assert progress.done == progress.total
    # Seven requests run to their end, and one is aborted after four tokens or a few more in flight.
    assert 7 * 8 + 4 <= result.metrics["tokens"] <= 7 * 8 + 6
    assert 0 < result.metrics["largest logprob error over its bound"] <= 1
    assert all(result.coverage[name] > 0 for name in ("preempted", "resumed", "aborted", "chunked", "rows used again"))
    assert is_json(result)


def request_of(finding):
    (request,) = [r for r in (*QUICK.requests, *SMALL_EDGES.requests) if r.request_id == finding.evidence["request"]]
    return request


def wrong_input(field, function):
    """The first finding is the wrong input itself, and its kernel is named."""

    def check(findings):
        first = findings[0]
        assert (first.code, first.evidence["field"]) == ("MRV304", field)
        assert [site.function for site in first.where] == [function]
        return first

    return check


def at_entry(finding):
    """The step of a finding is the one in which its request entered or came back."""
    return finding.evidence["event"].endswith(f"at step {finding.step}")


def check_row_not_reset(findings):
    first = wrong_input("seq_lens", "prepare_inputs")(findings)
    assert at_entry(first)
    # The first owner of a row finds it clean, so the fault shows with the first request that gets a used one.
    assert first.step > 0


def check_block_table(findings):
    assert wrong_input("block_tables", "prepare_block_tables")(findings).step == 0


def check_position(findings):
    first = wrong_input("positions", "prepare_inputs")(findings)
    assert (first.step, first.evidence["expected"], first.evidence["observed"]) == (0, 0, 1)


def check_last_sampled(findings):
    first = wrong_input("input_ids", "prepare_inputs")(findings)
    # Its newest token is read in the last chunk of what it had, which may come some steps after its return.
    assert first.evidence["event"].startswith("resumed at step ")


def wrong_tokens(findings, code="MRV302"):
    """All findings are of one code, and there is no wrong input to blame."""
    assert {finding.code for finding in findings} == {code}
    assert all(finding.step is not None for finding in findings)
    return findings


def check_temperature(findings):
    assert all(finding.evidence["temperature"] not in (0.0, 1.0) for finding in wrong_tokens(findings))


def check_chunk(findings):
    first = findings[0]
    assert first.code == "MRV302"
    assert len(request_of(first).prompt) > QUICK.capacities["max_num_batched_tokens"] // 2


def check_first_lane(findings):
    tokens = [finding for finding in findings if finding.code == "MRV302"]
    # The first draw of every long prompt, whose last lane is not its first one.
    assert tokens[0].title.endswith("token 0 is not the oracle's")
    assert {finding.code for finding in findings} == {"MRV302", "MRV303"}


def check_seed(findings):
    assert all(request_of(finding).sampling.temperature > 0 for finding in wrong_tokens(findings))


def check_logprob(findings):
    assert all(request_of(finding).sampling.temperature > 0 for finding in wrong_tokens(findings, "MRV303"))


EXPECTED = {
    "row_not_reset": check_row_not_reset,
    "block_table_off_by_one": check_block_table,
    "position_off_by_one": check_position,
    "last_sampled_not_set_on_resume": check_last_sampled,
    "temperature_ignored": check_temperature,
    "chunk_counts_as_decode": check_chunk,
    "logits_of_first_lane": check_first_lane,
    "stale_seed": check_seed,
    "logprob_after_temperature": check_logprob,
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_planted_fault_is_found_and_placed(stage, progress, mutation):
    with mutant(mutation) as target:
        result = stage.run(target, BUDGET, progress)
    assert result.verdict is RunVerdict.FAIL
    assert {(f.verdict, f.soundness) for f in result.findings} == {(Verdict.VIOLATION, Soundness.SOUND)}
    assert all(finding.title and finding.remedy for finding in result.findings)
    assert result.summary == result.findings[0].title
    assert is_json(result)
    EXPECTED[mutation.name](result.findings)


@pytest.mark.parametrize("feature", NEEDED)
def test_a_target_that_lacks_a_feature_is_not_judged(stage, progress, reference_with, feature):
    result = stage.run(reference_with(ReferenceTarget.features - {feature}), BUDGET, progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert result.summary == f"the target lacks: {feature.value}"
    assert progress.total == 0


class Opaque:
    """A runner that shows nothing of its inputs."""

    def __init__(self, inner):
        self.execute, self.invariants, self.close = inner.execute, inner.invariants, inner.close


def test_a_target_without_snapshots_is_judged_by_its_tokens(stage, progress, reference_with):
    target = reference_with(ReferenceTarget.features - {Feature.SNAPSHOT}, Opaque)
    result = stage.run(target, BUDGET, progress)
    assert (result.verdict, result.coverage["rows used again"]) == (RunVerdict.PASS, 0)


def test_snapshots_promised_and_not_given_are_missed(stage, progress, reference_with):
    result = stage.run(reference_with(change=Opaque), BUDGET, progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert result.summary == "not exercised: no row used twice, no resume in another row"


def test_too_few_tokens_exercise_too_little(stage, progress):
    """With one token each nobody is preempted by plan, and nobody lives long enough to be aborted."""
    result = stage.run(ReferenceTarget(), Budget(new_tokens=1), progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert "aborted 0 of 1" in result.summary


def test_a_workload_without_events_is_inconclusive(stage, progress, monkeypatch):
    capacities = quick_workload(VOCAB, 0, 8).capacities
    calm = Workload((WorkloadRequest("r0", (1, 2, 3), SamplingParams(max_tokens=2)),), capacities, VOCAB)
    monkeypatch.setattr(runner_oracle, "quick_workload", lambda *args: calm)
    result = stage.run(ReferenceTarget(), BUDGET, progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    for what in ("preempted 0 of 2", "resumed 0 of 2", "aborted 0 of 1", "chunked 0 of 1", "no row used twice"):
        assert what in result.summary


def test_an_empty_workload_is_inconclusive(stage, progress, monkeypatch):
    empty = Workload((), quick_workload(VOCAB, 0, 8).capacities, VOCAB)
    monkeypatch.setattr(runner_oracle, "quick_workload", lambda *args: empty)
    assert stage.run(ReferenceTarget(), BUDGET, progress).verdict is RunVerdict.INCONCLUSIVE


def fail(step):
    raise OSError("no more paper")


def crashing(runner):
    return SimpleNamespace(execute=fail, invariants=runner.invariants, close=runner.close)


def spoiled(spoil):
    """A runner whose outputs are changed."""

    def change(runner):
        def execute(step):
            handle = runner.execute(step)
            return SimpleNamespace(result=lambda: spoil(handle.result()))

        return SimpleNamespace(execute=execute, invariants=runner.invariants, close=runner.close)

    return change


def outside(output):
    return StepOutput(dict.fromkeys(output.token_ids, (VOCAB,)), output.logprobs)


def not_a_number(output):
    return StepOutput(output.token_ids, dict.fromkeys(output.logprobs, (float("nan"),)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (crashing, "OSError: no more paper"),
        (spoiled(outside), "token 256, expected an int in 0..255"),
        (spoiled(not_a_number), "expected one finite draw"),
        (spoiled(lambda output: None), "AttributeError"),
    ],
)
def test_a_target_that_breaks_down_fails(stage, progress, reference_with, change, words):
    result = stage.run(reference_with(change=change), BUDGET, progress)
    assert result.verdict is RunVerdict.FAIL
    finding = result.findings[0]
    assert finding.code == "MRV307"
    assert words in finding.evidence["error"]
    assert finding.title == f"the runner failed with {finding.evidence['error'].partition(':')[0]}"
    assert is_json(result)


def shifted(output):
    return StepOutput(output.token_ids, {name: (value + 1e-3,) for name, (value,) in output.logprobs.items()})


def test_a_small_error_of_a_logprob_is_beyond_its_bound(stage, progress, reference_with):
    result = stage.run(reference_with(change=spoiled(shifted)), BUDGET, progress)
    assert {finding.code for finding in result.findings} == {"MRV303"}
    evidence = result.findings[0].evidence
    assert evidence["observed"] - evidence["expected"] == pytest.approx(1e-3, rel=0.1)
    assert evidence["bound"] < 5e-4


def test_mostly_near_ties_are_inconclusive(stage, progress, monkeypatch):
    monkeypatch.setattr(rounding, "bound_token", lambda *args: TokenBound(10.0, 1e9, Judgement.NEAR_TIE))
    result = stage.run(ReferenceTarget(), BUDGET, progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert "cannot tell right from wrong" in result.summary


def test_an_exact_tie_is_no_near_tie(stage, progress, monkeypatch):
    """Where nothing is rounded, equal scores have one winner."""
    monkeypatch.setattr(rounding, "bound_token", lambda *args: TokenBound(10.0, 0.0, Judgement.NEAR_TIE))
    result = stage.run(ReferenceTarget(), BUDGET, progress)
    assert {finding.code for finding in result.findings} == {"MRV302"}
    assert result.metrics["near ties"] == 0


@pytest.mark.parametrize(
    ("change", "words"), [({"max_position_embeddings": 63}, "63 positions"), ({"vocab_size": 1}, "vocabulary of 1")]
)
def test_a_model_too_small_for_the_workload_is_inconclusive(progress, change, words):
    oracle = SimpleNamespace(model=SimpleNamespace(config=replace(TINY_CONFIG, **change)))
    result = RunnerAgainstOracle("tiny", VOCAB, oracle).run(ReferenceTarget(), BUDGET, progress)
    assert result.verdict is RunVerdict.INCONCLUSIVE
    assert words in result.summary


def test_a_fault_of_the_edges_is_a_finding_beside_those_of_the_quick_workload(stage, progress):
    builds = []

    def build(config):
        builds.append(config)
        if len(builds) == 2:
            raise OSError("no more paper")
        return ReferenceTarget().build(config)

    target = SimpleNamespace(name="once", features=ReferenceTarget.features, knobs={}, build=build)
    result = stage.run(target, BUDGET, progress)
    assert [finding.code for finding in result.findings] == ["MRV307"]
    assert builds[1]["model"] == "tiny"


def test_the_edges_are_judged_too(tiny_oracle, progress):
    """With the long ones: the whole stage as users run it."""
    result = RunnerAgainstOracle("tiny", VOCAB, tiny_oracle).run(ReferenceTarget(), BUDGET, progress)
    assert (result.verdict, result.findings) == (RunVerdict.PASS, ())
    texts = 12 + 1 if runner_oracle.knows_grammars(ReferenceTarget()) else 0
    assert progress.done == progress.total == 8 + 4 + 2 + texts
    edges = edges_workload(VOCAB, 0)
    assert result.coverage["edges"]["longest prompt"] == max(len(request.prompt) for request in edges.requests)
    assert 3 * 6 + 3 <= result.metrics["tokens of the edges"] <= 4 * 6
    assert "edges on the tiny model: 2" in result.summary
