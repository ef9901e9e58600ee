"""What is left of a campaign whose driver is killed, or whose disk is full; copies of a worker that crash."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from mrv2.checks.errors import CheckError
from mrv2.fuzz.campaign.driver import CampaignDriver
from mrv2.fuzz.campaign.durable import write_durably
from mrv2.fuzz.campaign.findings import FindingStore, FoundCase
from mrv2.fuzz.campaign.options import Options
from mrv2.fuzz.campaign.progress import ProgressLog, ProgressReader
from mrv2.fuzz.script import Arrive, Script

CASE = Script((Arrive((1,)),), {"max_num_reqs": 2})
LONG = bool(os.environ.get("MRV2_LONG"))

# A process in the place of a worker, which imports nothing of ours: counts one case, says so, and waits to be ended.
_WORKER = """
import os, signal, sys
from pathlib import Path
folder = Path(sys.argv[1])
(folder / "workers" / f"0-{os.getpid()}.jsonl").write_text('{"cases": 1, "steps": 2}\\n')
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(os.getpid(), file=open(sys.argv[2], "w"), flush=True)
signal.pause()
"""


def found(signature):
    return FoundCase("refrunner", signature, f"{signature}, as seen", CASE, CASE, 4, signature)


def drive(folder, pipe):
    """A driver of one worker, in a process of its own; returns both process ids once the worker has counted."""
    command = [sys.executable, "-c", _WORKER, str(folder), str(pipe)]
    os.mkfifo(pipe)
    child = os.fork()
    if child == 0:
        CampaignDriver(folder, Options("refrunner"), 1, lambda number: command).run(None, lambda state: None)
        os._exit(0)
    return child, int(pipe.read_text())


def test_a_killed_driver_loses_nothing(tmp_path):
    folder = tmp_path / "campaign"
    for attempt in range(2):
        driver, worker = drive(folder, tmp_path / f"pipe{attempt}")
        FindingStore(folder / "findings").add(found(f"wrong {attempt}"))
        os.kill(driver, signal.SIGKILL)
        os.waitpid(driver, 0)
        os.kill(worker, signal.SIGKILL)  # ours would see by itself that its driver is gone
    state = CampaignDriver(folder, Options("refrunner"), 1, lambda number: ["true"]).run(None, lambda state: None)
    assert sorted(case.signature for case in state.findings) == ["wrong 0", "wrong 1"]
    assert state.progress.counts["cases"] == 2 and state.progress.counts["steps"] == 4


def test_a_file_that_may_not_grow_is_never_half_a_finding(tmp_path):
    """The limit of a process in the place of a full disk: a write ends in the middle of a file, and then fails."""
    store, log = FindingStore(tmp_path / "findings"), ProgressLog(tmp_path / "workers", 0)
    store.add(found("wrong"))
    log.write({"cases": 1})
    (path,) = (tmp_path / "findings").iterdir()
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        for write in (
            lambda: store.add(found("other")),
            lambda: write_durably(path, found("wrong").as_json()),
            lambda: [log.write({"cases": 1}) for _ in range(len(before))],
        ):
            with pytest.raises(OSError, match="File too large"):
                write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
    whole = len(next((tmp_path / "workers").iterdir()).read_bytes()) // len('{"cases": 1}\n')
    assert ProgressReader(tmp_path / "workers").read().counts["cases"] == whole


_FILL = """
import json, sys
from pathlib import Path
from mrv2.fuzz.campaign.durable import write_durably
folder, written = Path(sys.argv[1]), 0
try:
    while True:
        write_durably(folder / f"{written}.json", {"text": "x" * 3000, "number": written})
        written += 1
except OSError as error:
    assert error.errno == 28, error
try:
    write_durably(folder / "0.json", {"text": "y" * 30000})
except OSError as error:
    assert error.errno == 28, error
found = [json.loads(path.read_text()) for path in folder.iterdir()]
assert sorted(each["number"] for each in found) == list(range(written))
assert all(each["text"] == "x" * 3000 for each in found)
print(written)
"""


def _small_disk(folder, command, size="64k"):
    """A command with a small disk at a folder, in a name space of its own, which nobody else sees."""
    mounted = f'mount -t tmpfs -o size={size} none "{folder}" && exec "$@"'
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", mounted, "sh", *command]


def _may_mount(folder):
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(_small_disk(folder, ["true"]), capture_output=True, check=False).returncode == 0


def test_a_full_disk_holds_whole_files_only(tmp_path):
    if not _may_mount(tmp_path):
        pytest.skip("this machine does not allow file systems of one's own")
    command = _small_disk(tmp_path, [sys.executable, "-c", _FILL, str(tmp_path)])
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert 5 < int(ran.stdout) < 20


@pytest.mark.skipif(not LONG, reason="half a minute and more: MRV2_LONG=1")
def test_a_real_campaign_survives_the_end_of_its_driver_and_a_full_disk(tmp_path):
    folder = tmp_path / "campaign"
    target = ["mrv2.fuzz.mutants:position_off_by_one", "--models", "tiny", "--schedule", "cpu"]
    command = "import sys; from mrv2.ci.command.app import main; sys.exit(main())"
    start = [sys.executable, "-c", command, "fuzz", *target, "--db", str(folder)]
    driver = subprocess.Popen([*start, "--time", "1h"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(folder.glob("findings/*.json")):
        assert driver.poll() is None
    driver.kill()
    driver.wait()
    kept = {path.name: json.loads(path.read_text())["signature"] for path in folder.glob("findings/*.json")}
    again = subprocess.run([*start, "--cases", "20"], capture_output=True, text=True, check=False)
    assert again.returncode == 1, again.stdout + again.stderr
    after = {path.name: json.loads(path.read_text()) for path in folder.glob("findings/*.json")}
    assert kept.items() <= {name: case["signature"] for name, case in after.items()}.items()
    assert all(case["minimised"] for case in after.values())
    small = tmp_path / "small"
    small.mkdir()
    command = _small_disk(small, [*start[:-1], str(small), "--cases", "20"], "16k")
    full = subprocess.run(command, capture_output=True, text=True, check=False)
    assert full.returncode == 2 and "No space left on device" in full.stdout + full.stderr


def test_a_campaign_in_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "campaign.json").write_text("{")
    with pytest.raises(CheckError, match="must be the folder of a campaign"):
        CampaignDriver(tmp_path, Options("refrunner"), 1, lambda number: ["true"])


_HANDLED = """
import faulthandler, os, signal, sys
from mrv2.fuzz.campaign import deaths
signal.signal(signal.SIGSEGV, lambda number, frame: None)  # a library's handler, below that of faulthandler
faulthandler.enable()
{}
os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.parametrize(
    ("prepared", "code"), [("deaths._die_quietly()", -signal.SIGSEGV), ("faulthandler.disable()", 0)]
)
def test_a_copy_that_crashes_ends_whatever_handlers_it_inherited(prepared, code):
    assert subprocess.run([sys.executable, "-c", _HANDLED.format(prepared)], check=False).returncode == code
