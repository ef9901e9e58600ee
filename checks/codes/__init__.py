"""The registry of finding codes: what each one means, how far to trust it, and what to do about it.

``mrv2 explain CODE`` prints an entry. A detector names its code in each :class:`~mrv2.checks.findings.Finding`;
what is measured goes into the finding, what is always true of the code stands here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from . import graphs, memory, races, startup, state, statistics, sync
from .entry import CodeInfo, Example

__all__ = ["CODES", "RANGES", "CodeInfo", "Example", "UnknownCodeError", "explain", "range_of"]

RANGES: Mapping[str, str] = MappingProxyType(
    {
        "MRV1xx": "sync: the host waits for the device where it must not",
        "MRV2xx": "race: two accesses to one memory without an order between them",
        "MRV3xx": "state or differential: wrong bookkeeping, or an output that differs from the reference's",
        "MRV4xx": "statistics: a distribution or a draw that differs from the one asked for",
        "MRV5xx": "graphs: what a captured graph replays is not what the step needs",
        "MRV6xx": "memory: more than a bound, a leak, a growing pool, or a use after the memory was given back",
        "MRV7xx": "startup: a configuration that is refused before anything runs",
    }
)


class UnknownCodeError(LookupError):
    """No such code; carries the four parts (``subject``, ``rule``, ``reason``, ``remedy``) that the command renders."""

    def __init__(self, code: str, close: tuple[str, ...]) -> None:
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        self.subject = f"code {code!r}"
        self.rule = "a code must be one of the registry's"
        self.reason = "an explanation for a code that no detector reports would be made up"
        self.remedy = f"{hint}mrv2 explain --list shows them all"
        super().__init__(f"{self.subject}: {self.rule}. Why: {self.reason}. Instead: {self.remedy}.")


_ROOMS = (sync, races, state, statistics, graphs, memory, startup)

CODES: Mapping[str, CodeInfo] = MappingProxyType({entry.code: entry for room in _ROOMS for entry in room.ENTRIES})


def explain(code: str) -> CodeInfo:
    """The entry of a code, in upper or lower case.

    Raises:
        UnknownCodeError: there is no such code; names the closest ones.
    """
    wanted = code.strip().upper()
    if wanted not in CODES:
        raise UnknownCodeError(code, tuple(difflib.get_close_matches(wanted, CODES, n=3, cutoff=0.6)))
    return CODES[wanted]


def range_of(code: str) -> str:
    """What the hundred that a code belongs to is about, e.g. ``"sync: ..."`` for ``"MRV103"``."""
    return RANGES[f"{code[:4].upper()}xx"]
