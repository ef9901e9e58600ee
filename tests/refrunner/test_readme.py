"""What the README says about the code is what the code is: its size, and the settings that exclude each other."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from mrv2 import refrunner
from mrv2.refrunner.compatibility import as_markdown
from mrv2.refrunner.oracle.llama import LlamaOracle

ROOM = Path(refrunner.__file__).parent
README = (ROOM / "README.md").read_text(encoding="utf-8")
NOT_THE_RUNNER = ("models", "oracle", "baseline_v1")
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
#: The README may lag behind by this share; it is rounded to hundreds.
SLACK = 0.05


def code_lines(source):
    """Lines that hold code: no docstring, no comment, no blank."""
    texts = [
        range(node.lineno, node.end_lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in NO_CODE]
    code = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return len(code.difference(*texts))


def size_of(*rooms):
    return sum(code_lines(path.read_text(encoding="utf-8")) for room in rooms for path in room.rglob("*.py"))


def test_only_code_is_counted():
    source = (
        '"""Text\nof two lines."""\n\n# why\nx = (\n    1,  # one\n)\n\ndef f():\n    """Text."""\n    return "a"\n'
    )
    assert code_lines(source) == 5


@pytest.mark.parametrize("part", ["runner", *NOT_THE_RUNNER])
def test_the_readme_knows_how_large_it_is(part):
    count = size_of(ROOM) - size_of(*(ROOM / name for name in NOT_THE_RUNNER))
    count = count if part == "runner" else size_of(ROOM / part)
    (stated,) = re.findall(rf"([\d,]+) (?:lines of code in|of) the {part}\b", README)
    assert int(stated.replace(",", "")) == pytest.approx(count, rel=SLACK, abs=50)


def test_settings_that_exclude_each_other_are_there():
    assert as_markdown() in README


def test_the_example_of_a_runner_driven_by_hand_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {}
    exec(example, names)
    checkpoint = names["checkpoint"]
    oracle, known = LlamaOracle(checkpoint.config, checkpoint.tensors), [5, 6, 7]
    for token in names["tokens"]:
        assert token == int(oracle.logits(known)[-1].argmax())
        known.append(token)
    assert (len(names["tokens"]), names["violations"]) == (4, [])
