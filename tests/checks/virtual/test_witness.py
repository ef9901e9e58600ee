"""Witnesses: a schedule with wrong data for each race that can do harm, shrunk, told, and pasted as a test."""

import ast
import importlib
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mrv2.checks.virtual import VirtualDeviceError
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.schedules import Decision, Schedule
from mrv2.checks.virtual.timeline import AROUND, LINES, Row, render
from mrv2.checks.virtual.witness import as_test, find_witness, minimise

PROGRAMS = """
    import torch

    def overwritten(repaired=False):
        pinned = torch.zeros(4, pin_memory=True)
        data = torch.empty(4, device="cuda")
        data.copy_(pinned, non_blocking=True)
        if repaired:
            torch.cuda.synchronize()
        pinned.add_(1)
        return data

    def repaired():
        return overwritten(True)
"""


def overwritten():
    pinned = torch.zeros(4, pin_memory=True)
    data = torch.empty(4, device="cuda")
    data.copy_(pinned, non_blocking=True)
    pinned.add_(1)
    return data


def read_too_early():
    data = torch.ones(2, device="cuda")
    host = torch.empty(2, pin_memory=True)
    host.copy_(data, non_blocking=True)
    return host


def repaired():
    data = torch.ones(2, device="cuda")
    host = torch.empty(2, pin_memory=True)
    host.copy_(data, non_blocking=True)
    torch.cuda.synchronize()
    return host


def overtaken():
    """Right in late, where the host drains in the order of enqueuing; wrong if the side stream runs ahead."""
    side = torch.cuda.Stream()
    data = torch.zeros(2, device="cuda")
    torch.cuda.synchronize()
    data.add_(1)
    with torch.cuda.stream(side):
        data.mul_(3)
    torch.cuda.synchronize()
    return data


def overtaken_after_much_work():
    """The side stream has to run far before it does harm."""
    side = torch.cuda.Stream()
    data = torch.zeros(2, device="cuda")
    torch.cuda.synchronize()
    data.add_(1)
    with torch.cuda.stream(side):
        other = torch.zeros(2, device="cuda")
        for _ in range(30):
            other.add_(1)
        data.mul_(other)
    torch.cuda.synchronize()
    return data


def harmless():
    """A race whose two orders give the same data."""
    side = torch.cuda.Stream()
    data = torch.zeros(2, device="cuda")
    torch.cuda.synchronize()
    data.add_(1)
    with torch.cuda.stream(side):
        data.add_(1)
    torch.cuda.synchronize()
    return data


def freed_too_early():
    side = torch.cuda.Stream()
    data = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        result = data + 1
    del data
    for _ in range(3):
        torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    return result


def long_run():
    pinned = torch.zeros(4, pin_memory=True)
    data = torch.empty(4, device="cuda")
    for _ in range(20):
        data.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()
    data.copy_(pinned, non_blocking=True)
    pinned.add_(1)
    torch.cuda.synchronize()
    for _ in range(20):
        float(pinned[0])
    return data


def crashing():
    """Wrong data make it raise."""
    indices = torch.zeros(2, dtype=torch.int64, pin_memory=True)
    host = torch.empty(2, dtype=torch.int64, pin_memory=True)
    data = torch.empty(2, dtype=torch.int64, device="cuda")
    data.copy_(indices, non_blocking=True)
    indices.fill_(7)
    host.copy_(data, non_blocking=True)
    torch.cuda.synchronize()
    return "abc"[int(host[0])]


def broken():
    raise KeyError("always")


class TestSearch:
    @pytest.mark.parametrize(
        ("program", "right", "wrong"),
        [(overwritten, [0.0] * 4, [1.0] * 4), (overtaken, [3.0, 3.0], [1.0, 1.0])],
    )
    def test_wrong_data_are_found(self, program, right, wrong):
        witness = find_witness(program)
        assert witness.reference.data == right
        assert witness.wrong.data == wrong
        assert run_program(program, witness.wrong.schedule).data == wrong

    def test_unwritten_memory_is_wrong_data(self):
        witness = find_witness(read_too_early)
        assert witness.reference.data == [1.0, 1.0] != witness.wrong.data

    def test_a_crash_is_wrong_too(self):
        witness = find_witness(crashing)
        assert witness.reference.data == "a"
        assert witness.wrong.error == "IndexError: string index out of range"

    @pytest.mark.parametrize("program", [repaired, harmless])
    def test_where_nothing_can_go_wrong_there_is_none(self, program):
        assert find_witness(program) is None

    def test_a_program_that_fails_by_itself_is_refused(self):
        with pytest.raises(VirtualDeviceError, match="KeyError: 'always'"):
            find_witness(broken)

    def test_exploration_finds_what_the_guesses_miss(self, monkeypatch):
        monkeypatch.setattr("mrv2.checks.virtual.witness.GUESSES", "late")
        monkeypatch.setattr("mrv2.checks.virtual.witness.expand", lambda *_, **__: [])
        assert find_witness(overtaken).wrong.data == [1.0, 1.0]


class TestShrinking:
    def test_late_needs_no_deviation(self):
        witness = find_witness(overwritten)
        assert witness.wrong.schedule == Schedule("late")
        assert witness.runs == 3

    def test_one_deviation_is_left_of_a_starved_run(self):
        witness = find_witness(overtaken)
        assert str(witness.found_by) == "starve:0"
        assert len(witness.wrong.schedule.deviations) == 1
        assert witness.wrong.schedule.base == "late"

    def test_one_rush_is_left_where_a_stream_had_to_run_far_ahead(self):
        witness = find_witness(overtaken_after_much_work)
        assert [item.rush for item in witness.wrong.schedule.deviations] == [True]

    @given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40), min_size=1, max_size=4))
    def test_exactly_what_is_needed_is_left(self, others, needed):
        items = [Decision(moment, 1) for moment in sorted(others | needed)]

        def fails(part):
            return needed <= {item.moment for item in part}

        assert {item.moment for item in minimise(items, fails)} == needed

    def test_nothing_is_left_if_nothing_is_needed(self):
        assert minimise([Decision(moment, 0) for moment in range(9)], lambda _: True) == ()


class TestTimeline:
    def test_it_tells_the_race_in_order(self):
        lines = find_witness(overwritten).timeline.splitlines()
        assert [line[:14].strip() for line in lines] == ["host"] * 5 + ["default stream"]
        assert "enqueues aten.copy_ on default stream" in lines[1]
        marked = [line for line in lines if line.endswith("<- races")]
        assert len(marked) == 2
        assert "aten.add_" in marked[0] and "test_witness.py:" in marked[0]
        assert "runs aten.copy_, which reads pinned host block 0 [0, 16)" in marked[1]

    def test_streams_are_told_apart(self):
        lines = find_witness(overtaken).timeline.splitlines()
        actors = {line[:14].strip() for line in lines if "runs" in line}
        assert actors == {"default stream", "stream 1 (made"}
        order = [line[:14].strip() for line in lines if line.endswith("<- races")]
        assert order == ["stream 1 (made", "default stream"]

    def test_a_block_that_is_freed_too_early(self):
        lines = find_witness(freed_too_early).timeline.splitlines()
        marked = [line for line in lines if line.endswith("<- races")]
        assert any("drops block" in line for line in marked)
        assert any("stream 1" in line and "reads device block" in line for line in marked)

    def test_of_a_long_run_only_what_is_around_the_race_is_told(self):
        lines = find_witness(long_run).timeline.splitlines()
        assert len(lines) <= 4 + 2 * AROUND

    def test_a_long_one_is_cut_in_the_middle(self):
        rows = [Row("host", f"writes {index}", "", racing=index in (0, 99)) for index in range(100)]
        lines = render(rows).splitlines()
        assert len(lines) == LINES + 1
        assert "... 76 more" in lines[LINES // 2]
        assert lines[0].endswith("races") and lines[-1].endswith("races")

    def test_of_nothing_there_is_nothing_to_tell(self):
        assert render([]) == ""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[ModuleType]:
    (tmp_path / "witness_programs.py").write_text(textwrap.dedent(PROGRAMS))
    sys.path.insert(0, str(tmp_path))
    try:
        yield importlib.import_module("witness_programs")
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["witness_programs"]


class TestPastedTest:
    def test_it_fails_while_the_fault_is_there_and_passes_once_it_is_repaired(self, programs, monkeypatch):
        text = as_test(programs.overwritten, find_witness(programs.overwritten))
        (function,) = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        scope: dict = {}
        exec(compile(text, "pasted", "exec"), scope)
        with pytest.raises(AssertionError):
            scope[function]()
        scope["overwritten"] = programs.repaired
        scope[function]()

    def test_it_shows_both_outcomes_and_the_timeline(self, programs):
        text = as_test(programs.overwritten, find_witness(programs.overwritten))
        assert "[0.0, 0.0, 0.0, 0.0]" in text and "[1.0, 1.0, 1.0, 1.0]" in text
        assert "<- races" in text
        assert 'run_program(overwritten, "late")' in text

    def test_its_lines_fit_and_lose_nothing(self, programs):
        witness = find_witness(programs.overwritten)
        long = replace(witness, timeline="\n".join([witness.timeline, "host  " + "very_long_word " * 40]))
        text = as_test(programs.overwritten, long)
        assert max(map(len, text.splitlines())) <= 100
        assert text.count("very_long_word") == 40
        assert all(line.split()[0] == "#" for line in text.splitlines() if "very_long_word" in line)
        ast.parse(text)

    def test_it_fails_with_the_first_value_that_differs(self, programs):
        witness = find_witness(programs.overwritten)
        assert witness.wrong.difference(witness.reference) == "result[0]: 1.0, and in the other run 0.0"
        assert witness.wrong.difference(witness.wrong) == ""
        assert 'difference(run_program(overwritten, "early")) == ""' in as_test(programs.overwritten, witness)

    def test_of_an_error_the_message_is_what_differs(self):
        witness = find_witness(crashing)
        assert witness.wrong.difference(witness.reference).startswith("error: 'IndexError: string index out of range'")

    def test_a_program_that_cannot_be_imported_is_refused(self):
        def local():
            return overwritten()

        witness = find_witness(local)
        with pytest.raises(VirtualDeviceError, match="top level"):
            as_test(local, witness)
