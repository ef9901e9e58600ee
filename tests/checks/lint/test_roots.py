"""Hot paths: named, marked, configured, misspelt."""

from pathlib import Path

import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.lint import lint

PROGRAM = """
import torch
from mrv2.checks.hot_path import hot_path

class Runner:
    def execute(self):
        torch.cuda.synchronize()

class Child(Runner):
    pass

@hot_path
def marked():
    torch.cuda.synchronize()

def unmarked():
    torch.cuda.synchronize()
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "runner.py").write_text(PROGRAM)
    return folder


def lines(package: Path, *roots: str, everything: bool = False) -> list[int]:
    return [finding.where[0].line for finding in lint([package], roots, everything).findings]


def test_the_decorator_is_a_root(package: Path) -> None:
    assert lines(package) == [14]


def test_a_root_by_name(package: Path) -> None:
    assert lines(package, "engine.runner:Runner.execute") == [7, 14]


def test_an_inherited_method_is_a_root(package: Path) -> None:
    assert lint([package], ["engine.runner:Child.execute"]).roots == (
        "engine.runner:Runner.execute",
        "engine.runner:marked",
    )


def test_a_package_mapped_to_another_folder(package: Path) -> None:
    assert lines(package, "company.engine.runner:unmarked") == [14, 17]


def test_all_functions(package: Path) -> None:
    assert lines(package, everything=True) == [7, 14, 17]


def test_hot_paths_of_pyproject(package: Path) -> None:
    (package.parent / "pyproject.toml").write_text('[tool.mrv2]\nhot_paths = ["engine.runner:unmarked"]\n')
    assert lines(package) == [14, 17]


@pytest.mark.parametrize(
    ("wrong", "close"),
    [
        ("engine.runner:Runner.excute", "engine.runner:Runner.execute"),
        ("engine.runer:unmarked", "engine.runner:unmarked"),
        ("elsewhere:unmarked", "engine.runner:unmarked"),
        ("unmarked", "engine.runner:unmarked"),
    ],
)
def test_a_misspelt_root_names_close_ones(package: Path, wrong: str, close: str) -> None:
    with pytest.raises(CheckError) as caught:
        lines(package, wrong)
    assert wrong in caught.value.subject
    assert close in caught.value.remedy


def test_a_misspelt_hot_path_of_pyproject_is_an_error(package: Path) -> None:
    (package.parent / "pyproject.toml").write_text('[tool.mrv2]\nhot_paths = ["engine.runner:none"]\n')
    with pytest.raises(CheckError, match="hot_paths"):
        lines(package)


def test_without_a_root_nothing_is_judged(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("def f():\n    pass\n")
    with pytest.raises(CheckError) as caught:
        lint([tmp_path])
    assert "--all" in caught.value.remedy


@pytest.mark.parametrize("name", ["none", "empty", "text.txt"])
def test_a_path_without_python_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(CheckError, match="PATH"):
        lint([tmp_path / name], everything=True)
