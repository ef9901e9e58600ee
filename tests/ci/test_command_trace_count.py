"""mrv2 trace count: a function, a record, a step that does more, what is no record."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import first_fault

PROGRAM = """
import torch
from mrv2.checks.virtual.streams import active_runtime

MORE = []

def decode():
    run()

def slower():
    MORE.append(True)
    decode()

def run():
    for number in range(2):
        active_runtime().step = number
        values = torch.ones(4, device="cuda") + 1
        if MORE and number:
            values.neg_()
    active_runtime().step = None

def stepless():
    torch.ones(4, device="cuda")

def nothing():
    pass
"""

HOST_ONLY = """
from mrv2.refrunner.api import StepOutput

class Target:
    name, features, knobs = "host only", frozenset(), {}

    def build(self, config):
        return self.runner(**config)

    def runner(self, model, max_num_reqs, max_num_batched_tokens, max_model_len, block_size, num_kv_blocks, device):
        return Runner()

class Broken(Target):
    def build(self, config):
        raise KeyError("no such setting")

class Runner:
    def __init__(self):
        self.missing = {}

    def execute(self, step):
        self.missing.update({request.request_id: len(request.token_ids) for request in step.new})
        ends = []
        for name, count in dict(step.scheduled).items():
            self.missing[name] -= count
            if self.missing[name] == 0:
                self.missing[name] = 1
                ends.append(name)
        return Handle(ends)

    def invariants(self):
        return []

    def close(self):
        pass

class Handle:
    def __init__(self, ends):
        self.ends = ends

    def result(self):
        return StepOutput({name: (7,) for name in self.ends}, {name: (-1.0,) for name in self.ends})
"""


def mrv2(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["trace", "count", *arguments])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("counted_program.py").write_text(PROGRAM)


def test_counts_are_recorded_and_found_again() -> None:
    first = mrv2("counted_program:decode", "--write", "counts.json")
    assert first.exit_code == 0
    assert first.stdout.splitlines()[-1] == "PASS: 2 steps counted, compared with no record"
    again = mrv2("counted_program:decode", "--expect", "counts.json")
    assert again.exit_code == 0
    assert again.stdout.splitlines()[-1] == "PASS: 2 steps counted, 0 differences from the record"


def test_a_launch_more_fails_with_its_line() -> None:
    mrv2("counted_program:decode", "--write", "counts.json")
    done = mrv2("counted_program:slower", "--expect", "counts.json", "--json", "out.json")
    line = PROGRAM.splitlines().index("            values.neg_()") + 1
    assert done.exit_code == 1
    assert "MRV123 step 1: 1 more than recorded: launch aten.neg_" in done.stdout
    assert f"counted_program.py:{line} in run" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAIL: 2 steps counted, 1 difference from the record"
    report = json.loads(Path("out.json").read_text())
    assert first_fault(report) is None
    assert (report["command"], report["verdict"]) == ("trace-count", "fail")
    assert report["metrics"]["steps"]["step 1"]["totals"]["launch"] == 3


def test_a_program_that_names_no_step_is_counted_as_a_whole_and_told_so() -> None:
    done = mrv2("counted_program:stepless")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (
        0,
        "PASS: counted as a whole, for the program names no step (--help says how it may), compared with no record",
    )


def test_a_program_that_does_nothing_is_inconclusive() -> None:
    done = mrv2("counted_program:nothing")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (
        3,
        "INCONCLUSIVE: no step gave the device work, so nothing was counted",
    )


def test_a_program_that_stopped_doing_anything_differs_from_its_record() -> None:
    mrv2("counted_program:decode", "--write", "counts.json")
    done = mrv2("counted_program:nothing", "--expect", "counts.json")
    assert done.exit_code == 1
    assert "MRV123" in done.stdout and done.stdout.splitlines()[-1].startswith("FAIL: 0 steps counted, ")


def test_a_record_that_is_none_is_named_in_four_parts() -> None:
    Path("counts.json").write_text('{"schema": 2}')
    done = mrv2("counted_program:decode", "--expect", "counts.json")
    assert done.exit_code == 2
    assert "error: --expect counts.json" in done.stderr
    assert all(part in done.stderr for part in ("rule ", "why ", "instead "))


def test_a_target_that_leaves_the_device_alone_is_inconclusive() -> None:
    Path("host_only_adapter.py").write_text(HOST_ONLY)
    done = mrv2("host_only_adapter:Target")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (
        3,
        "INCONCLUSIVE: no step gave the device work, so nothing was counted",
    )


def test_a_target_of_ours_is_known_by_its_name() -> None:
    record = Path(__file__).parents[1] / "fuzz" / "records" / "step_counts_baseline_v1.json"
    done = mrv2("baseline_v1", "--expect", str(record))
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (
        0,
        "PASS: 12 steps counted, 0 differences from the record",
    )


def test_a_target_that_cannot_be_built_is_told_as_the_targets_fault() -> None:
    Path("broken_adapter.py").write_text(HOST_ONLY)
    result = mrv2("broken_adapter:Broken")
    assert result.exit_code == 2
    assert "the counted run (eager)" in result.stderr
    assert "broke off with KeyError: 'no such setting'" in result.stderr
