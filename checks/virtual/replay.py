"""A run as a file: enough to repeat it byte for byte, and to see where a repetition parts from it.

    {"replay": 1,
     "program": {"callable": "package.module:function"},      or {"target": "refrunner", "workload": {...}}
     "schedule": {"base": "late", "seed": 0, "deviations": ["41=2", "57=-"]},
     "environment": {"python": "3.11.7", "torch": "2.13.0", ...},
     "trace": {"events": 1200, "sha256": "...", "every": 1, "marks": [...]},
     "findings": ["0123456789abcdef"]}

That holds for what the schedule decides. Where several host threads use the device and nothing orders them, the machine
decides which comes first, and a repetition differs though nothing changed; findings stay the same.

A file is data: reading one runs nothing. ``trace`` is about the transcript (see ``transcript``), one line of JSON per
event; ``marks`` are its running CRC-32 after each ``every`` events, so that a difference is found to within that many.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..errors import CheckError
from ..findings import JSON
from .errors import VirtualDeviceError
from .runs import Program, Run, run_program
from .schedules import Decision, Schedule
from .transcript import Digest, Entry, entry_line

VERSION = 1
_FIELDS = frozenset({"replay", "program", "schedule", "environment", "trace", "findings"})
_PROGRAMS = ({"callable"}, {"target", "workload"})


@dataclass(frozen=True)
class Replay:
    """The content of a replay file.

    Attributes:
        program: names what runs; only the command that resolves it imports anything.
        schedule: when the device runs what.
        environment: versions it was recorded with.
        events: length of the transcript.
        sha256: of the transcript.
        every: events between two marks.
        marks: running checksums of the transcript.
        findings: fingerprints, in order.
    """

    program: Mapping[str, JSON]
    schedule: Schedule
    environment: Mapping[str, str]
    events: int
    sha256: str
    every: int
    marks: tuple[int, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """Where two runs part.

    Attributes:
        event: number of the first event that can differ; the last one that can is less than ``within`` after it.
        within: 1 if it is known exactly.
        before: that event as first recorded, if known; ``""`` if that run was over.
        now: that event as it is now; ``""`` if this run is over.
    """

    event: int
    within: int
    before: str | None
    now: str

    def __str__(self) -> str:
        """In words, on one line."""
        place = f"event {self.event}" if self.within == 1 else f"events {self.event} to {self.event + self.within - 1}"
        before = "" if self.before is None else f" it was {self.before or 'the end of the run'},"
        return f"{place}:{before} now it is {self.now or 'the end of the run'}"


@dataclass(frozen=True)
class Repetition:
    """A recorded run, repeated.

    Attributes:
        run: the repetition.
        difference: where its transcript parts from the recorded one; None if they are byte for byte the same.
        findings_differ: whether it found something else.
    """

    run: Run
    difference: Difference | None
    findings_differ: bool

    @property
    def same(self) -> bool:
        """Whether it is the same run."""
        return self.difference is None and not self.findings_differ


def record_replay(program: Program, named: Mapping[str, JSON], schedule: Schedule | str) -> tuple[Replay, Run]:
    """Run a program once and keep what a repetition needs.

    Args:
        program: what runs.
        named: how a replay file names it, e.g. ``{"callable": "package.module:function"}``.
        schedule: when the device runs what; as of ``run_program``.

    Raises:
        VirtualDeviceError: as ``run_program`` does.
    """
    digest = Digest()
    run = run_program(program, schedule, note=digest.add)
    found = tuple(finding.fingerprint() for finding in run.findings)
    trace = (digest.events, digest.hexdigest(), digest.every, tuple(digest.marks))
    return Replay(dict(named), run.schedule, environment(), *trace, found), run


def environment() -> dict[str, str]:
    """Versions of what a run depends on."""
    names = ("mrv2", "torch", "triton", "numpy")
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def repeat(replay: Replay, program: Program) -> Repetition:
    """Run a recorded program again and compare, event by event as far as the marks tell."""
    follower = _Follower(replay)
    run = run_program(program, replay.schedule, note=follower.add)
    found = tuple(finding.fingerprint() for finding in run.findings)
    return Repetition(run, follower.difference(), found != replay.findings)


class _Follower:
    """Compares a transcript with a recorded digest while it is written."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._digest = Digest(replay.every)
        self._first = ""
        self._found: Difference | None = None

    def add(self, entry: Entry) -> None:
        """The next event."""
        if self._found is not None:
            return
        replay, digest = self._replay, self._digest
        if digest.events % replay.every == 0:
            self._first = entry_line(entry).rstrip()
        digest.add(entry)
        marks = digest.events // replay.every
        if digest.events > replay.events:
            self._found = Difference(replay.events, 1, "", entry_line(entry).rstrip())
        elif digest.events % replay.every == 0 and digest.marks[-1] != replay.marks[marks - 1]:
            self._found = Difference((marks - 1) * replay.every, replay.every, None, self._first)

    def difference(self) -> Difference | None:
        """Where the runs part, once this one is over."""
        replay, digest = self._replay, self._digest
        if self._found is None and digest.events < replay.events:
            return Difference(digest.events, 1, None, "")
        if self._found is None and digest.hexdigest() != replay.sha256:
            last = len(replay.marks) * replay.every
            return Difference(last, max(replay.events - last, 1), None, self._first)
        return self._found


def run_twice(program: Program, schedule: Schedule | str) -> tuple[Run, Difference | None]:
    """Run a program twice under one schedule: the check for nondeterminism that no schedule accounts for.

    Host threads that nothing orders are such nondeterminism, and no fault by themselves.

    Returns:
        the first run, and where the second one parts from it.
    """
    lines: list[str] = []
    first = run_program(program, schedule, note=lambda entry: lines.append(entry_line(entry).rstrip()))
    second = _Second(lines)
    again = run_program(program, schedule, note=second.add)
    found = second.difference()
    if found is None and not first.same_outcome(again):
        found = Difference(len(lines), 1, repr(first.error or first.data)[:200], repr(again.error or again.data)[:200])
    return first, found


class _Second:
    """Compares a transcript with one in memory."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._seen = 0
        self._found: Difference | None = None

    def add(self, entry: Entry) -> None:
        """The next event."""
        line, index = entry_line(entry).rstrip(), self._seen
        self._seen += 1
        before = self._lines[index] if index < len(self._lines) else ""
        if self._found is None and line != before:
            self._found = Difference(index, 1, before, line)

    def difference(self) -> Difference | None:
        """Where the runs part, once this one is over."""
        if self._found is None and self._seen < len(self._lines):
            return Difference(self._seen, 1, self._lines[self._seen], "")
        return self._found


def write_replay(path: Path, replay: Replay) -> None:
    """Write a replay file.

    Raises:
        OSError: the file system refuses.
    """
    path.write_text(replay_text(replay), encoding="utf-8")


def replay_text(replay: Replay) -> str:
    """What a replay file holds."""
    schedule = replay.schedule
    content = {
        "replay": VERSION,
        "program": dict(replay.program),
        "schedule": {
            "base": schedule.base,
            "seed": schedule.seed,
            "deviations": [str(item) for item in schedule.deviations],
        },
        "environment": dict(replay.environment),
        "trace": {
            "events": replay.events,
            "sha256": replay.sha256,
            "every": replay.every,
            "marks": list(replay.marks),
        },
        "findings": list(replay.findings),
    }
    return json.dumps(content, separators=(",", ":")) + "\n"


def read_replay(path: Path) -> Replay:
    """Read a replay file; nothing in it is run.

    Raises:
        CheckError: it cannot be read or is malformed.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse, object_pairs_hook=_object)
    except OSError as error:
        raise _malformed(path, f"it must be readable: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"it must be JSON: {str(error)[:120] or 'nested too deeply'}") from error
    reader = _Reader(path)
    known = isinstance(content, dict) and _count(content.get("replay")) and content["replay"] == VERSION
    reader.check(known, f'it is an object with "replay": {VERSION}')
    return reader.replay(content)


class _Reader:
    """Checks each field of a file before it is used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, holds: bool, rule: str) -> None:
        """Refuse the file unless a rule holds."""
        if not holds:
            raise _malformed(self._path, rule)

    def replay(self, content: dict[str, Any]) -> Replay:
        """The content, checked."""
        self.check(set(content) == _FIELDS, f"its fields are {', '.join(sorted(_FIELDS))}")
        trace, findings = content["trace"], content["findings"]
        self.check(_strings(findings), "findings are fingerprints")
        self.check(
            isinstance(content["environment"], dict) and _strings([*content["environment"].values()]),
            "the environment maps names to versions",
        )
        return Replay(
            self._program(content["program"]),
            self._schedule(content["schedule"]),
            content["environment"],
            *self._trace(trace),
            tuple(findings),
        )

    def _program(self, program: Any) -> dict[str, JSON]:
        known = isinstance(program, dict) and set(program) in _PROGRAMS
        self.check(known, "a program is named by callable, or by target and workload")
        name = program.get("callable", program.get("target"))
        self.check(isinstance(name, str), "callable and target are names")
        self.check(isinstance(program.get("workload", {}), dict), "a workload is an object")
        return dict(program)

    def _schedule(self, value: Any) -> Schedule:
        known = isinstance(value, dict) and set(value) == {"base", "seed", "deviations"}
        self.check(known, "a schedule has base, seed and deviations")
        self.check(_strings(value["deviations"]), "deviations are texts such as 41=2")
        self.check(isinstance(value["base"], str) and _count(value["seed"]), "a base is text, a seed a whole number")
        try:
            return Schedule(value["base"], value["seed"], tuple(map(Decision.parse, value["deviations"])))
        except VirtualDeviceError as error:
            raise _malformed(self._path, error.rule) from error

    def _trace(self, trace: Any) -> tuple[int, str, int, tuple[int, ...]]:
        known = isinstance(trace, dict) and set(trace) == {"events", "sha256", "every", "marks"}
        self.check(known, "a trace has events, sha256, every and marks")
        events, every, marks = trace["events"], trace["every"], trace["marks"]
        self.check(_count(events) and _count(every) and every > 0, "events and every are whole numbers")
        self.check(
            isinstance(marks, list) and all(map(_count, marks)) and len(marks) == events // every,
            "there is one mark for each so many events",
        )
        digest = trace["sha256"]
        self.check(isinstance(digest, str) and bool(re.fullmatch("[0-9a-f]{64}", digest)), "sha256 is 64 hex digits")
        return events, digest, every, tuple(marks)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _strings(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different, so that every reader of the file sees the same one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has two entries of one name")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _malformed(path: Path, rule: str) -> CheckError:
    return CheckError(
        f"replay {path}",
        rule,
        "a run that was guessed at is no repetition",
        "a file that mrv2 race --replay wrote, or a finding of mrv2 fuzz, unchanged",
    )
