"""mrv2 fences: waits that belong to an operation, and what makes a wait order nothing."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import read_report

MODULE = """
    import torch

    def read_back():
        data = torch.ones(4, device="cuda")
        return data.sum().item(), data.cpu()

    def ring(record=True):
        slots = [(torch.zeros(4, pin_memory=True), torch.cuda.Event()) for _ in range(2)]
        data, step_over = torch.empty(4, device="cuda"), torch.cuda.Event()
        for step in range(4):
            pinned, uploaded = slots[step % 2]
            uploaded.synchronize()
            pinned.fill_(step)
            data.copy_(pinned, non_blocking=True)
            if record:
                uploaded.record()
            step_over.record()
            step_over.synchronize()

    def ring_without_records():
        ring(record=False)

    def load(sizes):
        torch.zeros(4, device="cuda").cpu()
        raise ValueError("x")  # here

    def boom():
        load([1])

    def index():
        torch.ones(4, device="cuda")[7].item()  # here too
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "need_demo.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("need_demo", None)


def fences(name: str) -> tuple[Result, list[dict[str, Any]]]:
    result = CliRunner().invoke(app, ["fences", f"need_demo:{name}", "--json", "out.json"])
    return result, [dict(fence) for fence in read_report(Path("out.json")).metrics["fences"]]  # type: ignore[union-attr,arg-type,call-overload]


def test_the_wait_of_an_operation_is_inherent() -> None:
    result, found = fences("read_back")
    assert result.exit_code == 0
    assert [(fence["name"], fence["need"]) for fence in found] == [
        ("aten._local_scalar_dense", "inherent"),
        ("aten.copy_", "inherent"),
    ]
    assert "removable" not in result.stdout
    assert "PASS: 2 inherent" in result.stdout


def test_a_ring_whose_order_is_there_already_names_what_made_it() -> None:
    result, (slot, step) = fences("ring")
    assert (slot["need"], slot["never_recorded"]) == ("vacuous", False)
    assert slot["ordered_by"] == [step["place"]]
    assert f"ordered already by {step['place']}" in _cells(result)
    assert "never recorded" not in result.stdout


def test_a_ring_whose_record_was_forgotten_says_so() -> None:
    result, (slot, _) = fences("ring_without_records")
    assert (slot["need"], slot["never_recorded"], slot["ordered_by"]) == ("vacuous", True, [])
    assert "nothing: the event was never recorded before" in _cells(result)
    assert "ordered already" not in result.stdout


def _cells(result: Result) -> str:
    """The last column of the table, its lines joined."""
    return " ".join(line.split("|")[-2].strip() for line in result.stdout.splitlines() if line.startswith("|"))


@pytest.mark.parametrize(
    ("program", "mark", "said"), [("boom", "# here\n", "ValueError: x"), ("index", "# here too", "")]
)
def test_a_program_that_raises_is_told_where(program: str, mark: str, said: str) -> None:
    result = CliRunner().invoke(app, ["fences", f"need_demo:{program}"])
    source = Path("need_demo.py").read_text()
    line = source[: source.index(mark)].count("\n") + 1
    assert result.exit_code == 2
    words = " ".join(result.stderr.split())
    assert f"it raised {said}" in words
    assert f"at need_demo.py:{line} (" in words
    assert f"mend need_demo.py:{line}" in words
    assert "mrv2/" not in words and "/checks/" not in words
