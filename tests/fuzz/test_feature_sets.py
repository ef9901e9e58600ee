"""Sets of features: every compatible pair occurs, and each set's trace gives the oracle's answers.

The whole matrix at full length takes hours: ``python -m mrv2.fuzz.feature_sets`` runs it, or this file with
``MRV2_FEATURE_STEPS=2000``. Otherwise a few sets run for a few steps, each in another environment.
"""

import json
import os
import threading
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import combinations
from types import MappingProxyType, SimpleNamespace

import pytest

from mrv2.checks.findings import Finding, Soundness, Verdict
from mrv2.checks.virtual import virtual_device
from mrv2.fuzz.feature_sets import __main__ as command
from mrv2.fuzz.feature_sets import differential, workers
from mrv2.fuzz.feature_sets.differential import CPU, CUDA, ENVIRONMENTS, Outcome, run_feature_set, run_workload
from mrv2.fuzz.feature_sets.factors import (
    FACTORS,
    NO,
    SETTINGS,
    SPECULATION,
    FeatureSet,
    every_set,
    feature_sets,
    go_together,
    speculating_sets,
)
from mrv2.fuzz.feature_sets.judge import Judge, Tally
from mrv2.fuzz.feature_sets.metamorphic import CHANGES, Change, differences
from mrv2.fuzz.feature_sets.pairwise import all_pairs, compatible_pairs
from mrv2.fuzz.feature_sets.runners import SessionRunner
from mrv2.fuzz.feature_sets.traces import workload_of
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import RequestResult, Trace, Workload, WorkloadRequest
from mrv2.refrunner.api import NewRequest, SamplingParams, Step, StepOutput
from mrv2.refrunner.compatibility import check_compatible
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import ConfigurationError
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle
from mrv2.refrunner.oracle.sampling import log_softmax, report

from ..checks.cuda.facade import on_facade

DRAFTED = speculating_sets()
LONG = os.environ.get("MRV2_FEATURE_STEPS")
STEPS = int(LONG) if LONG else 10
SETS = feature_sets()
if LONG:
    RUNS = [(features.number, environment) for features in SETS for environment in ENVIRONMENTS]
else:
    RUNS = [(4 + 7 * index, environment) for index, environment in enumerate(ENVIRONMENTS)]
if LONG:
    DRAFTED_RUNS = [(place, environment) for place in range(len(DRAFTED)) for environment in ENVIRONMENTS]
else:
    DRAFTED_RUNS = [(3, "cpu"), (8, "late")]
TARGET = ReferenceTarget()


class TestPairs:
    def test_every_compatible_pair_occurs(self):
        wanted = compatible_pairs(FACTORS, go_together)
        found = {pair for features in SETS for pair in combinations(features.values.items(), 2)}
        assert found == set(wanted)

    def test_there_are_enough_sets_and_enough_with_poison(self):
        assert len({tuple(features.values.items()) for features in SETS}) == len(SETS) >= 40
        assert sum(features.values["poison"] is True for features in SETS) >= 40

    def test_they_are_the_same_every_time(self):
        assert [dict(features.values) for features in SETS[:23]] == all_pairs(FACTORS, go_together)

    def test_pairs_that_go_together_are_those_that_the_runner_accepts(self):
        defaults = {field.name: field.default for field in fields(RunnerConfig)}
        excluded = 0
        for one, other in combinations(SETTINGS, 2):
            for left in SETTINGS[one]:
                for right in SETTINGS[other]:
                    settings = {**defaults, "device": "cuda", "attention": "triton", one: left, other: right}
                    together = go_together((one, left), (other, right))
                    excluded += not together
                    if together:
                        check_compatible(settings)
                    else:
                        with pytest.raises(ConfigurationError):
                            check_compatible(settings)
        assert excluded == 2  # full graphs with the reference attention, zeroed blocks with poison

    def test_a_value_that_goes_with_nothing_is_named(self):
        with pytest.raises(ValueError, match="no value of 'c' goes together"):
            all_pairs({"a": (1,), "b": (1,), "c": (1,)}, lambda one, other: other[0] != "c")


class TestWorkloads:
    @pytest.mark.parametrize("number", [0, 11, 29, 52])
    def test_they_last_long_enough_and_have_what_the_set_says(self, number):
        features = SETS[number]
        requests = workload_of(features, 200).requests
        assert max(request.arrival for request in requests) >= 200
        asked = [request.sampling for request in requests]
        for factor, has in (
            ("preempt", any(request.preempt_after for request in requests)),
            ("abort", any(request.abort_after is not None for request in requests)),
            ("continue", any(request.continues for request in requests)),
            ("logprobs", any(params.logprobs is not None for params in asked)),
            ("prompt_logprobs", any(params.prompt_logprobs is not None for params in asked)),
            ("penalties", any(params.repetition_penalty != 1 for params in asked)),
            ("filters", any(params.top_p != 1 for params in asked)),
        ):
            assert has == (features.values[factor] != NO), factor

    def test_the_seed_is_all_there_is(self):
        assert workload_of(SETS[1], 30, 1) == workload_of(SETS[1], 30, 1) != workload_of(SETS[1], 30, 2)


class TestSpeculation:
    def test_every_compatible_pair_occurs_with_drafts(self):
        factors = {**SPECULATION, **FACTORS, "prompt_tokens": ("staged",)}
        found = {pair for features in DRAFTED for pair in combinations(features.values.items(), 2)}
        assert found == set(compatible_pairs(factors, go_together))

    def test_each_set_has_a_number_of_its_own(self):
        assert [features.number for features in every_set()] == list(range(len(SETS) + len(DRAFTED)))

    @pytest.mark.parametrize(("place", "environment"), DRAFTED_RUNS)
    def test_every_answer_is_the_oracles(self, place, environment):
        outcome = run_feature_set(TARGET, DRAFTED[place], environment, STEPS)
        assert outcome.failures == ()
        assert outcome.tally.tokens > 5


@pytest.mark.parametrize(("number", "environment"), RUNS)
def test_every_answer_is_the_oracles(number, environment):
    outcome = run_feature_set(TARGET, SETS[number], environment, STEPS)
    assert outcome.failures == ()
    assert outcome.steps >= STEPS
    assert outcome.tally.tokens > outcome.requests > 0
    assert 2 * outcome.tally.near_ties < outcome.tally.tokens
    assert outcome.counts["steps without prefill"] > 0
    if not SETS[number].values["prefix_caching"]:
        assert outcome.counts["prefixes found"] == outcome.counts["blocks copied"] == 0


class Faulty:
    """A target whose runner is asked through a function, or whose handles go through one."""

    def __init__(self, step=lambda step: step, handle=lambda handle: handle):
        self.step, self.handle = step, handle

    def build(self, config):
        runner = TARGET.build(config)
        execute = runner.execute
        runner.execute = lambda step: self.handle(execute(self.step(step)))
        return runner


def other_prompts(step):
    new = (replace(request, token_ids=(9, *request.token_ids[1:])) for request in step.new)
    return replace(step, new=tuple(new))


def without_waiting(handle):
    handle._done = SimpleNamespace(synchronize=lambda: None)
    return handle


class TestFaultsAreFound:
    """Negative controls: a fault of the data on the CPU, a fault of order on the virtual device."""

    def test_a_wrong_token_of_a_prompt(self):
        failures = run_feature_set(Faulty(step=other_prompts), SETS[4], CPU, 3).failures
        assert any("is not the oracle's" in failure for failure in failures)

    def test_a_result_that_is_not_waited_for(self):
        failures = run_feature_set(Faulty(handle=without_waiting), SETS[4], "late", 3).failures
        assert any(failure.startswith("MRV203") for failure in failures)


def test_on_a_gpu_the_race_recorder_watches(monkeypatch):
    """A device that is played; ``tests/refrunner/test_complete_runner_gpu.py`` has a real one."""

    @contextmanager
    def played():
        with on_facade() as (recorder, _):
            yield recorder

    monkeypatch.setattr(differential, "race_recorder", played)
    assert run_feature_set(TARGET, SETS[12], CUDA, 3).failures == ()
    failures = run_feature_set(Faulty(handle=without_waiting), SETS[12], CUDA, 3).failures
    assert any(failure.startswith("MRV203") for failure in failures)


def test_what_a_gather_may_have_read_on_a_gpu_is_no_failure(monkeypatch):
    """A row of prompts is written while a step reads other rows: the recorder cannot see which."""
    found = [Finding("MRV202", verdict, Soundness.SOUND, "a race", ()) for verdict in Verdict]

    @contextmanager
    def played():
        with virtual_device("late"):
            yield SimpleNamespace(findings=found)

    monkeypatch.setattr(differential, "race_recorder", played)
    outcome = run_feature_set(TARGET, SETS[12], CUDA, 3)
    assert (len(outcome.failures), len(outcome.suspects)) == (1, 1)


@pytest.fixture(scope="module")
def truth():
    """A workload of two requests, the second of which continues the first, and what the oracle says of it."""
    checkpoint = load_checkpoint("tiny")
    oracle = Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors))
    asked = SamplingParams(max_tokens=2, logprobs=3, prompt_logprobs=-1, logprob_token_ids=(7,))
    requests = (WorkloadRequest("a", (1, 2, 3), asked), WorkloadRequest("b", (4,), asked, continues="a"))
    trace, reports, prompts, before = Trace(), {}, {}, ()
    for item in requests:
        prompt = (*before, *item.prompt)
        request = NewRequest(item.request_id, prompt, len(prompt), asked)
        made = oracle.generate(request)
        trace.results[item.request_id] = RequestResult(made.token_ids, made.logprobs, "length")
        rows = oracle.model.logits((*prompt, *made.token_ids)).numpy()[len(prompt) - 1 :]
        reports[item.request_id] = [
            report(log_softmax(row), token, 3, (7,)) for row, token in zip(rows, made.token_ids, strict=False)
        ]
        prompts[item.request_id] = oracle.prompt_logprobs(request)
        before = (*prompt, *made.token_ids)
    return Judge(oracle), Workload(requests, {}, 256), trace, reports, prompts


def with_report(reports, **changes):
    return {**reports, "b": [replace(reports["b"][0], **changes), *reports["b"][1:]]}


class TestJudge:
    def test_the_oracle_is_right(self, truth):
        judge, *told = truth
        tally = judge.judge(*told)
        assert (tally.failures, tally.near_ties) == ([], 0)
        assert tally.largest_ratio < 1e-6
        assert (tally.tokens, tally.reports) == (4, 4 + 2 + 5)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda found: {"value": found.value + 1e-3}, "reported value"),
            (lambda found: {"value": float("nan")}, "reported value"),
            (lambda found: {"fixed": (found.fixed[0] - 1e-3,)}, "reported value of token 7"),
            (lambda found: {"rank": found.rank + 1}, "rank"),
            (lambda found: {"rank": found.rank - 1}, "rank"),
            (lambda found: {"values": found.values[:2], "token_ids": found.token_ids[:2]}, "are asked for"),
            (lambda found: {"values": found.values[::-1], "token_ids": found.token_ids[::-1]}, "not in order"),
            (lambda found: {"values": (*found.values[:2], found.fixed[0]), "token_ids": (*found.token_ids[:2], 7)},
             "left out"),
        ],
    )  # fmt: skip
    def test_a_wrong_report_is_found(self, truth, change, words):
        judge, workload, trace, reports, prompts = truth
        wrong = with_report(reports, **change(reports["b"][0]))
        failures = judge.judge(workload, trace, wrong, prompts).failures
        assert failures
        assert all("request b, position 6" in failure and words in failure for failure in failures)

    def test_missing_reports_are_found(self, truth):
        judge, workload, trace, reports, prompts = truth
        failures = judge.judge(workload, trace, {"a": reports["a"]}, {**prompts, "a": prompts["a"][:-1]}).failures
        assert failures == ["request a: 2 reports on its prompt", "request b: 0 reports on 2 tokens"]

    def test_a_prompt_report_in_pieces_is_found_where_one_is_missing_or_not_whole(self, truth):
        judge, workload, trace, reports, prompts = truth
        first, _, third = prompts["a"]
        shuffled = replace(third, token_ids=third.token_ids[::-1], values=third.values[::-1])
        failures = judge.judge(workload, trace, reports, {**prompts, "a": (first, None, shuffled)}).failures
        assert failures == [
            "request a: no report on the prompt's token 1",
            "request a, position 2: the whole vocabulary is not reported in order",
        ]

    def test_a_wrong_token_is_found_and_a_wrong_logprob(self, truth):
        judge, workload, trace, reports, prompts = truth
        told = trace.results["b"]
        other = (told.token_ids[0], (told.token_ids[1] + 1) % 256)
        wrong = Trace(results={**trace.results, "b": replace(told, token_ids=other, logprobs=(-1.0, -1.0))})
        failures = judge.judge(workload, wrong, reports, prompts).failures
        assert any("is not the oracle's" in failure and "token" in failure for failure in failures)
        assert sum("log-probability" in failure for failure in failures) == 2


class Noting:
    """A runner that notes steps and draws token 5 for everyone."""

    def __init__(self):
        self.steps = []

    def execute(self, step):
        self.steps.append(step)
        output = StepOutput(dict.fromkeys(step.scheduled, (5,)), dict.fromkeys(step.scheduled, (-1.0,)))
        return SimpleNamespace(result=lambda: output)

    def invariants(self):
        return []

    def close(self):
        pass


class TestSessions:
    def test_a_request_that_enters_as_the_other_leaves_is_an_update_of_it(self):
        inner = Noting()
        runner = SessionRunner(inner, {"b": "a", "c": "b", "d": "c"})
        runner.execute(Step(new=(NewRequest("a", (1,), 1),), scheduled={"a": 1}))
        update = Step(
            finished=("a",), new=(NewRequest("b", (1, 5, 2), 3),), scheduled={"b": 3}, new_blocks={"b": ((1,),)}
        )
        assert runner.execute(update).result().token_ids == {"b": (5,)}
        runner.execute(Step(finished=("b",), new=(NewRequest("c", (1, 5, 2, 5, 3), 5),), scheduled={"c": 5}))
        runner.execute(Step(finished=("c",)))
        # Too late: the other is gone, and this one is new.
        runner.execute(Step(new=(NewRequest("d", (1,), 1),), scheduled={"d": 1}))
        seen = [(step.finished, [request.request_id for request in step.new]) for step in inner.steps]
        assert seen == [((), ["a"]), ((), ["a"]), ((), ["a"]), (("a",), []), ((), ["d"])]
        assert inner.steps[1].new_blocks == {"a": ((1,),)}
        assert runner.updates == 2


PLAIN = {"prompt_tokens": "staged", "staged_writes": "copied", "prefix_caching": False, "graph_mode": "eager"}
BUSY = {"temperature": "mixed", "filters": "some", "penalties": "some", "preempt": "some", "steps_in_flight": 2}
BASE = FeatureSet(4, MappingProxyType({**SETS[4].values, **PLAIN, **BUSY}))
BASE_WORKLOAD = workload_of(BASE, 6)


@pytest.fixture(scope="module")
def unchanged():
    outcome = run_workload(TARGET, BASE, CPU, BASE_WORKLOAD)
    assert outcome.failures == ()
    assert {bool(request.sampling.temperature) for request in BASE_WORKLOAD.requests} == {True, False}
    return outcome


@pytest.mark.parametrize("name", CHANGES)
def test_no_change_of_how_changes_what(unchanged, name):
    change = CHANGES[name]
    environment = "late" if change.device_only else CPU
    outcome = run_workload(TARGET, BASE, environment, change.apply(BASE_WORKLOAD))
    assert outcome.failures == ()
    assert list(differences(unchanged, outcome, change)) == []
    assert outcome.tally.tokens == unchanged.tally.tokens
    assert (outcome.counts["prefixes found"] > 0) == (name == "prefixes found")
    assert (outcome.counts["preempted"] == 0) == (name in ("never preempted",))


class TestDifferences:
    EXACT, ROUNDING = Change(lambda workload: workload), Change(lambda workload: workload, "rounds")

    def outcome(self, tokens, logprobs, near_ties=0):
        results = {"a": RequestResult(tokens, logprobs, "length")}
        return Outcome(0, CPU, 1, 1, Tally(near_ties=near_ties), {}, (), results)

    def test_tokens_and_bits_are_compared(self):
        base, rounded = self.outcome((1, 2), (-1.0, -2.0)), self.outcome((1, 2), (-1.0, -2.0000001))
        assert list(differences(base, base, self.EXACT)) == []
        assert list(differences(base, rounded, self.ROUNDING)) == []
        assert len(list(differences(base, rounded, self.EXACT))) == 1

    def test_reports_are_compared_where_nothing_rounds(self):
        told = SimpleNamespace(token_ids=(3,))
        base = replace(self.outcome((1,), (-1.0,)), reports=({"a": [told]}, {"a": (None, told)}))
        other = replace(base, reports=({"a": [told]}, {"a": (None, SimpleNamespace(token_ids=(4,)))}))
        assert list(differences(base, base, self.EXACT)) == []
        assert len(list(differences(base, other, self.EXACT))) == 1
        assert list(differences(base, other, self.ROUNDING)) == []

    def test_other_tokens_need_a_near_tie_and_rounding(self):
        base, other = self.outcome((1, 2), (-1.0, -2.0)), self.outcome((1, 3), (-1.0, -2.0))
        tie = self.outcome((1, 3), (-1.0, -2.0), near_ties=1)
        assert len(list(differences(base, other, self.ROUNDING))) == 1
        assert list(differences(base, tie, self.ROUNDING)) == []
        assert len(list(differences(base, tie, self.EXACT))) == 1


class AtOnce(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, work, /, *arguments, **named):
        future = Future()
        try:
            future.set_result(work(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


class TestCommand:
    def run(self, file, *more, failures=0):
        ran = []

        def pretend(run, steps):
            ran.append(run)
            answer = {"asked": steps, "set": run[0], "environment": run[1], "steps": steps}
            return {**answer, "failures": failures, "seconds": 1.0}

        arguments = ["--steps", "7", "--out", str(file), "--environments", "cpu,late", *more]
        return command.main(arguments, lambda workers: AtOnce(), pretend), ran

    def test_what_is_there_is_not_run_again(self, tmp_path):
        file = tmp_path / "out.jsonl"
        code, ran = self.run(file)
        assert (code, len(ran)) == (0, 2 * len(SETS))
        lines = file.read_text().splitlines()
        file.write_text("\n".join(lines[:-3]) + "\n")
        assert self.run(file, "--workers", "3") == (0, ran[-3:])

    def test_a_failure_is_the_exit_code_even_later(self, tmp_path):
        file = tmp_path / "out.jsonl"
        assert self.run(file, failures=1)[0] == 1
        assert self.run(file) == (1, [])

    def test_without_time_nothing_is_started_and_the_answer_is_inconclusive(self, tmp_path):
        file = tmp_path / "out.jsonl"
        assert self.run(file, "--time", "0s") == (3, [])
        assert file.read_text() == ""
        assert self.run(file, "--time", "1000s")[0] == 0

    def test_the_plain_cpu_comes_last_since_its_runs_are_short(self, tmp_path):
        _, ran = self.run(tmp_path / "out.jsonl")
        assert [environment for _, environment in ran] == ["late"] * len(SETS) + ["cpu"] * len(SETS)


class TestWorkers:
    RUNS = ((0, "late"), (1, "late"), (2, "late"), (3, "late"))

    def answers(self, work, budget=None, pool=None):
        return list(workers.run_all(pool or AtOnce(), work, self.RUNS, 7, 2, budget or workers.Budget(None)))

    def test_a_run_that_would_end_too_late_is_not_started(self):
        now = [0.0]

        def work(run, steps):
            now[0] += 10
            return {"set": run[0], "seconds": 10.0}

        # Two are started before any length is known, a third one fits.
        answers = self.answers(work, workers.Budget(31, lambda: now[0]))
        assert {answer["set"] for answer in answers} == {0, 1, 2}

    def test_an_exception_is_a_failure_and_the_others_go_on(self):
        def work(run, steps):
            return {"set": run[0], "failures": 0, "seconds": 1 / run[0]}

        first, *others = sorted(self.answers(work), key=lambda answer: answer["set"])
        assert (first["failures"], first["asked"], first["steps"]) == (1, 7, 0)
        assert "ZeroDivisionError" in first["first failures"][0]
        assert [answer["failures"] for answer in others] == [0, 0, 0]

    def test_a_process_that_died_is_no_answer(self):
        def work(run, steps):
            raise BrokenExecutor

        with pytest.raises(BrokenExecutor):
            self.answers(work)

    def test_no_more_than_the_workers_run_at_once_and_all_run(self):
        running, most, lock = [0], [0], threading.Lock()
        together = threading.Barrier(2)

        def work(run, steps):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            together.wait(30)
            with lock:
                running[0] -= 1
            return {"set": run[0], "seconds": 0.0}

        with ThreadPoolExecutor(4) as pool:
            answers = self.answers(work, pool=pool)
        assert most == [2]
        assert sorted(answer["set"] for answer in answers) == [0, 1, 2, 3]

    def test_one_run_answers_with_everything_that_the_record_needs(self):
        answer = json.loads(json.dumps(workers.run_one((4, CPU), 3)))
        assert (answer["asked"], answer["set"], answer["environment"], answer["failures"]) == (3, 4, CPU, 0)
        assert answer["values"] == dict(SETS[4].values)
        assert answer["steps"] >= 3
        assert answer["seconds"] >= 0

    def test_processes_are_other_ones(self):
        with workers.processes(1) as pool:
            assert pool.submit(os.getpid).result() != os.getpid()
