"""The judge: an event sink that finds races by happens-before."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from ..errors import CheckError
from ..events import ByteRange, EventSink, KernelRanges, LaneKind, OperationKind, Space, Stack, SyncKind
from ..findings import Finding, Site
from .clocks import Frontier, LaneClock, Moment
from .races import RaceLog
from .rules import lane_text
from .shadow import Access, Block, Horizon, Operation, Shadow
from .waits import WaitLog

_ENDED_LANES = 32


class Token(int):
    """What ``release`` hands out: a number that carries its moment.

    So nothing is kept here for the tokens that the frontend has forgotten, of which a run has several each step.
    """

    moment: Moment


class _Lane(LaneClock):
    """A lane: its clock, and its last operation, whose accesses may still be told."""

    __slots__ = ("last", "root", "text")

    def __init__(self, number: int, kind: LaneKind, name: str) -> None:
        super().__init__(number)
        self.text = lane_text(kind, name)
        #: Whether it acts by itself; what others may still do comes after what some root knows now.
        self.root = kind is LaneKind.HOST
        self.last: Operation | None = None


class HappensBefore(EventSink):
    """Finds the races of one run.

    The verdict depends on the order that the program asked for, not on the order in which operations ran: clocks are
    fixed when an operation is told, and accesses told later are judged by the clock of their operation.

    Two rules for frontends beyond those of :class:`EventSink`: accesses of an operation that is not open are told
    before the next operation of its lane, and the lane of a thread is made when the thread is *started* (a lane that
    appears later is taken to start after whatever has been forgotten by then). Numbers are handed back as they were
    given.
    """

    def __init__(self) -> None:
        #: How many acquisitions ordered something that was not ordered already.
        self.news = 0
        self._number = -1
        self._lanes: dict[int, _Lane] = {}
        self._lane_count = 0
        self._ended: list[_Lane] = []
        self._ended_limit = _ENDED_LANES
        self._operations: dict[int, Operation] = {}
        self._open: dict[int, OrderedDict[int, Operation]] = {}
        self._blocks: dict[int, Block] = {}
        self._block_count = 0
        self._shadow = Shadow(self._survey)
        self._races = RaceLog()
        self._waits = WaitLog()
        self._sync_count = 0
        self._token_count = 0
        self._reported: dict[tuple[object, ...], Finding] = {}

    @property
    def findings(self) -> list[Finding]:
        """What has been found so far, in an order that depends on the findings only."""
        found = [*self._races.findings(), *self._waits.findings(), *self._reported.values()]
        return sorted(found, key=_order)

    @property
    def races(self) -> list[Finding]:
        """The races among the findings."""
        return sorted(self._races.findings(), key=_order)

    @property
    def kinds_of_race(self) -> int:
        """Goes up whenever a race at a new pair of places is found; cheap."""
        return len(self._races)

    @property
    def kept(self) -> int:
        """How many access records are kept at present."""
        return self._shadow.kept

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :meth:`EventSink.lane`."""
        number = self._lane_count
        self._lane_count += 1
        self._lanes[number] = _Lane(number, kind, name)
        return number

    def end_lane(self, lane: int) -> None:
        """See :meth:`EventSink.end_lane`; the lane may still be released, for those who join it later."""
        state = self._lane(lane)
        state.root = False
        self._ended.append(state)
        if len(self._ended) > self._ended_limit:
            self._forget_lanes()

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
        """See :meth:`EventSink.operation`."""
        state = self._lane(lane)
        if issuer is None:
            state.root = True
            state.tick()
        else:
            state.tick(self._lane(issuer))
        self._number += 1
        operation = Operation(state, self._number, kind, name, state.text, stack, step, opened=open)
        last, state.last = state.last, operation
        if last is not None and not last.opened:
            del self._operations[last.number]
        self._operations[operation.number] = operation
        if open:
            self._open.setdefault(lane, OrderedDict())[operation.number] = operation
        return operation.number

    def close(self, operation: int) -> None:
        """See :meth:`EventSink.close`."""
        found = self._operation(operation)
        if not found.opened:
            raise _misuse(f"operation {operation}", "only an open operation is closed", "close it once")
        found.opened = False
        waiting = self._open[found.lane]
        del waiting[operation]
        if not waiting:
            del self._open[found.lane]
        state = self._lanes.get(found.lane)
        if state is None or state.last is not found:
            del self._operations[operation]

    def access(
        self, operation: int, ranges: Sequence[ByteRange], *, write: bool, certain: bool = True, protected: bool = False
    ) -> None:
        """See :meth:`EventSink.access`; bytes outside all blocks are nobody's and not judged."""
        found = self._operation(operation)
        pieces, record = self._shadow.pieces, self._record
        of_kernel = ranges if isinstance(ranges, KernelRanges) else None
        for low, high in ranges:
            for block, start, end in pieces(low, high):
                if found.number < block.freed:
                    record(block, Access(found, start, end, write, certain, protected, of_kernel))

    def _record(self, block: Block, access: Access) -> None:
        if block.has_others(access.operation.lane):
            for other in block.conflicts(access):
                self._races.add(block, access, other)
        self._shadow.add(block, access)

    def release(self, lane: int) -> int:
        """See :meth:`EventSink.release`."""
        token = Token(self._token_count)
        self._token_count += 1
        # A lane that was forgotten knew nothing that others do not: its token may be empty.
        forgotten = lane not in self._lanes and 0 <= lane < self._lane_count
        token.moment = LaneClock(lane).moment() if forgotten else self._lane(lane).moment()
        return token

    def acquire(self, lane: int, token: int, *, sync: int | None = None) -> None:
        """See :meth:`EventSink.acquire`."""
        if not isinstance(token, Token):
            raise _misuse(f"token {token!r}", "it must be handed back as release gave it", "keep the object itself")
        if sync is not None and not self._waits.acquired(sync):
            raise _misuse(
                f"synchronisation {sync}",
                "it acquires before the next one of its lane begins",
                "call acquire right after sync",
            )
        self.news += self._lane(lane).acquire(token.moment)

    def sync(self, lane: int, kind: SyncKind, name: str, stack: Stack, *, step: int | None = None) -> int:
        """See :meth:`EventSink.sync`."""
        number = self._sync_count
        self._sync_count += 1
        self._waits.begin(number, lane, self._lane(lane).text, kind, name, stack, step)
        return number

    def allocate(self, lane: int, base: int, size: int, space: Space, stack: Stack) -> int:
        """See :meth:`EventSink.allocate`; whatever was known of these addresses is forgotten."""
        number = self._block_count
        self._block_count += 1
        block = Block(number, base, size, space, self._lane(lane).lane, stack)
        if size > 0:
            self._shadow.place(block)
        self._blocks[number] = block
        return number

    def free(self, block: int, lane: int, stack: Stack, *, after: Sequence[int] = ()) -> None:
        """See :meth:`EventSink.free`."""
        freed = self._blocks.pop(block, None)
        if freed is None:
            raise _misuse(f"block {block}", "a block is freed once", "tell a free when the program drops the block")
        operation = self._free_operation(freed, self._lane(lane), stack, after)
        if freed.base < freed.end:
            self._record(freed, Access(operation, freed.base, freed.end, write=True))
        freed.freed = operation.number

    def _free_operation(self, block: Block, host: _Lane, stack: Stack, after: Sequence[int]) -> Operation:
        """The write that stands for whoever gets the memory next.

        For device memory it is the next work on the owning stream. Neither that stream nor the host learns from it:
        what the allocator waits for orders the reuse of this block and nothing else.
        """
        place = self._lanes.get(block.owner, host) if block.space is Space.DEVICE else host
        place.tick()
        others = [host, *map(self._lane, after)] if after else (host,)
        moment = place.joined_with(others)
        self._number += 1
        return Operation(moment, self._number, OperationKind.FREE, "free", place.text, stack)

    def report(self, finding: Finding) -> None:
        """See :meth:`EventSink.report`; of several with one code, title and places the first is kept."""
        self._reported.setdefault((finding.code, finding.title, finding.where, finding.other), finding)

    def _lane(self, lane: int) -> _Lane:
        try:
            return self._lanes[lane]
        except KeyError:
            raise _misuse(f"lane {lane}", "it must be alive", "make a lane first, and end it last") from None

    def _operation(self, operation: int) -> Operation:
        try:
            return self._operations[operation]
        except KeyError:
            raise _misuse(
                f"operation {operation}",
                "its accesses are told before the next operation of its lane, unless it is open",
                "make it open, and close it after its last access",
            ) from None

    def _survey(self) -> Horizon:
        """What may still come: every operation to come knows at least what some root or the oldest open one knows."""
        oldest = [next(iter(waiting.values())) for waiting in self._open.values()]
        roots = (lane for lane in self._lanes.values() if lane.root)
        return Horizon(Frontier([*roots, *oldest]), min((item.number for item in oldest), default=sys.maxsize))

    def _forget_lanes(self) -> None:
        """Forget the ended lanes of which no record is left; clocks would keep an entry for each for ever."""
        horizon = self._survey()
        self._shadow.sweep(horizon)
        done = {lane.lane for lane in self._ended if lane.lane not in self._open and horizon.frontier.passed(lane)}
        for number in done:
            self._drop_lane(number)
        for lane in self._lanes.values():
            lane.forget(done)
        self._ended = [lane for lane in self._ended if lane.lane not in done]
        self._ended_limit = max(_ENDED_LANES, 2 * len(self._ended))

    def _drop_lane(self, number: int) -> None:
        self._waits.forget(number)
        last = self._lanes.pop(number).last
        if last is not None:
            self._operations.pop(last.number, None)


def _order(finding: Finding) -> tuple[object, ...]:
    places = (finding.where, finding.other, finding.allocation)
    return finding.code, *(tuple(_frames(stack)) for stack in places), finding.title, finding.verdict.value


def _frames(stack: tuple[Site, ...]) -> Iterator[tuple[str, int, str]]:
    return ((site.file, site.line, site.function) for site in stack)


def _misuse(subject: str, rule: str, remedy: str) -> CheckError:
    return CheckError(subject, rule, "without it races would be missed or made up", remedy)
