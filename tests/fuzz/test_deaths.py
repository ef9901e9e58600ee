"""Workers that die or hang: of the case at hand, of a signal from outside, and how that is told apart."""

import json
import os
import signal
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from mrv2.fuzz.campaign.deaths import death_of, is_death
from mrv2.fuzz.campaign.driver import CampaignDriver
from mrv2.fuzz.campaign.findings import FindingStore, FoundCase
from mrv2.fuzz.campaign.options import Options
from mrv2.fuzz.campaign.worker import Worker, case_at_hand
from mrv2.fuzz.case import CaseOutcome
from mrv2.fuzz.feature_sets.judge import Tally
from mrv2.fuzz.machine import RARE
from mrv2.fuzz.script import Abort, Advance, Arrive, Script, Skip, script_as_json
from mrv2.fuzz.targets.reference import ReferenceTarget

TARGET = ReferenceTarget()
SMALL = Script((Arrive((1,)),), {"max_num_reqs": 2})
BIG = Script((Arrive((1, 2)), Advance(4), Skip(), Arrive((5,)), Abort(2)), {"max_num_reqs": 2, "pad_to": 4}, 3)
#: What a worker writes before it runs a case, its seventh.
AT_HAND = json.dumps({"case": 7, **script_as_json(SMALL)})


def clean(script):
    return CaseOutcome((), 3, Tally(tokens=2), dict.fromkeys(RARE, 0), {})


def found(script=SMALL, signature="wrong"):
    return FoundCase("refrunner", signature, "as seen", script, script, 4, signature)


# A process in the place of a worker: writes down a finding, and is ended by a signal the first two times. It imports
# nothing of ours, which would take seconds each time.
_WORKER = """
import os, shutil, signal, sys
from pathlib import Path
folder, made = Path(sys.argv[1]), Path(sys.argv[2])
current = folder / "workers" / f"0-{os.getpid()}.current.json"
shutil.copy(made / "current.json", current)
for path in (made / "findings").iterdir():
    shutil.copy(path, folder / "findings")
(folder / "workers" / f"0-{os.getpid()}.jsonl").write_text('{"cases": 1, "steps": 1}\\n')
runs = len(list((folder / "workers").glob("*.jsonl")))
if runs <= 2:
    os.kill(os.getpid(), [signal.SIGKILL, signal.SIGSEGV][runs - 1])
elif runs <= 4:
    os._exit(runs - 3)
current.unlink()
"""


def test_a_worker_that_is_killed_is_started_again_and_loses_nothing(tmp_path):
    made, campaign = tmp_path / "made", tmp_path / "campaign"
    FindingStore(made / "findings").add(found())
    (made / "current.json").write_text(AT_HAND)
    command = [sys.executable, "-c", _WORKER, str(campaign), str(made)]
    state = CampaignDriver(campaign, Options("refrunner"), 1, lambda number: command).run(None, lambda state: None)
    assert state.deaths == 4 and (state.workers, state.most_workers) == (0, 1)
    # Whoever kills from outside says nothing about the target; a signal of the processor's does, and os._exit.
    signatures = ["crash SIGSEGV", "crash exit 0", "crash exit 1", "wrong"]
    assert sorted(case.signature for case in state.findings) == signatures
    (killed,) = state.killed
    assert killed.script == SMALL and killed.text == "the process died in case 7, with SIGKILL" and not killed.minimised
    assert state.progress.counts["cases"] == 5


def test_who_dies_of_a_case_in_which_another_was_killed_was_not_killed_from_outside(tmp_path):
    for folder in ("workers", "findings"):
        (tmp_path / folder).mkdir()
    driver = CampaignDriver(tmp_path, Options("refrunner"), 1, lambda number: ["true"])
    process = SimpleNamespace(number=0, process=SimpleNamespace(pid=os.getpid()))
    case_at_hand(tmp_path, 0, os.getpid()).write_text(AT_HAND)
    for times in (0, 1):
        driver._keep_death(process, -signal.SIGKILL)
        assert len(driver.state().killed) == 1 and len(driver.state().findings) == times
    assert driver.state().findings[0].text == "the process died in case 7, with SIGKILL, and again"


def test_a_case_in_which_a_worker_was_killed_is_tried_again_in_a_copy(tmp_path, monkeypatch):
    def judge(target, script, note=None):
        if any(isinstance(event, Skip) for event in script.events):
            os.kill(os.getpid(), signal.SIGKILL)
        return clean(script)

    monkeypatch.setattr("mrv2.fuzz.campaign.worker.run_case", judge)
    store, killed = FindingStore(tmp_path / "findings"), FindingStore(tmp_path / "killed")
    for script in (SMALL, BIG):
        killed.add(found(script, f"crash SIGKILL in {len(script.events)}"))
    Worker(TARGET, Options("refrunner", cases=1, features=("top_k",)), tmp_path, 0)._round(0, 1)
    (case,) = store.all()
    assert case.signature == "crash SIGKILL" and case.script.events == (Skip(),) and case.original == BIG
    assert all(each.minimised for each in killed.all())


@pytest.mark.parametrize(
    ("ending", "signature"),
    [
        (lambda: os._exit(0), "crash exit 0"),
        (lambda: os._exit(3), "crash exit 3"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "crash SIGSEGV"),
        (lambda: sys.exit(3), None),
        (lambda: None, None),
    ],
)
def test_how_something_ends_a_process_is_seen_in_a_copy(ending, signature):
    assert death_of(ending) == signature
    assert signature is None or is_death(signature)


def test_an_exception_is_no_death():
    assert not any(map(is_death, ("crash ValueError: #", "crash SIGNAL: x", "crash exit", "wrong", "hang")))


_CRASHING = """
import os, signal, sys
from pathlib import Path
folder, made, when = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def crash(*_):
    os.kill(os.getpid(), signal.SIGSEGV)
if when == "while it stops":
    signal.signal(signal.SIGTERM, crash)
    (folder / "workers" / f"0-{os.getpid()}.current.json").write_bytes((made / "current.json").read_bytes())
    signal.pause()
if not (made / "crashed").exists():
    (made / "crashed").touch()
    crash()
"""


@pytest.mark.parametrize(("when", "found"), [("while it stops", [SMALL]), ("before its first case", [])])
def test_a_crash_is_of_the_case_that_its_own_process_ran(tmp_path, when, found):
    """The last one included, and not one that another process of the same number left behind."""
    made, workers = tmp_path / "made", tmp_path / "campaign" / "workers"
    made.mkdir()
    workers.mkdir(parents=True)
    (made / "current.json").write_text(AT_HAND)
    case_at_hand(workers.parent, 0, os.getpid()).write_text(json.dumps({"case": 2, **script_as_json(BIG)}))

    def watch(state):
        if len(list(workers.glob("*.current.json"))) > 1:
            raise KeyboardInterrupt

    command = [sys.executable, "-c", _CRASHING, str(workers.parent), str(made), when]
    driver = CampaignDriver(workers.parent, Options("refrunner"), 1, lambda number: command)
    with suppress(KeyboardInterrupt):
        driver.run(None, watch)
    findings = driver.state().findings
    assert [case.script for case in findings] == found and all(case.signature == "crash SIGSEGV" for case in findings)
    assert (made / "crashed").exists() or when == "while it stops"


_HANGING = """
import json, os, shutil, signal, sys
from pathlib import Path
folder, made = Path(sys.argv[1]), Path(sys.argv[2])
if not (folder / "findings").joinpath(sys.argv[3]).exists():
    shutil.copy(made / "current.json", folder / "workers" / f"0-{os.getpid()}.current.json")
    signal.pause()
"""


def test_a_case_that_never_ends_is_a_finding(tmp_path):
    made, campaign = tmp_path / "made", tmp_path / "campaign"
    made.mkdir()
    (made / "current.json").write_text(AT_HAND)
    command = [sys.executable, "-c", _HANGING, str(campaign), str(made), found(signature="hang").file_name]
    driver = CampaignDriver(campaign, Options("refrunner"), 1, lambda number: command, hang_seconds=0.01)
    state = driver.run(None, lambda state: None)
    (case,) = state.findings
    assert case.signature == "hang" and case.script == SMALL and "did not end within 0.01 seconds" in case.text
    assert state.deaths == 1 and state.workers == 0


def test_what_ends_the_process_is_made_small_in_processes_of_its_own(tmp_path, monkeypatch):
    def judge(target, script, note=None):
        if any(isinstance(event, Skip) for event in script.events):
            os.kill(os.getpid(), signal.SIGSEGV)
        return clean(script)

    monkeypatch.setattr("mrv2.fuzz.campaign.worker.run_case", judge)
    store = FindingStore(tmp_path / "findings")
    store.add(found(BIG, "crash SIGSEGV"))
    Worker(TARGET, Options("refrunner", cases=1, features=("top_k",)), tmp_path, 0)._minimise(store.all()[0])
    (case,) = store.all()
    assert case.minimised and case.script.events == (Skip(),) and case.original == BIG
