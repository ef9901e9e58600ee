"""The page of checks says of every code what the registry says."""

from pathlib import Path

from mrv2.checks import findings
from mrv2.checks.codes import CODES, RANGES

README = (Path(findings.__file__).parent / "README.md").read_text()
LINES = [line.strip("|") for line in README.splitlines() if line.startswith("| MRV")]
ROWS = [[cell.strip() for cell in line.split("|")] for line in LINES]


def test_every_code_has_its_promise():
    promises = [row[:2] for row in ROWS if len(row) == 3]
    assert promises == [[code, info.soundness.value] for code, info in CODES.items()]


def test_every_code_says_what_is_missed():
    assert [row for row in ROWS if not row[-1]] == []


def test_every_range_is_named():
    assert dict(row for row in ROWS if len(row) == 2) == RANGES
