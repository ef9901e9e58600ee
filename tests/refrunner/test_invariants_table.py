"""The table of invariants names all of them, once, and only tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", (HERE / "INVARIANTS.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_invariant_has_one_row():
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 54))


def test_every_row_names_a_test_or_says_why_not():
    for number, _, where in ROWS:
        assert "`" in where or where.startswith(("open: ", "does not apply: ")) or "stage" in where, number


def test_the_tests_exist():
    sources = {path.stem: path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py")}
    for number, _, where in ROWS:
        for name in re.findall(r"`(test_\w+(?:\.\w+)?)`", where):
            module, _, function = name.partition(".")
            if function:
                assert f"def {function}(" in sources[module], (number, name)
            else:
                assert module in sources or any(f"def {module}(" in text for text in sources.values()), (number, name)
