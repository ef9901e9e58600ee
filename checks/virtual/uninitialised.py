"""Values that nobody wrote and that reach a result (MRV213), found by making them something else.

These are fresh memory, and the lanes of a kernel that a load masks off without saying what they hold (``other``). A
program is run several times. The runs differ in nothing but the byte that these hold, so if their data differ, that
byte reached them; a padded lane that is masked off later, or a buffer that is filled before it is used, changes
nothing. Which allocation it was, or which load of which launch, is found by halving: the runs of the answer differ in
it alone.

Sound: a GPU promises nothing about either, so each of these runs is one that it could have made. Missed is what comes
out the same for all three bytes (a sum in which the values cancel, a comparison that they all fail), pageable host
memory, which is not poisoned, memory of a graph in its second replay, lanes that an atomic masks off; and the first
one hides the others, an allocation all lanes: repair it, and run again. Allocations and loads are told apart by their
number, so where several host threads allocate, the one named can be that of another thread, though the finding stands.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from ..codes import CODES
from ..events import Space, Stack
from ..findings import JSON, Finding, Site, Verdict
from ..happens_before.core import HappensBefore
from ..happens_before.rules import sites
from ..libraries import portable
from .errors import VirtualDeviceError
from .memory import POISON
from .outcomes import first_difference
from .runs import Program, Run, run_program
from .schedules import Schedule
from .streams import active_runtime

#: What fresh memory holds instead: large and positive where ``POISON`` is negative, which a maximum or an activation
#: would hide; and false where it is true, which masks tell apart.
OTHERS = (0x7B, 0x00)
_ALL = math.inf


def find_uninitialised(program: Program, schedule: Schedule | str = "early") -> list[Finding]:
    """Look for fresh memory, and masked-off lanes without ``other``, that reach what a program returns.

    Args:
        program: a callable whose runs depend on nothing but the schedule; see ``run_program``.
        schedule: of all runs.

    Returns:
        one finding: of the first allocation that was found to matter, with its place, else of the first load, with its
        line in the kernel and the launch; or none.

    Raises:
        VirtualDeviceError: two runs that should be equal differ; or nothing was found, but no run came to its end.
    """
    base = _twice(program, schedule, POISON)
    for byte in OTHERS:
        if not _Poisoned(program, schedule, byte).run.same_outcome(base.run):
            return [_cause(program, base, _twice(program, schedule, byte))]
    if base.run.ending is not None:
        raise _unfinished(base.run.ending)
    return []


class _Poisoned(HappensBefore):
    """One run in which the first so many allocations, and masked loads, held another byte; knows where each one was.

    Args:
        program, schedule: what is run.
        byte: the other one.
        allocations: how many of them held it; by default all.
        loads: of how many masked loads the lanes held it; by default of all.
    """

    def __init__(
        self, program: Program, schedule: Schedule | str, byte: int, allocations: float = _ALL, loads: float = _ALL
    ) -> None:
        super().__init__()
        self.byte = byte
        self.made: list[tuple[int, Space, Stack]] = []
        self.loads: list[tuple[Site, Stack]] = []
        self._loads = loads
        self.run = run_program(
            program,
            schedule,
            judge=self,
            poison=lambda number: byte if number < allocations else POISON,
            masked_lanes=self._load,
        )

    def allocate(self, lane: int, base: int, size: int, space: Space, stack: Stack) -> int:
        """See :class:`EventSink`."""
        self.made.append((size, space, stack))
        return super().allocate(lane, base, size, space, stack)

    def _load(self, place: Site) -> int:
        """The byte for the next masked load."""
        launch = active_runtime().running
        assert launch is not None
        self.loads.append((place, launch.stack))
        return self.byte if len(self.loads) <= self._loads else POISON


def _twice(program: Program, schedule: Schedule | str, byte: int) -> _Poisoned:
    """A run that comes out the same when it is repeated."""
    first, second = (_Poisoned(program, schedule, byte) for _ in range(2))
    if second.run.same_outcome(first.run):
        return second
    raise _differs(first.run, second.run)


def _cause(program: Program, base: _Poisoned, spoiled: _Poisoned) -> Finding:
    """Of an allocation if spoiling all of them is enough, else of a masked load."""
    tried = functools.partial(_Poisoned, program, base.run.schedule, spoiled.byte)
    memory = tried(loads=0)
    if memory.run.same_outcome(base.run):
        number, differing = _bisect(base, spoiled, len(spoiled.loads), lambda count: tried(loads=count))
        return _lane_finding(base, differing, number, spoiled)
    number, differing = _bisect(base, memory, len(memory.made), lambda count: tried(allocations=count, loads=0))
    return _memory_finding(base, differing, number, memory)


def _bisect(
    base: _Poisoned, spoiled: _Poisoned, count: int, tried: Callable[[int], _Poisoned]
) -> tuple[int, _Poisoned]:
    """With one more of them spoiled the data change: whatever else matters, that one does.

    The runs on both sides of it are alike until it comes, so its number means the same in both.

    Returns:
        its number, and the run in which it is the last one that is spoiled.
    """
    low, high, differing = 0, count, spoiled
    while high - low > 1:
        middle = (low + high) // 2
        run = tried(middle)
        if run.run.same_outcome(base.run):
            low = middle
        else:
            high, differing = middle, run
    return low, differing


def _memory_finding(base: _Poisoned, differing: _Poisoned, number: int, poisoned: _Poisoned) -> Finding:
    size, space, stack = poisoned.made[number]
    return portable(
        Finding(
            code="MRV213",
            verdict=Verdict.VIOLATION,
            soundness=CODES["MRV213"].soundness,
            title=f"{space.value} reaches the result before it is written",
            where=sites(stack),
            allocation=sites(stack),
            evidence=_evidence(base, differing, space=space.value, block_size=size, allocation=number),
            remedy="write all of it before it is read, or mask the lanes that were not written where they are read",
        )
    )


def _lane_finding(base: _Poisoned, differing: _Poisoned, number: int, poisoned: _Poisoned) -> Finding:
    place, stack = poisoned.loads[number]
    return portable(
        Finding(
            code="MRV213",
            verdict=Verdict.VIOLATION,
            soundness=CODES["MRV213"].soundness,
            title=f"lanes of {place.function} that are masked off reach the result",
            where=(place, *sites(stack)),
            evidence=_evidence(base, differing, kernel=place.function, load=number),
            remedy="give the load an other=, the value that changes nothing (0 for a sum, -inf for a maximum)",
        )
    )


def _evidence(base: _Poisoned, differing: _Poisoned, **facts: JSON) -> dict[str, JSON]:
    path, one, two = first_difference(base.run, differing.run)
    return {
        "result": path,
        "values": [_shown(one), _shown(two)],
        "poison": [POISON, differing.byte],
        **facts,
        "schedule": str(base.run.schedule),
    }


def _shown(value: object) -> JSON:
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    return value if isinstance(value, str | int | None) else repr(value)


def _unfinished(error: str) -> VirtualDeviceError:
    return VirtualDeviceError(
        "the program",
        f"it must come to its end; it raised {error}",
        "what it returns is compared, and there is nothing to compare",
        "a program that runs with device='cuda' and returns what it computed",
    )


def _differs(one: Run, two: Run) -> VirtualDeviceError:
    path, first, second = first_difference(one, two)
    return VirtualDeviceError(
        "the program",
        f"two runs with the same poison must give the same data; {path} was {first!r} and then {second!r}",
        "a difference between two poisons would say nothing about the memory",
        "a program that keeps nothing between its runs, seeds its random numbers and reads no clock",
    )
