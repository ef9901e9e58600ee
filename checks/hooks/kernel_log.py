"""What one launch of a kernel did to memory, access by access."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..events import ByteRange
from ..findings import Site
from .byte_ranges import Addresses, merged_intervals, merged_lanes, merged_ranges

#: Bytes that one access takes, its lanes aside.
_ACCESS = 256


class AccessKind(enum.IntEnum):
    """What an access does; an atomic one reads and writes, and does not conflict with another atomic one."""

    READ = 0
    WRITE = 1
    ATOMIC = 2

    @property
    def verb(self) -> str:
        """For people."""
        return ("reads", "writes", "updates atomically")[self]


def conflict_kind(kind: AccessKind, size: int) -> int:
    """A kind as conflicts count it: two accesses of one kind are atomic to each other, or both read or both write.

    Atomics of each width are a kind of their own, numbered from ``AccessKind.ATOMIC`` on: those of different widths
    that overlap are not atomic to each other (PTX, memory consistency model: they must overlap completely).
    """
    return kind + size.bit_length() - 1 if kind is AccessKind.ATOMIC else int(kind)


def kind_of(number: int) -> AccessKind:
    """The kind that a number of ``conflict_kind`` stands for."""
    return AccessKind(min(number, AccessKind.ATOMIC))


def fence_addresses(addresses: Iterable[int], size: int) -> frozenset[int]:
    """Where an atomic orders: numbers that are equal only for lanes of one address and one width, in bytes."""
    return frozenset(16 * address + size for address in addresses)


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """One load, store or atomic of one program.

    Attributes:
        position: number of accesses in the log before it.
        program: number of the program in the order of execution.
        kind: what it does.
        site: where in the kernel, an index into the log's sites.
        low, high: the addresses [low, high) hold all of it.
        lanes: first address of each lane that is not masked off; None if the lanes fill [low, high).
        size: bytes of a lane.
        stored: for a store, its values and its mask, one for each lane.
    """

    position: int
    program: int
    kind: AccessKind
    site: int
    low: int
    high: int
    lanes: Addresses | None
    size: int
    stored: tuple[Any, Any] | None = None

    def runs(self) -> tuple[Addresses, Addresses]:
        """Sorted, disjoint byte ranges: first and one-past-last addresses."""
        if self.lanes is None:
            return np.array([self.low]), np.array([self.high])
        return merged_lanes(self.lanes, self.size)

    def touches(self, low: int, high: int) -> bool:
        """Whether a lane has a byte within [low, high)."""
        if self.low >= high or low >= self.high:
            return False
        lows, highs = self.runs()
        return bool(((lows < high) & (low < highs)).any())


@dataclass(frozen=True)
class StrayLanes:
    """Lanes of one access of one program that lie outside of all memory: the hull of their bytes, and their number."""

    kind: AccessKind
    site: Site
    program: int
    low: int
    high: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Fence:
    """An atomic that orders: what a program did before it is seen by whoever acquires the same address later.

    Attributes:
        position: of its own access, the next one in the log.
        program: whose it is.
        addresses: of its lanes, as ``fence_addresses`` numbers them.
        acquires: whether it sees what others have released.
        releases: whether others see what came before it.
    """

    position: int
    program: int
    addresses: frozenset[int]
    acquires: bool
    releases: bool


@dataclass
class KernelLog:
    """All accesses of one launch, in the order of execution."""

    accesses: list[KernelAccess] = field(default_factory=list)
    fences: list[Fence] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)

    def ranges(self, *, write: bool) -> list[ByteRange]:
        """Sorted, disjoint byte ranges that the launch writes (atomics included), or reads."""
        chosen = [access for access in self.accesses if (access.kind is AccessKind.READ) is not write]
        if all(access.lanes is None for access in chosen):
            return merged_ranges(sorted({(access.low, access.high) for access in chosen}))
        lows, highs, _ = columns(chosen)
        lows, highs = merged_intervals(lows, highs)
        return list(zip(lows.tolist(), highs.tolist(), strict=True))

    def size(self) -> int:
        """Bytes that it takes, roughly: each access with its addresses, and its values and mask if it is a store."""
        lanes = sum(0 if access.lanes is None else access.lanes.nbytes for access in self.accesses)
        return _ACCESS * len(self.accesses) + 3 * lanes

    def lines(self, low: int, high: int, *, write: bool) -> list[Site]:
        """The lines that write (atomics included), or read, bytes within [low, high), in the order of execution."""
        found = (access for access in self.accesses if (access.kind is AccessKind.READ) is not write)
        return list(dict.fromkeys(self.sites[access.site] for access in found if access.touches(low, high)))


def columns(accesses: Sequence[KernelAccess]) -> tuple[Addresses, Addresses, NDArray[np.int64]]:
    """First and one-past-last addresses of all byte ranges, and the program of each."""
    rows = [(access.low, access.high, access.program) for access in accesses if access.lanes is None]
    pieces = [np.array(rows, dtype=np.int64).reshape(-1, 3)]
    for access in accesses:
        if access.lanes is not None:
            lows, highs = access.runs()
            pieces.append(np.stack([lows, highs, np.full(len(lows), access.program)], axis=1))
    lows, highs, programs = np.concatenate(pieces).T
    return lows, highs, programs


def grid_index(program: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Grid index of a program by its number, z innermost."""
    _, y, z = grid
    return program // (y * z), program // z % y, program % z
