"""What all tests of a session found, from all workers together."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ..findings import Finding
from ..happens_before.finding_json import finding_from_json
from ..hot_path import HotPathError
from ..report.baseline import Baseline
from ..report.identity import identity
from ..report.text import count, finding_lines, headline, printable
from .options import Mode, Options, problem_lines
from .run import Judged

_TESTS_SHOWN = 3


@dataclass
class _Found:
    """One finding, and the tests that showed it, each with how many of its schedules did."""

    judged: Judged
    tests: Counter[str] = field(default_factory=Counter)
    runs: set[str] = field(default_factory=set)

    @property
    def shown_by(self) -> str:
        """The tests, a few by name."""
        shown = list(self.tests.items())[:_TESTS_SHOWN]
        names = ", ".join(name if times == 1 else f"{name} ({times} schedules)" for name, times in shown)
        rest = len(self.tests) - _TESTS_SHOWN
        return names + (f" and {count(rest, 'other')}" if rest > 0 else "")


class Summary:
    """Adds up reports.

    Args:
        options: of the session.
        baseline: its accepted findings.
    """

    def __init__(self, options: Options, baseline: Baseline) -> None:
        self._options = options
        self._baseline = baseline
        self._tests: set[str] = set()
        self._unchecked: set[str] = set()
        self._found: dict[tuple[str, str, bool], _Found] = {}
        self._entries: Counter[str] = Counter()
        self._most: Counter[str] = Counter()
        self._uses: Counter[str] = Counter()
        self._unseen: Counter[str] = Counter()
        self._unused: dict[str, Finding] = {}
        self._problem: HotPathError | None = None

    def add(self, report: pytest.TestReport) -> None:
        """Add what came with the report of one phase of one test."""
        sent: Any = report.mrv2
        if "unchecked" in sent:
            self._unchecked.add(report.nodeid)
            return
        self._tests.add(report.nodeid)
        for value in sent["found"]:
            one = Judged.from_json(value)
            key = (identity(one.finding), one.finding.code, one.fails)
            found = self._found.setdefault(key, _Found(one))
            if report.nodeid not in found.runs:
                found.runs.add(report.nodeid)
                found.tests[sent["test"]] += 1
        for name, times in sent.get("unseen", {}).items():
            self._unseen[name] += times
        for name, times in sent.get("entries", {}).items():
            self._entries[name] += times
            self._most[name] = max(self._most[name], times)
        for name, uses, unused in sent.get("allowances", ()):
            self._uses[name] += uses
            if unused is not None:
                self._unused.setdefault(name, finding_from_json(unused))

    def end(self) -> None:
        """All tests have run: what was not judged by now never was.

        Raises:
            HotPathError: the settings of the project mean nothing.
        """
        if self._options.sync not in (None, Mode.OFF):
            self._problem = self._never_judged()

    @property
    def must_fail(self) -> bool:
        """Whether the session fails although all its tests may have passed."""
        return self._options.sync is Mode.ERROR and self._problem is not None

    def write(self, terminal: Any) -> None:
        """The section of the terminal summary; none if nothing was checked and nothing had to be."""
        if not self._tests and not self._unchecked and self._problem is None:
            return
        terminal.section("mrv2")
        for text in self._lines():
            terminal.write_line(printable(text))
        if self._problem is not None:
            kind, colour = ("error", "red") if self.must_fail else ("warning", "yellow")
            terminal.write_line(f"{kind}: {problem_lines(self._problem)}", **{colour: True})

    def _lines(self) -> Iterator[str]:
        yield f"{count(len(self._tests), 'test')} checked"
        if self._unchecked:
            yield f"{count(len(self._unchecked), 'test')} that asked for it not checked: on cpu, or with all checks off"
        for name, times in sorted(self._entries.items()):
            yield f"entered {count(times, 'time')}: {name}"
        loads = [found for found in self._found.values() if _is_load(found)]
        for found in self._found.values():
            if found not in loads:
                yield from _lines_of(found)
        yield from _lines_of_loads(loads)
        for name, times in sorted(self._unseen.items()):
            yield f"warning: {name}, launched {count(times, 'time')}, loads addresses from memory; these went unjudged"
        for name, finding in self._unused.items():
            if not self._uses[name]:
                yield from finding_lines(finding)
        for fingerprint in self._unmatched():
            yield f"warning: baseline entry {fingerprint} matched no finding; repaired? Then remove it"

    def _unmatched(self) -> tuple[str, ...]:
        """Entries of the baseline without a finding, if both kinds of findings were looked for."""
        if None in (self._options.sync, self._options.race) or Mode.OFF in (self._options.sync, self._options.race):
            return ()
        return self._baseline.unmatched(tuple(found.judged.finding for found in self._found.values()))

    def _never_judged(self) -> HotPathError | None:
        """The error for hot paths and bounded regions that no test entered."""
        settings = self._options.settings
        needed = {**dict.fromkeys(settings.hot_paths, settings.warmup_calls), **_regions(settings.memory)}
        missing = [name for name, warmup in needed.items() if self._most[name] <= warmup]
        if not missing and self._entries.total():
            return None
        named = ", ".join(missing) or "none is named in [tool.mrv2], and none was entered"
        return HotPathError(
            f"hot paths that no test entered: {named}",
            f"each must be entered by a test that is checked, more than warmup_calls times ({settings.warmup_calls})",
            "what did not run was not checked, and must not pass",
            "a test that runs them; --mrv2-sync=record where only a part of the tests is run",
        )


def _regions(bounds: Any) -> dict[str, int]:
    return {bound.name: 0 for bound in bounds}


def _is_load(found: _Found) -> bool:
    """Whether a kernel was perhaps loaded in a hot path: each test has a device of its own, on which none is."""
    judged = found.judged
    return judged.finding.code == "MRV107" and judged.accepted is None and not judged.fails


def _lines_of_loads(loads: list[_Found]) -> Iterator[str]:
    """The first of them in full; of the others, which one warm-up mends as well, what was loaded."""
    if not loads:
        return
    first, *others = loads
    yield from finding_lines(first.judged.finding)
    for found in others:
        finding = found.judged.finding
        yield f"  {'likewise':<10} {finding.evidence['operation']}, in {finding.evidence['hot path']}"
    tests = _Found(first.judged, functools.reduce(operator.or_, (found.tests for found in loads)))
    yield f"  {'in':<10} {tests.shown_by}"


def _lines_of(found: _Found) -> Iterator[str]:
    """What has failed its tests stands there in full, and here with its place; the rest here in full."""
    judged = found.judged
    if judged.accepted is not None:
        yield f"accepted: {headline(judged.finding)} (reason: {judged.accepted})"
    elif judged.fails:
        yield f"failed: {headline(judged.finding)}"
        yield from (f"  {'place':<10} {site.file}:{site.line} in {site.function}" for site in judged.finding.where[:1])
        yield f"  {'in':<10} {found.shown_by}"
    else:
        yield from finding_lines(judged.finding)
        yield f"  {'in':<10} {found.shown_by}"
