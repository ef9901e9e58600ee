"""A driver that tells a sink small programs, as a frontend would."""

from collections.abc import Sequence
from contextlib import contextmanager

import pytest

from mrv2.checks.events import ByteRange, EventSink, LaneKind, OperationKind, Space, Stack, SyncKind
from mrv2.checks.happens_before import HappensBefore


def at(line: int) -> Stack:
    return (("runner.py", line, "execute"), ("main.py", 7, "main"))


class Driver:
    """One host thread, two streams and a pinned and a device block to begin with; places are told by line numbers."""

    def __init__(self, sink: EventSink) -> None:
        self.sink = sink
        self.next_address = 4096
        self.bases: dict[int, int] = {}
        self.host = sink.lane(LaneKind.HOST, "MainThread")
        self.one = sink.lane(LaneKind.STREAM, "stream 1")
        self.two = sink.lane(LaneKind.STREAM, "stream 2")
        self.step: int | None = None

    # ---- memory

    def pinned(self, size: int = 64, line: int = 900, base: int | None = None) -> int:
        return self.block(self.host, size, Space.PINNED, line, base)

    def device(self, size: int = 64, line: int = 901, owner: int | None = None, base: int | None = None) -> int:
        return self.block(self.one if owner is None else owner, size, Space.DEVICE, line, base)

    def block(self, owner: int, size: int, space: Space, line: int, base: int | None = None) -> int:
        if base is None:
            base, self.next_address = self.next_address, self.next_address + size + 64
        block = self.sink.allocate(owner, base, size, space, at(line))
        self.bases[block] = base
        return block

    def bytes_of(self, block: int, low: int, high: int) -> ByteRange:
        return self.bases[block] + low, self.bases[block] + high

    def free(self, block: int, line: int = 990, host: int | None = None, after: Sequence[int] = ()) -> None:
        self.sink.free(block, self.host if host is None else host, at(line), after=after)

    # ---- operations; ``reads`` and ``writes`` are (block, low, high)

    def tell(self, operation: int, reads=(), writes=(), **flags) -> None:
        for write, touched in ((False, reads), (True, writes)):
            ranges = [self.bytes_of(*piece) for piece in touched]
            if ranges:
                self.sink.access(operation, ranges, write=write, **flags)

    def on(self, stream, kind, name, line, *, reads=(), writes=(), issuer=None, **flags) -> int:
        issuer = self.host if issuer is None else issuer
        operation = self.sink.operation(stream, kind, name, at(line), issuer=issuer, step=self.step)
        self.tell(operation, reads, writes, **flags)
        return operation

    def kernel(self, stream, line=10, *, name="triton:gather", **touched) -> int:
        return self.on(stream, OperationKind.KERNEL, name, line, **touched)

    def upload(self, stream, line=11, *, source, target, protected=False, **rest) -> int:
        copy = self.on(stream, OperationKind.COPY_TO_DEVICE, "memcpy", line, **rest)
        self.tell(copy, reads=[source], protected=protected)
        self.tell(copy, writes=[target])
        return copy

    def download(self, stream, line=12, *, source, target, protected=False, **rest) -> int:
        copy = self.on(stream, OperationKind.COPY_TO_HOST, "memcpy", line, **rest)
        self.tell(copy, reads=[source])
        self.tell(copy, writes=[target], protected=protected)
        return copy

    def open(self, stream, line=13, *, name="triton:scatter", issuer=None) -> int:
        issuer = self.host if issuer is None else issuer
        return self.sink.operation(
            stream, OperationKind.KERNEL, name, at(line), issuer=issuer, step=self.step, open=True
        )

    def run(self, operation: int, **touched) -> None:
        self.tell(operation, **touched)
        self.sink.close(operation)

    def touch(self, line=20, *, reads=(), writes=(), host=None, name=None, **flags) -> int:
        name = name or ("numpy.__setitem__" if writes else "numpy.__getitem__")
        host = self.host if host is None else host
        operation = self.sink.operation(host, OperationKind.HOST_ACCESS, name, at(line), step=self.step)
        self.tell(operation, reads, writes, **flags)
        return operation

    # ---- order

    def wait(self, lane: int, token: int | None, kind=SyncKind.WAIT_EVENT, line: int = 30, name="Event.wait") -> None:
        sync = self.sink.sync(lane, kind, name, at(line), step=self.step)
        if token is not None:
            self.sink.acquire(lane, token, sync=sync)

    def synchronize(self, token: int | None, line: int = 31, host: int | None = None) -> None:
        self.wait(self.host if host is None else host, token, SyncKind.EVENT_SYNCHRONIZE, line, "Event.synchronize")

    def thread(self, name: str = "worker") -> int:
        lane = self.sink.lane(LaneKind.HOST, name)
        self.sink.acquire(lane, self.sink.release(self.host))
        return lane

    @contextmanager
    def branch(self, stream: int, name: str = "branch"):
        """A branch of a graph replay, forked from a stream and joined to it."""
        lane = self.sink.lane(LaneKind.GRAPH, name)
        self.sink.acquire(lane, self.sink.release(stream))
        yield lane
        self.sink.acquire(stream, self.sink.release(lane))
        self.sink.end_lane(lane)


@pytest.fixture(scope="session")
def driver_type() -> type[Driver]:
    return Driver


@pytest.fixture
def judge() -> HappensBefore:
    return HappensBefore()


@pytest.fixture
def drive(judge: HappensBefore) -> Driver:
    return Driver(judge)


@pytest.fixture
def codes(judge: HappensBefore):
    return lambda: [finding.code for finding in judge.findings]
