"""mrv2 trace check: a race, none, nothing, a damaged file."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mrv2.checks.events import LaneKind, OperationKind, Space
from mrv2.checks.happens_before import TraceWriter
from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import first_fault


def mrv2(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def at(line: int) -> tuple[tuple[str, int, str], ...]:
    return (("runner.py", line, "execute"),)


def record(synchronise: bool, *, certain: bool = True) -> None:
    """A host write after an upload, with or without a synchronisation between."""
    with TraceWriter(Path("run.jsonl")) as sink:
        host, stream = sink.lane(LaneKind.HOST, "MainThread"), sink.lane(LaneKind.STREAM, "stream 0")
        sink.allocate(host, 4096, 64, Space.PINNED, at(1))
        copy = sink.operation(stream, OperationKind.COPY_TO_DEVICE, "memcpy", at(2), issuer=host)
        sink.access(copy, [(4096, 4160)], write=False, certain=certain)
        if synchronise:
            sink.acquire(host, sink.release(stream))
        write = sink.operation(host, OperationKind.HOST_ACCESS, "aten.add_", at(3))
        sink.access(write, [(4096, 4100)], write=True)


def test_race_fails() -> None:
    record(synchronise=False)
    done = mrv2("trace", "check", "run.jsonl", "--json", "out.json")
    assert done.exit_code == 1
    assert "MRV201 'aten.add_' overwrites pinned host memory" in done.stdout
    assert "FAIL: 1 finding; 2 operations, 0 synchronisations, 1 block, 2 lanes" in done.stdout
    report = json.loads(Path("out.json").read_text())
    assert first_fault(report) is None
    assert (report["command"], report["verdict"]) == ("trace-check", "fail")
    assert [finding["code"] for finding in report["findings"]] == ["MRV201"]
    assert report["metrics"]["events"] == {"access": 2, "allocate": 1, "lane": 2, "operation": 2}


def test_ordered_run_passes() -> None:
    record(synchronise=True)
    done = mrv2("trace", "check", "run.jsonl")
    assert (done.exit_code, done.stdout.splitlines()[-1][:17]) == (0, "PASS: 0 findings;")


def test_possible_race_is_suspicious() -> None:
    record(synchronise=False, certain=False)
    done = mrv2("trace", "check", "run.jsonl")
    assert (done.exit_code, done.stdout.splitlines()[-1][:11]) == (0, "SUSPICIOUS:")


def test_run_without_accesses_is_inconclusive() -> None:
    with TraceWriter(Path("run.jsonl")) as sink:
        sink.lane(LaneKind.HOST, "MainThread")
    done = mrv2("trace", "check", "run.jsonl")
    assert done.exit_code == 3
    assert "INCONCLUSIVE: no access, so nothing was checked" in done.stdout


def test_damaged_file_is_named_in_four_parts() -> None:
    record(synchronise=True)
    whole = Path("run.jsonl").read_text()
    Path("run.jsonl").write_text(whole[:-40])
    done = mrv2("trace", "check", "run.jsonl")
    assert done.exit_code == 2
    assert "error: trace run.jsonl" in done.stderr
    assert all(part in done.stderr for part in ("rule ", "why ", "instead "))
    assert "Traceback" not in done.stderr


def test_missing_file_is_named() -> None:
    done = mrv2("trace", "check", "nowhere.jsonl")
    assert (done.exit_code, "No such file" in done.stderr) == (2, True)


def test_report_that_cannot_be_written_is_refused_first() -> None:
    record(synchronise=False)
    done = mrv2("trace", "check", "run.jsonl", "--json", "missing/out.json")
    assert done.exit_code == 2
    assert "FAIL" not in done.stdout
