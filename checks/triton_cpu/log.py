"""What one launch did: its accesses, the lanes that strayed, and why it ended."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..events import ByteRange
from ..findings import Site
from ..hooks.kernel_conflicts import Conflict, conflicts
from ..hooks.kernel_log import AccessKind, Fence, KernelAccess, KernelLog, StrayLanes, grid_index
from ..libraries import folder_of
from .emit.source import AccessSite
from .errors import DeviceAssertion, OutOfFuel, ProgramError
from .support import support

#: Fields of ``Record``: half-open range of addresses, place in the site table, number of the program, where the stored
#: bytes begin (-1 if it is no store).
RECORD = np.dtype([("low", "u8"), ("high", "u8"), ("site", "i4"), ("program", "i4"), ("stored", "i8")])
#: Fields of ``Stray``: hull of the addresses of lanes outside of all blocks, site, program, number of lanes.
STRAY = np.dtype([("low", "u8"), ("high", "u8"), ("site", "i4"), ("program", "i4"), ("lanes", "i8")])

_READS, _WRITES = 1 << AccessKind.READ, 1 << AccessKind.WRITE | 1 << AccessKind.ATOMIC
#: Records that are judged one by one; more are of the same lines.
_JUDGED = 4096
_UNKNOWN = Site("", 0, "")


class Stop(enum.IntEnum):
    """Why a launch ended early; numbered as in launch.h."""

    OUT_OF_FUEL = 1
    ASSERTION_FAILED = 2
    OUT_OF_MEMORY = 3


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
        kinds: one byte for each site: what it does to memory.
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
        merged = support().merged(self.log, self._count, self.kinds, wanted)
        return [(low, high) for low, high in merged.tolist()]

    def conflicts(self) -> tuple[list[Conflict], list[Site]]:
        """Conflicts between programs, one for each pair of lines, judged as those of an interpreted launch.

        Of a launch with very many conflicting accesses a part is judged, some of each line.

        Returns:
            The conflicts, and the lines that their sites are numbers of.
        """
        if not self.log or self.grid == (1, 1, 1):
            return [], []
        disputed = support().disputed(self.log, self._count, self.kinds)
        if disputed is None:
            return [], []
        records = self.records
        numbers = _some_of_each(support().touching(self.log, self._count, disputed[:_JUDGED]), records["site"])
        log, programs = self._kernel_log(numbers)
        return [_with_programs(conflict, programs) for conflict in conflicts(log)], log.sites

    def stray_lanes(self) -> list[StrayLanes]:
        """The lanes outside of all memory, by access and program, with their lines."""
        if not self.stray_log:
            return []
        found = []
        for low, high, site, program, lanes in self.strays.tolist():
            kind = AccessKind(self.kinds[site])
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
        return _out_of_fuel(self.kernel, program, site)

    # The accesses in question, as the interpreter's tap would have logged them

    @property
    def _count(self) -> int:
        return len(self.log) // RECORD.itemsize

    def _kernel_log(self, numbers: NDArray[np.int64]) -> tuple[KernelLog, list[int]]:
        """Some records, and all fences; programs are numbered anew, for a judge who counts on small numbers."""
        places = [place_of(site) for site in self.sites]
        lines = {place: number for number, place in enumerate(dict.fromkeys(places))}
        accesses = [self._access(number, [lines[place] for place in places]) for number in numbers.tolist()]
        fences = self._fences()
        programs = {
            program: number for number, program in enumerate(dict.fromkeys(a.program for a in accesses + fences))
        }
        renumbered = [replace(access, program=programs[access.program]) for access in accesses]
        ordered = [replace(fence, program=programs[fence.program]) for fence in fences]
        return KernelLog(renumbered, ordered, list(lines)), list(programs)

    def _access(self, number: int, lines: Sequence[int]) -> KernelAccess:
        low, high, site, program, stored = self.records[number].tolist()
        values = None
        if stored >= 0:
            octets = np.frombuffer(self.stored, np.uint8, high - low, stored)
            values = (octets, np.ones(len(octets), bool))
        kind, size = AccessKind(self.kinds[site]), self.sites[site].size
        return KernelAccess(number, program, kind, lines[site], low, high, None, size, values)

    def _fences(self) -> list[Fence]:
        """The atomics that order, each with all of its lanes, which may fill several records."""
        ordering = [site.acquires or site.releases for site in self.sites]
        records = self.records
        numbers = np.flatnonzero(np.array(ordering, bool)[records["site"]])
        fences: list[Fence] = []
        last = (-1, -1, -1)
        for number, (low, high, place, program, _) in zip(numbers.tolist(), records[numbers].tolist(), strict=True):
            site = self.sites[place]
            addresses = frozenset(range(low, high, site.size))
            if last == (number - 1, place, program):
                before = fences.pop()
                addresses, number_of_first = addresses | before.addresses, before.position
            else:
                number_of_first = number
            fences.append(Fence(number_of_first, program, addresses, site.acquires, site.releases))
            last = (number, place, program)
        return fences


def place_of(site: AccessSite) -> Site:
    """The innermost line that is not Triton's own."""
    triton = folder_of("triton")
    own = (place for place in site.location if not place.file.startswith(triton))
    return next(own, site.location[0] if site.location else _UNKNOWN)


def _with_programs(conflict: Conflict, programs: Sequence[int]) -> Conflict:
    """The same, with the programs' own numbers."""
    earlier, later = (replace(side, program=programs[side.program]) for side in (conflict.earlier, conflict.later))
    return replace(conflict, earlier=earlier, later=later)


def _some_of_each(numbers: NDArray[np.int64], sites: NDArray[np.int32]) -> NDArray[np.int64]:
    """All records if they are few, else as many of each site, spread over the launch."""
    if len(numbers) <= _JUDGED:
        return numbers
    chosen = []
    groups = [numbers[sites[numbers] == site] for site in np.unique(sites[numbers])]
    for group in groups:
        quota = max(2, _JUDGED // len(groups))
        chosen.append(group[np.unique(np.linspace(0, len(group) - 1, min(quota, len(group))).astype(np.int64))])
    return np.sort(np.concatenate(chosen))


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
