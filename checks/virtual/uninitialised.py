"""Device memory that nobody wrote and that reaches a result (MRV213), found by filling it with something else.

A program is run several times. The runs differ in nothing but the byte that fresh memory holds, so if their data
differ, that byte reached them; a padded lane that is masked off later, or a buffer that is filled before it is used,
changes nothing. Which allocation it was is found by halving: the runs of the answer differ in what this one held.

Sound: a real allocator promises nothing about fresh memory, so each of these runs is one that a GPU could have made.
Missed is what comes out the same for all three bytes (a sum in which the values cancel, a comparison that they all
fail), pageable host memory, which is not poisoned, memory of a graph in its second replay; and the first allocation
hides the others: repair it, and run again. Allocations are told apart by their number, so where several host threads
allocate, the one named can be that of another thread, though the finding stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ..codes import CODES
from ..events import Space, Stack
from ..findings import JSON, Finding, Verdict
from ..happens_before.core import HappensBefore
from ..happens_before.rules import sites
from ..libraries import portable
from .errors import VirtualDeviceError
from .memory import POISON
from .runs import Program, Run, run_program
from .schedules import Schedule

#: What fresh memory holds instead: large and positive where ``POISON`` is negative, which a maximum or an activation
#: would hide; and false where it is true, which masks tell apart.
OTHERS = (0x7B, 0x00)
_MISSING = "(nothing)"


def find_uninitialised(program: Program, schedule: Schedule | str = "early") -> list[Finding]:
    """Look for device memory that reaches what a program returns before anything was written to it.

    Args:
        program: a callable whose runs depend on nothing but the schedule; see ``run_program``.
        schedule: of all runs.

    Returns:
        one finding, whose allocation site is the first one that was found to matter; or none.

    Raises:
        VirtualDeviceError: two runs that should be equal differ; or nothing was found, but no run came to its end.
    """
    base = _twice(program, schedule, POISON)
    for byte in OTHERS:
        spoiled = _Poisoned(program, schedule, byte, None)
        if not spoiled.run.same_outcome(base.run):
            return [_bisect(program, base, _twice(program, schedule, byte))]
    if base.run.error is not None:
        raise _unfinished(base.run.error)
    return []


class _Poisoned(HappensBefore):
    """One run in which the first so many allocations (or all) held another byte; knows where each one was made."""

    def __init__(self, program: Program, schedule: Schedule | str, byte: int, first: int | None) -> None:
        super().__init__()
        self.byte = byte
        self.made: list[tuple[int, Space, Stack]] = []
        self.run = run_program(
            program,
            schedule,
            judge=self,
            poison=lambda number: byte if first is None or number < first else POISON,
        )

    def allocate(self, lane: int, base: int, size: int, space: Space, stack: Stack) -> int:
        """See :class:`EventSink`."""
        self.made.append((size, space, stack))
        return super().allocate(lane, base, size, space, stack)


def _twice(program: Program, schedule: Schedule | str, byte: int) -> _Poisoned:
    """A run that comes out the same when it is repeated."""
    first, second = (_Poisoned(program, schedule, byte, None) for _ in range(2))
    if second.run.same_outcome(first.run):
        return second
    raise _differs(first.run, second.run)


def _bisect(program: Program, base: _Poisoned, spoiled: _Poisoned) -> Finding:
    """With one more allocation spoiled the data change: whatever else matters, that one does.

    The runs on both sides of it are alike until it is made, so its number means the same allocation in both.
    """
    low, high = 0, len(spoiled.made)
    differing = spoiled
    while high - low > 1:
        middle = (low + high) // 2
        tried = _Poisoned(program, base.run.schedule, spoiled.byte, middle)
        if tried.run.same_outcome(base.run):
            low = middle
        else:
            high, differing = middle, tried
    return _finding(base.run, differing.run, low, spoiled)


def _finding(base: Run, spoiled: Run, number: int, poisoned: _Poisoned) -> Finding:
    size, space, stack = poisoned.made[number]
    path, one, two = _difference(base, spoiled)
    evidence: dict[str, JSON] = {
        "result": path,
        "values": [_shown(one), _shown(two)],
        "poison": [POISON, poisoned.byte],
        "space": space.value,
        "block_size": size,
        "allocation": number,
        "schedule": str(base.schedule),
    }
    finding = Finding(
        code="MRV213",
        verdict=Verdict.VIOLATION,
        soundness=CODES["MRV213"].soundness,
        title=f"{space.value} reaches the result before it is written",
        where=sites(stack),
        allocation=sites(stack),
        evidence=evidence,
        remedy="write all of it before it is read, or mask the lanes that were not written where they are read",
    )
    return portable(finding)


def _difference(one: Run, two: Run) -> tuple[str, object, object]:
    """Path and both values of the first leaf that differs; of the errors, if the program raised."""
    if one.error != two.error:
        return "error", one.error or _MISSING, two.error or _MISSING
    left, right = dict(_leaves(one.data, "result")), dict(_leaves(two.data, "result"))
    paths = (path for path in (*left, *right) if repr(left.get(path, _MISSING)) != repr(right.get(path, _MISSING)))
    path = next(paths)
    return path, left.get(path, _MISSING), right.get(path, _MISSING)


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """The values inside of what a program returned, each with the expression that gives it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value


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
    path, first, second = _difference(one, two)
    return VirtualDeviceError(
        "the program",
        f"two runs with the same poison must give the same data; {path} was {first!r} and then {second!r}",
        "a difference between two poisons would say nothing about the memory",
        "a program that keeps nothing between its runs, seeds its random numbers and reads no clock",
    )
