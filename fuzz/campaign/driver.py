"""Starts workers, starts them again when they die, and stops them when time is over."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from mrv2.checks.errors import CheckError
from mrv2.fuzz.script import Script, script_as_json, script_from_json

from .deaths import death_by, told
from .durable import write_durably
from .findings import FindingStore, FoundCase
from .options import Options
from .progress import Progress, ProgressReader
from .worker import FINDINGS, HANG, KILLED, WORKERS, case_at_hand

POLL_SECONDS = 0.2
#: A worker that dies so often without having finished a case will not get better.
DEATHS_IN_A_ROW = 5
CAMPAIGN = "campaign.json"
#: A case of a small runner takes a second; one that takes so long will never end.
HANG_SECONDS = 600.0
#: Signals that are sent from outside, and say nothing about the target.
_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class State:
    """A campaign at one moment, read from its folder.

    Attributes:
        progress: sums over all workers that ever were.
        findings: all.
        killed: cases in which a process was killed, by the kernel for want of memory or by somebody. Those that kill
            again are findings, too.
        workers: that run now.
        most_workers: that were to run at once.
        deaths: workers that ended without having been told to, in this run of the driver.
        seconds: of this run.
    """

    progress: Progress
    findings: tuple[FoundCase, ...]
    killed: tuple[FoundCase, ...]
    workers: int
    most_workers: int
    deaths: int
    seconds: float


@dataclass
class _Process:
    number: int
    process: subprocess.Popen[str]
    errors: IO[str]
    life: int
    deaths: int = 0
    cases_before: int = 0
    case_began: float = field(default_factory=time.monotonic)
    case: int | None = None


class CampaignDriver:
    """Runs the workers of a campaign.

    Args:
        folder: of the campaign; one that exists is continued.
        options: of the campaign.
        workers: how many at once.
        command: starts a worker, given its number; the options and the driver's process are written to its standard
            input, a line each.
        hang_seconds: a case that takes longer is a finding, and its worker is started again.

    Raises:
        CheckError: the folder holds a campaign with another target.
        OSError: the folder cannot be written to.
    """

    def __init__(
        self,
        folder: Path,
        options: Options,
        workers: int,
        command: Callable[[int], Sequence[str]],
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        self._folder = folder
        self._options = options
        self._command = command
        self._store = FindingStore(folder / FINDINGS)
        self._killed = FindingStore(folder / KILLED)
        self._progress = ProgressReader(folder / WORKERS)
        self._count = workers
        self._hang_seconds = hang_seconds
        self._processes: list[_Process] = []
        self._deaths = 0
        self._began = time.monotonic()
        claim(folder, options)

    def run(self, seconds: float | None, watch: Callable[[State], None]) -> State:
        """Run until time is over, all workers have done their cases, or KeyboardInterrupt, which ends it in order.

        Args:
            seconds: how long; None until the workers are done.
            watch: is called now and then with what there is so far.

        Returns:
            the state at the end, with no worker left.

        Raises:
            KeyboardInterrupt: after everything has been stopped and written.
            CheckError: a worker cannot be kept alive, or its disk is full.
        """
        try:
            for number in range(self._count):
                self._processes.append(self._start(number))
            while self._alive() and (seconds is None or time.monotonic() - self._began < seconds):
                time.sleep(POLL_SECONDS)
                watch(self.state())
        finally:
            self._stop()
        return self.state()

    def state(self) -> State:
        """What the folder holds now."""
        alive = sum(one.process.poll() is None for one in self._processes)
        return State(
            self._progress.read(),
            tuple(self._store.all()),
            tuple(self._killed.all()),
            alive,
            self._count,
            self._deaths,
            time.monotonic() - self._began,
        )

    def _start(self, number: int, life: int = 0) -> _Process:
        # Not in the campaign's folder, whose disk may be what is full.
        errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - lives as long as it
        process = subprocess.Popen(
            self._command(number),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            # Ctrl-C reaches the driver alone, which then tells the workers.
            start_new_session=True,
        )
        assert process.stdin is not None
        # Which process must live, since it may be gone before the worker can ask who its parent is.
        # One that died at once reads nothing; that it died is seen soon enough.
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(f"{replace(self._options, life=life).as_json()}\n{os.getpid()}\n")
        return _Process(number, process, errors, life)

    def _alive(self) -> bool:
        """Whether work goes on; starts those workers again that died.

        Raises:
            CheckError: one cannot be kept alive, or its disk is full.
        """
        for index, one in enumerate(self._processes):
            if one.process.poll() is None and self._hangs(one):
                self._keep_hang(one)
            code = one.process.poll()
            if code is None or (code == 0 and self._at_hand(one) is None):
                continue
            self._deaths += 1
            self._died(one, code)
            self._current(one).unlink(missing_ok=True)
            one.errors.close()
            again = self._start(one.number, one.life + 1)
            again.deaths, again.cases_before = one.deaths, one.cases_before
            self._processes[index] = again
        return any(one.process.poll() is None for one in self._processes)

    def _hangs(self, one: _Process) -> bool:
        """Whether it has been at the same case for too long; a worker that has not begun is at none."""
        try:
            case = self._current(one).stat().st_mtime_ns
        except OSError:
            return False
        if case != one.case:
            one.case, one.case_began = case, time.monotonic()
        return time.monotonic() - one.case_began > self._hang_seconds

    def _current(self, one: _Process) -> Path:
        return case_at_hand(self._folder, one.number, one.process.pid)

    def _died(self, one: _Process, code: int) -> None:
        """Keep what killed it, if that was the target.

        Raises:
            CheckError: it died too often, or refuses to work.
        """
        at_hand = self._at_hand(one)
        if code > 0 and at_hand is None:
            raise _refused(_last_words(one))
        self._keep_death(one, code)
        cases = self._progress.read().counts["cases"]
        worked = cases > one.cases_before or (at_hand is not None and at_hand[0] > 1)
        one.deaths = 1 if worked else one.deaths + 1
        one.cases_before = cases
        if one.deaths >= DEATHS_IN_A_ROW:
            raise CheckError(
                f"worker {one.number} of the campaign",
                f"it must stay alive, and died {DEATHS_IN_A_ROW} times in a row in its first case or before it; "
                f"the last of them was a {death_by(code)}",
                "what did not run has not been tried",
                "fewer workers, if memory was short; else the target alone, with --workers 1 and --schedule cpu",
            )

    def _at_hand(self, one: _Process) -> tuple[int, Script] | None:
        """The number and the script of the case that a process runs, or ran when it ended; None if there was none."""
        try:
            content = json.loads(self._current(one).read_text(encoding="utf-8"))
            return int(content.pop("case")), script_from_json(content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, CheckError):
            return None

    def _keep_death(self, one: _Process, code: int) -> None:
        """The case in which a process ended is a finding; if it was killed, only if it is so again.

        That is seen by the worker that comes after it, in a copy of itself; whoever dies of that tells it, too.
        """
        at_hand = self._at_hand(one)
        if at_hand is None or -code in _FROM_OUTSIDE:
            return
        number, script = at_hand
        found = self._case(death_by(code), told(code, number), script)
        if code != -signal.SIGKILL:
            self._store.add(found)
            return
        which = hashlib.sha256(json.dumps(script_as_json(script)).encode()).hexdigest()[:16]
        if not self._killed.add(replace(found, signature=f"{found.signature} in {which}")):
            self._store.add(replace(found, text=f"{found.text}, and again"))

    def _case(self, signature: str, text: str, script: Script, minimised: bool = False) -> FoundCase:
        return FoundCase(self._options.target, signature, text, script, script, 3, signature, minimised)

    def _keep_hang(self, one: _Process) -> None:
        """The script that runs for ever is a finding; its process ends, and all that it started."""
        at_hand = self._at_hand(one)
        if at_hand is not None:
            # Whoever tried to make smaller what never ends would not end either.
            text = f"it did not end within {self._hang_seconds:g} seconds"
            self._store.add(self._case(HANG, text, at_hand[1], minimised=True))
        self._current(one).unlink(missing_ok=True)  # we end it, not the case
        _end(one)

    def _stop(self) -> None:
        """Tell all workers to finish the case at hand, and wait for them, but not for ever."""
        for one in self._processes:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._hang_seconds
        for one in self._processes:
            try:
                one.process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                self._current(one).unlink(missing_ok=True)
                _end(one)
            self._keep_death(one, one.process.returncode)  # the case at hand may have been its last
            self._current(one).unlink(missing_ok=True)  # one that was killed leaves it
            one.errors.close()


def read_options(folder: Path) -> Options:
    """The options of the campaign in a folder.

    Raises:
        CheckError: there is none.
    """
    try:
        content = json.loads((folder / CAMPAIGN).read_text(encoding="utf-8"))
        return Options.from_json(json.dumps(content["options"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckError(
            f"{folder}",
            f"it must be the folder of a campaign; reading {CAMPAIGN} failed with {type(error).__name__}: {error}",
            "what a campaign did is read from there, and missing counts would be wrong sums",
            "a folder that was given to mrv2 fuzz as --db",
        ) from error


def claim(folder: Path, options: Options) -> None:
    """Write down in a campaign's folder whose it is.

    Raises:
        CheckError: it is another campaign's.
    """
    path = folder / CAMPAIGN
    (folder / WORKERS).mkdir(parents=True, exist_ok=True)
    if path.exists():
        known = read_options(folder)
        if known.target != options.target:
            raise CheckError(
                f"--db {folder}",
                f"it holds a campaign with target {known.target!r}, and this one tests {options.target!r}",
                "findings and counts of two targets would be added up",
                "another folder for each target",
            )
    write_durably(path, {"campaign": 1, "options": json.loads(options.as_json())})


def _end(one: _Process) -> None:
    """End a process, and those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(one.process.pid, signal.SIGKILL)
    one.process.wait()


def _last_words(one: _Process) -> str:
    one.errors.seek(0)
    return one.errors.read().strip()[-1500:]


def _refused(words: str) -> CheckError:
    last = words.splitlines()[-1] if words else "it said nothing"
    return CheckError(
        "a worker of the campaign", f"it must run, and ended with: {last}", "what did not run has not been tried",
        "mend that, and start the campaign again with the same --db: it goes on where it was",
    )  # fmt: skip
