"""mrv2 replay: the same run, another run, a file that is none."""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mrv2.checks.findings import RunVerdict
from mrv2.checks.virtual.replay import record_replay, write_replay
from mrv2.ci.command.app import app
from mrv2.ci.command.targets import importable, resolve_program
from mrv2.ci.report.json_report import read_report
from mrv2.fuzz.programs import RunnerProgram, random_workload, workload_as_json
from mrv2.fuzz.targets.reference import ReferenceTarget

MODULE = """
    import threading

    import torch

    def overwritten(late=True):
        pinned = torch.zeros(4, pin_memory=True)
        data = torch.empty(4, device="cuda")
        data.copy_(pinned, non_blocking=True)
        pinned.add_(1)
        return data

    def changed():
        return overwritten().add_(1)

    calls = []

    def counting():
        calls.append(1)
        return torch.zeros(len(calls), device="cuda")

    def leaves():
        overwritten()
        raise SystemExit(0)

    def raises():
        overwritten()
        raise KeyError("x")

    def threaded():
        # Which thread comes first is decided here in the place of the machine: by the number of the run.
        calls.append(1)
        order = [0, 1] if len(calls) % 2 else [1, 0]
        data = [torch.zeros(4 + number, device="cuda") for number in range(2)]
        torch.cuda.synchronize()

        def work(number):
            with torch.cuda.stream(torch.cuda.Stream()):
                data[number].add_(1)
                torch.cuda.synchronize()

        for number in order:
            thread = threading.Thread(target=work, args=(number,))
            thread.start()
            thread.join()

    number = 3
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "replay_demo.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("replay_demo", None)


def mrv2(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def record(name: str, schedule: str = "late", named: str | None = None) -> None:
    reference = f"replay_demo:{name}"
    with importable(Path.cwd()):
        program = resolve_program("test", reference)
        replay, _ = record_replay(program, {"callable": named or reference}, schedule)
    write_replay(Path("r.json"), replay)


def test_the_same_run_passes_and_shows_what_it_found() -> None:
    record("overwritten", "random:1@3")
    result = mrv2("replay", "r.json", "--json", "out.json")
    assert result.exit_code == 0, result.stderr
    assert "random:1@3" in result.stdout
    assert "MRV201" in result.stdout
    assert "PASS: the same run, byte for byte; what it shows is a FAIL: 1 finding above" in result.stdout
    report = read_report(Path("out.json"))
    assert (report.command, report.verdict) == ("replay", RunVerdict.PASS)
    assert report.metrics["differences"] == {}
    assert [entry.finding.code for entry in report.findings] == ["MRV201"]


@pytest.mark.parametrize(("program", "ending"), [("leaves", "SystemExit: 0"), ("raises", "KeyError: 'x'")])
def test_a_run_that_did_not_come_to_its_end_is_inconclusive(program: str, ending: str) -> None:
    record(program)
    result = mrv2("replay", "r.json", "--json", "out.json")
    assert result.exit_code == 3, result.stderr
    assert f"the program did not come to its end, it raised {ending}" in result.stdout
    assert "INCONCLUSIVE: the same events, byte for byte; what it shows is a FAIL: 1 finding above" in result.stdout
    report = read_report(Path("out.json"))
    assert (report.verdict, report.metrics["error"]) == (RunVerdict.INCONCLUSIVE, ending)


def test_a_file_that_names_the_interpreters_exit_does_not_pass() -> None:
    record("leaves", named="sys:exit")
    assert mrv2("replay", "r.json").exit_code == 1
    replay, _ = record_replay(sys.exit, {"callable": "sys:exit"}, "late")
    write_replay(Path("r.json"), replay)
    assert mrv2("replay", "r.json", "--twice").exit_code == 3


def test_another_order_of_threads_is_another_run_and_the_limit_is_told() -> None:
    record("threaded")
    result = mrv2("replay", "r.json", "--json", "out.json")
    assert result.exit_code == 1
    assert "the order of host threads that nothing orders" in " ".join(result.stdout.split())
    report = read_report(Path("out.json"))
    assert (list(report.metrics["differences"]), report.findings) == (["recorded run"], ())  # type: ignore[arg-type]


def test_another_run_fails_and_says_where() -> None:
    record("overwritten", named="replay_demo:changed")
    result = mrv2("replay", "r.json", "--json", "out.json")
    assert result.exit_code == 1
    assert "differs from the recorded run: event " in result.stdout
    assert result.stdout.splitlines()[-1].startswith("FAIL: another run")
    assert "recorded run" in read_report(Path("out.json")).metrics["differences"]  # type: ignore[operator]


def test_versions_that_changed_are_named() -> None:
    record("overwritten")
    content = json.loads(Path("r.json").read_text())
    content["environment"]["torch"] = "1.0"
    Path("r.json").write_text(json.dumps(content))
    result = mrv2("replay", "r.json")
    assert result.exit_code == 0
    assert "recorded with torch 1.0, repeated with " in result.stdout


def test_twice_finds_a_program_that_is_not_deterministic() -> None:
    record("overwritten")
    assert mrv2("replay", "r.json", "--twice").exit_code == 0
    record("counting")
    del sys.modules["replay_demo"]
    assert mrv2("replay", "r.json").exit_code == 0
    del sys.modules["replay_demo"]
    result = mrv2("replay", "r.json", "--twice")
    assert result.exit_code == 1
    assert "differs from the second run here: event " in result.stdout


def test_a_runner_at_work_is_repeated() -> None:
    workload = random_workload(256, 1, 4)
    program = RunnerProgram(ReferenceTarget(), workload)
    replay, run = record_replay(program, {"target": "refrunner", "workload": workload_as_json(workload)}, "late")
    assert run.error is None and not run.findings
    write_replay(Path("r.json"), replay)
    result = mrv2("replay", "r.json")
    assert result.exit_code == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("named", "rule"),
    [
        ("replay_demo", "package.module:function"),
        ("os.system('true'):x", "package.module:function"),
        ("replay_demo:none", "must exist"),
        ("no_such_module:x", "must be importable"),
        ("replay_demo:number", "a function without arguments"),
    ],
)
def test_a_program_that_cannot_be_found_is_refused(named: str, rule: str) -> None:
    record("overwritten", named=named)
    result = mrv2("replay", "r.json")
    assert result.exit_code == 2
    assert rule in result.stderr
    assert f"program {named!r} of the replay file" in result.stderr


def replayed(program: dict[str, Any]) -> Result:
    """``mrv2 replay`` of a file that names another program."""
    record("overwritten")
    content = json.loads(Path("r.json").read_text())
    Path("r.json").write_text(json.dumps({**content, "program": program}))
    return mrv2("replay", "r.json")


def test_a_target_that_cannot_be_imported_is_the_files() -> None:
    result = replayed({"target": "no_such_module:x", "workload": workload_as_json(random_workload(256, 1, 2))})
    assert result.exit_code == 2
    assert "the replay file's target 'no_such_module:x'" in " ".join(result.stderr.split())
    assert "--target" not in result.stderr


def test_a_malformed_workload_is_refused() -> None:
    result = replayed({"target": "refrunner", "workload": {"requests": [{"prompt": 3}]}})
    assert result.exit_code == 2
    assert "the workload of a replay file" in result.stderr


def test_no_file_is_a_usage_error() -> None:
    assert mrv2("replay", "none.json").exit_code == 2
    assert mrv2("replay").exit_code == 2
