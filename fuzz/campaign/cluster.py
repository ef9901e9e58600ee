"""A campaign on a Ray cluster: shifts of a hundred cases, each of them a campaign of one worker on some machine.

Ray places the shifts, and starts a shift again whose process or machine was lost. What is drawn depends on the seed and
the number of the round alone, so the second attempt draws the same cases and nothing is lost. A shift hands back what
its folder holds; findings are on the disk here before their cases are counted. All machines need what this one has
installed, the target included.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mrv2.checks.errors import CheckError

from .driver import POLL_SECONDS, CampaignDriver, State, claim
from .findings import FindingStore, read_found_case
from .options import Options
from .progress import ProgressLog, ProgressReader
from .worker import FINDINGS, KILLED, WORKERS

LOCAL = "local"
#: Rounds of a shift, and as many times ten cases: a minute or two, which is what a lost machine costs.
ROUNDS_A_SHIFT = 10
#: A shift that was lost so often is given up: its target ends machines.
ATTEMPTS = 5
#: A worker of a folder, given its number.
Command = Callable[[Path, int], Sequence[str]]


@dataclass(frozen=True)
class Shift:
    """What a shift hands back.

    Attributes:
        findings: the content of their files.
        killed: likewise, of cases in which a process was killed.
        lines: of progress.
        deaths: of workers.
    """

    findings: tuple[str, ...]
    killed: tuple[str, ...]
    lines: tuple[str, ...]
    deaths: int


def work(options: str, known: Sequence[str], command: Command, stopped: Callable[[], bool]) -> Shift:
    """One shift, on the machine that this is called on.

    Args:
        options: of the shift, as JSON.
        known: findings of the campaign so far, as JSON; they are not made small again.
        command: starts a worker.
        stopped: whether the campaign is to end now.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = CampaignDriver(folder, Options.from_json(options), 1, lambda number: command(folder, number))
        for content in known:
            (folder / "known.json").write_text(content, encoding="utf-8")
            FindingStore(folder / FINDINGS).add(read_found_case(folder / "known.json"))

        def watch(state: State) -> None:
            if stopped():
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):  # what there is by then is handed back
            driver.run(None, watch)
        stores = FindingStore(folder / FINDINGS), FindingStore(folder / KILLED)
        findings, killed = (tuple(json.dumps(case.as_json()) for case in store.all()) for store in stores)
        lines = [line for path in (folder / WORKERS).glob("*.jsonl") for line in path.read_text().splitlines(True)]
        return Shift(findings, killed, tuple(line for line in lines if line.endswith("\n")), driver.state().deaths)


class ClusterDriver:
    """Runs the shifts of a campaign; the counterpart of :class:`CampaignDriver`.

    Args:
        folder: of the campaign, on this machine; one that exists is continued.
        options: of the campaign.
        workers: shifts at once.
        command: starts a worker; it must be importable on every machine.
        address: ``"local"`` for a cluster on this machine that ends with the campaign, or ``ray://host:port``.

    Raises:
        CheckError: Ray is not installed, or the folder holds a campaign with another target.
    """

    def __init__(self, folder: Path, options: Options, workers: int, command: Command, address: str) -> None:
        self._ray = _import_ray()
        self._options = options
        self._workers = workers
        self._command = command
        self._address = address
        self._store = FindingStore(folder / FINDINGS)
        self._killed = FindingStore(folder / KILLED)
        claim(folder, options)
        self._log = ProgressLog(folder / WORKERS, 0)
        self._progress = ProgressReader(folder / WORKERS)
        self._folder = folder
        self._running: list[Any] = []
        self._deaths = 0
        self._began = time.monotonic()

    def run(self, seconds: float | None, watch: Callable[[State], None]) -> State:
        """See :meth:`CampaignDriver.run`.

        Raises:
            KeyboardInterrupt: after all shifts have ended and what they found is written.
            CheckError: a shift cannot work, or was lost too often.
        """
        ray = self._ray
        ray.init(None if self._address == LOCAL else self._address, include_dashboard=False, logging_level="error")
        try:
            stop = ray.remote(num_cpus=0)(_Stop).remote()
            shift = ray.remote(max_retries=ATTEMPTS)(_work_on_ray)
            try:
                self._work(shift, stop, seconds, watch)
            finally:
                ray.get(stop.ask.remote())
                self._collect(None)
        finally:
            ray.shutdown()
        return self.state()

    def state(self) -> State:
        """What the folder holds now."""
        findings = tuple(self._store.all())
        killed, seconds = tuple(self._killed.all()), time.monotonic() - self._began
        running = len(self._running)
        return State(self._progress.read(), findings, killed, running, self._workers, self._deaths, seconds)

    def _work(self, shift: Any, stop: Any, seconds: float | None, watch: Callable[[State], None]) -> None:
        cases = self._options.cases
        wanted = None if cases is None else cases * self._workers
        each = ROUNDS_A_SHIFT * self._options.cases_a_round
        # A campaign that goes on draws other cases than before: as many shifts as there were cases were there never.
        first = number = self._progress.read().counts["cases"]
        last = math.inf if wanted is None else first + math.ceil(wanted / each)
        while seconds is None or time.monotonic() - self._began < seconds:
            while len(self._running) < self._workers and number < last:
                left = each if wanted is None else min(each, wanted - each * (number - first))
                options = replace(self._options, cases=left, first_round=number * ROUNDS_A_SHIFT)
                known = [json.dumps(case.as_json()) for case in self._store.all()]
                self._running.append(shift.remote(options.as_json(), known, self._command, stop))
                number += 1
            if not self._running:
                return
            self._collect(POLL_SECONDS)
            watch(self.state())

    def _collect(self, seconds: float | None) -> None:
        """Take what ended within so many seconds, or everything."""
        ray = self._ray
        count = 1 if seconds is not None else len(self._running)
        ended, _ = ray.wait(self._running, num_returns=count, timeout=seconds) if self._running else ([], [])
        for reference in ended:
            self._running.remove(reference)
            try:
                self._keep(ray.get(reference))
            except ray.exceptions.RayTaskError as error:
                raise _lost(f"ended with: {error.cause}") from error
            except ray.exceptions.RayError as error:
                raise _lost(f"was lost {ATTEMPTS} times: {type(error).__name__}") from error

    def _keep(self, shift: Shift) -> None:
        """Findings first: what is counted is on the disk."""
        arrived = self._folder / f"{WORKERS}/arrived.json"
        for store, contents in ((self._store, shift.findings), (self._killed, shift.killed)):
            for content in contents:
                arrived.write_text(content, encoding="utf-8")
                store.add(read_found_case(arrived))
        arrived.unlink(missing_ok=True)
        for line in shift.lines:
            self._log.write(json.loads(line))
        self._deaths += shift.deaths


class _Stop:
    """An actor that all shifts ask whether to go on."""

    def __init__(self) -> None:
        self._asked = False

    def ask(self) -> None:
        """End, all of you."""
        self._asked = True

    def asked(self) -> bool:
        """Whether to end."""
        return self._asked


def _work_on_ray(options: str, known: Sequence[str], command: Command, stop: Any) -> Shift:
    ray = _import_ray()
    return work(options, known, command, lambda: bool(ray.get(stop.asked.remote())))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise CheckError(
            "--cluster",
            f"the package ray must be installed here and on all machines: {error}",
            "it places the work and starts it again where a machine is lost",
            "pip install mrv2[cluster], or --workers alone for this machine",
        ) from error
    return ray


def _lost(how: str) -> CheckError:
    return CheckError(
        "a shift of the campaign", f"it must come to its end, and {how}", "what did not run has not been tried",
        "mend that, and start the campaign again with the same --db: it goes on where it was",
    )  # fmt: skip
