"""What one launch did: its accesses, the lanes that strayed, and why it ended."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..events import ByteRange
from ..findings import Site
from ..hooks.conflict_judge import Pieces, judge
from ..hooks.kernel_conflicts import Conflict
from ..hooks.kernel_log import AccessKind, Fence, KernelAccess, StrayLanes, fence_addresses, grid_index, kind_of
from ..libraries import folder_of
from .emit.source import AccessSite
from .errors import DeviceAssertion, LogFull, OutOfFuel, ProgramError
from .support import support

#: Fields of ``Record``: half-open range of addresses, place in the site table, number of the program, where the stored
#: bytes begin (-1 if it is no store).
RECORD = np.dtype([("low", "u8"), ("high", "u8"), ("site", "i4"), ("program", "i4"), ("stored", "i8")])
#: Fields of ``Stray``: hull of the addresses of lanes outside of all blocks, site, program, number of lanes.
STRAY = np.dtype([("low", "u8"), ("high", "u8"), ("site", "i4"), ("program", "i4"), ("lanes", "i8")])

#: Sets of kinds: reads, and all others.
_READS, _WRITES = 1 << AccessKind.READ, 0x7FFFFFFF & ~(1 << AccessKind.READ)
_UNKNOWN = Site("", 0, "")


class Stop(enum.IntEnum):
    """Why a launch ended early; numbered as in launch.h."""

    OUT_OF_FUEL = 1
    ASSERTION_FAILED = 2
    OUT_OF_MEMORY = 3
    LOG_FULL = 4
    PRINT_FAILED = 5


@dataclass(slots=True)
class Stopped:
    """Why, at which site, and in which program a launch ended early."""

    reason: Stop
    site: int
    program: int


@dataclass(slots=True)
class LaunchResult:
    """What one launch did.

    Attributes:
        kernel: its name.
        sites: what the numbers of sites mean.
        kinds: one byte for each site: what it does to memory, as ``conflict_kind`` numbers it.
        grid: extents of the launch.
        log: the accesses as an array of C's ``Record``, in the order in which they happened; empty if it was not kept.
        stored: the bytes that stores wrote; ``Record.stored`` says where those of a record begin.
        stray_log: the lanes outside of all memory as an array of C's ``Stray``.
        nan_count: NaNs that reached an argmax or argmin, where the result depends on the machine.
        nan_site: the first such site.
        stopped: why it ended early, if it did.
    """

    kernel: str
    sites: Sequence[AccessSite]
    kinds: bytes
    grid: tuple[int, int, int]
    log: bytes
    stored: bytes
    stray_log: bytes
    nan_count: int
    nan_site: int
    stopped: Stopped | None

    @property
    def records(self) -> NDArray[Any]:
        """Fields as in ``RECORD``, one for each run of adjacent bytes that one site of one program accessed."""
        return np.frombuffer(self.log, RECORD)

    @property
    def strays(self) -> NDArray[Any]:
        """Fields as in ``STRAY``, one for each site and program: lanes that were masked off, for no memory is there."""
        return np.frombuffer(self.stray_log, STRAY)

    def ranges(self, *, write: bool) -> list[ByteRange]:
        """Sorted, disjoint byte ranges that the launch writes (atomics included), or reads."""
        if not self.log:
            return []
        wanted = _WRITES if write else _READS
        return support().merged(self.log, self._count, self.kinds, wanted)

    def lines(self, low: int, high: int, *, write: bool) -> list[Site]:
        """The lines that write (atomics included), or read, bytes within [low, high), in the order of the kernel."""
        records = self.records
        touching = np.unique(records["site"][(records["low"] < high) & (low < records["high"])]).tolist()
        found = (site for site in touching if (self.kinds[site] == AccessKind.READ) is not write)
        return list(dict.fromkeys(place_of(self.sites[site]) for site in found))

    def size(self) -> int:
        """Bytes that the log takes."""
        return len(self.log) + len(self.stored) + len(self.stray_log)

    def conflicts(self) -> tuple[list[Conflict], list[Site]]:
        """Conflicts between programs, one for each pair of lines, judged as those of an interpreted launch.

        A launch with too many accesses to disputed bytes has one more, whose ``judged`` is false.

        Returns:
            The conflicts, and the lines that their sites are numbers of.
        """
        if not self.log or self.grid == (1, 1, 1):
            return [], []
        disputed = support().disputed(self.log, self._count, self.kinds)
        if disputed is None:
            return [], []
        touching = support().touching(self.log, self._count, disputed)
        lines, numbers = self._lines()
        fences = self._fences()
        regions = [(low, high) for low, high in disputed.tolist()]
        pairs = judge(self._pieces(touching, fences, np.array(numbers)), fences, regions)
        found = []
        for earlier, later, low, high, judged in pairs:
            first, second = (self._access(int(touching[number]), numbers) for number in (earlier, later))
            found.append(Conflict(first, second, low, high, judged))
        return found, lines

    def stray_lanes(self) -> list[StrayLanes]:
        """The lanes outside of all memory, by access and program, with their lines."""
        if not self.stray_log:
            return []
        found = []
        for low, high, site, program, lanes in self.strays.tolist():
            kind = kind_of(self.kinds[site])
            found.append(StrayLanes(kind, place_of(self.sites[site]), program, low, high, lanes))
        return found

    def index_of(self, program: int) -> tuple[int, int, int]:
        """Grid index of a program."""
        return grid_index(program, self.grid)

    def error(self) -> ProgramError | MemoryError | None:
        """Why the launch did not come to its end; None if it did."""
        if self.stopped is None:
            return None
        if self.stopped.reason is Stop.OUT_OF_MEMORY:
            return MemoryError(f"no memory left to run {self.kernel}, or to note what it accesses")
        program = self.index_of(self.stopped.program)
        site = self.sites[self.stopped.site]
        if self.stopped.reason is Stop.ASSERTION_FAILED:
            return _assertion(self.kernel, program, site)
        if self.stopped.reason is Stop.LOG_FULL:
            return _log_full(self.kernel, program, site)
        return _out_of_fuel(self.kernel, program, site)

    # The accesses in question, as the interpreter's tap would have logged them

    @property
    def _count(self) -> int:
        return len(self.log) // RECORD.itemsize

    def _lines(self) -> tuple[list[Site], list[int]]:
        """All lines of the kernel, and the number of each site's."""
        places = [place_of(site) for site in self.sites]
        lines = {place: number for number, place in enumerate(dict.fromkeys(places))}
        return list(lines), [lines[place] for place in places]

    def _pieces(self, numbers: NDArray[np.int64], fences: Sequence[Fence], lines: NDArray[np.int64]) -> Pieces:
        """Some records; those of one fence are all where the fence is."""
        records = self.records[numbers]
        kinds = np.frombuffer(self.kinds, np.uint8)
        columns = [records[name].astype(np.int64) for name in ("program", "site", "low", "high", "stored")]
        program, site, low, high, stored = columns
        octets = np.frombuffer(self.stored, np.uint8)
        return Pieces(
            self._positions(numbers, fences),
            program,
            kinds[site].astype(np.int64),
            lines[site],
            low,
            high,
            stored,
            octets,
        )

    def _positions(self, numbers: NDArray[np.int64], fences: Sequence[Fence]) -> NDArray[np.int64]:
        """Of records, as fences count: a fence is where its first record is."""
        starts = np.array([fence.position for fence in fences], np.int64)
        if not len(starts):
            return numbers
        sites = np.array([site.acquires or site.releases for site in self.sites], bool)
        first = starts[np.maximum(np.searchsorted(starts, numbers, side="right") - 1, 0)]
        return np.where(sites[self.records["site"][numbers]], first, numbers)

    def _access(self, number: int, lines: Sequence[int]) -> KernelAccess:
        low, high, site, program, stored = self.records[number].tolist()
        values = None
        if stored >= 0:
            octets = np.frombuffer(self.stored, np.uint8, high - low, stored)
            values = (octets, np.ones(len(octets), bool))
        kind, size = kind_of(self.kinds[site]), self.sites[site].size
        return KernelAccess(number, program, kind, lines[site], low, high, None, size, values)

    def _fences(self) -> list[Fence]:
        """The atomics that order, each with all of its lanes, which may fill several records."""
        ordering = [site.acquires or site.releases for site in self.sites]
        records = self.records
        numbers = np.flatnonzero(np.array(ordering, bool)[records["site"]])
        fences: list[tuple[int, int, AccessSite, set[int]]] = []
        last = (-1, -1, -1)
        for number, (low, high, place, program, _) in zip(numbers.tolist(), records[numbers].tolist(), strict=True):
            site = self.sites[place]
            if last != (number - 1, place, program):
                fences.append((number, program, site, set()))
            fences[-1][3].update(range(low, high, site.size))
            last = (number, place, program)
        return [
            Fence(position, program, fence_addresses(addresses, site.size), site.acquires, site.releases)
            for position, program, site, addresses in fences
        ]


def place_of(site: AccessSite) -> Site:
    """The innermost line that is not Triton's own."""
    triton = folder_of("triton")
    own = (place for place in site.location if not place.file.startswith(triton))
    return next(own, site.location[0] if site.location else _UNKNOWN)


def _assertion(kernel: str, program: tuple[int, int, int], site: AccessSite) -> ProgramError:
    return DeviceAssertion(
        kernel,
        program,
        site.location,
        rule=f"device_assert: {site.message or 'the condition is false'}",
        reason="a GPU stops at a failed assertion, and every later call in the process fails",
        remedy="launch the kernel with arguments for which the condition holds, or mend the kernel",
    )


def _out_of_fuel(kernel: str, program: tuple[int, int, int], site: AccessSite) -> ProgramError:
    return OutOfFuel(
        kernel,
        program,
        site.location,
        rule="a loop comes to its end",
        reason="the program spins on a value that no other program can change meanwhile, or loops to a bound that was "
        "overwritten",
        remedy="do not wait for other programs of the launch within a kernel, and check the bound of the loop",
    )


def _log_full(kernel: str, program: tuple[int, int, int], site: AccessSite) -> ProgramError:
    return LogFull(
        kernel,
        program,
        site.location,
        rule="the accesses of a launch, and the bytes that it stores, take no more than the log's limit",
        reason="each access is kept to be checked, and the machine would run out of memory; a loop without end that "
        "accesses memory ends so, too",
        remedy="check the bound of the loop; if it is right, launch fewer programs on less memory, or run without "
        "checks (enabled(check=False))",
    )
