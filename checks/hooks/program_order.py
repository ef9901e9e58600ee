"""Which accesses of a launch atomics order: vector clocks over its fences (Lamport 1978; Fidge 1988; Mattern 1989).

What a program did before it released an address is known to whoever acquires that address later, directly or through
other programs. A clock says for each program up to which position its accesses are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .kernel_log import Fence

Numbers: TypeAlias = NDArray[np.int64]

#: Numbers that the clocks of one pass may take together: 128 MiB. More programs take more passes.
_ROOM = 1 << 24
#: Fences that are followed, counted once for each pass: some seconds.
_STEPS = 1 << 19


class ProgramOrder:
    """The order of the accesses of one launch.

    Args:
        fences: in the order of execution.
        programs: int64, all that will be asked about.
    """

    def __init__(self, fences: Sequence[Fence], programs: Numbers) -> None:
        self._fences = fences
        self._positions = np.array([fence.position for fence in fences], np.int64)
        self._programs = np.unique(programs)
        numbers = {program: number for number, program in enumerate(self._programs.tolist())}
        self._of_fence = [numbers.get(fence.program, -1) for fence in fences]
        self._acquiring = self._keys()
        self._width = max(_ROOM // (len(fences) + 1), 1)

    @property
    def too_large(self) -> bool:
        """Whether there are so many fences and programs that to follow them would take minutes."""
        return -(-len(self._programs) // self._width) * len(self._fences) > _STEPS

    def ordered(self, earlier: Numbers, at: Numbers, later: Numbers, then: Numbers) -> NDArray[np.bool_]:
        """Of each pair, whether the access of one program is known to the later one of the other.

        Args:
            earlier, later: their programs; int64.
            at, then: their positions; int64.
        """
        known = np.zeros(len(earlier), bool)
        fence = self._last_acquiring(later, then)
        wanted = np.flatnonzero((fence >= 0) & (earlier != later))
        columns = np.searchsorted(self._programs, earlier)
        for low in range(0, len(self._programs), self._width):
            chosen = wanted[(columns[wanted] >= low) & (columns[wanted] < low + self._width)]
            if len(chosen):
                self._pass(low, chosen, fence, columns, at, known)
        return known

    def _keys(self) -> Numbers:
        """Acquiring fences as numbers that sort by program and then position."""
        span = len(self._fences) + 1
        keys = [
            program * span + number
            for number, (fence, program) in enumerate(zip(self._fences, self._of_fence, strict=True))
            if fence.acquires and program >= 0
        ]
        return np.sort(np.array(keys, np.int64))

    def _last_acquiring(self, programs: Numbers, positions: Numbers) -> Numbers:
        """The number of the last fence of each program, up to a position, that acquires; -1 if there is none."""
        if not len(self._acquiring):
            return np.full(len(programs), -1)
        span = len(self._fences) + 1
        numbers = np.searchsorted(self._programs, programs)
        before = np.searchsorted(self._positions, positions, side="right")
        found = np.searchsorted(self._acquiring, numbers * span + before) - 1
        key = self._acquiring[np.maximum(found, 0)]
        return np.where((found >= 0) & (key // span == numbers), key % span, -1)

    def _pass(
        self, low: int, chosen: Numbers, fence: Numbers, columns: Numbers, at: Numbers, known: NDArray[np.bool_]
    ) -> None:
        """Follow the clocks of some of the programs through the launch, and answer the pairs about these."""
        chosen = chosen[np.argsort(fence[chosen], kind="stable")]
        starts = np.searchsorted(fence[chosen], np.arange(len(self._fences) + 1))
        clocks: dict[int, Numbers] = {}
        released: dict[int, Numbers] = {}
        nothing = np.full(min(self._width, len(self._programs) - low), -1, np.int64)
        for number, event in enumerate(self._fences):
            clock = clocks.get(event.program, nothing)
            if event.acquires:
                clock = clocks[event.program] = _joined(clock, released, event.addresses)
                asked = chosen[starts[number] : starts[number + 1]]
                known[asked] = at[asked] <= clock[columns[asked] - low]
            if event.releases:
                self._release(event, self._of_fence[number] - low, clock, released)

    def _release(self, event: Fence, column: int, clock: Numbers, released: dict[int, Numbers]) -> None:
        if 0 <= column < len(clock):
            clock = clock.copy()
            clock[column] = event.position
        merged: dict[int, Numbers] = {}
        for address in event.addresses:
            before = released.get(address)
            if before is None or event.acquires:  # then the clock holds it
                released[address] = clock
            else:
                if id(before) not in merged:
                    merged[id(before)] = np.maximum(before, clock)
                released[address] = merged[id(before)]


def _joined(clock: Numbers, released: Mapping[int, Numbers], addresses: frozenset[int]) -> Numbers:
    """A clock that knows what was released at the addresses as well."""
    for other in {id(found): found for address in addresses if (found := released.get(address)) is not None}.values():
        clock = np.maximum(clock, other)
    return clock
