import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mrv2.checks.codes import CODES, RANGES
from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import read_report


def mrv2(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_code_is_explained() -> None:
    result = mrv2("explain", "mrv304")
    assert result.exit_code == 0
    info = CODES["MRV304"]
    for text in (info.title, info.rule, info.why, info.remedy, info.example.before, info.example.after, info.stage):
        assert text in result.stdout
    assert result.stdout.isascii()


def test_list_shows_all_codes_under_their_ranges() -> None:
    result = mrv2("explain", "--list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == len(CODES) + len(RANGES)
    assert all(any(line.startswith(f"  {code}  ") for line in lines) for code in CODES)
    assert lines[0].startswith("MRV1xx")


def test_unknown_code_names_close_ones() -> None:
    result = mrv2("explain", "MRV399")
    assert result.exit_code == 2
    assert "error: code 'MRV399'" in result.stderr
    assert "did you mean MRV30" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [(), ("MRV301", "--list")])
def test_either_a_code_or_the_list(arguments: tuple[str, ...]) -> None:
    assert mrv2("explain", *arguments).exit_code == 2


def test_explanation_as_json(tmp_path: Path) -> None:
    path = tmp_path / "codes.json"
    assert mrv2("explain", "--list", "--json", str(path)).exit_code == 0
    report = read_report(path)
    assert report.verdict is None
    assert [entry["code"] for entry in report.metrics["codes"]] == list(CODES)  # type: ignore[index,union-attr,call-overload]


def test_version() -> None:
    result = mrv2("--version")
    assert result.exit_code == 0
    assert result.stdout == f"mrv2 {importlib.metadata.version('mrv2')}\n"


@pytest.mark.parametrize("arguments", [(), ("no-such-command",), ("--no-such-option",)])
def test_wrong_command_line_exits_with_two(arguments: tuple[str, ...]) -> None:
    assert mrv2(*arguments).exit_code == 2


def test_help_lists_the_commands() -> None:
    result = mrv2("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ("verify", "generate", "doctor", "explain", "diff"))
    assert "\x1b" not in result.stdout


def test_command_starts_without_torch_and_numpy() -> None:
    program = (
        "import sys, mrv2.ci.command.app as a;"
        "print(sorted({'torch', 'triton', 'numpy', 'scipy', 'jsonschema'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
