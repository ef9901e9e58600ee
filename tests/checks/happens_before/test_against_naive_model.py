"""The judge against a model that keeps whole vector clocks and every access, and compares every pair.

Random programs use all of the sink's methods. The thresholds at which records are thinned out are set so low that
almost every access thins out; findings must be equal to the last value of evidence.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.checks.events import LaneKind, OperationKind, Space, SyncKind
from mrv2.checks.findings import Verdict
from mrv2.checks.happens_before import HappensBefore, core, shadow

# ---- programs: lists of instructions, made of small numbers that are taken modulo what exists

HOSTS, STREAMS, BLOCKS = 2, 2, 2
small = st.integers(0, 3)
spans = st.sampled_from([(0, 4), (4, 8), (0, 8), (2, 6)])
often, seldom = st.sampled_from([True, True, True, False]), st.sampled_from([False, False, False, True])
touches = st.lists(st.tuples(small, spans, st.booleans(), often, seldom), min_size=1, max_size=2)
instruction = st.one_of(
    st.tuples(st.just("host"), small, touches),
    st.tuples(st.just("device"), small, small, touches),
    st.tuples(st.just("device"), small, small, touches),
    st.tuples(st.just("open"), small, small, touches),
    st.tuples(st.just("close"), small),
    st.tuples(st.just("release"), small),
    st.tuples(st.just("acquire"), small, small),
    st.tuples(st.just("sync"), small, small),
    st.tuples(st.just("branch"), small, small, touches),
    st.tuples(st.just("free"), small, small, st.booleans()),
)
programs = st.lists(instruction, min_size=8, max_size=50)


@dataclass
class Clock:
    lane: int
    vector: dict[int, int]

    def covers(self, other: "Clock") -> bool:
        return all(self.vector.get(lane, 0) >= time for lane, time in other.vector.items())


def join(into: dict[int, int], vector: dict[int, int]) -> None:
    for lane, time in vector.items():
        into[lane] = max(into.get(lane, 0), time)


@dataclass
class Model:
    """Whole vectors, copied for every operation."""

    vectors: dict[int, dict[int, int]] = field(default_factory=dict)
    operations: list[Clock] = field(default_factory=list)
    accesses: list[tuple[int, int, int, int, bool, bool, bool]] = field(default_factory=list)
    kinds: list[OperationKind] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def operation(self, lane: int, issuer: int | None, kind: OperationKind, place: int) -> int:
        vector = self.vectors[lane]
        if issuer is not None:
            join(vector, self.vectors[issuer])
        return self._tell(lane, vector, kind, place)

    def _tell(self, lane: int, vector: dict[int, int], kind: OperationKind, place: int) -> int:
        self.vectors[lane][lane] = vector[lane] = self.vectors[lane].get(lane, 0) + 1
        self.operations.append(Clock(lane, dict(vector)))
        self.kinds.append(kind)
        self.places.append(place)
        return len(self.operations) - 1

    def free(self, owner: int, host: int, after: tuple[int, ...]) -> int:
        vector = dict(self.vectors[owner])
        for lane in (host, *after):
            join(vector, self.vectors[lane])
        return self._tell(owner, vector, OperationKind.FREE, 99)

    def ordered(self, one: int, two: int) -> bool:
        a, b = self.operations[one], self.operations[two]
        return a.vector[a.lane] <= b.vector.get(a.lane, 0) or b.vector[b.lane] <= a.vector.get(b.lane, 0)

    def races(self) -> dict[tuple[object, ...], tuple[int, tuple[int, int]]]:
        """For places, block and certainty: how many later sides there are, and the first with its last partner."""
        found: dict[tuple[object, ...], set[tuple[int, int]]] = {}
        for index, one in enumerate(self.accesses):
            for two in self.accesses[:index]:
                if one[1] == two[1] and one[2] < two[3] and two[2] < one[3] and (one[4] or two[4]):
                    key = self._key(one, two)
                    if key and not self.ordered(one[0], two[0]):
                        found.setdefault(key, set()).add((min(one[0], two[0]), max(one[0], two[0])))
        return {key: (len({later for _, later in pairs}), _shown(pairs)) for key, pairs in found.items()}

    def _key(self, one: tuple[int, ...], two: tuple[int, ...]) -> tuple[object, ...] | None:
        sides = sorted(
            (self.kinds[side[0]] is not OperationKind.FREE, self.places[side[0]], side) for side in (one, two)
        )
        kinds = {self.kinds[one[0]], self.kinds[two[0]]}
        if OperationKind.FREE in kinds and (OperationKind.HOST_ACCESS in kinds or len(kinds) == 1):
            return None
        if OperationKind.FREE in kinds and sides[1][2][6] and one[1] % 2:
            return None  # odd blocks are pinned
        return sides[0][1], sides[1][1], one[1], bool(one[5] and two[5])


def _shown(pairs: set[tuple[int, int]]) -> tuple[int, int]:
    first = min(later for _, later in pairs)
    return max(earlier for earlier, later in pairs if later == first), first


class Runner:
    """Carries out a program on the judge and the model alike."""

    def __init__(self, late: bool = False) -> None:
        self.judge, self.model = HappensBefore(), Model()
        self.late = late
        self.lanes = [self.lane(LaneKind.HOST, f"host {i}") for i in range(HOSTS)]
        self.lanes += [self.lane(LaneKind.STREAM, f"stream {i}") for i in range(STREAMS)]
        self.tokens: list[tuple[int, dict[int, int]]] = []
        self.opened: list[tuple[int, list]] = []
        self.blocks: list[int] = []
        self.freed: set[int] = set()
        for number in range(BLOCKS):
            self.allocate(number)

    def lane(self, kind: LaneKind, name: str) -> int:
        number = self.judge.lane(kind, name)
        self.model.vectors[number] = {}
        return number

    def allocate(self, number: int) -> None:
        owner = self.lanes[0] if number % 2 else self.stream(number // 2)
        space = Space.PINNED if number % 2 else Space.DEVICE
        self.blocks.append(self.judge.allocate(owner, 1000 * number, 16, space, (("alloc", number, "f"),)))

    def live(self, number: int) -> int:
        choices = [block for block in range(len(self.blocks)) if block not in self.freed]
        return choices[number % len(choices)]

    def run(self, program: list) -> None:
        for name, *arguments in program:
            getattr(self, f"do_{name}")(*arguments)
        while self.opened:
            self.do_close(0)

    def tell(self, operation: int, touched: list) -> None:
        for block, (low, high), write, certain, protected in touched:
            span = (1000 * block + low, 1000 * block + high)
            self.judge.access(operation, [span], write=write, certain=certain, protected=protected)
            self.model.accesses.append((operation, block, low, high, write, certain, protected))

    def chosen(self, touched: list) -> list:
        return [(self.live(block), *rest) for block, *rest in touched]

    def start(self, lane: int, kind: OperationKind, issuer: int | None, touched: list, opened: bool = False) -> int:
        place = touched[0][0] % 3  # operations at few places, so that records supersede one another
        stack = (("code", place, "f"),)
        operation = self.judge.operation(lane, kind, f"op {place}", stack, issuer=issuer, open=opened)
        assert operation == self.model.operation(lane, issuer, kind, place - 10 * (kind is OperationKind.HOST_ACCESS))
        return operation

    def do_host(self, host: int, touched: list) -> None:
        operation = self.start(self.lanes[host % HOSTS], OperationKind.HOST_ACCESS, None, touched)
        self.tell(operation, self.chosen(touched))

    def stream(self, number: int) -> int:
        return self.lanes[HOSTS + number % STREAMS]

    def do_device(self, stream: int, issuer: int, touched: list) -> None:
        operation = self.start(self.stream(stream), OperationKind.KERNEL, self.lanes[issuer % HOSTS], touched)
        self.tell(operation, self.chosen(touched))

    def do_open(self, stream: int, issuer: int, touched: list) -> None:
        chosen = self.chosen(touched)
        operation = self.start(self.stream(stream), OperationKind.KERNEL, self.lanes[issuer % HOSTS], touched, True)
        self.opened.append((operation, chosen))
        if not self.late:
            self.do_close(-1)

    def do_close(self, which: int) -> None:
        if self.opened:
            operation, touched = self.opened.pop(which % len(self.opened))
            self.tell(operation, touched)
            self.judge.close(operation)

    def do_release(self, lane: int) -> None:
        lane = self.lanes[lane % len(self.lanes)]
        self.tokens.append((self.judge.release(lane), dict(self.model.vectors[lane])))

    def do_acquire(self, lane: int, token: int) -> None:
        if self.tokens:
            number, vector = self.tokens[-1 - token % len(self.tokens)]
            lane = self.lanes[lane % len(self.lanes)]
            self.judge.acquire(lane, number)
            join(self.model.vectors[lane], vector)

    def do_sync(self, host: int, stream: int) -> None:
        lane, stream = self.lanes[host % HOSTS], self.stream(stream)
        sync = self.judge.sync(lane, SyncKind.STREAM_SYNCHRONIZE, "synchronize", ())
        self.judge.acquire(lane, self.judge.release(stream), sync=sync)
        join(self.model.vectors[lane], self.model.vectors[stream])

    def do_branch(self, stream: int, issuer: int, touched: list) -> None:
        stream, lane = self.stream(stream), self.lane(LaneKind.GRAPH, "branch")
        self.judge.acquire(lane, self.judge.release(stream))
        join(self.model.vectors[lane], self.model.vectors[stream])
        self.tell(self.start(lane, OperationKind.KERNEL, self.lanes[issuer % HOSTS], touched), self.chosen(touched))
        if touched[0][2]:
            self.judge.acquire(stream, self.judge.release(lane))
            join(self.model.vectors[stream], self.model.vectors[lane])
        self.judge.end_lane(lane)

    def do_free(self, block: int, host: int, recorded: bool) -> None:
        block, host = self.live(block), self.lanes[host % HOSTS]
        owner = host if block % 2 else self.stream(block // 2)
        after = (self.lanes[-1],) if recorded else ()
        self.judge.free(self.blocks[block], host, (("free", 99, "f"),), after=after)
        operation = self.model.free(owner, host, after)
        self.model.accesses.append((operation, block, 0, 16, True, True, False))
        self.freed.add(block)
        self.allocate(len(self.blocks))

    def found(self) -> dict[tuple[object, ...], tuple[int, tuple[int, int]]]:
        result = {}
        for finding in self.judge.findings:
            sides = [self._place(finding, index) for index in (0, 1)]
            numbers = sorted(side["operation"] for side in finding.evidence["operations"])
            key = (*sides, finding.allocation[0].line, finding.verdict is Verdict.VIOLATION)
            result[key] = (finding.evidence["occurrences"], tuple(numbers))
        return result

    def _place(self, finding, index: int) -> int:
        line = (finding.where, finding.other)[index][0].line
        return line - 10 if finding.evidence["operations"][index]["kind"] == "host access" else line


@contextmanager
def eager_thinning():
    with (
        mock.patch.object(shadow, "_FEW", 1),
        mock.patch.object(shadow, "_MANY", 3),
        mock.patch.object(shadow, "_GROWTH", 1),
        mock.patch.object(core, "_ENDED_LANES", 0),
    ):
        yield


def without_hidden_suspects(races: dict) -> dict:
    return {key: value for key, value in races.items() if key[-1] or (*key[:-1], True) not in races}


@settings(max_examples=300, deadline=None)
@given(program=programs, late=st.booleans())
def test_findings_are_those_of_the_model(program, late):
    with eager_thinning():
        runner = Runner(late)
        runner.run(program)
    assert runner.found() == without_hidden_suspects(runner.model.races())


@settings(max_examples=200, deadline=None)
@given(program=programs)
def test_findings_do_not_depend_on_when_accesses_are_told(program):
    early, late = Runner(late=False), Runner(late=True)
    early.run(program)
    with eager_thinning():
        late.run(program)
    assert early.judge.findings == late.judge.findings


# ---- two threads, each with a stream of its own, told in different interleavings

thread_step = st.one_of(
    st.tuples(st.sampled_from(["host", "device"]), st.integers(0, 2), spans, st.booleans()),
    st.tuples(st.just("sync"), st.booleans()),
    st.tuples(st.just("send"), st.booleans()),
    st.tuples(st.just("receive"), st.booleans()),
)
threads = st.tuples(*[st.lists(thread_step, min_size=3, max_size=15)] * 2)


class Threads:
    """Two threads; what one sends (a release of its host or stream) the other receives, in order."""

    def __init__(self) -> None:
        self.judge = HappensBefore()
        self.hosts = [self.judge.lane(LaneKind.HOST, f"host {i}") for i in range(2)]
        self.streams = [self.judge.lane(LaneKind.STREAM, f"stream {i}") for i in range(2)]
        self.judge.allocate(self.hosts[0], 0, 16, Space.PINNED, (("alloc", 1, "f"),))
        self.sent: list[list[int]] = [[], []]
        self.received = [0, 0]

    def ready(self, who: int, step: tuple) -> bool:
        return step[0] != "receive" or self.received[who] < len(self.sent[1 - who])

    def act(self, who: int, step: tuple) -> None:
        name, *arguments = step
        lane = self.streams[who] if arguments[0] else self.hosts[who]
        if name == "sync":
            self.judge.acquire(self.hosts[who], self.judge.release(self.streams[who]))
        elif name == "send":
            self.sent[who].append(self.judge.release(lane))
        elif name == "receive":
            self.judge.acquire(lane, self.sent[1 - who][self.received[who]])
            self.received[who] += 1
        else:
            self.touch(who, name == "device", *arguments)

    def touch(self, who: int, device: bool, place: int, span: tuple[int, int], write: bool) -> None:
        kind = OperationKind.KERNEL if device else OperationKind.HOST_ACCESS
        lane, issuer = (self.streams[who], self.hosts[who]) if device else (self.hosts[who], None)
        operation = self.judge.operation(lane, kind, "op", (("code", place, "f"),), issuer=issuer)
        self.judge.access(operation, [span], write=write)

    def run(self, programs: tuple[list, list], choices: list[int]) -> list[tuple[object, ...]]:
        places = [0, 0]
        while True:
            ready = [
                who
                for who in (0, 1)
                if places[who] < len(programs[who]) and self.ready(who, programs[who][places[who]])
            ]
            if not ready:
                found = self.judge.findings
                return sorted((f.code, f.title, f.where[0].line, f.other[0].line, f.verdict.value) for f in found)
            who = ready[choices.pop() % len(ready)] if choices else ready[0]
            self.act(who, programs[who][places[who]])
            places[who] += 1


@settings(max_examples=200, deadline=None)
@given(threads, st.lists(st.integers(0, 1), max_size=40))
def test_findings_do_not_depend_on_the_interleaving_of_independent_lanes(programs, choices):
    straight = Threads().run(programs, [])
    with eager_thinning():
        assert Threads().run(programs, choices) == straight
