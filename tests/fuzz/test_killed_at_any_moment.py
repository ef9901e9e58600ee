"""kill -9 at moments that a seed chooses: whatever a worker or its driver was about to write, nothing counted is lost.

Every call that changes a file system passes a hook, which ends the process, by SIGKILL, before or after
the n-th of them.
"""

import builtins
import json
import os
import random
import signal
from contextlib import contextmanager, suppress

import pytest

from mrv2.checks.errors import CheckError
from mrv2.fuzz.campaign.driver import CampaignDriver
from mrv2.fuzz.campaign.findings import FindingStore, FoundCase
from mrv2.fuzz.campaign.options import Options
from mrv2.fuzz.campaign.progress import ProgressReader
from mrv2.fuzz.campaign.worker import Worker
from mrv2.fuzz.case import CaseOutcome, Failure
from mrv2.fuzz.feature_sets.judge import Tally
from mrv2.fuzz.machine import RARE
from mrv2.fuzz.script import Arrive, Preempt, Script, Skip
from mrv2.fuzz.targets.reference import ReferenceTarget

CALLS = ("fsync", "replace", "rename", "unlink", "mkdir")
KINDS = (Skip, Preempt)
MOMENTS = 60 if os.environ.get("MRV2_LONG") else 4
TARGET = ReferenceTarget()
SCRIPT = Script((Arrive((1,)),), {"max_num_reqs": 2})


class Moments:
    """Ends this process at the n-th call; counts them all if there is no such one."""

    def __init__(self, last):
        self.passed, self._last = 0, last

    def around(self, function):
        def called(*arguments, **named):
            self._pass()
            result = function(*arguments, **named)
            self._pass()
            return result

        return called

    def _pass(self):
        self.passed += 1
        if self.passed == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def hooked(moments, monkeypatch):
    """Calls of os that change files, and whatever is opened to be written, with a moment before and behind each."""

    def opening(file, mode="r", *arguments, **named):
        opened = real_open(file, mode, *arguments, **named)
        if any(letter in mode for letter in "wa"):
            opened.write = moments.around(opened.write) if hasattr(opened, "write") else None
        return opened

    real_open = builtins.open
    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, moments.around(getattr(os, name)))
        patch.setattr("io.open", opening)
        yield


def judge(target, script, note=None):
    """Two things may be wrong."""
    wrong = [kind.__name__ for kind in KINDS if any(isinstance(event, kind) for event in script.events)]
    failures = tuple(Failure(name, f"{name}, as seen", 4) for name in wrong)
    return CaseOutcome(failures, 3, Tally(tokens=2), dict.fromkeys(RARE, 0), {})


def in_a_copy(work):
    """Run something in a copy of this process; how it ended."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check(folder):
    """All files are whole, and what is counted is there."""
    findings = FindingStore(folder / "findings").all()  # raises if one is not
    progress = ProgressReader(folder / "workers").read()
    assert progress.damaged == 0
    assert set(progress.hits) <= {case.signature for case in findings}
    return findings, progress


def work(folder, moments, monkeypatch):
    options = Options("refrunner", cases=12, cases_a_round=6, rules=6, features=("top_k",))
    with hooked(moments, monkeypatch):
        Worker(TARGET, options, folder, 0).run()


def test_a_worker_that_is_killed_at_any_moment_loses_no_counted_finding(tmp_path, monkeypatch):
    monkeypatch.setattr("mrv2.fuzz.campaign.worker.run_case", judge)
    whole = Moments(0)
    work(tmp_path / "whole", whole, monkeypatch)
    findings, _ = check(tmp_path / "whole")
    assert whole.passed > 100 and findings[0].minimised
    random_moments = random.Random(5).sample(range(1, whole.passed), MOMENTS)
    for moment in random_moments:
        folder = tmp_path / f"{moment}"
        assert (
            in_a_copy(lambda moment=moment, folder=folder: work(folder, Moments(moment), monkeypatch))
            == -signal.SIGKILL
        )
        before, counted = check(folder)
        assert in_a_copy(lambda folder=folder: work(folder, Moments(0), monkeypatch)) == 0
        after, progress = check(folder)
        assert {case.signature for case in before} <= {case.signature for case in after} == {"Skip", "Preempt"}
        originals = {case.signature: case.original for case in after}
        assert all(originals[case.signature] == case.original for case in before)
        assert progress.counts["cases"] >= counted.counts["cases"]


def naive(path, content):
    """What a finding must not be written like."""
    with path.open("w") as file:
        for part in (text := json.dumps(content))[:40], text[40:]:
            file.write(part)
            file.flush()


def test_a_finding_that_is_written_in_place_does_not_survive(tmp_path, monkeypatch):
    monkeypatch.setattr("mrv2.fuzz.campaign.findings.write_durably", naive)
    found = FoundCase("refrunner", "wrong", "as seen", SCRIPT, SCRIPT, 4, "wrong")

    def add(folder, moment):
        with hooked(Moments(moment), monkeypatch):
            FindingStore(folder).add(found)

    outcomes = []
    for moment in range(1, 12):
        folder = tmp_path / f"{moment}" / "findings"
        in_a_copy(lambda folder=folder, moment=moment: add(folder, moment))
        with suppress(CheckError):
            outcomes.append(len(check(folder.parent)[0]))
    assert {0, 1} <= set(outcomes) and len(outcomes) < 11


def drive(folder, moments, monkeypatch):
    """A driver beside which two things are found and counted."""
    with hooked(moments, monkeypatch):
        driver = CampaignDriver(folder, Options("refrunner"), 1, lambda number: ["true"])
        for name in ("one", "two"):
            found = FoundCase("refrunner", name, "as seen", SCRIPT, SCRIPT, 4, name)
            driver._store.add(found)
            (folder / "workers" / f"0-{name}.jsonl").write_text(f'{{"cases": 1, "hits": {{"{name}": 1}}}}\n')
        driver.run(None, lambda state: None)


def test_a_driver_that_is_killed_at_any_moment_leaves_a_campaign_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("mrv2.fuzz.campaign.driver.POLL_SECONDS", 0.001)
    whole = Moments(0)
    drive(tmp_path / "whole", whole, monkeypatch)
    for moment in random.Random(7).sample(range(1, whole.passed), min(MOMENTS, whole.passed - 1)):
        folder = tmp_path / f"{moment}"
        assert (
            in_a_copy(lambda moment=moment, folder=folder: drive(folder, Moments(moment), monkeypatch))
            == -signal.SIGKILL
        )
        (folder / "workers").mkdir(parents=True, exist_ok=True)
        check(folder)
        drive(folder, Moments(0), monkeypatch)
        findings, progress = check(folder)
        assert {case.signature for case in findings} == {"one", "two"} and progress.counts["cases"] == 2


@pytest.mark.parametrize("moment", [1, 2])
def test_the_hook_ends_a_process_before_and_behind_a_call(tmp_path, monkeypatch, moment):
    def rename():
        with hooked(Moments(moment), monkeypatch):
            (tmp_path / "old").replace(tmp_path / "new")

    (tmp_path / "old").touch()
    assert in_a_copy(rename) == -signal.SIGKILL
    assert (tmp_path / "new").exists() == (moment == 2)
