"""What the README says is so: its example runs and its links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("checks", "ci", "fuzz", "refrunner", "stats")
PAGES = sorted([*ROOT.glob("*.md"), *(page for room in ROOMS for page in (ROOT / room).rglob("*.md"))])


def test_example_runs(capsys):
    race, example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(race, {"decode": lambda: torch.zeros(2, device="cuda").tolist()})
    assert "smollm2" in example
    # The tiny checkpoint needs no download.
    exec(compile(example.replace("smollm2", "tiny"), "README.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
