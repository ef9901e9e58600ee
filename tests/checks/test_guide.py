"""The recipes run as they stand."""

import re
from pathlib import Path

import pytest

from mrv2.checks import findings

GUIDE = (Path(findings.__file__).parent / "GUIDE.md").read_text()


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "guide"}
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    for number, example in enumerate(examples):
        exec(compile(example, f"guide_{number}.py", "exec"), scope)
    shown = capsys.readouterr().out
    assert "MRV201" in shown and "missing" in shown and "<- races" in shown
    assert len(examples) == 8
