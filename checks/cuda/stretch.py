"""Stretching: a race that was predicted is made to happen, so that its wrong data can be seen.

On an idle device most races come out right by luck. Of the two sides of a race the one that the program asks for first
must come late to do harm: the stream is parked in front of it, and whatever the program forgot to order after it
overtakes. The data of that run, compared with that of one in which nothing overtakes, is the witness.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..events import OperationKind, Stack
from ..findings import JSON, Finding, Site
from ..libraries import portable_path
from .backend import Backend

#: Clock cycles to park a stream for: some 25 ms on a device of 2 GHz, in which a host does thousands of calls.
PARKED_CYCLES = 50_000_000
_ON_HOST = frozenset({OperationKind.HOST_ACCESS.value, OperationKind.FREE.value})


class Pace(Protocol):
    """When the operations of a recorded run happen, as far as a real device lets anyone decide."""

    def before(self, stack: Stack, backend: Backend) -> None:
        """An operation that the program asks for here is about to be enqueued on the current stream."""
        ...

    def after(self, backend: Backend) -> None:
        """It was."""
        ...


class Stretch:
    """Parks a stream in front of the earlier side of each race of an earlier run.

    Args:
        findings: of that run; those that are no races are left out.
        cycles: clock cycles of the device to park for.

    Attributes:
        parked: how many operations were held back.
    """

    def __init__(self, findings: Iterable[Finding], cycles: int = PARKED_CYCLES) -> None:
        self._cycles = cycles
        self._places = {place for finding in findings for place in _early_place(finding)}
        self.parked = 0

    def before(self, stack: Stack, backend: Backend) -> None:
        """See :class:`Pace`."""
        if stack and self._places:
            file, line, function = stack[0]
            if (portable_path(file), line, function) in self._places:
                self.parked += 1
                backend.sleep(self._cycles)

    def after(self, backend: Backend) -> None:
        """See :class:`Pace`."""


class Serial:
    """The host waits for each operation, so that nothing overtakes anything."""

    def before(self, stack: Stack, backend: Backend) -> None:
        """See :class:`Pace`."""

    def after(self, backend: Backend) -> None:
        """See :class:`Pace`."""
        backend.synchronize()


def _early_place(finding: Finding) -> Iterator[tuple[str, int, str]]:
    """Line of the side that the program asked for first, if that is an operation of the device."""
    operations: Any = finding.evidence.get("operations")
    if not operations:
        return
    early = 0 if operations[0]["operation"] < operations[1]["operation"] else 1
    side, operation = (finding.where, finding.other)[early], operations[early]
    if side and operation["kind"] not in _ON_HOST:
        # What a graph replays is held back where the graph is launched, which its stack ends with.
        yield _place(side[-1] if operation["name"].startswith("graph: ") else side[0])


def _place(site: Site) -> tuple[str, int, str]:
    return portable_path(site.file), site.line, site.function


@dataclass(frozen=True)
class StretchedRace:
    """What a program gave when its races were made to happen.

    Attributes:
        findings: the races that a first run predicted.
        expected: what it gives when nothing overtakes.
        stretched: what it gave with the streams parked.
        parked: how many operations were held back.
    """

    findings: tuple[Finding, ...]
    expected: JSON
    stretched: JSON
    parked: int

    @property
    def corrupted(self) -> bool:
        """Whether the races did harm."""
        return self.expected != self.stretched


def value_of(result: Any) -> Any:
    """What a program returned, as plain values, once the device is idle."""
    if isinstance(result, Tensor):
        return result.tolist()
    if isinstance(result, (list, tuple)):
        return [value_of(item) for item in result]
    return result
