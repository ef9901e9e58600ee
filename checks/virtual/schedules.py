"""When the device runs what: the one place that holds the nondeterminism of a run.

A *moment* is a point of the host's own path at which the device may make progress: an operation was enqueued, memory is
about to be touched, an event is polled. Moments are numbered, and their numbers mean the same place of the program in
every schedule, as long as the program itself goes the same way. So a schedule can be told as a base and a few
deviations from it, and shrunk by leaving some of them out.
"""

from __future__ import annotations

import enum
import math
import random
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import VirtualDeviceError


class Reason(enum.Enum):
    """Why the scheduler is asked."""

    ENQUEUE = "the host enqueued an operation"
    HOST_ACCESS = "the host is about to touch memory"
    HOST_SYNC = "the host waits for an operation"
    FIRST_POLL = "the host asks for the first time whether an operation is over"
    POLL = "the host asks once more whether an operation is over"
    END = "the program is over"


@dataclass(frozen=True, order=True)
class Decision:
    """At a moment, a stream runs its next operation; with None, the host goes on.

    Attributes:
        moment: when.
        stream: id of the stream.
        rush: it runs all that it can at that moment, and not only its next operation; means nothing for the host.
    """

    moment: int
    stream: int | None
    rush: bool = False

    def __str__(self) -> str:
        """As in the text of a schedule: ``41=2``, ``41=2*`` for a rush, ``57=-`` for the host."""
        return f"{self.moment}=-" if self.stream is None else f"{self.moment}={self.stream}{'*' * self.rush}"

    @classmethod
    def parse(cls, text: str) -> Decision:
        """The inverse of ``str``.

        Raises:
            VirtualDeviceError: it is no decision.
        """
        moment, _, stream = text.partition("=")
        number = stream.removesuffix("*")
        if not _is_number(moment) or not (stream == "-" or _is_number(number)):
            raise _no_schedule(text)
        return cls(int(moment), None) if stream == "-" else cls(int(moment), int(number), number != stream)


class Scheduler(Protocol):
    """Decides which stream runs its next operation.

    At each enqueue, host access and poll it is asked at least once, even if no stream is ready; but for ``POLL``, it is
    asked again and again until it answers None. Where it never runs anything at ``POLL``, loops that poll do not end.
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
        """The choices made so far that a replay needs beyond the scheduler's name and seed."""
        ...


class Late:
    """Every operation as late as legal: only what the host waits for runs."""

    def start(self, seed: int) -> None:
        """Nothing to draw."""

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """Progress only where the host polls again; a loop that polls must come to its end."""
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


class Priorities:
    """Random priorities with a few points of change: probabilistic concurrency testing.

    From Burckhardt, Kothari, Musuvathi and Nagarakatte (2010, "A randomized scheduler with probabilistic guarantees of
    finding bugs"). The host and each stream get a random priority, and whoever is highest and can go on does so. At
    ``changes`` questions, drawn before the run, the highest falls below all others. A run with d changes finds each
    fault that needs d + 1 ordering constraints with a probability that has a lower bound.

    The paper draws the points uniformly from the length of the run. It is not known here, so the logarithm of a point
    is drawn uniformly: that costs a factor of at most ln(LONGEST), about 14, per change, whatever the length is.
    """

    LONGEST = 1 << 20
    _HOST = -1

    def __init__(self, number: int = 0, changes: int = 3) -> None:
        self._number = number
        self._changes = changes
        self.start(0)

    def start(self, seed: int) -> None:
        """Draw the points of change; priorities are drawn when somebody is first seen."""
        self._random = random.Random(f"{self._number}/{self._changes}/{seed}")
        span = math.log(self.LONGEST)
        self._points = {int(math.exp(self._random.random() * span)) for _ in range(self._changes)}
        self._priority: dict[int, float] = {self._HOST: self._random.random()}
        self._questions = 0

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """The highest of those that can go on; the host cannot where it waits, and gives way where it polls again."""
        self._questions += 1
        self._priority.update({stream: self._random.random() for stream in ready if stream not in self._priority})
        waits = reason in (Reason.HOST_SYNC, Reason.POLL, Reason.END)
        able = [*ready] if waits and ready else [*ready, self._HOST]
        if self._questions in self._points:
            highest = max(able, key=self._priority.__getitem__)
            self._priority[highest] = min(self._priority.values()) - 1
        highest = max(able, key=self._priority.__getitem__)
        return None if highest == self._HOST else ready.index(highest)

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
        """The first stream that is not starved; the starved one only where the host polls again."""
        for index, stream in enumerate(ready):
            if stream != self._stream:
                return index
        return 0 if reason is Reason.POLL and ready else None

    def decisions(self) -> tuple[Decision, ...]:
        """None: the name says it all."""
        return ()


class Moments:
    """Numbers the moments of a run from the questions that a scheduler is asked.

    Waiting is no moment of its own: whether there is anything to wait for depends on the schedule. What runs then
    could as well have run at the moment before.
    """

    def __init__(self) -> None:
        self.now = -1
        self._open = False

    def question(self, reason: Reason) -> int:
        """The moment that a question belongs to."""
        if not self._open and reason is not Reason.HOST_SYNC and reason is not Reason.END:
            self.now += 1
            self._open = True
        return max(self.now, 0)

    def answer(self, choice: int | None, reason: Reason) -> None:
        """Note the answer; the host goes on after None, and after any answer to ``POLL``."""
        if choice is None or reason is Reason.POLL:
            self._open = False


class Recorder:
    """Notes all that another scheduler decides, as deviations from ``late``."""

    def __init__(self, base: Scheduler) -> None:
        self._base = base
        self.start(0)

    def start(self, seed: int) -> None:
        """Begin a run of the other one."""
        # Plain numbers, since under ``early`` there is a decision for each operation of the run.
        self._taken, self._streams = array("q"), array("q")
        self._moments = Moments()
        self._base.start(seed)

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """What the other one answers."""
        moment = self._moments.question(reason)
        choice = self._base.choose(ready, reason)
        self._moments.answer(choice, reason)
        if choice is not None:
            self._taken.append(moment)
            self._streams.append(ready[choice])
        elif reason is Reason.POLL and ready:  # here ``late`` would run something
            self._taken.append(moment)
            self._streams.append(-1)
        return choice

    @property
    def moments(self) -> int:
        """How many moments the run had so far: a deviation at a later one does nothing."""
        return self._moments.now + 1

    def decisions(self) -> tuple[Decision, ...]:
        """Every operation that ran although nothing forced it to, and where none ran although the host polled again."""
        streams = (None if stream < 0 else stream for stream in self._streams)
        return tuple(map(Decision, self._taken, streams))


class Deviating:
    """A scheduler, but for what some decisions say.

    The decisions of a moment answer its first questions, in their order; one whose stream is not ready is passed over,
    so any subset of a tuple of decisions is a schedule too.
    """

    def __init__(self, base: Scheduler, deviations: Sequence[Decision]) -> None:
        self._base = base
        self._deviations = tuple(deviations)
        self.start(0)

    def start(self, seed: int) -> None:
        """Begin a run."""
        self._base.start(seed)
        self._moments = Moments()
        self._left: defaultdict[int, deque[Decision]] = defaultdict(deque)
        self._applied: list[Decision] = []
        for decision in self._deviations:
            self._left[decision.moment].append(decision)

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """What the next decision of this moment says, else what the base answers."""
        left = self._left.get(self._moments.question(reason))
        while left:
            decision = left[0]
            able = decision.stream is None or decision.stream in ready
            if not (decision.rush and decision.stream in ready):
                left.popleft()
            if able:
                self._apply(decision)
                choice = None if decision.stream is None else ready.index(decision.stream)
                break
        else:
            choice = self._base.choose(ready, reason)
        self._moments.answer(choice, reason)
        return choice

    def _apply(self, decision: Decision) -> None:
        if not (decision.rush and self._applied[-1:] == [decision]):
            self._applied.append(decision)

    def decisions(self) -> tuple[Decision, ...]:
        """The deviations that could be applied."""
        return tuple(self._applied)


@dataclass(frozen=True)
class Schedule:
    """A schedule as a value: a base, its seed, and where it deviates from the base.

    Attributes:
        base: ``late``, ``early``, ``random[:N]``, ``pct[:N[:CHANGES]]``, ``starve[:STREAM]`` or ``explore[:RUNS]``.
        seed: of the base.
        deviations: by moment; a few, or the base was the wrong one.

    Raises:
        VirtualDeviceError: the base is none of these, or the seed has more than 64 bits.
    """

    base: str = "late"
    seed: int = 0
    deviations: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        seeded = type(self.seed) is int and 0 <= self.seed < 1 << 64
        if not (isinstance(self.base, str) and seeded and all(isinstance(item, Decision) for item in self.deviations)):
            raise _no_schedule(str(self))
        _arguments(self.base)

    def __str__(self) -> str:
        """As text, e.g. ``random:3@7+41=2,57=-``: base, seed unless it is 0, deviations."""
        seed = f"@{self.seed}" if self.seed else ""
        return f"{self.base}{seed}" + (f"+{','.join(map(str, self.deviations))}" if self.deviations else "")

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Schedule:
        """The inverse of ``str``.

        Args:
            text: a schedule.
            seed: if the text names none.

        Raises:
            VirtualDeviceError: it is no schedule.
        """
        head, plus, tail = text.partition("+")
        base, at, number = head.partition("@")
        if (at and not _is_number(number)) or (plus and not tail):
            raise _no_schedule(text)
        deviations = tuple(map(Decision.parse, tail.split(","))) if plus else ()
        return cls(base, int(number) if at else seed, deviations)

    def scheduler(self) -> Scheduler:
        """A scheduler for one run, started.

        Raises:
            VirtualDeviceError: the base is ``explore``, which is many runs.
        """
        name, numbers = _arguments(self.base)
        if name == "explore":
            raise VirtualDeviceError(
                f"schedule {str(self)!r}",
                "explore is many runs of one program, and this is one run",
                "each next schedule follows from the races of those before",
                "mrv2.checks.virtual.explore.explore(program), or a schedule that it reports",
            )
        base = _BASES[name](*numbers)
        chosen = Deviating(base, self.deviations) if self.deviations else base
        chosen.start(self.seed)
        return chosen


_BASES: Mapping[str, Callable[..., Scheduler]] = {
    "late": Late,
    "early": Early,
    "random": Random,
    "pct": Priorities,
    "starve": Starve,
}
#: The most changes of priority in a run, which are drawn before it begins; the paper needs a handful.
MOST_CHANGES = 10_000
_DIGITS = 20  # of the largest number of 64 bits
#: How many numbers may follow each name.
_NUMBERS = {"late": 0, "early": 0, "random": 1, "pct": 2, "starve": 1, "explore": 1}


def _arguments(base: str) -> tuple[str, tuple[int, ...]]:
    """Name and numbers of a base."""
    name, *numbers = base.split(":")
    if len(numbers) > _NUMBERS.get(name, -1) or not all(map(_is_number, numbers)):
        raise _no_schedule(base)
    found = tuple(int(number) for number in numbers)
    if name == "pct" and len(found) == 2 and found[1] > MOST_CHANGES:
        raise _no_schedule(base)
    return name, found


def _is_number(text: str) -> bool:
    """Whether it is a whole number of 64 bits, as ``str`` writes it."""
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS and int(text) < 1 << 64


def _no_schedule(text: str) -> VirtualDeviceError:
    return VirtualDeviceError(
        f"schedule {_shown(text)!r}",
        "a schedule is one of late, early, random[:N], pct[:N[:CHANGES]], starve[:STREAM], explore[:RUNS], perhaps "
        "with a seed (@7) and deviations (+41=2,43=1*,57=-: at moment 41 stream 2 runs its next operation, at 43 "
        "stream 1 all that it can, at 57 the host goes on); its numbers have at most 64 bits, and there are at most "
        f"{MOST_CHANGES} changes",
        "the schedule is what makes a run repeatable, so it is never guessed",
        "schedule='late'",
    )


def _shown(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def start_scheduler(schedule: str | Schedule | Scheduler, seed: int) -> Scheduler:
    """A started scheduler from whatever names one; a seed in the schedule itself comes first.

    Raises:
        VirtualDeviceError: the text is no schedule of one run.
    """
    if isinstance(schedule, str):
        schedule = Schedule.parse(schedule, seed)
    if isinstance(schedule, Schedule):
        return schedule.scheduler()
    schedule.start(seed)
    return schedule


def expand(text: str, *, streams: int = 2, seed: int = 0) -> list[Schedule]:
    """The schedules of a list, e.g. ``"late,early,random:3,starve"``.

    Args:
        text: schedules with commas between them; so one of them can have a single deviation, as in ``late+3=1``.
        streams: how many streams the program uses, the default stream included; ``starve`` without a number stands for
            one schedule each.
        seed: of those that name none.

    Raises:
        VirtualDeviceError: one of them is no schedule.
    """
    found: list[Schedule] = []
    for part in text.split(","):
        chosen = Schedule.parse(part.strip(), seed)
        starved = [f"starve:{stream}" for stream in range(streams)] if chosen.base == "starve" else [chosen.base]
        found.extend(Schedule(base, chosen.seed, chosen.deviations) for base in starved)
    return list(dict.fromkeys(found))
