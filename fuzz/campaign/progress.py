"""What workers did, as JSON lines that add up: one file for each process, so none ever writes after a torn line."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from mrv2.checks.findings import JSON

from .durable import read_lines

COUNTS = ("cases", "steps", "virtual_steps", "refused", "tokens", "near_ties", "rounds")
TIMES = ("case_seconds", "cpu_seconds")


@dataclass
class Progress:
    """Sums over processes.

    Attributes:
        counts: of ``COUNTS``.
        seconds: of ``TIMES``, processor time; ``case_seconds`` is what the target, the device and the oracles took.
        meetings: see ``coverage``.
        traits: cases by what they had, see ``coverage``.
        states: how often something rare happened, see ``CaseOutcome.counts``.
        hits: cases by the signature of a failure that they showed.
        environments: versions that workers ran with, each as JSON.
        damaged: lines that are not what a worker writes, and are not counted.
        newest: ``time.time()`` when something was last seen for the first time; 0 before that.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    meetings: set[str] = field(default_factory=set)
    traits: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    environments: set[str] = field(default_factory=set)
    damaged: int = 0
    newest: float = 0.0

    def add(self, line: object) -> None:
        """Add what a line tells; one that is damaged is counted as such, and tells nothing."""
        if _is_sound(line):
            self._add(line)
        else:
            self.damaged += 1

    def _add(self, line: Mapping[str, Any]) -> None:
        self.counts.update({name: int(line.get(name, 0)) for name in COUNTS})
        for name in TIMES:
            self.seconds[name] += line.get(name, 0.0)
        before = len(self.meetings)
        self.meetings.update(line.get("meetings", ()))
        for name in ("traits", "states", "hits"):
            getattr(self, name).update(line.get(name, {}))
        if "environment" in line:
            self.environments.add(json.dumps(line["environment"], sort_keys=True))
        if len(self.meetings) > before:
            self.newest = max(self.newest, float(line.get("time", 0.0)))

    @property
    def overhead(self) -> float:
        """Share of the workers' time that the target, the device and the oracles did not take."""
        total = self.seconds["cpu_seconds"]
        return 1 - self.seconds["case_seconds"] / total if total else 0.0


def _is_sound(line: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a line has the types that workers write."""
    if not isinstance(line, dict):
        return False
    numbers = [line.get(name, 0) for name in (*TIMES, "time")]
    meetings, counts = line.get("meetings", []), [line.get(name, {}) for name in ("traits", "states", "hits")]
    return (
        all(_is_count(line.get(name, 0)) for name in COUNTS)
        and all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers)
        and isinstance(meetings, list)
        and all(isinstance(name, str) for name in meetings)
        and all(isinstance(each, dict) and all(map(_is_count, each.values())) for each in counts)
        and isinstance(line.get("environment", {}), dict)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class ProgressReader:
    """The sums of all processes that ever worked in a folder; what was read before is not read again.

    Args:
        folder: of the workers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends: dict[Path, int] = {}
        self._progress = Progress()

    def read(self) -> Progress:
        """The sums by now."""
        for path in sorted(self._folder.glob("*.jsonl")):
            lines, self._ends[path] = read_lines(path, self._ends.get(path, 0))
            for line in lines:
                self._progress.add(line)
        return self._progress


class ProgressLog:
    """Writes the lines of one process.

    Args:
        folder: is made if need be.
        worker: number of the worker.

    Raises:
        OSError: from each method: the file system refuses; lines written before are whole.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in folder.glob(f"{worker}-*.jsonl"))
        self._path = folder / f"{worker}-{number}-{os.getpid()}.jsonl"

    def write(self, line: dict[str, JSON]) -> None:
        """Append a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
