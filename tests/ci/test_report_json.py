import copy
import io
import json
import math
import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import Finding, RunVerdict, Site, Soundness, Verdict
from mrv2.checks.report.identity import identity
from mrv2.checks.report.plain import DEEPEST, plain
from mrv2.ci.command.environment import describe
from mrv2.ci.report.console import make_console, print_finding
from mrv2.ci.report.destinations import check_destination, check_destinations, write_whole
from mrv2.ci.report.json_report import (
    Report,
    first_fault,
    read_report,
    report_schema,
    run_coverage,
    run_metrics,
    write_report,
)
from mrv2.ci.report.outcome import ReportedFinding, RunOutcome, StageOutcome
from mrv2.ci.report.problem import InputError
from mrv2.ci.stages.base import StageResult

FINDING = Finding(
    code="MRV304",
    verdict=Verdict.VIOLATION,
    soundness=Soundness.SOUND,
    title="positions of request r1 differ",
    where=(Site("runner/kernels.py", 12, "prepare"), Site("runner/step.py", 40, "execute")),
    other=(Site("runner/other.py", 1, "write"),),
    allocation=(Site("runner/alloc.py", 2, "allocate"),),
    evidence={"expected": [1, 2], "observed": [1, math.nan]},
    remedy="add one",
    step=3,
    replay="replay.json",
)


def full_report() -> Report:
    result = StageResult(RunVerdict.FAIL, "one lane differs", (FINDING,), {"lanes": 2}, {"kernels": ["prepare"]})
    reported = ReportedFinding(FINDING, "state", "known since May")
    outcome = RunOutcome((StageOutcome("state", result, 1.23456, (reported,)),), ("late",), ("other",))
    target = {
        "name": "fake",
        "reference": "pkg.mod:Target",
        "features": ["abort"],
        "model": {"reference": "tiny", "description": "tiny, 107 K parameters", "fallback": True},
    }
    return Report(
        "verify", describe(), outcome.verdict, target, outcome.findings, run_metrics(outcome), run_coverage(outcome)
    )


def test_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(report_schema())


def test_full_report_validates_and_is_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(path, full_report())
    content = json.loads(path.read_text())
    jsonschema.validate(content, report_schema(), cls=jsonschema.Draft202012Validator)
    again = read_report(path)
    assert again.as_json() == content
    assert again.findings[0].finding.fingerprint() == FINDING.fingerprint()
    assert again.verdict is RunVerdict.INCONCLUSIVE


def test_finding_keeps_all_its_fields() -> None:
    entry = full_report().as_json()["findings"][0]
    assert set(Finding.__dataclass_fields__) | {"fingerprint", "stage", "accepted"} == set(entry)
    assert entry["where"][0] == {"file": "runner/kernels.py", "line": 12, "function": "prepare"}
    assert entry["evidence"] == {"expected": [1, 2], "observed": [1, "NaN"]}
    assert (entry["step"], entry["replay"], entry["remedy"]) == (3, "replay.json", "add one")
    assert (entry["stage"], entry["accepted"]) == ("state", "known since May")


def test_report_without_target_verdict_or_findings_validates() -> None:
    assert first_fault(Report("explain", describe(), None).as_json()) is None


DELETE = object()
MUTATIONS: list[tuple[tuple[Any, ...], Any]] = [
    (("schema",), 2),
    (("schema",), DELETE),
    (("command",), 7),
    (("command",), DELETE),
    (("target", "name"), ""),
    (("target", "model", "fallback"), "yes"),
    (("target", "password"), "x"),
    (("target",), DELETE),
    (("environment", "python"), DELETE),
    (("environment", "packages", "torch"), 2.13),
    (("verdict",), "ok"),
    (("verdict",), DELETE),
    (("extra",), 1),
    (("findings",), {}),
    (("findings", 0, "code"), "MRV901"),
    (("findings", 0, "code"), "X301"),
    (("findings", 0, "verdict"), "pass"),
    (("findings", 0, "soundness"), "certain"),
    (("findings", 0, "title"), ""),
    (("findings", 0, "where", 0, "line"), "12"),
    (("findings", 0, "where", 0, "column"), 3),
    (("findings", 0, "evidence"), []),
    (("findings", 0, "fingerprint"), "short"),
    (("findings", 0, "step"), 1.5),
    (("findings", 0, "accepted"), True),
    (("findings", 0, "severity"), "high"),
    (("findings", 0, "remedy"), DELETE),
    (("metrics",), []),
    (("metrics", "stages", "state", "verdict"), "done"),
    (("metrics", "stages", "state", "seconds"), -1),
    (("metrics", "stages", "state", "extra"), 1),
    (("coverage",), DELETE),
    (("coverage", "stages", "finished"), "state"),
    (("coverage", "stages", "unfinished"), DELETE),
]


@pytest.mark.parametrize(("path", "value"), MUTATIONS)
def test_schema_rejects_mutated_reports(path: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    content = copy.deepcopy(full_report().as_json())
    *parents, last = path
    place: Any = content
    for key in parents:
        place = place[key]
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    assert first_fault(content) is not None
    file = tmp_path / "mutated.json"
    file.write_text(json.dumps(content))
    with pytest.raises(CheckError):
        read_report(file)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.float64("nan"), "NaN"),
        (True, True),
        ((1, (2,)), [1, [2]]),
        ({1: {"a": (math.inf,)}}, {"1": {"a": ["Infinity"]}}),
        (Path("x"), "PosixPath('x')"),
    ],
)
def test_values_that_json_lacks(value: object, expected: object) -> None:
    shown = plain(value)
    assert shown == expected
    assert type(shown) is type(expected)
    json.dumps(shown, allow_nan=False)


class Hostile:
    """Raises whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __hash__ = __repr__  # type: ignore[assignment]


class HostileMapping(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no")

    __repr__ = Hostile.__repr__


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {"a": [1]}
    value["a"].append(value)
    return value


HOSTILE: dict[str, tuple[Any, Any]] = {
    "cycle": (cyclic(), {"a": [1, "(contains itself)"]}),
    "shared but no cycle": ([[1]] * 2, [[1], [1]]),
    "repr raises": ([Hostile()], ["(Hostile that cannot be shown: RuntimeError)"]),
    "mapping raises": (HostileMapping(a=1), "(HostileMapping that cannot be shown: RuntimeError)"),
    "long integer": (-(10**5000), hex(-(10**5000))),
    "integer at the limit": (2**4096 - 1, 2**4096 - 1),
    "half a surrogate pair": ({"a\udc80": "b\ud800"}, {"a\\udc80": "b\\ud800"}),
    "fraction beyond float": (Fraction(10**400), "(Fraction that cannot be shown: OverflowError)"),
    "array": (np.arange(2), "array([0, 1])"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_one_bad_value_does_not_lose_the_report(case: str, tmp_path: Path) -> None:
    value, expected = HOSTILE[case]
    assert plain(value) == expected
    assert_is_read_back(replace(FINDING, evidence={"value": value}), tmp_path)


def test_nesting_is_cut_where_readers_give_up(tmp_path: Path) -> None:
    shown = plain(deep(100_000))
    assert json.dumps(shown) == "[" * DEEPEST + '"(nested too deeply)"' + "]" * DEEPEST
    assert plain(deep(DEEPEST - 1)) == deep(DEEPEST - 1)
    assert_is_read_back(replace(FINDING, evidence={"value": deep(100_000)}), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"title": ""},
        {"title": "a\ud800"},
        {"title": Hostile()},
        {"evidence": [1]},
        {"evidence": Hostile()},
        {"where": (Site("f\udc80.py", np.int64(3), "g"), Site("f.py", -1, "g"), Site("f.py", None, "g"))},  # type: ignore[arg-type]
        {"step": np.int32(3)},
        {"step": 1.5},
        {"remedy": None},
        {"replay": Path("x")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_malformed_finding_of_a_target_is_written_and_read_back(change: dict[str, Any], tmp_path: Path) -> None:
    assert_is_read_back(replace(FINDING, **change), tmp_path)


def assert_is_read_back(finding: Finding, tmp_path: Path) -> None:
    """Written in a whole run and read again, the report says the same, fingerprint included, and can be shown."""
    result = StageResult(RunVerdict.FAIL, "\ud800", (finding,), {"again": finding.evidence})
    outcome = RunOutcome((StageOutcome("s", result, 0.0, (ReportedFinding(finding, "s"),)),))
    path = tmp_path / "report.json"
    metrics, coverage = run_metrics(outcome), run_coverage(outcome)
    write_report(path, Report("verify", describe(), outcome.verdict, None, outcome.findings, metrics, coverage))
    again = read_report(path)
    assert again.as_json() == json.loads(path.read_text())
    assert identity(again.findings[0].finding) == identity(finding)
    print_finding(make_console(io.StringIO()), outcome.findings[0])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"schema": NaN}',
        b'{"schema": 2}',
        b'{"schema": true}',
        b'{"schema": "1"}',
        b'{"schema": 1.0}',
        b'{"schema": 1, "schema": 1}',
        b'{"schema": 1}',
        b'{"schema": 1, "command": "\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_malformed_report_is_a_four_part_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(CheckError) as caught:
        read_report(path)
    error = caught.value
    assert str(path) in error.subject
    assert error.rule and error.reason and error.remedy


def test_other_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({**full_report().as_json(), "schema": 2}))
    with pytest.raises(CheckError, match=r"schema version must be 1, and it is 2"):
        read_report(path)


def test_missing_report_and_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="No such file"):
        read_report(tmp_path / "absent.json")
    with pytest.raises(CheckError, match="directory"):
        read_report(tmp_path)


def test_writing_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old " * 10_000)
    check_destination(path)
    assert path.read_text().startswith("old ")
    write_report(path, full_report())
    json.loads(path.read_text())
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def refuse(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(InputError, match="No space left"):
        write_report(path, full_report())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "report.json")
    write_report(link, full_report())
    assert link.is_symlink()
    assert read_report(tmp_path / "real" / "report.json").command == "verify"


def test_a_result_that_would_replace_what_is_read_or_another_result_is_refused(tmp_path: Path) -> None:
    read, link, free = tmp_path / "trace.json", tmp_path / "link.json", tmp_path / "free.json"
    read.write_text("kept")
    link.symlink_to(read)
    inputs = (None, read, Path("a\0b"), tmp_path / "absent")
    for path in (read, link, tmp_path / "." / "trace.json"):
        with pytest.raises(InputError, match="the command reads it, and would lose it") as caught:
            check_destinations({"--html": None, "--json": path}, inputs)
        assert caught.value.subject == f"--json {path}"
    with pytest.raises(InputError, match="--json writes to it, too, and one of both would be lost") as caught:
        check_destinations({"--json": free, "--html": tmp_path / "folder" / ".." / "free.json"}, inputs)
    assert caught.value.subject.startswith("--html ")
    check_destinations({"--json": free, "--html": tmp_path / "other.html", "--write": None}, inputs)
    assert (read.read_text(), sorted(tmp_path.iterdir())) == ("kept", [link, read])


def test_what_is_read_in_a_folder_is_kept_and_an_older_report_is_replaced(tmp_path: Path) -> None:
    for name in ("report.json", "weights.safetensors", "package/module.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    for read in ("weights.safetensors", "package/../package/module.py"):
        with pytest.raises(InputError, match="the command reads it"):
            check_destinations({"--json": tmp_path / read}, (tmp_path,))
    for new in ("report.json", "package/new.py"):
        check_destinations({"--json": tmp_path / new}, (tmp_path,))
    check_destinations({"--json": tmp_path / "weights.safetensors"}, (tmp_path / "package",))


def test_where_the_command_prints_nothing_else_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, other = tmp_path / "printed", tmp_path / "other"
    other.write_text("")
    with printed.open("w") as stream:
        real = os.fstat
        monkeypatch.setattr("os.fstat", lambda number: real(stream.fileno() if number == 1 else number))
        with pytest.raises(InputError, match="what is printed goes to it, too"):
            check_destination(printed)
        check_destination(other)


def test_who_may_read_a_file_stays_as_it_was(tmp_path: Path) -> None:
    private = tmp_path / "private.json"
    private.write_text("old")
    for mode in (0o600, 0o664):
        private.chmod(mode)
        write_whole(private, "new")
        assert (private.read_text(), private.stat().st_mode & 0o777) == ("new", mode)


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        write_whole(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_pages_are_written_as_reports_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, long = tmp_path / "link.html", tmp_path / ("x" * 250 + ".html")
    link.symlink_to(tmp_path / "page.html")
    write_whole(link, "half a pair: \ud800", "--html")
    write_whole(long, "page", "--html")
    assert (link.is_symlink(), link.read_text(), long.read_text()) == (True, "half a pair: \\ud800", "page")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match="No space left") as caught:
        write_whole(long, "newer", "--html")
    assert caught.value.subject == f"--html {long}" and long.read_text() == "page"
    assert sorted(tmp_path.iterdir()) == sorted([link, tmp_path / "page.html", long])


@pytest.mark.parametrize(
    "name", ["absent/report.json", "file/report.json", "folder", "/dev/null", "x" * 300, "a\0b", "loop"]
)
def test_destination_is_refused_before_the_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckError) as caught:
        check_destination(tmp_path / name)
    assert name in caught.value.subject
    assert sorted(tmp_path.rglob("*")) == before


def test_the_longest_name_is_fine_in_any_alphabet(tmp_path: Path) -> None:
    path = tmp_path / ("\N{CHECK MARK}" * 83 + ".json")
    check_destination(path)
    write_report(path, full_report())
    assert read_report(path).command == "verify"


def test_unwritable_folder_is_refused_even_for_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Path, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        check_destination(tmp_path / "report.json")
