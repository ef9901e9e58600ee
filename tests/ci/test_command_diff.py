import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mrv2.checks.findings import Finding, RunVerdict, Site, Soundness, Verdict
from mrv2.checks.report.identity import identity
from mrv2.ci.command.app import app
from mrv2.ci.command.environment import describe
from mrv2.ci.report.json_report import Report, read_report, write_report
from mrv2.ci.report.outcome import ReportedFinding


def finding(title: str, line: int = 1) -> Finding:
    return Finding("MRV302", Verdict.VIOLATION, Soundness.SOUND, title, where=(Site("f.py", line, "g"),), step=line)


def report(
    path: Path,
    *titles: str,
    verdict: RunVerdict | None = None,
    command: str = "verify",
    stages: tuple[str, ...] = ("s",),
    dry: tuple[str, ...] = (),
    failed: tuple[str, ...] = (),
    line: int = 1,
) -> Path:
    found = tuple(ReportedFinding(finding(title, line), "s") for title in titles)
    answer = verdict or (RunVerdict.FAIL if titles else RunVerdict.PASS)
    verdicts = dict.fromkeys(stages, "pass") | dict.fromkeys(dry, "inconclusive") | dict.fromkeys(failed, "fail")
    metrics = {
        "stages": {name: {"verdict": v, "summary": "", "seconds": 0, "metrics": {}} for name, v in verdicts.items()}
    }
    write_report(path, Report(command, describe(), answer, findings=found, metrics=metrics))  # type: ignore[arg-type]
    return path


def diff(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["diff", *map(str, arguments)])


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a.json", tmp_path / "b.json"


@pytest.mark.parametrize(
    ("before", "after", "code", "counts"),
    [
        ((), (), 0, "PASS: 0 new, 0 gone, 0 common"),
        (("x",), ("x",), 0, "PASS: 0 new, 0 gone, 1 common"),
        (("x", "y"), ("x",), 0, "PASS: 0 new, 1 gone, 1 common"),
        (("x",), ("x", "y"), 1, "FAIL: 1 new, 0 gone, 1 common"),
        (("x", "x"), ("x", "x", "x"), 1, "FAIL: 1 new, 0 gone, 2 common"),
        (("x", "x", "x"), ("x", "x"), 0, "PASS: 0 new, 1 gone, 2 common"),
        (("x",), ("y",), 1, "FAIL: 1 new, 1 gone, 0 common"),
    ],
)
def test_only_new_findings_fail(
    before: tuple[str, ...], after: tuple[str, ...], code: int, counts: str, two: tuple[Path, Path]
) -> None:
    a, b = two
    result = diff(report(a, *before), report(b, *after))
    assert result.exit_code == code
    assert result.stdout.splitlines()[-1] == counts


def test_other_lines_and_steps_are_the_same_finding(two: tuple[Path, Path]) -> None:
    a, b = two
    assert diff(report(a, "x", line=1), report(b, "x", line=99)).exit_code == 0


def test_new_findings_are_shown_in_full(two: tuple[Path, Path]) -> None:
    a, b = two
    text = diff(report(a, "old"), report(b, "fresh")).stdout
    assert "MRV302 fresh [violation, sound]" in text
    assert "f.py:1 in g" in text
    assert f"gone: MRV302 old ({finding('old').fingerprint()})" in text


def test_later_report_that_checked_less_is_inconclusive(two: tuple[Path, Path]) -> None:
    a, b = two
    result = diff(report(a, "x", stages=("s", "t")), report(b, stages=("s",)))
    assert result.exit_code == 3
    assert "checked in A but not in B: t" in result.stdout


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ({"titles": ("x",)}, {"titles": ("x",), "dry": ("t",)}, 3),
        ({"titles": ("x",)}, {"titles": ("x", "y"), "dry": ("t",)}, 1),
        ({"titles": ("x",), "dry": ("t",)}, {"titles": ("x",), "dry": ("t",)}, 0),
        ({"titles": ("x",), "dry": ("t",)}, {"titles": ("x",)}, 0),
    ],
)
def test_a_stage_that_came_to_no_conclusion_did_not_check(
    before: dict[str, Any], after: dict[str, Any], code: int, two: tuple[Path, Path]
) -> None:
    """B fails with a known finding: that must not hide that another of its stages ran dry."""
    a, b = (
        report(path, *shape.pop("titles"), stages=("s", "t"), **shape)
        for path, shape in zip(two, (dict(before), dict(after)), strict=True)
    )
    result = diff(a, b)
    assert result.exit_code == code
    assert ("checked in A but not in B: t" in result.stdout) is ("dry" in after and "dry" not in before)


@pytest.mark.parametrize("command", ["verify", "generate"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_report_without_a_verdict_is_refused(place: int, command: str, two: tuple[Path, Path]) -> None:
    for path in two:
        report(path, command=command)
    content = json.loads(two[place].read_text())
    two[place].write_text(json.dumps({**content, "verdict": None}))
    result = diff(*two)
    assert result.exit_code == 2
    assert f"report {'AB'[place]}, of mrv2 {command}, without a verdict" in result.stderr


def test_a_stage_that_fails_without_a_finding_fails_beside_known_ones(two: tuple[Path, Path]) -> None:
    a, b = two
    known = report(a, "x", stages=("s", "t"))
    assert diff(known, report(b, "x", stages=("s", "t"), failed=("t",))).exit_code == 1
    assert diff(b, known).exit_code == 0


def test_inconclusive_later_report_is_inconclusive(two: tuple[Path, Path]) -> None:
    a, b = two
    assert diff(report(a), report(b, verdict=RunVerdict.INCONCLUSIVE)).exit_code == 3


def test_failure_that_names_nothing_fails(two: tuple[Path, Path]) -> None:
    a, b = two
    assert diff(report(a), report(b, verdict=RunVerdict.FAIL)).exit_code == 1


def test_result_is_written_as_json(two: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = two
    out = tmp_path / "out.json"
    diff(report(a, "x"), report(b, "x", "y"), "--json", out)
    written = read_report(out)
    assert (written.command, written.verdict) == ("diff", RunVerdict.FAIL)
    assert [entry.finding.title for entry in written.findings] == ["y"]
    assert written.metrics["common"] == [identity(finding("x"))]


def test_reports_of_two_commands_are_not_compared(two: tuple[Path, Path]) -> None:
    a, b = two
    result = diff(report(a), report(b, command="fuzz"))
    assert result.exit_code == 2
    assert "mrv2 verify and mrv2 fuzz" in result.stderr


def test_other_schema_version_is_refused(two: tuple[Path, Path]) -> None:
    a, b = two
    content = json.loads(report(b).read_text())
    b.write_text(json.dumps({**content, "schema": 2}))
    result = diff(report(a), b)
    assert result.exit_code == 2
    assert "schema version must be 1, and it is 2" in result.stderr


@pytest.mark.parametrize("content", ["", "{}", "import os", "\x80\x04."])
def test_malformed_file_is_refused(content: str, two: tuple[Path, Path]) -> None:
    a, b = two
    b.write_text(content)
    result = diff(report(a), b)
    assert result.exit_code == 2
    assert str(b) in result.stderr and "Traceback" not in result.output


def test_missing_arguments_are_a_usage_error(two: tuple[Path, Path]) -> None:
    assert diff(report(two[0])).exit_code == 2
