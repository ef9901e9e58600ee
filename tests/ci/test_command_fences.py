"""mrv2 fences: needed, removable and vacuous ones, polls judged by running, races as the program is."""

import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mrv2.checks.findings import RunVerdict
from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import read_report

MODULE = """
    import sys

    import torch
    import typer

    from mrv2.checks.events import OperationKind
    from mrv2.checks.virtual.streams import active_runtime

    def upload(fence):
        pinned = torch.zeros(4, pin_memory=True)
        data = torch.empty(4, device="cuda")
        data.copy_(pinned, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        fence(event)
        pinned.add_(1)
        return data

    def needed():
        return upload(lambda event: event.synchronize())

    def racing():
        return upload(lambda event: None)

    def vacuous():
        torch.cuda.Event().synchronize()
        return upload(lambda event: event.synchronize())

    def doubled():
        def twice(event):
            event.synchronize()
            torch.cuda.synchronize()

        return upload(twice)

    def polling():
        # The first answer is no, and another buffer is written; when it is yes, the host has waited anyway.
        first, second = (torch.zeros(4, pin_memory=True) for _ in range(2))
        data = torch.empty(4, device="cuda")
        data.copy_(first, non_blocking=True)
        data.mul_(2)
        event = torch.cuda.Event()
        event.record()
        for _ in range(2):
            (first if event.query() else second).add_(1)
            torch.cuda.synchronize()
        return data

    def poll_once(until):
        pinned = torch.zeros(4, pin_memory=True)
        data = torch.empty(4, device="cuda")
        data.copy_(pinned, non_blocking=True)
        for _ in range(5):
            data.mul_(2)  # a poll lets the device do one operation, so three polls are not enough
        event = torch.cuda.Event()
        event.record()
        for _ in range(3):
            until(event)
        event.synchronize()
        pinned.add_(1)
        return data

    def polled_in_vain():
        return poll_once(lambda event: event.query())

    def polled_for_an_answer():
        return poll_once(lambda event: (torch.cuda.synchronize(), event.query()))

    def polled_before_its_record():
        event = torch.cuda.Event()
        event.query()
        return upload(lambda event: event.synchronize())

    def silent():
        return 3

    def broken():
        raise KeyError("x")

    def race_and(ending):
        upload(lambda event: None)
        raise ending

    class Bare(BaseException):
        pass

    class Late(dict):
        def __init__(self, ending):
            self.ending = ending

        def items(self):  # asked for when the program has returned
            raise self.ending

    ENDINGS = [SystemExit(0), SystemExit(), typer.Exit(0), GeneratorExit(), Bare("x"), StopIteration(3)]
    for number, ending in enumerate(ENDINGS):
        globals()[f"ends_{number}"] = lambda ending=ending: race_and(ending)
        globals()[f"result_{number}"] = lambda ending=ending: Late(ending)

    def interrupted():
        race_and(KeyboardInterrupt())

    class Ending:
        def __init__(self, ending):
            self.ending = ending

        @property
        def build(self):
            raise self.ending

    class Hidden:
        looked_up_0, looked_up_1 = Ending(SystemExit(0)), Ending(typer.Exit(0))

    def deferred():
        data = torch.ones(4, device="cuda")
        active_runtime().enqueue("leaves", OperationKind.KERNEL, sys.exit)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "fence_demo.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("fence_demo", None)


def mrv2(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def fences(name: str) -> tuple[Result, list[dict[str, Any]]]:
    result = mrv2("fences", f"fence_demo:{name}", "--json", "out.json")
    report = read_report(Path("out.json"))
    assert report.command == "fences"
    return result, [dict(fence) for fence in report.metrics["fences"] if fence["kind"] != "operation waits for stream"]  # type: ignore[union-attr,arg-type,index,call-overload]


def test_a_needed_fence_shows_the_race_without_it() -> None:
    result, (fence,) = fences("needed")
    assert result.exit_code == 0, result.stderr
    assert (fence["need"], fence["name"], fence["times"], fence["effective"]) == ("needed", "Event.synchronize", 1, 1)
    assert fence["place"].startswith("fence_demo.py:")
    assert fence["without_it"]["code"] == "MRV201"
    assert "MRV201" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("PASS: ")
    assert result.stdout.isascii()


def test_a_vacuous_fence_is_a_suspect() -> None:
    result, found = fences("vacuous")
    assert sorted(fence["need"] for fence in found) == ["needed", "vacuous"]
    assert result.exit_code == 0
    assert "MRV210" in result.stdout
    assert read_report(Path("out.json")).verdict is RunVerdict.SUSPICIOUS


def test_of_two_that_stand_for_each_other_one_can_go() -> None:
    result, found = fences("doubled")
    assert [(fence["need"], fence["can_go"]) for fence in found] == [("removable", False), ("vacuous", True)]
    assert found[0]["redundant_with"] == [found[1]["place"]]
    assert result.exit_code == 0
    assert "goes too" in " ".join(result.stdout.split())


def test_a_poll_is_judged_by_taking_its_answer_for_granted() -> None:
    result, found = fences("polling")
    (poll,) = [fence for fence in found if fence["name"] == "Event.query"]
    assert (poll["need"], poll["effective"]) == ("needed", 0)
    assert poll["without_it"]["code"] == "MRV201"
    assert result.exit_code == 0


def test_a_poll_that_never_says_yes_has_a_row() -> None:
    result, found = fences("polled_in_vain")
    (poll,) = [fence for fence in found if fence["name"] == "Event.query"]
    assert (poll["need"], poll["times"], poll["answered"], poll["effective"]) == ("vacuous", 3, 0, 0)
    words = [line.split("|")[-2].strip() for line in result.stdout.splitlines() if line.startswith("|")]
    assert "polled 3 times, never true: orders nothing; nothing" in " ".join(words)
    assert result.exit_code == 0


@pytest.mark.parametrize("program", ["polled_for_an_answer", "polled_before_its_record", "polling"])
def test_a_poll_that_says_yes_is_never_called_never_true(program: str) -> None:
    result, found = fences(program)
    (poll,) = [fence for fence in found if fence["name"] == "Event.query"]
    assert poll["answered"] > 0
    assert "never true" not in result.stdout


def test_a_program_that_races_fails_and_says_so() -> None:
    result, found = fences("racing")
    assert found == []
    assert result.exit_code == 1
    assert "MRV201" in result.stdout
    assert "1 finding as it is" in result.stdout


def test_nothing_to_judge_is_inconclusive() -> None:
    result, found = fences("silent")
    assert found == []
    assert result.exit_code == 3
    assert "no synchronisation, so nothing to judge" in result.stdout


def test_a_program_that_raises_is_refused() -> None:
    result = mrv2("fences", "fence_demo:broken")
    assert result.exit_code == 2
    assert "it raised KeyError: 'x'" in result.stderr


@pytest.mark.parametrize("program", [f"{kind}_{number}" for kind in ("ends", "result") for number in range(6)])
def test_a_program_that_ends_itself_is_refused_as_well(program: str) -> None:
    result = mrv2("fences", f"fence_demo:{program}")
    assert result.exit_code == 2
    assert "the program must come to its end; it raised" in result.stderr


def test_a_program_that_interrupts_is_interrupted() -> None:
    result = mrv2("fences", "fence_demo:interrupted")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr


@pytest.mark.parametrize("program", ["Hidden.looked_up_0", "Hidden.looked_up_1"])
def test_code_that_ends_the_process_while_it_is_looked_at_is_refused(program: str) -> None:
    result = mrv2("fences", f"fence_demo:{program}")
    assert result.exit_code == 2
    assert "the code under test must not end the command" in " ".join(result.stderr.split())


def test_work_that_ends_the_process_when_its_turn_comes_is_no_pass() -> None:
    result = mrv2("fences", "fence_demo:deferred")
    assert result.exit_code in (1, 2)
    assert result.output


@pytest.mark.parametrize("name", ["fence_demo", "fence_demo:none", "no_such_module:x", "a b:c", ""])
def test_a_target_that_cannot_be_found_is_refused(name: str) -> None:
    result = mrv2("fences", name)
    assert result.exit_code == 2
    assert f"TARGET {name!r}" in result.stderr


@pytest.mark.slow
def test_every_fence_of_a_step_of_the_reference_runner_is_needed() -> None:
    """Copied and in place, with graphs, drafts and masks: nothing is vacuous, and only startup may do without."""
    result = mrv2("fences", "refrunner", "--json", "out.json")
    assert result.exit_code == 0, result.stdout
    report = read_report(Path("out.json"))
    needs: dict[tuple[str, str], set[str]] = {}
    for fence in report.metrics["fences"]:  # type: ignore[union-attr]
        needs.setdefault((fence["name"], fence["place"].split(":")[0]), set()).add(fence["need"])  # type: ignore[index,call-overload]
    assert {place: kinds for place, kinds in needs.items() if kinds == {"needed"}}.keys() == {
        ("wait_stream", "refrunner/device.py"),
        ("wait_stream", "refrunner/graphs/captured.py"),
        ("wait_event", "refrunner/device.py"),
        ("Event.synchronize", "refrunner/async_output.py"),
        ("Event.query", "refrunner/staging.py"),
        ("Event.query", "refrunner/prompt_rows.py"),
    } - ({("wait_event", "refrunner/device.py")} if find_spec("llguidance") is None else set())
    assert needs["torch.cuda.synchronize", "refrunner/device.py"] == {"removable"}
    assert set().union(*needs.values()) == {"needed", "removable", "inherent"}
    # The last line counts the lines above it, not the paths on which a place was reached.
    for need in ("needed", "removable", "inherent"):
        assert f"{result.stdout.count(f'| {need} ')} {need}" in result.stdout.splitlines()[-1]
