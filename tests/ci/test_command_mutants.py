"""``mrv2 mutants``: a runner that is not ours is spoiled in a process of its own; what lives is told with reasons."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mrv2.ci.command import mutants
from mrv2.ci.command.app import app
from mrv2.ci.command.mutants import Judged, _sums
from mrv2.ci.command.mutants_worker import _is_at

FOLDER = Path(__file__).parents[1] / "fuzz" / "third_party"
TARGET = "async_adapter:Target"


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.chdir(FOLDER)


def line_of(file, text):
    lines = (FOLDER / "async_engine" / file).read_text().splitlines()
    return 1 + next(index for index, line in enumerate(lines) if text in line)


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_mutants_of_one_place_are_judged_and_reported(elsewhere, tmp_path):
    report = tmp_path / "mutants.json"
    place = f"ring.py:{line_of('ring.py', 'event.record()')}"
    result = run("mutants", TARGET, "--package", "async_engine", "--site", place, "--json", str(report))
    assert result.exit_code == 0, result.output
    assert "PASS: 2 mutants of order: 2 killed; 100.0% of those that are not equivalent killed" in result.stdout
    assert "left out, since the original is not clean in it: another stream is current: MRV204" in result.stdout
    content = json.loads(report.read_text())
    assert content["command"] == "mutants" and content["verdict"] == "pass"
    ordering = content["metrics"]["ordering"]
    assert ordering["score"] == 1.0 and ordering["killed"] == 2
    assert [entry["operator"] for entry in ordering["mutants"]] == ["delete", "record a line early"]
    assert ordering["mutants"][0]["killed_by"]["code"] == "MRV201"
    assert "requests come and go" in content["coverage"]["exercises"]


def test_what_lives_fails_with_its_reason(elsewhere):
    place = f"engine.py:{line_of('engine.py', 'torch.cuda.synchronize()')}"
    result = run("mutants", TARGET, "--package", "async_engine", "--site", place, "--only", "ordering")
    assert result.exit_code == 1, result.output
    assert f"{place} synchronize: delete" in result.stdout
    assert "unreached: no exercise runs this place" in result.stdout
    assert "FAIL: 1 mutant of order: 1 unreached; 0.0% of those that are not equivalent killed" in result.stdout


def test_a_place_without_an_edge_is_inconclusive(elsewhere):
    result = run("mutants", TARGET, "--package", "async_engine", "--site", "engine.py:1")
    assert result.exit_code == 3, result.output
    assert "nothing to kill" in result.stdout


def test_a_place_in_no_file_of_the_package_is_an_error(elsewhere):
    result = run("mutants", TARGET, "--package", "async_engine", "--site", "engin.py:1")
    assert result.exit_code == 2, result.output
    assert "--site engin.py:1" in result.stderr and "the package async_engine" in result.stderr


def test_an_adapter_outside_of_its_package_must_name_it(elsewhere):
    result = run("mutants", TARGET)
    assert result.exit_code == 2
    assert "--package my_engine" in result.stderr


def test_a_package_that_is_not_there_is_an_error(elsewhere):
    result = run("mutants", TARGET, "--package", "no_such_engine")
    assert result.exit_code == 2
    assert "no package named 'no_such_engine'" in result.stderr


def test_what_is_no_target_is_told_in_four_parts_by_the_name_of_the_argument(elsewhere):
    result = run("mutants", "json:dumps", "--package", "async_engine")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "error: TARGET 'json:dumps', of type function"
    assert "rule     a target has name, features, knobs and build" in result.stderr


def test_faults_are_planted_in_the_reference_runner_only(elsewhere):
    result = run("mutants", TARGET, "--only", "planted")
    assert result.exit_code == 2
    assert "faults are planted in refrunner only" in result.stderr


@pytest.mark.parametrize(
    ("site", "named"),
    [
        ("staging.py:84", True),
        ("staging.py", True),
        ("refrunner/staging.py:84", True),
        ("staging.py:85", False),
        ("grammar", False),
    ],
)
def test_a_place_is_named_by_folder_file_and_line(site, named):
    assert _is_at(site, "staging.py", 84) is named
    assert _is_at("grammar", "grammar/masks.py", 7) and _is_at(None, "staging.py", 1)


def planted(**found):
    return {name: {"found": value, "cases": 500, "fault": "wrong"} for name, value in found.items()}


def test_planted_faults_count_too():
    judged = Judged(planted=planted(one=True, two=True))
    assert judged.verdict.value == "pass" and list(_sums(judged)) == ["2 of 2 planted faults found"]
    assert Judged(planted=planted(one=True, two=False)).verdict.value == "fail"


def test_the_bar_is_held():
    def verdicts(**counts):
        return [{"outcome": name} for name, times in counts.items() for _ in range(times)]

    assert Judged(verdicts(killed=95, survived=4, unreached=1, equivalent=50, invalid=9)).score == 0.95
    assert Judged(verdicts(killed=95, survived=5)).verdict.value == "pass"
    assert Judged(verdicts(killed=94, survived=6)).verdict.value == "fail"
    assert Judged(verdicts(equivalent=3)).verdict.value == "inconclusive"


def test_a_planted_fault_without_a_score_was_not_found(monkeypatch):
    """Its process failed; the others' scores are kept."""

    def half_done(command, **_):
        scored = planted(row_not_reset=True)
        Path(command[command.index("--out") + 1]).write_text(json.dumps({"faults": scored}))

    monkeypatch.setattr(mutants.subprocess, "run", half_done)
    judged = Judged()
    mutants._judge_planted(judged, "refrunner")
    assert list(_sums(judged)) == ["1 of 30 planted faults found"] and judged.verdict.value == "fail"
