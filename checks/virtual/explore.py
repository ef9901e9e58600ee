"""All orders that can make a difference: exhaustive exploration with partial-order reduction.

Two runs in which every pair of conflicting operations has the same order compute the same thing (Mazurkiewicz, 1977),
so one run of each class is enough. As in dynamic partial-order reduction (Flanagan and Godefroid, 2005), the pairs to
branch at are found by running: those accesses of one run that conflict and that nothing orders. Clocks are fixed when
an operation is enqueued, so a pair stays a pair in every schedule, and a class is a choice of one direction for each.
What a poll answers decides the program's way: the first poll of what is not over answers no, or yes after all that
comes before it has run; from the second on, one more operation runs at each. Each next run keeps the directions of
some pairs and turns one round; by keeping those before it as they were, no class is met twice, which is what sleep
sets are for elsewhere. Directions that contradict the order of the program or each other make a cycle; they are left
out, and nothing is lost, because no run has them.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias, cast

from ..events import LaneKind, OperationKind, Stack
from ..happens_before.core import HappensBefore
from ..happens_before.shadow import Access, Block, Operation
from .queues import PendingOperation
from .runs import Program, Run, run_program
from .runtime import Runtime
from .schedules import Decision, Reason, Schedule
from .transcript import Entry

RUNS = 100

#: An operation by lane and place in the lane: the same one in every run that came the same way there.
Name: TypeAlias = tuple[int, int]
#: Two operations, the one that runs first first.
Direction: TypeAlias = tuple[Name, Name]
#: What the first poll of something answers, by the name of what it asks about.
Answers: TypeAlias = dict[Name, bool]


@dataclass(frozen=True)
class Exploration:
    """What an exploration came to.

    Attributes:
        runs: one for each class of schedules met, ``late`` first.
        exhausted: whether these are all there are; False if the limit came first.
    """

    runs: tuple[Run, ...]
    exhausted: bool

    @property
    def outcomes(self) -> int:
        """How many different results the program can have."""
        return len({repr((run.data, run.error)) for run in self.runs})


def explore(program: Program, runs: int = RUNS) -> Exploration:
    """Run a program once for each order of its conflicting operations, and for each answer of its polls.

    Of the polls of one record the first is a choice, so a program that takes several answers of no can have more
    outcomes. Exact for one host thread; the order of several host threads is the machine's own. It grows
    exponentially with the number of pairs that race: a program without races is done in one run.

    Args:
        program: see :func:`mrv2.checks.virtual.runs.run_program`.
        runs: stop after so many.
    """
    done: list[Run] = []
    waiting: list[tuple[tuple[Direction, ...], Answers]] = [((), {})]
    while waiting and len(done) < runs:
        directions, answers = waiting.pop()
        run, met = _run(program, directions, answers)
        done.append(run)
        turned = [(directions, other) for other in _answers(answers, met)]
        answers = {**dict.fromkeys(met.polls, False), **answers}
        turned.extend((other, answers) for other in _branches(directions, met))
        waiting.extend(reversed(turned))
    return Exploration(tuple(done), not waiting)


def _branches(directions: tuple[Direction, ...], met: Met) -> Iterator[tuple[Direction, ...]]:
    """For each pair that this run decided by itself: what it decided before that one, and that one turned round."""
    kept = list(directions)
    decided = {frozenset(direction) for direction in directions}
    for direction in met.directions():
        if frozenset(direction) in decided:
            continue
        turned = (*kept, (direction[1], direction[0]))
        if met.possible(turned):
            yield turned
        kept.append(direction)


def _answers(answers: Answers, met: Met) -> Iterator[Answers]:
    """For each poll that this run answered with no by itself: the same up to there, and yes."""
    kept = dict(answers)
    for name in met.polls:
        if name not in answers:
            yield {**kept, name: True}
            kept[name] = False


def _run(program: Program, directions: tuple[Direction, ...], answers: Answers) -> tuple[Run, Met]:
    met = Met()
    scheduler = _Ordered(met, directions, answers)
    run = run_program(program, "late", judge=met, scheduler=scheduler, hooks=(scheduler.bind,), note=met.note)
    return replace(run, schedule=Schedule("late", 0, run.decisions)), met


class Met(HappensBefore):
    """The judge, who also keeps what an exploration needs: the pairs without an order, and the order they ran in.

    Frees are left out: what a block holds after it was given away is no operation of the program.
    """

    def __init__(self) -> None:
        super().__init__()
        self.executed: dict[Name, int] = {}
        self.names: dict[int, Name] = {}
        self.polls: list[Name] = []
        self._hosts: set[int] = set()
        self._counts: Counter[int] = Counter()
        self._found: dict[Name, Operation] = {}
        self._accesses: defaultdict[int, list[Access]] = defaultdict(list)
        self._pairs: set[frozenset[Name]] = set()

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :class:`EventSink`."""
        number = super().lane(kind, name)
        if kind is LaneKind.HOST:
            self._hosts.add(number)
        return number

    def next_on(self, lane: int) -> Name:
        """The name of the operation that comes next on a lane."""
        return lane, self._counts[lane]

    def operation(
        self,
        lane: int,
        kind: OperationKind,
        name: str,
        stack: Stack,
        *,
        issuer: int | None = None,
        step: int | None = None,
        open: bool = False,  # noqa: A002 - the contract's name
    ) -> int:
        """See :class:`EventSink`; what a host does happens when it is told."""
        number = super().operation(lane, kind, name, stack, issuer=issuer, step=step, open=open)
        own = self.names[number] = self.next_on(lane)
        self._counts[lane] += 1
        self._found[own] = self._operations[number]
        if lane in self._hosts:
            self.executed[own] = len(self.executed)
        return number

    def note(self, entry: Entry) -> None:
        """Take an entry of the transcript: what a stream does happens when it runs."""
        if entry[0] == "run":
            self.executed[self.names[cast(int, entry[1])]] = len(self.executed)

    def _record(self, block: Block, access: Access) -> None:
        """Compare with every earlier access; the shadow would leave out those that other ones stand for."""
        mine = access.operation
        if mine.kind is not OperationKind.FREE:
            for other in self._accesses[block.number]:
                if _conflict(access, other) and not mine.covers(other.operation) and not other.operation.covers(mine):
                    self._pairs.add(frozenset((self.names[mine.number], self.names[other.operation.number])))
            self._accesses[block.number].append(access)
        super()._record(block, access)

    def directions(self) -> list[Direction]:
        """Each pair in the order in which it ran, and they in the order in which the program asked for them."""
        ordered = [cast(Direction, tuple(sorted(pair, key=self.executed.__getitem__))) for pair in self._pairs]
        return sorted(
            ordered, key=lambda direction: sorted((self._number_of(name) for name in direction), reverse=True)
        )

    def _number_of(self, name: Name) -> int:
        return self._found[name].number

    def possible(self, directions: Sequence[Direction]) -> bool:
        """Whether directions contradict neither each other nor the order that the program asks for."""
        after: dict[Name, set[Name]] = {name: set() for direction in directions for name in direction}
        for first, second in directions:
            after[first].add(second)
        met = [name for name in after if name in self._found]  # others were on a way that the program did not go
        for first, second in itertools.permutations(met, 2):
            if self._found[second].covers(self._found[first]):
                after[first].add(second)
        try:
            TopologicalSorter(after).prepare()
        except CycleError:
            return False
        return True


def _conflict(one: Access, two: Access) -> bool:
    return one.low < two.high and two.low < one.high and (one.write or two.write)


class _Ordered:
    """As late as possible, but the given pairs run in the given direction, and the given polls answer as given."""

    def __init__(self, met: Met, directions: Sequence[Direction], answers: Answers) -> None:
        self._met = met
        self._answers = answers
        self._before: defaultdict[Name, list[Name]] = defaultdict(list)
        for first, second in directions:
            self._before[second].append(first)

    def bind(self, runtime: Runtime) -> Callable[[], None]:
        """Learn the device, whose pending operations this scheduler looks at; an installer for ``virtual_device``."""
        self._runtime = runtime
        return lambda: None

    def start(self, seed: int) -> None:
        """Nothing to draw."""

    def decisions(self) -> tuple[Decision, ...]:
        """None of its own: it is recorded from outside."""
        return ()

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """Before the host touches memory, what must come before that; where it waits, what need not wait for more."""
        if reason is Reason.ENQUEUE:
            return None
        if reason is Reason.HOST_ACCESS:
            missing = self._missing(self._met.next_on(self._runtime.host_lane()))
            head = self._first_step(self._pending(missing[0])) if missing else None
            return ready.index(head) if head in ready else None
        if reason is Reason.FIRST_POLL:
            return self._answer(ready)
        queue = self._runtime.engine.queue
        for index, stream in enumerate(ready):
            if not self._missing(self._name(queue(stream).pending[0])):
                return index
        return 0 if ready and reason is Reason.POLL else None

    def _answer(self, ready: Sequence[int]) -> int | None:
        """Nothing runs for a no; for a yes, what is asked about and what it needs."""
        asked = self._runtime.order.asked
        assert asked is not None
        lane = asked.queue.lane
        # A mark that holds a stream has no name: it is told apart by what comes next there.
        name = self._name(asked) or (lane, -1 - self._met.next_on(lane)[1])
        if name not in self._met.polls:
            self._met.polls.append(name)
        head = self._first_step(asked) if self._answers.get(name) and not asked.done else None
        return ready.index(head) if head in ready else None

    def _missing(self, name: Name | None) -> list[Name]:
        """What must run before an operation and has not."""
        return [] if name is None else [first for first in self._before[name] if first not in self._met.executed]

    def _name(self, operation: PendingOperation) -> Name | None:
        return self._met.names.get(operation.id)

    def _first_step(self, target: PendingOperation | None) -> int | None:
        """The stream whose head is to run first, for an operation to run in the end."""
        for _ in range(len(self._met.names)):
            if target is None:
                return None
            head = target.queue.pending[0]
            missing = self._missing(self._name(head))
            target = head.blocker() or (self._pending(missing[0]) if missing else None)
            if target is None:
                return None if missing else head.queue.id
        return None

    def _pending(self, name: Name) -> PendingOperation | None:
        """The operation of a name, if it is pending."""
        queues = self._runtime.engine.busy()
        return next((item for queue in queues for item in queue.pending if self._name(item) == name), None)
