"""The smallest device that the hooks can report to: one stream, run when asked to, judged by the real core."""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from mrv2.checks.events import LaneKind, OperationKind, Space, SyncKind
from mrv2.checks.findings import Finding, Site, Soundness, Verdict
from mrv2.checks.happens_before import HappensBefore
from mrv2.checks.hooks import threads


class Recorder(HappensBefore):
    """The judge, which also notes what it was told of accesses."""

    def __init__(self):
        super().__init__()
        self.names = {}
        self.accesses = []
        self.ended = []
        self.reported = []

    def operation(self, lane, kind, name, stack, **details):
        number = super().operation(lane, kind, name, stack, **details)
        self.names[number] = name
        return number

    def access(self, operation, ranges, *, write, certain=True, protected=False):
        self.accesses.append((self.names[operation], write, tuple(ranges)))
        super().access(operation, ranges, write=write, certain=certain, protected=protected)

    def end_lane(self, lane):
        self.ended.append(lane)
        super().end_lane(lane)

    def report(self, finding):
        self.reported.append(finding)
        super().report(finding)


class DeviceTensor(torch.Tensor):
    """CPU memory that says it is on the device."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: torch.device("cuda:0"))
    is_cuda = property(lambda self: True)


@dataclass
class Block:
    base: int
    size: int
    space: Space
    id: int
    label: str
    owner: torch.Tensor
    stack: tuple = (("program.py", 1, "allocate"),)


@dataclass
class Pending:
    id: int
    name: str
    run: object
    number: int
    open: bool
    stack: tuple = (("program.py", 2, "launch"),)
    step: int | None = None
    done: bool = False


@dataclass
class Engine:
    pending: deque = field(default_factory=deque)
    submitted: int = 0

    def oldest(self):
        return self.pending[0].number if self.pending else self.submitted


class Device:
    """Has what :class:`mrv2.checks.hooks.runtime.Runtime` asks for."""

    def __init__(self):
        self.sink = self.judge = Recorder()
        self.lock = threading.RLock()
        self.step = None
        self.active = True
        self.running = None
        self.engine = Engine()
        self.wrap_array = None
        self.upload_guard = None
        self.wait_guard = None
        self._blocks = []
        self._threads = threading.local()
        self.host_lane()
        self.stream = self.sink.lane(LaneKind.STREAM, "stream")

    # What the hooks use

    def host_lane(self):
        if not hasattr(self._threads, "lane"):
            with self.lock:
                self._threads.lane = self.sink.lane(LaneKind.HOST, threading.current_thread().name)
        return self._threads.lane

    def known_host_lane(self):
        return getattr(self._threads, "lane", None)

    def find_block(self, address):
        index = bisect.bisect_right([block.base for block in self._blocks], address) - 1
        if index >= 0 and address < self._blocks[index].base + self._blocks[index].size:
            return self._blocks[index]
        return None

    def blocks(self):
        bases = [block.base for block in self._blocks]
        return np.array(bases, np.int64), np.array([block.base + block.size for block in self._blocks], np.int64)

    def packed_blocks(self):
        return np.stack(self.blocks(), axis=1).astype(np.uint64).tobytes()

    def host_access(self, ranges, *, write, name, certain=True):
        tracked = [piece for piece in ranges if self.find_block(piece[0]) is not None]
        if not tracked or not self.active:
            return
        with self.lock:
            stack = ((threading.current_thread().name, 1 + write, name),)
            number = self.sink.operation(self.host_lane(), OperationKind.HOST_ACCESS, name, stack)
            self.sink.access(number, tracked, write=write, certain=certain)

    def enqueue(self, name, kind, run, reads=(), writes=(), *, open=False, blocks=()):  # noqa: A002
        with self.lock:
            stack = (("program.py", 2, name),)
            number = self.sink.operation(self.stream, kind, name, stack, issuer=self.host_lane(), open=open)
            for ranges, write in ((reads, False), (writes, True)):
                if ranges:
                    self.sink.access(number, ranges, write=write)
            operation = Pending(number, name, run, self.engine.submitted, open, stack)
            self.engine.submitted += 1
            self.engine.pending.append(operation)
            return operation

    @contextlib.contextmanager
    def enter_thread(self):
        self.host_lane()
        try:
            yield
        finally:
            with self.lock:
                self.sink.end_lane(self.host_lane())
            del self._threads.lane

    # What a program does

    def device(self, values, dtype=torch.float32):
        """A device tensor with these values."""
        tensor = torch.tensor(values, dtype=dtype)
        self._track(tensor, Space.DEVICE)
        return torch.Tensor._make_subclass(DeviceTensor, tensor)

    def pinned(self, values, dtype=torch.float32):
        """A pinned host tensor with these values."""
        return self._track(torch.tensor(values, dtype=dtype), Space.PINNED)

    def array(self, values, dtype=torch.float32):
        """The tracked numpy alias of a pinned tensor."""
        return self.wrap_array(self.pinned(values, dtype).numpy())

    def _track(self, tensor, space):
        base, size = tensor.data_ptr(), tensor.untyped_storage().nbytes()
        lane = self.stream if space is Space.DEVICE else self.host_lane()
        number = self.sink.allocate(lane, base, size, space, (("program.py", 1, "allocate"),))
        self._blocks.append(Block(base, size, space, number, f"{tensor.dtype}{list(tensor.shape)}", tensor))
        self._blocks.sort(key=lambda block: block.base)
        return tensor

    def upload(self, source, name="upload"):
        """Copy a pinned tensor to the device, later."""
        span = (source.data_ptr(), source.data_ptr() + source.numel() * source.element_size())
        target = self.device([0.0] * source.numel(), source.dtype)
        move = lambda: torch.Tensor.copy_(torch.Tensor._make_subclass(torch.Tensor, target), source)  # noqa: E731
        check = self.upload_guard(source, name) if self.upload_guard else lambda: None
        self.enqueue(name, OperationKind.COPY_TO_DEVICE, lambda: (check(), move()), [span])
        return target

    def run(self):
        """Run all that is pending."""
        while self.engine.pending:
            operation = self.engine.pending.popleft()
            self.running = operation
            try:
                if operation.run is not None:
                    operation.run()
            except Exception as error:  # noqa: BLE001
                self.sink.report(_fault(operation, error))
            finally:
                self.running = None
            if operation.open:
                self.sink.close(operation.id)
            operation.done = True

    def synchronize(self):
        """Let the calling thread wait for the stream."""
        with self.lock:
            number = self.sink.sync(self.host_lane(), SyncKind.STREAM_SYNCHRONIZE, "synchronize", ())
            self.sink.acquire(self.host_lane(), self.sink.release(self.stream), sync=number)
            self.run()

    def ranges(self, tensor, write):
        """Offsets in elements of what was told of a tensor's bytes, without repetitions."""
        base, size = tensor.data_ptr(), tensor.element_size()
        end = base + tensor.numel() * size
        return [
            ((low - base) // size, (high - base) // size)
            for _, was_write, ranges in self.judge.accesses
            for low, high in ranges
            if was_write is write and base <= low < end
        ]

    @property
    def titles(self):
        """Titles of all findings."""
        return [finding.title for finding in self.judge.findings]

    @property
    def codes(self):
        """Codes of all findings."""
        return [finding.code for finding in self.judge.findings]


def _fault(operation, error):
    return Finding(
        "MRV214", Verdict.VIOLATION, Soundness.SOUND, f"{operation.name} failed: {error}", (Site("program.py", 2, "f"),)
    )


@pytest.fixture
def device():
    """A device, on which no hook is installed yet."""
    return Device()


class Scene:
    """The main thread uploads from pinned memory, somebody else waits for the copy, the main thread writes again."""

    def __init__(self, device):
        self.device = device
        self.source = device.pinned([0.0] * 4)
        device.upload(self.source)

    def wait(self):
        """Let the calling thread wait for the copy."""
        self.device.synchronize()

    def touch(self, *, write=True):
        """Access the source of the copy from the calling thread."""
        span = (self.source.data_ptr(), self.source.data_ptr() + 16)
        self.device.host_access([span], write=write, name="touch")


@pytest.fixture
def threaded(device):
    """A device that is told of threads."""
    undo = threads.install(device)
    yield device
    undo()


@pytest.fixture
def scene(threaded):
    """An upload that is pending."""
    return Scene(threaded)
