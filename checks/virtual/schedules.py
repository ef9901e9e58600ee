"""When the device runs what: the one place that holds the nondeterminism of a run."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import VirtualDeviceError


class Reason(enum.Enum):
    """The moment at which the device may make progress."""

    ENQUEUE = "the host enqueued an operation"
    HOST_ACCESS = "the host is about to touch memory"
    HOST_SYNC = "the host waits for an operation"
    POLL = "the host asks whether an operation is over"
    END = "the program is over"


@dataclass(frozen=True)
class Decision:
    """A choice that was not forced: the stream whose next operation ran, at the ``moment``-th question."""

    moment: int
    stream: int


class Scheduler(Protocol):
    """Decides which stream runs its next operation.

    It is asked again and again at one moment, until it answers None.
    """

    def start(self, seed: int) -> None:
        """Begin a run; equal seeds give equal answers to equal questions."""
        ...

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """An index into ``ready``, the ids of the streams whose head may run, or None to let the host go on.

        None at ``HOST_SYNC`` and ``END`` means: run only what is needed, in the order of enqueuing.
        """
        ...

    def decisions(self) -> tuple[Decision, ...]:
        """The choices made so far, for a replay."""
        ...


class Late:
    """Every operation as late as legal: only what the host waits for runs."""

    def start(self, seed: int) -> None:
        """Nothing to draw."""

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """Progress only where the host polls; a loop that polls must come to its end."""
        return 0 if reason is Reason.POLL and ready else None

    def decisions(self) -> tuple[Decision, ...]:
        """None: the name says it all."""
        return ()


class Early:
    """Every operation at once, as on an idle device."""

    def start(self, seed: int) -> None:
        """Nothing to draw."""

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """The first stream that can run."""
        return 0 if ready else None

    def decisions(self) -> tuple[Decision, ...]:
        """None: the name says it all."""
        return ()


class Random:
    """A few operations, of streams drawn at random, at each moment."""

    def __init__(self, number: int = 0) -> None:
        self._number = number
        self._random = random.Random(number)

    def start(self, seed: int) -> None:
        """Seed with the number of this schedule and that of the run."""
        self._random = random.Random(f"{self._number}/{seed}")

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """Stop with probability two thirds, else a stream."""
        if not ready or self._random.randrange(3):
            return None
        return self._random.randrange(len(ready))

    def decisions(self) -> tuple[Decision, ...]:
        """None: name and seed say it all."""
        return ()


class Starve:
    """Every stream but one runs at once; that one runs only when it is waited for."""

    def __init__(self, stream: int = 0) -> None:
        self._stream = stream

    def start(self, seed: int) -> None:
        """Nothing to draw."""

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """The first stream that is not starved; the starved one only where the host polls."""
        for index, stream in enumerate(ready):
            if stream != self._stream:
                return index
        return 0 if reason is Reason.POLL and ready else None

    def decisions(self) -> tuple[Decision, ...]:
        """None: the name says it all."""
        return ()


def parse_schedule(text: str) -> Scheduler:
    """A scheduler from ``late``, ``early``, ``random[:N]`` or ``starve[:STREAM]``.

    Raises:
        VirtualDeviceError: it is none of these.
    """
    name, _, argument = text.partition(":")
    if name in ("late", "early") and not argument:
        return Late() if name == "late" else Early()
    if name in ("random", "starve") and (argument or "0").isdecimal():
        return Random(int(argument or 0)) if name == "random" else Starve(int(argument or 0))
    raise VirtualDeviceError(
        f"schedule {text!r}",
        "a schedule is one of late, early, random[:N], starve[:STREAM]",
        "the schedule is what makes a run repeatable, so it is never guessed",
        "schedule='late'",
    )
