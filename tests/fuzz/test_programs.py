"""Runners as programs of the virtual device: workloads as JSON, random workloads, numbered steps."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrv2.checks.errors import CheckError
from mrv2.checks.happens_before import Recorder
from mrv2.checks.happens_before.records import OperationBegins
from mrv2.checks.virtual.runs import run_program
from mrv2.fuzz.programs import MODEL, RunnerProgram, random_workload, workload_as_json, workload_from_json
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Workload
from mrv2.refrunner.config import RunnerConfig


class TestWorkloads:
    @given(st.integers(0, 2**32), st.integers(1, 40))
    def test_a_workload_survives_json(self, seed, steps):
        workload = random_workload(256, seed, steps)
        assert workload_from_json(json.loads(json.dumps(workload_as_json(workload)))) == workload

    @given(st.integers(0, 2**32), st.integers(1, 200), st.integers(2, 1000))
    def test_a_random_one_fits_its_capacities_and_lasts_long_enough(self, seed, steps, vocab_size):
        workload = random_workload(vocab_size, seed, steps)
        config = RunnerConfig(**workload.capacities)
        assert workload.requests[-1].arrival >= steps
        for request in workload.requests:
            assert 1 <= len(request.prompt) <= config.max_model_len - request.sampling.max_tokens
            assert all(0 <= token < vocab_size for token in request.prompt)
            assert (request.sampling.seed is None) == (request.sampling.temperature == 0)

    def test_the_seed_is_all_there_is(self):
        assert random_workload(256, 3, 20) == random_workload(256, 3, 20) != random_workload(256, 4, 20)

    @pytest.mark.parametrize(
        "change",
        [
            {"requests": 3},
            {"requests": [{}]},
            {"requests": None},
            {"capacities": []},
            {"capacities": {"max_num_reqs": "3"}},
            {"capacities": {"max_num_reqs": True}},
            {"capacities": {"max_num_reqs": 3.0}},
            {"capacities": {"poison": 1}},
            {"capacities": {"graph_sizes": [1, "2"]}},
            {"capacities": {"graph_mode": None}},
            {"capacities": {"colour": 3}},
            {"windows": [0.0]},
            {"vocab_size": "many"},
            {"vocab_size": "256"},
            {"unknown": 1},
        ],
    )
    def test_what_is_none_is_refused_in_four_parts(self, change):
        content = {**workload_as_json(random_workload(256, 0, 1)), **change}
        with pytest.raises(CheckError) as caught:
            workload_from_json(content)
        assert caught.value.subject == "the workload of a replay file"

    def test_every_kind_of_setting_survives_json(self):
        settings = {
            "graph_mode": "full", "poison": True, "memory_fraction": 0.5, "graph_sizes": (1, 2), "max_num_reqs": 3,
        }  # fmt: skip
        request = dataclasses.replace(random_workload(256, 0, 1).requests[0], abort_after=2, preempt_after=(1, 3))
        later = dataclasses.replace(request, request_id="later", continues=request.request_id, abort_after=None)
        workload = Workload((request, later), settings, 256, windows=(0, 8))
        again = workload_from_json(json.loads(json.dumps(workload_as_json(workload))))
        assert again == workload
        assert {type(value) for value in again.capacities.values()} == {str, bool, float, tuple, int}

    @pytest.mark.parametrize(
        "change",
        [{"request_id": 3}, {"prompt": [1, "2"]}, {"prompt": 3}, {"arrival": None}, {"arrival": "1"},
         {"abort_after": "2"}, {"continues": 1}, {"sampling": {"max_tokens": "3"}}],
    )  # fmt: skip
    def test_a_request_with_a_value_of_another_type_is_refused(self, change):
        content = json.loads(json.dumps(workload_as_json(random_workload(256, 0, 1))))
        content["requests"][0].update(change)
        with pytest.raises(CheckError):
            workload_from_json(content)

    def test_bad_sampling_of_a_request_is_refused(self):
        content = json.loads(json.dumps(workload_as_json(random_workload(256, 0, 1))))
        content["requests"][0]["sampling"] = {"stop_token_ids": [], "colour": 3}
        with pytest.raises(CheckError):
            workload_from_json(content)


class TestRunnerProgram:
    def test_it_runs_the_workload_with_numbered_steps(self):
        program = RunnerProgram(ReferenceTarget(), random_workload(256, 1, 3))
        records = []
        run = run_program(program, judge=Recorder(records.append))
        assert run.error is None
        assert run.data["crash"] is None
        assert set(run.data["results"]) == {request.request_id for request in program.workload.requests}
        steps = {record.step for record in records if isinstance(record, OperationBegins)}
        # The last one only frees a row.
        assert {None, *range(len(program.trace.steps) - 1)} <= steps <= {None, *range(len(program.trace.steps))}

    def test_the_target_is_built_for_cuda_on_the_tiny_model(self):
        configs = []

        def build(config):
            configs.append(dict(config))
            raise RuntimeError("enough")

        program = RunnerProgram(SimpleNamespace(build=build), random_workload(256, 1, 1))
        run = run_program(program)
        assert run.error == "RuntimeError: enough"
        assert program.runner is None and program.trace is None
        assert configs == [{"model": MODEL, "device": "cuda", **program.workload.capacities}]

    def test_a_crash_is_part_of_the_data(self):
        target = ReferenceTarget()

        def build(config):
            runner = target.build(config)

            def execute(step):
                raise ValueError("broken")

            return SimpleNamespace(execute=execute, invariants=runner.invariants, close=runner.close)

        run = run_program(RunnerProgram(SimpleNamespace(build=build), random_workload(256, 1, 1)))
        assert run.error is None
        assert run.data["crash"] == "ValueError: broken"

    def test_two_runs_are_the_same(self):
        program = RunnerProgram(ReferenceTarget(), dataclasses.replace(random_workload(256, 2, 2), steps_in_flight=3))
        assert run_program(program, "late").same_outcome(run_program(program, "early"))
