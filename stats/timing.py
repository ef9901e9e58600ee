"""The time of an audit: asked between calls of a sampler, so that a run ends when it was told to.

A call cannot be interrupted, so calls are kept short: they start small, and grow as long as they are quick.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

_FIRST = 16  # draws of a first call; a multiple of it has the alignment that compiled kernels like
_GROWTH = 8
_CALL_SECONDS = 1.0  # longest call that is meant; a shorter time that is left allows a quarter of it


@dataclass(frozen=True)
class TimeBudget:
    """How long a run may still take.

    Attributes:
        clock: seconds from any start.
        end: what the clock shows when time is over; infinite if it never is.
    """

    clock: Callable[[], float] = time.perf_counter
    end: float = math.inf

    @property
    def limited(self) -> bool:
        """Whether there is an end at all."""
        return math.isfinite(self.end)

    def left(self) -> float:
        """Seconds until the end, at least 0; infinite if there is none."""
        return max(0.0, self.end - self.clock()) if self.limited else math.inf

    def over(self) -> bool:
        """Whether time is over."""
        return self.left() == 0.0

    def until(self, end: float) -> TimeBudget:
        """The same time with another end, by the same clock."""
        return replace(self, end=end)

    def calls(self, count: int, most: int) -> Iterator[slice]:
        """See :meth:`Pace.calls`, for one sequence of calls."""
        return Pace(self).calls(count, most)


class Pace:
    """How many draws fit into one call, learned from call to call; without an end, as many as there may be.

    Args:
        budget: the time.
    """

    def __init__(self, budget: TimeBudget) -> None:
        self._budget = budget
        self._size = _FIRST

    def calls(self, count: int, most: int) -> Iterator[slice]:
        """Parts of ``range(count)``, in order; all of them unless time is over, and the first one in any case.

        What is done with a part, until the next one is asked for, is taken for the time of its call.

        Args:
            count: draws.
            most: of one call.
        """
        start = 0
        while start < count and not (start and self._budget.over()):
            size = min(self._size, most) if self._budget.limited else most
            begun = self._budget.clock() if self._budget.limited else 0.0
            part = slice(start, min(start + size, count))
            yield part
            if self._budget.limited:
                self._learn(size, self._budget.clock() - begun)
            start = part.stop

    def _learn(self, size: int, took: float) -> None:
        """As if time were proportional to draws; a call that costs much whatever its size grows step by step."""
        meant = min(_CALL_SECONDS, self._budget.left() / 4)
        wanted = size * min(float(_GROWTH), meant / took if took else _GROWTH)
        rounded = int(wanted) // _FIRST * _FIRST if wanted >= _FIRST else int(wanted)
        self._size = max(1, size // 2, rounded)


UNLIMITED = TimeBudget()
