"""What the tests of the static search share."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from mrv2.checks.lint import Result, lint

Search = Callable[..., Result]

#: A runner whose step is the root; tests put a body into it.
RUNNER = """
import functools
import numpy as np
import torch
from dataclasses import dataclass


class Runner:
    def __init__(self, n: int):
        self.device = torch.device("cuda")
        self.logits = torch.zeros(n, device="cuda")
        self.flags = torch.zeros(n, dtype=torch.bool, device=self.device)
        self.host = torch.zeros(n)
        self.pinned = torch.zeros(n, pin_memory=True)
        self.array = np.zeros(n)
        self.side = torch.cuda.Stream()
        self.event = torch.cuda.Event()
        self.names = ["a", "b"]

    def step(self, given: torch.Tensor, size: int):
        x = self.logits
        host = self.host
        pinned = self.pinned
        index = torch.arange(4, device="cuda")
{body}
"""


@pytest.fixture
def search(tmp_path: Path) -> Search:
    """Search a module ``engine`` of this text."""

    def run(text: str, *roots: str, everything: bool = False) -> Result:
        (tmp_path / "engine.py").write_text(textwrap.dedent(text))
        return lint([tmp_path / "engine.py"], roots, everything)

    return run


@pytest.fixture
def codes_of(search: Search) -> Callable[[str], list[str]]:
    """The codes that a body of ``Runner.step`` gives, in order of their lines."""

    def run(body: str) -> list[str]:
        text = RUNNER.replace("{body}", textwrap.indent(textwrap.dedent(body), "        "))
        return [finding.code for finding in search(text, "engine:Runner.step").findings]

    return run
