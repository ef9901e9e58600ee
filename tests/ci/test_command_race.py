"""``mrv2 race``: races of programs, in several orders."""

import json
import textwrap
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner, Result

from mrv2.checks.virtual.replay import read_replay
from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import report_schema

PROGRAMS = """
    import torch

    def upload(order):
        source, target = torch.arange(4.0).pin_memory(), torch.zeros(4, device="cuda")
        target.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        if order:
            event.synchronize()
        source.add_(1)
        return target

    def racy():
        return upload(order=False)

    def right():
        return upload(order=True)

    def racy_twice():
        source, target = torch.arange(4.0).pin_memory(), torch.zeros(4, device="cuda")
        target.copy_(source, non_blocking=True)
        source.add_(1)
        source.add_(2)
        return target

    def raises():
        upload(order=True)
        raise ValueError("no")

    def right_twice_wrong_once():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            total = upload(order=False) + upload(order=True)
        torch.cuda.current_stream().wait_stream(side)
        return total
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "racing.py").write_text(textwrap.dedent(PROGRAMS))
    monkeypatch.chdir(tmp_path)


def race(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["race", *arguments])


def test_a_race_fails_and_is_shown_once_however_many_orders_there_are() -> None:
    result = race("racing:racy")
    assert result.exit_code == 1
    assert result.stdout.count("MRV201 ") == 1
    assert "racing.py:11 in upload" in result.stdout
    assert "schedule early: other data than in late" in result.stdout
    assert result.stdout.splitlines()[-1] == "FAIL: 1 finding in late, early, random:0, starve:0"


def test_two_lines_of_one_function_are_two_mends_and_both_are_shown() -> None:
    result = race("racing:racy_twice", "--schedules=late,early")
    assert result.stdout.count("MRV201 ") == 2
    assert "racing.py:23 in racy_twice" in result.stdout and "racing.py:24 in racy_twice" in result.stdout


def test_a_right_program_passes() -> None:
    result = race("racing:right", "--witness")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["PASS: 0 findings in late, early, random:0, starve:0"]


def test_every_stream_is_held_back_in_turn() -> None:
    result = race("racing:right_twice_wrong_once", "--schedules", "late,starve")
    assert result.stdout.splitlines()[-1] == "FAIL: 1 finding in late, starve:0, starve:1"


def test_deviations_are_kept() -> None:
    result = race("racing:right", "--schedules", "late+2=0")
    assert result.stdout.splitlines()[-1] == "PASS: 0 findings in late+2=0"


def test_a_witness_with_a_test_to_paste() -> None:
    result = race("racing:racy", "--witness", "--schedules", "late")
    lines = result.stdout.splitlines()
    assert any(line.startswith("wrong data in schedule late") for line in lines)
    test = "\n".join(lines[lines.index("a test for it:") + 1 : -1])
    scope: dict[str, object] = {}
    exec(test, scope)
    with pytest.raises(AssertionError):
        scope["test_racy_does_not_depend_on_the_schedule"]()  # type: ignore[operator]


def test_the_run_with_the_finding_can_be_replayed() -> None:
    assert race("racing:racy", "--replay", "run.json").exit_code == 1
    assert len(read_replay(Path("run.json")).findings) == 1
    again = CliRunner().invoke(app, ["replay", "run.json"])
    assert again.exit_code == 0
    assert "byte for byte; what it shows is a FAIL: 1 finding" in again.stdout


def test_json_report() -> None:
    race("racing:racy", "--json", "out.json")
    report = json.loads(Path("out.json").read_text())
    jsonschema.validate(report, report_schema())
    assert report["verdict"] == "fail"
    assert [entry["code"] for entry in report["findings"]] == ["MRV201"]
    assert [run["schedule"] for run in report["metrics"]["runs"]] == ["late", "early", "random:0", "starve:0"]


def test_a_baseline_accepts_races_and_not_the_wrong_data_that_they_make() -> None:
    race("racing:racy", "--json", "out.json")
    (finding,) = json.loads(Path("out.json").read_text())["findings"]
    entry = {"fingerprint": finding["fingerprint"], "code": "MRV201", "reason": "ticket 7", "owner": "engine"}
    other = {**entry, "fingerprint": "0" * 16}
    Path("accepted.json").write_text(json.dumps({"schema": 1, "accepted": [entry, other]}))
    result = race("racing:racy", "--schedules=late", "--baseline=accepted.json", "--json=out.json")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"accepted: MRV201 {finding['title']} (reason: ticket 7)",
        f"warning: baseline entry {'0' * 16} matched no finding; repaired? Then remove it",
        "PASS: 0 findings in late, 1 accepted",
    ]
    assert json.loads(Path("out.json").read_text())["findings"][0]["accepted"] is not None
    result = race("racing:racy", "--schedules=late,early", "--baseline=accepted.json")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "FAIL: 0 findings in late, early, 1 accepted"
    assert "schedule early: other data than in late" in result.stdout


def test_a_program_that_does_not_come_to_its_end_is_inconclusive() -> None:
    result = race("racing:raises")
    assert result.exit_code == 3
    assert "did not come to its end: ValueError: no" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("racing:nothing",), "nothing must exist"),
        (("racing:right", "--schedules", "sideways"), "sideways"),
        (("racing:right", "--schedules", "late,starve:44"), "starve:44"),
        (("racing:right", "--replay", "no/such/folder/run.json"), "no/such/folder"),
    ],
)
def test_wrong_arguments_are_errors_in_four_parts(arguments: tuple[str, ...], word: str) -> None:
    result = race(*arguments)
    assert result.exit_code == 2
    assert word in result.stderr
    assert all(part in result.stderr for part in ("rule", "why", "instead"))
