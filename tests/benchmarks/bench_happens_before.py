"""What the happens-before check costs: medians per call, in microseconds of processor time.

Run as ``python tests/benchmarks/bench_happens_before.py``. It asserts nothing, and its name keeps it out of the tests.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mrv2.checks.events import EventSink, LaneKind, OperationKind, Space, Stack, SyncKind
from mrv2.checks.happens_before import HappensBefore, Recorder, TraceWriter, analyse_fences, replay_trace

ROUNDS, CALLS = 15, 2_000
DEPTH = 6
STACKS = [tuple((f"file{depth}.py", 10 * site + depth, "f") for depth in range(DEPTH)) for site in range(40)]
NOWHERE: Stack = ()


class Scene:
    """A host, two streams, and blocks to touch."""

    def __init__(self, sink: EventSink) -> None:
        self.sink = sink
        self.host = sink.lane(LaneKind.HOST, "MainThread")
        self.one, self.two = (sink.lane(LaneKind.STREAM, f"stream {number}") for number in (1, 2))
        self.pinned = self.block(self.host, 1 << 16, Space.PINNED)
        self.device = self.block(self.one, 1 << 16, Space.DEVICE)
        self.count = 0

    def block(self, owner: int, size: int, space: Space) -> int:
        base = 1 << 20 if space is Space.PINNED else 1 << 30
        self.sink.allocate(owner, base, size, space, STACKS[0])
        return base

    def kernel(self, stream: int) -> int:
        self.count += 1
        return self.sink.operation(stream, OperationKind.KERNEL, "k", STACKS[self.count % 40], issuer=self.host)

    def operation(self) -> None:
        """One operation without accesses, on a stream that one host feeds."""
        self.kernel(self.one)

    def host_operation(self) -> None:
        """One operation of the host itself."""
        self.sink.operation(self.host, OperationKind.HOST_ACCESS, "h", STACKS[0])

    def hot_access(self) -> None:
        """A write of a hot device buffer, all of it, by one stream: nothing is ever unordered."""
        self.sink.access(self.current, [(self.device, self.device + 4096)], write=True)

    def prepare_hot(self) -> None:
        self.current = self.kernel(self.one)

    def ring_step(self) -> None:
        """Slots of a pinned ring: the host writes one, a kernel reads it in place, the host is two steps behind."""
        slot = self.pinned + self.count % 3 * 256
        self.sink.acquire(self.host, self.tokens.pop(0))
        write = self.sink.operation(self.host, OperationKind.HOST_ACCESS, "h", STACKS[1])
        self.sink.access(write, [(slot, slot + 256)], write=True)
        self.sink.access(self.kernel(self.one), [(slot, slot + 256)], write=False)
        self.tokens.append(self.sink.release(self.one))

    def prepare_ring(self) -> None:
        self.tokens = [self.sink.release(self.one) for _ in range(2)]

    def row_write(self) -> None:
        """A host writes one of 200 rows that as many pending copies, one for each other row, read."""
        row = self.pinned + 16 * (self.count % 100 * 2 + 1)
        self.count += 1
        self.sink.access(self.current, [(row, row + 16)], write=True)

    def prepare_rows(self) -> None:
        for row in range(0, 200, 2):
            copy = self.kernel(self.one)
            self.sink.access(copy, [(self.pinned + 16 * row, self.pinned + 16 * row + 16)], write=False)
        self.current = self.sink.operation(self.host, OperationKind.HOST_ACCESS, "h", STACKS[2])

    def scattered(self) -> None:
        """A kernel writes 16 rows of a device buffer."""
        rows = [(self.device + 512 * row, self.device + 512 * row + 64) for row in range(16)]
        self.sink.access(self.kernel(self.one), rows, write=True)

    def event(self) -> None:
        """One stream records, the other waits: what is news is copied."""
        self.kernel(self.one)
        self.sink.acquire(self.two, self.sink.release(self.one))

    def wait(self) -> None:
        """The same with the program's synchronisation told."""
        sync = self.sink.sync(self.two, SyncKind.WAIT_EVENT, "Event.wait", STACKS[3])
        self.sink.acquire(self.two, self.sink.release(self.one), sync=sync)

    def come_and_go(self) -> None:
        """A device block is allocated, written and freed."""
        base = (1 << 32) + self.count % 64 * 4096
        block = self.sink.allocate(self.one, base, 4096, Space.DEVICE, STACKS[4])
        self.sink.access(self.kernel(self.one), [(base, base + 4096)], write=True)
        self.sink.free(block, self.host, STACKS[5])


def median_us(call: Callable[[], None], calls: int = CALLS) -> float:
    """Median over rounds of the time of one call."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(calls):
            call()
        times.append((time.process_time() - start) / calls * 1e6)
    return statistics.median(times)


def row(name: str, value: float, unit: str = "us") -> None:
    print(f"{name:<58} {value:8.2f} {unit}")


def calls() -> None:
    for name, prepare in (
        ("operation", None),
        ("host_operation", None),
        ("hot_access", "prepare_hot"),
        ("ring_step", "prepare_ring"),
        ("row_write", "prepare_rows"),
        ("scattered", None),
        ("event", None),
        ("wait", None),
        ("come_and_go", None),
    ):
        scene = Scene(HappensBefore())
        if prepare:
            getattr(scene, prepare)()
        call = getattr(scene, name)
        row(f"{name}: {call.__doc__.splitlines()[0][:45]}", median_us(call))


def runner_steps(sink: EventSink, steps: int) -> int:
    """Steps of a runner: 40 operations with 3 accesses each, 3 waits, the host two steps behind; returns the calls."""
    scene = Scene(sink)
    host, one, two = scene.host, scene.one, scene.two
    ready: list[int] = []
    told = 0
    for step in range(steps):
        if len(ready) == 2:
            sync = sink.sync(host, SyncKind.EVENT_SYNCHRONIZE, "synchronize", STACKS[6], step=step)
            sink.acquire(host, ready.pop(0), sync=sync)
        slot = scene.pinned + step % 3 * 1024
        for field in range(4):
            write = sink.operation(host, OperationKind.HOST_ACCESS, "numpy", STACKS[10 + field], step=step)
            sink.access(write, [(slot + 256 * field, slot + 256 * field + 64)], write=True)
        for number in range(36):
            kernel = sink.operation(one, OperationKind.KERNEL, "k", STACKS[number], issuer=host, step=step)
            sink.access(kernel, [(slot, slot + 1024)], write=False)
            low = scene.device + 256 * number
            sink.access(kernel, [(low, low + 256)], write=False)
            sink.access(kernel, [(low + 256, low + 512)], write=True)
            told += 4
        sync = sink.sync(two, SyncKind.WAIT_EVENT, "wait", STACKS[7], step=step)
        sink.acquire(two, sink.release(one), sync=sync)
        copy = sink.operation(two, OperationKind.COPY_TO_HOST, "memcpy", STACKS[8], issuer=host, step=step)
        sink.access(copy, [(scene.device, scene.device + 256)], write=False)
        ready.append(sink.release(two))
        sync = sink.sync(one, SyncKind.WAIT_EVENT, "wait", STACKS[9], step=step)
        sink.acquire(one, ready[-1], sync=sync)
        told += 19
    return told


def whole_runs(steps: int = 300) -> None:
    for name, make in (("judge", HappensBefore), ("recorder", lambda: Recorder(lambda _: None))):
        times = []
        for _ in range(5):
            start = time.process_time()
            told = runner_steps(make(), steps)
            times.append((time.process_time() - start) / steps * 1e6)
        row(f"step of 40 operations, {told // steps} calls: {name}", statistics.median(times))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        start = time.process_time()
        with TraceWriter(path) as writer:
            runner_steps(writer, steps)
        row("  written to a file", (time.process_time() - start) / steps * 1e6)
        row("  size of the file", path.stat().st_size / steps / 1024, "KiB a step")
        start = time.process_time()
        replay_trace(path, HappensBefore())
        row("  read and judged", (time.process_time() - start) / steps * 1e6)
    records: list = []
    runner_steps(Recorder(records.append), steps)
    start = time.process_time()
    fences = analyse_fences(records)
    seconds = time.process_time() - start
    row(f"fences of {len(records)} records: {', '.join(f.need.value for f in fences)}", seconds * 1e3, "ms")


if __name__ == "__main__":
    calls()
    whole_runs()
