"""The recipes run as they stand, one after another, in a process of their own as a reader's would be."""

import re
import subprocess
import sys
from pathlib import Path

from mrv2.checks import findings

GUIDE = (Path(findings.__file__).parent / "GUIDE.md").read_text()


def test_every_example_runs(tmp_path: Path):
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(examples) == 9
    (tmp_path / "guide.py").write_text("\n".join(examples))
    done = subprocess.run([sys.executable, "guide.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "MRV201" in done.stdout and "missing" in done.stdout and "<- races" in done.stdout
