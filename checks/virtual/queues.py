"""Operations that wait for their turn, and the engine that runs them.

Each stream is a queue: first in, first out. An operation that waits for an event waits for one *record* of it, an
operation of another queue that was enqueued earlier, so the oldest operation of all can always run.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..semantics import LAUNCH_QUEUE_ENTRIES

if TYPE_CHECKING:
    from ..events import ByteRange, OperationKind, Stack
    from .graphs import Capture
    from .memory import Block

#: So many operations that are over, and marks, are kept behind one that is not; then that one runs. What is behind it
#: cannot be forgotten, nor the memory that was dropped since, so without an end to it a stream that nobody ever waits
#: for would make every run grow. A real stream would have run long before.
KEPT_OPERATIONS = 4 * LAUNCH_QUEUE_ENTRIES


class Work:
    """What an operation needs to be enqueued, now or at each replay of a graph; see ``Runtime.enqueue``."""

    prepare: Callable[[], Callable[[], object]] | None = None
    blocks: Sequence[Block] = ()

    def __init__(
        self,
        name: str,
        kind: OperationKind,
        run: Callable[[], object] | None,
        reads: Sequence[ByteRange],
        writes: Sequence[ByteRange],
        possible_reads: Sequence[ByteRange],
        possible_writes: Sequence[ByteRange],
        certain: bool,
        protected: bool,
        open: bool,  # noqa: A002 - the contract's name
    ) -> None:
        self.name = name
        self.kind = kind
        self.run = run
        self.reads = reads
        self.writes = writes
        self.possible_reads = possible_reads
        self.possible_writes = possible_writes
        self.certain = certain
        self.protected = protected
        self.open = open


class PendingOperation:
    """One entry of a stream.

    Attributes:
        id: the sink's number, or -1 for what the sink is not told as an operation.
        name: for people.
        run: does the work; None for a mark in the stream.
        queue: where it stands.
        number: its place in the order of enqueuing.
        stack: where the program asked for it.
        step: of the runner, if known.
        after: operations of other queues that must be over first.
        entries: how many entries of the launch queue it takes: 1, or 0 for marks and for all but one node of a graph.
        mark: it is no work of the program; it is passed as soon as it is reached.
        open: its accesses are told while it runs.
        done: whether it is over.
    """

    number = -1
    done = False
    then: list[Callable[[], None]] | None = None

    def __init__(
        self,
        identity: int,
        name: str,
        run: Callable[[], object] | None,
        queue: Queue,
        stack: Stack,
        step: int | None = None,
        *,
        after: tuple[PendingOperation, ...] = (),
        entries: int = 1,
        mark: bool = False,
        open: bool = False,  # noqa: A002 - the contract's name
    ) -> None:
        self.id = identity
        self.name = name
        self.run = run
        self.queue = queue
        self.stack = stack
        self.step = step
        self.after = after
        self.entries = 0 if mark else entries
        self.mark = mark
        self.open = open

    def when_done(self, action: Callable[[], None]) -> None:
        """Call ``action`` once it is over; at once if it is."""
        if self.done:
            action()
        elif self.then is None:
            self.then = [action]
        else:
            self.then.append(action)

    def blocker(self) -> PendingOperation | None:
        """An operation that must run first, if there is one."""
        for other in self.after:
            if not other.done:
                return other
        return None


class Queue:
    """A stream, or one branch of a graph's replay, as the engine sees it.

    Attributes:
        id: its number on the device; 0 is the default stream.
        lane: its lane in the sink.
        name: for people.
        pending: what has not run yet, oldest first.
        last: the newest operation, over or not.
        capture: the graph that is being captured from it, if any.
        priority: of the stream, 0 or negative.
    """

    __slots__ = ("capture", "id", "lane", "last", "name", "pending", "priority")

    def __init__(self, identity: int, lane: int, name: str) -> None:
        self.id = identity
        self.lane = lane
        self.name = name
        self.pending: deque[PendingOperation] = deque()
        self.last: PendingOperation | None = None
        self.capture: Capture | None = None
        self.priority = 0


class Engine:
    """Runs operations when told to. Nothing here decides *what* runs next, but for what an awaited one needs."""

    def __init__(
        self, execute: Callable[[PendingOperation], None], when_full: Callable[[PendingOperation], None]
    ) -> None:
        """``execute`` does the work of one operation, and lets no fault of it escape.

        ``when_full`` is told of each operation for which the launch queue has no room.
        """
        self._execute = execute
        self._when_full = when_full
        self._busy: dict[int, Queue] = {}
        self._order: deque[PendingOperation] = deque()
        self._entries = 0
        self._work = 0  # operations that are not over and are no marks
        self._number = 0

    @property
    def submitted(self) -> int:
        """How many operations have been submitted so far."""
        return self._number

    def oldest(self) -> int:
        """Number of the oldest operation that is not over; all below it are. The next number if none is pending."""
        order = self._order
        while order and order[0].done:
            order.popleft()
        return order[0].number if order else self._number

    def advance(self) -> None:
        """Run the oldest operation that is not over, if there is one; it waits for nothing."""
        self.oldest()
        if self._order:
            self.force(self._order[0])

    def _bound_what_is_kept(self) -> None:
        self.oldest()
        while len(self._order) - self._work > KEPT_OPERATIONS:
            self.advance()
            self.oldest()

    def submit(self, operation: PendingOperation) -> None:
        """Append to its queue; if the launch queue is full, or too much is kept, the oldest operations run first."""
        if operation.entries:
            if self._entries >= LAUNCH_QUEUE_ENTRIES:
                self._when_full(operation)
            while self._entries >= LAUNCH_QUEUE_ENTRIES:
                self.advance()
            self._entries += operation.entries
        if len(self._order) - self._work > KEPT_OPERATIONS:
            self._bound_what_is_kept()
        if not operation.mark:
            self._work += 1
        operation.number = self._number
        self._number += 1
        queue = operation.queue
        queue.last = operation
        queue.pending.append(operation)
        self._order.append(operation)
        self._busy[queue.id] = queue

    def queue(self, identity: int) -> Queue:
        """A queue that is not empty, by its id."""
        return self._busy[identity]

    def busy(self) -> list[Queue]:
        """The queues that are not empty, also those whose stream or graph has ended meanwhile."""
        return [*self._busy.values()]

    def ready(self) -> Sequence[int]:
        """Ids of the queues whose head has work to do and waits for nothing, in order.

        Marks at the head are passed on the way. Where that takes time, the answer is found when it is looked at: most
        schedulers do not care at most moments.
        """
        busy = self._busy
        if not busy:
            return _NONE
        if len(busy) == 1:
            (queue,) = busy.values()
            head = queue.pending[0]
            if not head.mark and not head.after:
                return [queue.id]
        return _Ready(self)

    def find_ready(self) -> list[int]:
        """The same, at once."""
        while True:
            found, passed = [], False
            for queue in self.busy():
                passed |= self._pass_marks(queue)
                if queue.pending and queue.pending[0].blocker() is None:
                    found.append(queue.id)
            if not passed:
                return sorted(found)

    def run_head(self, queue: Queue) -> None:
        """Run the oldest operation of a queue, which must wait for nothing.

        It is over also if it was interrupted: what is queued behind it can still run.
        """
        operation = queue.pending.popleft()
        if not queue.pending:
            del self._busy[queue.id]
        self._entries -= operation.entries
        if not operation.mark:
            self._work -= 1
        try:
            if operation.run is not None:
                self._execute(operation)
        finally:
            operation.run = None
            operation.done = True
            operation.after = ()
            actions, operation.then = operation.then, None
            for action in actions or ():
                action()

    def force(self, target: PendingOperation) -> None:
        """Run the causal past of an operation, and it, and nothing else."""
        path = [target]
        while path:
            operation = path[-1]
            if operation.done:
                path.pop()
                continue
            head = operation.queue.pending[0]
            blocker = head.blocker()
            if blocker is None:
                self.run_head(operation.queue)
            else:
                path.append(blocker)

    def drain(self) -> None:
        """Run everything, in the order of enqueuing."""
        while self._order:
            self.advance()

    def _pass_marks(self, queue: Queue) -> bool:
        """Pass the heads that are no work of the program; says whether another queue may have become ready by it."""
        passed = False
        while queue.pending and queue.pending[0].mark and queue.pending[0].blocker() is None:
            self.run_head(queue)
            passed = True
        return passed


_NONE: tuple[int, ...] = ()


class _Ready(Sequence[int]):
    """Ids of the queues that can run, found when somebody looks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @functools.cached_property
    def _ids(self) -> list[int]:
        return self._engine.find_ready()

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: Any) -> Any:
        return self._ids[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __contains__(self, identity: object) -> bool:
        return identity in self._ids
