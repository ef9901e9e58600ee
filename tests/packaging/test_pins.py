"""The pins of CI are exact, complete for what pyproject names, and inside the ranges that users get."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LINES = [line for line in (ROOT / "constraints-cpu.txt").read_text().splitlines() if not line.startswith("#")]
PINS = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in LINES}


def test_each_line_is_one_exact_pin():
    assert len(PINS) == len(LINES)
    assert [name for name, version in PINS.items() if not version] == []


@pytest.mark.parametrize("requirement", PROJECT["dependencies"] + EXTRAS["model"] + EXTRAS["grammar"] + EXTRAS["dev"])
def test_pin_is_in_the_range(requirement):
    wanted = Requirement(requirement)
    assert wanted.specifier.contains(PINS[canonicalize_name(wanted.name)])
