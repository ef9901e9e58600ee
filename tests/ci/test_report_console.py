import io
import os
import sys
from dataclasses import replace

import pytest
import typer

from mrv2.checks.findings import Finding, RunVerdict, Site, Soundness, Verdict
from mrv2.ci.command.shared import ExitCode, guarded, output
from mrv2.ci.report import console as screen
from mrv2.ci.report.outcome import ReportedFinding, RunOutcome, StageOutcome, judge
from mrv2.ci.report.problem import FourParts, InputError, four_parts
from mrv2.ci.stages.base import StageResult


class Stream(io.StringIO):
    """A text stream that may say that it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(autouse=True)
def _terminal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def finding(title: str = "token 3 of request [r1] differs", **changes: object) -> Finding:
    fields: dict[str, object] = {
        "where": tuple(Site(f"f{n}.py", n, f"g{n}") for n in range(1, 6)),
        "evidence": {"expected": 4, "observed": 5},
        "remedy": "reset the row",
        "step": 7,
    }
    return Finding("MRV302", Verdict.VIOLATION, Soundness.SOUND, title, **{**fields, **changes})  # type: ignore[arg-type]


def run_of(*findings: Finding, accepted: dict[tuple[str, str], str] | None = None) -> RunOutcome:
    verdict = RunVerdict.FAIL if findings else RunVerdict.PASS
    result = StageResult(verdict, "8 requests, 96 tokens", findings)
    stage = StageOutcome(
        "runner against oracle", result, 12.34, judge("runner against oracle", findings, accepted or {})
    )
    return RunOutcome((stage,), left_out=("state and poison",))


def printed(run: RunOutcome, terminal: bool = False) -> str:
    stream = Stream(terminal)
    screen.print_run(screen.make_console(stream), run)
    return stream.getvalue()


def test_pipe_gets_ascii_without_control_sequences() -> None:
    text = printed(run_of(finding()))
    assert text.isascii()
    assert "\x1b" not in text


def test_terminal_gets_colour() -> None:
    assert "\x1b[" in printed(run_of(finding()), terminal=True)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_user_can_ask_for_plain_text_on_a_terminal(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    text = printed(run_of(finding()), terminal=True)
    assert text.isascii()
    assert "\x1b" not in text


def test_forced_colour_does_not_reach_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in printed(run_of(finding()))


def test_table_and_verdict_line_name_the_stage() -> None:
    lines = printed(run_of(finding())).splitlines()
    row = next(line for line in lines if line.startswith("| runner against oracle"))
    assert "FAIL" in row and "12.3" in row and "8 requests, 96 tokens" in row
    assert "left out by --stage: state and poison" in lines
    assert lines[-1] == "FAIL: 1 finding; runner against oracle: fail"


def test_finding_shows_code_title_place_evidence_and_remedy() -> None:
    text = printed(run_of(finding()))
    assert "MRV302 token 3 of request [r1] differs [violation, sound]" in text
    assert "runner against oracle, step 7" in text
    assert "f1.py:1 in g1" in text and "... 2 more frames" in text
    assert "expected=4, observed=5" in text
    assert "reset the row" in text
    assert finding().fingerprint() in text


def test_of_a_stack_no_single_frame_is_left_out() -> None:
    sites = finding().where
    text = printed(run_of(replace(finding(), where=sites[:4])))
    assert all(f"{site.file}:{site.line} in {site.function}" in text for site in sites[:4])
    assert "more frame" not in text


def test_first_findings_in_full_then_counts() -> None:
    many = [finding(f"token {index}") for index in range(screen.IN_FULL + 4)]
    text = printed(run_of(*many))
    assert text.count("  remedy ") == screen.IN_FULL
    assert "... and 4 more: 4 x MRV302 (runner against oracle)" in text
    assert f"FAIL: {len(many)} findings" in text


def test_each_code_is_shown_before_a_second_finding_of_one() -> None:
    many = [finding(f"token {index}") for index in range(screen.IN_FULL + 4)]
    text = printed(run_of(*many, replace(finding("draws are skewed"), code="MRV401")))
    assert "MRV401 draws are skewed" in text
    assert "... and 5 more: 5 x MRV302 (runner against oracle)" in text


def test_accepted_findings_are_listed_but_do_not_fail() -> None:
    known = finding()
    text = printed(run_of(known, accepted={(known.fingerprint(), known.code): "ticket 12"}))
    assert "accepted: MRV302 token 3 of request [r1] differs (reason: ticket 12)" in text
    assert "(1 accepted by the baseline)" in text
    assert text.splitlines()[-1] == "PASS: 1 stage ran"


def test_empty_and_stopped_runs_say_so() -> None:
    assert printed(RunOutcome(())) == "INCONCLUSIVE: no stage ran, so nothing was checked\n"
    stopped = printed(RunOutcome(run_of().finished, unfinished=("late",)))
    assert "not finished: late" in stopped
    assert stopped.splitlines()[-1] == "INCONCLUSIVE: 1 stage ran; stopped before late ended"


def test_unmatched_baseline_entry_is_a_warning() -> None:
    run = RunOutcome(run_of().finished, unmatched=("0123456789abcdef",))
    assert "warning: baseline entry 0123456789abcdef matched no finding" in printed(run)


def test_control_characters_of_a_target_are_escaped() -> None:
    text = printed(run_of(finding("evil \x1b[2J\nMRV000 \u202e title", evidence={"text": "\x07"})))
    assert "evil \\x1b[2J\\nMRV000 \\u202e title" in text
    assert "\x1b" not in text and "\x07" not in text


def test_characters_that_the_encoding_lacks_are_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    screen.print_finding(screen.make_console(stream), ReportedFinding(finding("naïve 語")))
    stream.flush()
    assert b"na\\xefve \\u8a9e" in raw.getvalue()


def test_long_evidence_is_cut() -> None:
    text = printed(run_of(finding(evidence={"values": list(range(1000))})))
    assert "(all of it in a JSON report)" in text
    assert " 999]" not in text


RACE = {
    "space": "pinned host memory",
    "offset": [0, 16],
    "occurrences": 3,
    "operations": [
        {"name": "aten.add_", "lane": "host thread", "access": "write", "step": None},
        {"name": "aten.copy_", "lane": "stream 1 (made at engine.py:12)", "access": "read", "step": 4},
    ],
}


def test_evidence_is_told_in_lines_and_not_as_a_dict() -> None:
    text = printed(run_of(finding(evidence=RACE)))
    assert "evidence   space=pinned host memory, offset=[0, 16], occurrences=3" in text
    assert "evidence   operations: name=aten.add_, lane=host thread, access=write" in text
    assert "evidence   operations: name=aten.copy_, lane=stream 1 (made at engine.py:12), access=read, step=4" in text
    assert not any(sign in text for sign in "{}'")
    assert "None" not in text


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        ({"deep": {"a": {"b": [1, {"c": 2}]}}}, "deep: a=(b=[1, (c=2)])"),
        ({"none": {}, "empty": []}, "none=(), empty=[]"),
        ({"mixed": [1, {"c": 2}]}, "mixed=[1, (c=2)]"),
    ],
)
def test_evidence_of_any_shape_is_told(evidence: dict[str, object], line: str) -> None:
    assert f"evidence   {line}" in printed(run_of(finding(evidence=evidence)))


def test_many_lines_of_evidence_are_cut() -> None:
    text = printed(run_of(finding(evidence={"runs": [{"seed": seed} for seed in range(12)]})))
    assert "runs: seed=7" in text and "seed=8" not in text
    assert "... 4 more lines (all of it in a JSON report)" in text


def test_width_of_a_pipe_follows_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    table = [line for line in printed(run_of()).splitlines() if line.startswith(("|", "+"))]
    assert max(map(len, table)) <= 60


def test_problem_shows_four_parts() -> None:
    stream = Stream(False)
    screen.print_problem(screen.make_console(stream), FourParts("the object", "the rule", "the reason", "the remedy"))
    lines = stream.getvalue().splitlines()
    assert [line.split()[-1] for line in lines] == ["object", "rule", "reason", "remedy"]


def test_four_parts_are_recognised_by_shape() -> None:
    class Foreign(Exception):
        subject, rule, reason, remedy = "s", "r", "w", "i"

    class Partial(Exception):
        subject, rule, reason, remedy = "s", "r", "w", 3

    assert four_parts(Foreign()) == FourParts("s", "r", "w", "i")
    assert four_parts(InputError("s", "r", "w", "i")) == FourParts("s", "r", "w", "i")
    assert four_parts(Partial()) is None
    assert four_parts(ValueError("x")) is None


@pytest.mark.parametrize("write", [lambda text: screen.line(output(), text), lambda text: print(text, flush=True)])
def test_where_nobody_reads_the_command_ends_without_a_word_and_without_a_verdict(write, monkeypatch, capsys) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(typer.Exit) as left, guarded(debug=False):
            write("PASS: what nobody reads")
    assert left.value.exit_code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == ""
