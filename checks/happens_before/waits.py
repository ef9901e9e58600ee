"""Waits for events that were never recorded: fences that look like one and are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..events import Stack, SyncKind
from ..findings import Finding, Soundness, Verdict
from .rules import sites

_JUDGED = (SyncKind.WAIT_EVENT, SyncKind.EVENT_SYNCHRONIZE)
_Place: TypeAlias = tuple[SyncKind, str, Stack]


@dataclass
class _Wait:
    """All waits at one place of the program."""

    kind: SyncKind
    name: str
    stack: Stack
    lane_name: str
    step: int | None
    times: int = 0
    acquired: bool = False


class WaitLog:
    """Takes synchronisations and what they acquire.

    A place is vacuous only if none of its waits ever acquired anything: on the first lap around a ring it is right that
    the events have not been recorded yet.
    """

    def __init__(self) -> None:
        self._waits: dict[_Place, _Wait] = {}
        #: Synchronisations that may still acquire something: the last one of each lane.
        self._current: dict[int, _Wait] = {}
        self._last: dict[int, int] = {}

    def begin(
        self, number: int, lane: int, lane_name: str, kind: SyncKind, name: str, stack: Stack, step: int | None
    ) -> None:
        """A synchronisation that a lane asks for; ends what its previous one can acquire."""
        place = (kind, name, stack[:1])
        wait = self._waits.setdefault(place, _Wait(kind, name, stack, lane_name, step))
        wait.times += 1
        self._current.pop(self._last.get(lane, -1), None)
        self._last[lane] = number
        self._current[number] = wait

    def forget(self, lane: int) -> None:
        """A lane is gone, and asks for no synchronisation any more."""
        self._current.pop(self._last.pop(lane, -1), None)

    def acquired(self, number: int) -> bool:
        """The synchronisation has acquired something; returns whether it is one that still may."""
        wait = self._current.get(number)
        if wait is None:
            return False
        wait.acquired = True
        return True

    def findings(self) -> list[Finding]:
        """One finding for each place whose waits never acquired anything."""
        return [_finding(wait) for wait in self._waits.values() if wait.kind in _JUDGED and not wait.acquired]


def _finding(wait: _Wait) -> Finding:
    return Finding(
        code="MRV210",
        verdict=Verdict.SUSPECT,
        soundness=Soundness.MAY,
        title=f"'{wait.name}' never waits for anything: the event was not recorded",
        where=sites(wait.stack),
        evidence={"kind": wait.kind.value, "lane": wait.lane_name, "occurrences": wait.times},
        remedy="record the event, on the stream whose work is meant, before it is waited for; or remove the wait",
        step=wait.step,
    )
