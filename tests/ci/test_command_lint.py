"""``mrv2 lint``: formats, exit codes, baseline."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mrv2.checks.findings import RunVerdict
from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import first_fault, read_report

CERTAIN = "import torch\ndef step():\n    torch.cuda.synchronize()\n"
SUSPECT = "import torch\ndef step(x: torch.Tensor):\n    return x.item()\n"
ALLOWED = "import torch\ndef step():\n    torch.cuda.synchronize()  # mrv2: allow[MRV104] a, b: 100%\n"
CLEAN = "def step():\n    return 1\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.mrv2]\nhot_paths = ["engine.run:step"]\n')
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)


def lint(program: str, *options: str) -> Result:
    Path("engine/run.py").write_text(program)
    return CliRunner().invoke(app, ["lint", "engine", *options])


@pytest.mark.parametrize(
    ("program", "options", "code", "verdict"),
    [
        (CERTAIN, (), 1, "FAIL"),
        (SUSPECT, (), 0, "SUSPICIOUS"),
        (SUSPECT, ("--strict",), 1, "SUSPICIOUS"),
        (ALLOWED, (), 0, "PASS"),
        (CLEAN, (), 0, "PASS"),
        ("import torch\n", ("--all", "--root", "x"), 3, "INCONCLUSIVE"),
    ],
)
def test_exit_codes(program: str, options: tuple[str, ...], code: int, verdict: str) -> None:
    result = lint(program, *options)
    assert result.exit_code == code, result.output
    assert result.stdout.splitlines()[-1].startswith(f"{verdict}: ")


def test_a_broken_file_is_no_pass() -> None:
    Path("engine/broken.py").write_text("def (")
    result = lint(CLEAN)
    assert result.exit_code == 3
    assert "not judged: engine/broken.py: SyntaxError" in result.stdout


@pytest.mark.parametrize(
    "arguments", [("nowhere",), ("engine", "--root", "engine.run:stepp"), ("engine", "--baseline", "none")]
)
def test_usage_errors(arguments: tuple[str, ...]) -> None:
    Path("engine/run.py").write_text(CLEAN)
    result = CliRunner().invoke(app, ["lint", *arguments])
    assert result.exit_code == 2
    assert "rule " in result.stderr and "instead " in result.stderr


def test_text_names_place_way_and_remedy() -> None:
    result = lint("import torch\ndef step():\n    wait()\ndef wait():\n    torch.cuda.synchronize()\n")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("engine/run.py:5: MRV104 `torch.cuda.synchronize()` makes the host wait")
    assert lines[1].strip() == "way      step, line 3 > wait, line 5"
    assert lines[2].startswith("    instead  ")


def test_json_follows_the_shipped_schema() -> None:
    result = lint(CERTAIN, "--format", "json", "--json", "out.json")
    content = json.loads(result.stdout)
    assert first_fault(content) is None
    assert content["command"] == "lint"
    report = read_report(Path("out.json"))
    assert report.verdict is RunVerdict.FAIL
    assert report.coverage["roots"] == ["engine.run:step"]
    assert [entry.finding.code for entry in report.findings] == ["MRV104"]


def test_a_baseline_accepts_a_finding() -> None:
    lint(CERTAIN, "--json", "out.json")
    entry = json.loads(Path("out.json").read_text())["findings"][0]
    accepted = [{"fingerprint": entry["fingerprint"], "code": "MRV104", "reason": "ticket 9", "owner": "runtime"}]
    Path("base.json").write_text(json.dumps({"schema": 1, "accepted": accepted}))
    result = lint(CERTAIN, "--baseline", "base.json")
    assert result.exit_code == 0
    assert "accepted: engine/run.py:3: MRV104 (ticket 9)" in result.stdout
    again = lint(CLEAN, "--baseline", "base.json")
    assert f"baseline entry {entry['fingerprint']} matched no finding" in again.stdout


def sarif(program: str) -> dict[str, Any]:
    return json.loads(lint(program, "--format", "sarif").stdout)


def test_sarif_has_what_the_standard_requires() -> None:
    log = sarif("import torch\ndef step():\n    wait()\ndef wait():\n    torch.cuda.synchronize()\n")
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "mrv2"
    (rule,) = driver["rules"]
    (result,) = run["results"]
    assert (rule["id"], driver["rules"][result["ruleIndex"]]["id"]) == ("MRV104", result["ruleId"])
    assert result["message"]["text"]
    assert result["level"] == "error"
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "engine/run.py"}, "region": {"startLine": 5}}
    assert result["relatedLocations"][0]["message"]["text"] == "called from step"
    assert len(result["partialFingerprints"]["mrv2/v1"]) == 16


def test_sarif_of_nothing_and_of_what_is_allowed() -> None:
    assert sarif(CLEAN)["runs"][0]["results"] == []
    (result,) = sarif(ALLOWED)["runs"][0]["results"]
    assert result["suppressions"] == [{"kind": "external", "justification": "a, b: 100%"}]


def test_github_lines() -> None:
    assert lint(CERTAIN, "--format", "github").stdout.startswith(
        "::error file=engine/run.py,line=3,title=MRV104::`torch"
    )
    assert lint(SUSPECT, "--format", "github").stdout.startswith("::warning file=engine/run.py,line=3,title=MRV101::")
    notice = lint(ALLOWED, "--format", "github").stdout
    assert notice.startswith("::notice ")
    assert notice.rstrip().endswith("Accepted: a, b: 100%25")


@pytest.mark.parametrize("shown", ["json", "sarif", "github"])
def test_what_a_machine_reads_is_alone_on_standard_output(shown: str) -> None:
    result = lint(CERTAIN, "--format", shown)
    assert "FAIL: 1 finding" in result.stderr
    assert "FAIL: 1 finding" not in result.stdout
