"""The same findings, with the same fingerprints, in every run and wherever the files are."""

import shutil
import subprocess
import sys
from pathlib import Path

from mrv2.checks.lint import lint

PROGRAM = """
import torch
class Runner:
    def __init__(self):
        self.x = torch.zeros(3, device="cuda")
        self.staging = torch.zeros(3, pin_memory=True)
        self.stream = torch.cuda.Stream()
    def step(self):
        self.staging[0] = 1
        self.x.copy_(self.staging, non_blocking=True)
    def side(self):
        y = self.x + 1
        with torch.cuda.stream(self.stream):
            return y * 2
"""


def prints(folder: Path) -> list[str]:
    found = lint([folder], ["e.run:Runner.step", "e.run:Runner.side"]).findings
    assert {finding.code for finding in found} == {"MRV130", "MRV131"}
    return [finding.fingerprint() for finding in found]


def test_fingerprints_depend_on_neither_lines_nor_folders(tmp_path: Path) -> None:
    first = tmp_path / "here" / "e"
    first.mkdir(parents=True)
    (first / "__init__.py").write_text("")
    (first / "run.py").write_text(PROGRAM)
    second = tmp_path / "there" / "e"
    shutil.copytree(first, second)
    (second / "run.py").write_text(f"# a line more\n\n{PROGRAM}")
    assert prints(first) == prints(first) == prints(second)


def test_the_interpreter_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "e.py").write_text("def f():\n    pass\n")
    before = sys.getrecursionlimit()
    lint([tmp_path], everything=True)
    assert sys.getrecursionlimit() == before


def test_the_search_needs_the_standard_library_only() -> None:
    program = "import sys, mrv2.checks.lint; print(sorted({'torch', 'triton', 'numpy', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
