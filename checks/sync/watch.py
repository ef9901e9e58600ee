"""Judges waits: which happened in a hot path, and which of these were allowed there."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from ..codes import CODES
from ..events import Stack
from ..findings import JSON, Finding, Site, Verdict
from ..hooks.patching import Patches
from ..hot_path import Allowance, Entry, HotPathError, current_allowances, current_entry, watched
from ..libraries import portable
from .names import Named, find, make_hot
from .settings import Settings
from .waits import Certainty, Wait

#: Codes that only the static search gives.
_IN_SOURCE = frozenset({"MRV130", "MRV131"})


@dataclass
class _Case:
    """Waits of one operation at one place: one finding."""

    wait: Wait
    entry: Entry
    allowance: Allowance | None = None
    times: int = 0


class Watch:
    """Watches the hot paths of a program while it is open; a context manager.

    Args:
        settings: hot paths and allowances that are named from outside; those in code need none.

    Raises:
        HotPathError: on entering, a name names nothing.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._lock = threading.Lock()
        self._entries: Counter[str] = Counter()
        # Those of findings in source code are for ``mrv2 lint``; no run needs them.
        mine = [allowance for allowance in self._settings.allowances if allowance.code not in _IN_SOURCE]
        self._uses: Counter[Allowance] = Counter(dict.fromkeys(mine, 0))
        self._cases: dict[tuple[object, ...], _Case] = {}
        self._sites: dict[Allowance, Named] = {}
        self._scope = ExitStack()

    def __enter__(self) -> Watch:
        named = [find(name, "hot path") for name in self._settings.hot_paths]
        self._sites = {one: find(one.site, "site of an allowance") for one in self._settings.allowances}
        patches = Patches()
        with ExitStack() as scope:
            scope.enter_context(watched(self))
            scope.callback(patches.undo)
            for function in named:
                make_hot(function, patches)
            self._scope = scope.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.close()

    def entered(self, name: str) -> int:
        """A hot path is entered; returns how often it had been entered before."""
        with self._lock:
            number = self._entries[name]
            self._entries[name] += 1
        return number

    def left(self, name: str) -> None:
        """A hot path is left."""

    def allowing(self, allowance: Allowance) -> None:
        """The body of an ``allow_sync`` begins."""
        with self._lock:
            self._uses.setdefault(allowance, 0)

    def waited(self, wait: Wait) -> None:
        """The calling thread called something that waits for the device."""
        entry = current_entry()
        if entry is None:
            return
        with self._lock:
            allowance = self._allowance(wait)
            if allowance is not None:
                self._uses[allowance] += 1
                entry.used[allowance] += 1
            within = allowance is not None and (allowance.budget is None or entry.used[allowance] <= allowance.budget)
            if not within and entry.number >= self._settings.warmup_calls:
                self._add(wait, entry, allowance)

    def _allowance(self, wait: Wait) -> Allowance | None:
        """The innermost allowance of this wait."""
        for allowance in reversed(current_allowances()):
            if allowance.code == wait.code:
                return allowance
        for file, line, _ in wait.stack:
            for allowance in self._settings.allowances:
                if allowance.code == wait.code and self._sites[allowance].holds(file, line):
                    return allowance
        return None

    def _add(self, wait: Wait, entry: Entry, allowance: Allowance | None) -> None:
        # A full queue stops whichever launch comes next: the place says nothing, and there would be one for each line.
        place = () if wait.code == "MRV108" else wait.stack[:1]
        key = (wait.operation, place, entry.name, allowance)
        case = self._cases.setdefault(key, _Case(wait, entry, allowance))
        case.times += 1

    @property
    def entries(self) -> dict[str, int]:
        """How often each hot path was entered, those named in the settings also if they never were."""
        with self._lock:
            return {**dict.fromkeys(self._settings.hot_paths, 0), **self._entries}

    @property
    def uses(self) -> dict[Allowance, int]:
        """How often each allowance was used, those of the settings also if they never were."""
        with self._lock:
            return dict(self._uses)

    @property
    def findings(self) -> list[Finding]:
        """What is wrong so far; allowances that were never used are told by ``unused``, since they still may be."""
        with self._lock:
            return [portable(_finding(case)) for case in self._cases.values()]

    def unused(self) -> list[Finding]:
        """Allowances that nothing needed: MRV122. To be asked when the program is over."""
        with self._lock:
            return [
                _unused(allowance, self._sites.get(allowance)) for allowance, uses in self._uses.items() if not uses
            ]

    def require_entered(self) -> None:
        """Make sure that every hot path of the settings was judged, and that there was one at all.

        Raises:
            HotPathError: one never was, or none is named and none in code was entered; what did not run must not pass.
        """
        missing = {name: self.entries[name] for name in self._settings.hot_paths}
        missing = {name: times for name, times in missing.items() if times <= self._settings.warmup_calls}
        if missing or not self.entries:
            told = ", ".join(f"{name} ({self._short_of(times)})" for name, times in missing.items())
            raise HotPathError(
                f"hot paths that were never judged: {told or 'none is named, and none was entered'}",
                "there must be one, and each must be entered, more often than its warm-up takes",
                "what did not run was not checked, and must not pass",
                "name them in [tool.mrv2] hot_paths, and run what enters them, more than warmup_calls times",
            )

    def _short_of(self, times: int) -> str:
        return f"{times} of {self._settings.warmup_calls} warm-up calls" if times else "never entered"


def _finding(case: _Case) -> Finding:
    wait, entry = case.wait, case.entry
    code = wait.code if case.allowance is None else "MRV121"
    times = "times" if case.allowance is None else "times beyond the budget"
    evidence: dict[str, JSON] = {"operation": wait.operation, "hot path": entry.name, times: case.times}
    if wait.direction is not None:
        evidence["direction"] = wait.direction.value
    if wait.size is not None:
        evidence["bytes"] = wait.size
    title = f"{wait.operation} waits for the device in hot path {entry.name}"
    if case.allowance is not None:
        evidence.update(budget=case.allowance.budget, **_given(case.allowance))
        title = f"{wait.operation} waits in hot path {entry.name} more often than is allowed at {case.allowance.site}"
    return Finding(
        code=code,
        verdict=Verdict.VIOLATION if wait.certainty is Certainty.WAITED else Verdict.SUSPECT,
        soundness=CODES[code].soundness,
        title=title,
        where=_sites(wait.stack),
        evidence=evidence,
        remedy=wait.remedy,
        step=wait.step,
    )


def _unused(allowance: Allowance, named: Named | None) -> Finding:
    code = named.function.__code__ if named is not None else None
    where = () if code is None else (Site(code.co_filename, code.co_firstlineno, code.co_qualname),)
    finding = Finding(
        code="MRV122",
        verdict=Verdict.SUSPECT,
        soundness=CODES["MRV122"].soundness,
        title=f"{allowance.code} is allowed at {allowance.site} and never happened",
        where=where,
        evidence=_given(allowance),
        remedy="take the allowance out, or run what needs it",
    )
    return portable(finding)


def _given(allowance: Allowance) -> dict[str, JSON]:
    """Who allowed it, and why."""
    owner: dict[str, JSON] = {"owner": allowance.owner} if allowance.owner else {}
    return {"reason": allowance.reason, **owner}


def _sites(stack: Stack) -> tuple[Site, ...]:
    return tuple(Site(*frame) for frame in stack)
