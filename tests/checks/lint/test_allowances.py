"""Allowances beside the code and in pyproject: used, unused, without a reason."""

from pathlib import Path

import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.lint import Result, lint

PROGRAM = """
import torch

def step():
    wait()
    {line}

def wait():
    torch.cuda.synchronize()
"""


def search(folder: Path, line: str, pyproject: str = "") -> Result:
    (folder / "engine.py").write_text(PROGRAM.format(line=line))
    (folder / "pyproject.toml").write_text(pyproject)
    return lint([folder / "engine.py"], ["engine:step"])


def codes(result: Result) -> list[str]:
    return [finding.code for finding in result.findings]


ALLOWED = "torch.cuda.empty_cache()  # mrv2: allow[MRV106] once a day"


@pytest.mark.parametrize(
    "line",
    [
        ALLOWED,
        "# mrv2: allow[MRV106] once a day\n    torch.cuda.empty_cache()",
        "torch.cuda.empty_cache(  # mrv2: allow[MRV104, MRV106] once a day\n    )",
        "print(\n        torch.cuda.empty_cache(),\n    )  # mrv2: allow[MRV106]: once a day",
    ],
)
def test_a_comment_allows_its_statement(tmp_path: Path, line: str) -> None:
    result = search(tmp_path, line)
    assert [code for code in codes(result) if code != "MRV122"] == ["MRV104"]
    assert [(finding.code, reason) for finding, reason in result.allowed] == [("MRV106", "once a day")]


def test_a_comment_of_another_code_allows_nothing(tmp_path: Path) -> None:
    result = search(tmp_path, "torch.cuda.empty_cache()  # mrv2: allow[MRV101] no value is read")
    assert sorted(codes(result)) == ["MRV104", "MRV106", "MRV122"]


def test_an_unused_comment_is_a_suspect(tmp_path: Path) -> None:
    result = search(tmp_path, "pass  # mrv2: allow[MRV105] shapes are fixed")
    (unused,) = [finding for finding in result.findings if finding.code == "MRV122"]
    assert unused.verdict.value == "suspect"
    assert (unused.where[0].line, unused.evidence["reason"]) == (6, "shapes are fixed")


def test_a_comment_for_a_run_is_not_judged_by_the_search(tmp_path: Path) -> None:
    assert codes(search(tmp_path, "pass  # mrv2: allow[MRV107] loaded here")) == ["MRV104"]


@pytest.mark.parametrize(
    "comment", ["# mrv2: allow[MRV106]", "# mrv2: allow[MRV106]   ", "# mrv2: allow why", "# mrv2: alow[MRV106] why"]
)
def test_a_comment_without_a_reason_is_an_error(tmp_path: Path, comment: str) -> None:
    with pytest.raises(CheckError, match="gives a reason"):
        search(tmp_path, f"torch.cuda.empty_cache()  {comment}")


def test_a_comment_with_an_unknown_code_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckError) as caught:
        search(tmp_path, "pass  # mrv2: allow[MRV1106] why")
    assert "MRV106" in caught.value.remedy


def test_text_that_looks_like_a_comment_is_none(tmp_path: Path) -> None:
    assert codes(search(tmp_path, 'x = "# mrv2: allow[MRV106]"')) == ["MRV104"]


ENTRY = '[[tool.mrv2.allow]]\nsite = "{site}"\ncode = "MRV104"\nreason = "{reason}"\n'


@pytest.mark.parametrize("site", ["engine:wait", "engine:step"])
def test_an_entry_allows_a_function_and_its_callees(tmp_path: Path, site: str) -> None:
    result = search(tmp_path, "pass", ENTRY.format(site=site, reason="the output thread"))
    assert codes(result) == []
    assert [reason for _, reason in result.allowed] == ["the output thread"]


def test_an_unused_entry_is_a_suspect(tmp_path: Path) -> None:
    assert sorted(codes(search(tmp_path, "pass", ENTRY.format(site="engine:other", reason="why")))) == [
        "MRV104",
        "MRV122",
    ]


def test_an_entry_for_other_files_is_left_alone(tmp_path: Path) -> None:
    assert codes(search(tmp_path, "pass", ENTRY.format(site="elsewhere:wait", reason="why"))) == ["MRV104"]


def test_an_entry_without_a_reason_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="reason"):
        search(tmp_path, "pass", ENTRY.format(site="engine:wait", reason=""))
