"""The fuzzer's cases for a GPU, tried on the virtual device in the place of a recorder, and on a GPU where one is."""

import json
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.schedules import Decision, Schedule
from mrv2.ci.gpu import fuzzing
from mrv2.fuzz import on_gpu
from mrv2.fuzz.on_gpu import DrawnPace, run_case_on_gpu
from mrv2.fuzz.script import Advance, Arrive, Script
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import SamplingParams

SETTINGS = {"max_num_reqs": 3, "max_num_batched_tokens": 16, "block_size": 8, "max_model_len": 48, "num_kv_blocks": 24}
SCRIPT = Script(
    (Arrive((1, 2, 3), SamplingParams(max_tokens=4)), Advance(3), Arrive((4,) * 12, SamplingParams(max_tokens=3))),
    {**SETTINGS, "attention": "triton"},
    3,
    Schedule("late", 0, (Decision(5, 1), Decision(9, None))),
)


class Device:
    def __init__(self):
        self.slept = []

    def sleep(self, cycles):
        self.slept.append(cycles)


@contextmanager
def recorder(pace):
    """The virtual device in the place of a GPU and its recorder: it asks the pace before ten operations."""
    for _ in range(10):
        pace.before((), Device())
    with virtual_device("early") as device:
        findings = []
        yield SimpleNamespace(findings=findings)
    findings += device.findings


def test_a_stream_is_parked_where_the_schedule_deviates():
    pace, device = DrawnPace([1, 3]), Device()
    for _ in range(3):
        pace.before((), device)
        pace.after(device)
    assert len(device.slept) == 1 and pace.parked == 1


def test_a_case_is_judged_as_elsewhere(monkeypatch):
    monkeypatch.setattr(on_gpu, "race_recorder", recorder)
    outcome, parked = run_case_on_gpu(ReferenceTarget(), SCRIPT)
    assert outcome.failures == () and outcome.tally.tokens == 7 and parked == 2


def test_a_session_writes_what_it_ran(monkeypatch, tmp_path):
    monkeypatch.setattr(on_gpu, "race_recorder", recorder)
    path = tmp_path / "fuzzing.json"
    assert fuzzing.main([str(path), "--cases", "3"]) == 0
    written = json.loads(path.read_text())
    assert written["verdict"] == "pass" and written["cases"] >= 1 and written["failures"] == []
    assert written["the case that nobody drew"] == {"streams parked": 2, "wrong": False}
    for fault in ("position_off_by_one", "download_does_not_wait"):
        assert fuzzing.main([str(path), "--cases", "3", "--fault", fault]) == 0, "a fault must be found"
        written = json.loads(path.read_text())
        assert written["the case that nobody drew"]["wrong"] and written["cases"] == len(written["failures"]) == 1
        assert not [name for name in sys.modules if fault in name], "the changed copy is taken back"


def test_no_case_begins_when_time_is_over(monkeypatch, tmp_path):
    monkeypatch.setattr(on_gpu, "race_recorder", recorder)
    session = fuzzing.Session(ReferenceTarget(), seconds=-1)
    with pytest.raises(fuzzing.Enough):
        session.run(fuzzing.DIRECTED)
    fuzzing.fuzz(session, ReferenceTarget(), 3, 0)
    assert session.counts["cases"] == 0


@pytest.mark.gpu
def test_cases_on_a_gpu_are_right(tmp_path, record_property):
    path = tmp_path / "fuzzing.json"
    assert fuzzing.main([str(path), "--cases", "20"]) == 0, path.read_text()
    record_property("fuzzing", path.read_text())
