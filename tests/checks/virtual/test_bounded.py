"""What a run keeps does not grow with its steps, even where the program never waits for a stream again."""

import collections
import threading

import pytest
import torch

from mrv2.checks.hooks import snapshots
from mrv2.checks.virtual import memory, queues, virtual_device
from mrv2.checks.virtual.device import VirtualDevice

from .conftest import SCHEDULES, codes

#: In the place of thousands, so that the bounds are met soon.
SMALL = 100
CONTAINERS = (list, dict, set, collections.deque)


def kept(device: VirtualDevice) -> int:
    """Length of the longest container in the device, the judge's own left out: it has bounds and tests of its own."""
    seen, waiting, longest = set(), [device.runtime], 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, CONTAINERS):
            longest = max(longest, len(thing))
            waiting += [*thing.keys(), *thing.values()] if isinstance(thing, dict) else thing
        elif isinstance(thing, tuple):
            waiting += thing
        elif type(thing).__module__.startswith(("mrv2.checks.virtual", "mrv2.checks.hooks")):
            names = [name for kind in type(thing).__mro__ for name in vars(kind).get("__slots__", ())]
            waiting += [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in names)]
    return longest


class Abandoned:
    """A program that once gave a stream something and never waits for it, and then goes on step by step."""

    def __init__(self) -> None:
        self.x, self.host = torch.zeros(4, device="cuda"), torch.zeros(4, pin_memory=True)
        self.abandoned, self.side, self.graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.x.add_(1).mul_(1)
        source = torch.zeros(4, pin_memory=True)
        with torch.cuda.stream(self.abandoned):
            self.forgotten = torch.ones(4, device="cuda").copy_(source, non_blocking=True) + 1
        self.source = source

    def wait(self):
        event = torch.cuda.Event()
        event.record()
        event.synchronize()

    def operators(self):
        copy = (self.x * 2).to("cpu", non_blocking=True)
        self.wait()
        copy.tolist()

    def allocations(self):
        torch.empty(16, device="cuda")
        torch.empty(16, pin_memory=True)

    def records(self):
        torch.cuda.Event().record(self.abandoned)

    def uploads(self):
        self.host.add_(1)
        self.x.copy_(self.host, non_blocking=True)
        self.wait()

    def forgotten_uploads(self):
        with torch.cuda.stream(self.abandoned):
            self.forgotten.copy_(self.source, non_blocking=True)

    def staged_uploads(self):
        self.x.copy_(torch.ones(4), non_blocking=True)
        self.wait()

    def replays(self):
        self.graph.replay()
        self.wait()

    def branches(self):
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.x.add_(1)
        torch.cuda.current_stream().wait_stream(self.side)
        self.wait()

    def graphs(self):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = torch.cuda.current_stream()
            self.side.wait_stream(captured)
            with torch.cuda.stream(self.side):
                self.x.add_(1)
            captured.wait_stream(self.side)
        graph.replay()
        self.wait()

    def threads(self):
        thread = threading.Thread(target=self.operators)
        thread.start()
        thread.join()


KINDS = (
    "operators", "allocations", "records", "uploads", "forgotten_uploads", "staged_uploads", "replays", "branches",
    "graphs", "threads",
)  # fmt: skip


@pytest.fixture
def small_bounds(monkeypatch):
    monkeypatch.setattr(queues, "KEPT_OPERATIONS", SMALL)
    monkeypatch.setattr(memory, "WITHHELD_BLOCKS", SMALL)
    monkeypatch.setattr(snapshots, "MAX_OPEN", SMALL)
    monkeypatch.setattr(snapshots, "MAX_TOKENS", SMALL)


@pytest.mark.parametrize("schedule", ["late", "early", "random:0", "starve:1"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_step(kind, schedule, small_bounds):
    with virtual_device(schedule) as device:
        program, sizes = Abandoned(), []
        for _ in range(600):
            getattr(program, kind)()
            sizes.append(kept(device) if len(sizes) % 50 == 0 else 0)
    pending = 600 if kind == "forgotten_uploads" else 0  # as the real launch queue would hold them
    assert max(sizes) < 4 * SMALL + pending and codes(device) == []


@pytest.mark.parametrize("schedule", ["late", "starve:1"])
def test_thousands_of_steps(schedule):
    with virtual_device(schedule) as device:
        program, sizes = Abandoned(), []
        for step in range(1, 6001):
            program.operators()
            if step in (2000, 6000):
                sizes.append(kept(device))
    assert codes(device) == [] and sizes[1] <= max(sizes[0], 1.1 * queues.KEPT_OPERATIONS)


def test_large_memory_is_given_back_sooner(monkeypatch, late):
    monkeypatch.setattr(memory, "WITHHELD_BYTES", 1 << 20)
    program = Abandoned()
    for _ in range(50):
        torch.empty(1 << 16, device="cuda")
        program.wait()
    assert late.runtime.memory._withheld_bytes <= 1 << 20 and codes(late) == []
    assert late.runtime.engine.oldest() == late.runtime.engine.submitted


def test_what_must_be_kept_is_kept(late):
    """As long as nothing is given up, the abandoned work stays pending."""
    program = Abandoned()
    for _ in range(50):
        program.operators()
    engine = late.runtime.engine
    assert engine.submitted - engine.oldest() > 100 and kept(late) > 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_findings_in_every_schedule(kind, small_bounds):
    found = {}
    for schedule in SCHEDULES:
        with virtual_device(schedule) as device:
            program = Abandoned()
            for _ in range(150):
                getattr(program, kind)()
            program.forgotten.add_(1)  # on the other stream, without an order
            program.source.fill_(1)
            torch.cuda.synchronize()
        found[schedule] = device.findings
    raced = [] if kind == "graphs" else ["MRV201", "MRV204"]  # a capture waits for the device when it begins
    assert sorted({finding.code for finding in found["late"]}) == raced
    assert all(findings == found["late"] for findings in found.values())


def test_a_source_compared_early_is_judged(small_bounds, vd):
    program = Abandoned()
    memory_of_source = memoryview(program.source.numpy()).cast("B")
    memory_of_source[0] = 1
    for _ in range(2 * SMALL):
        program.records()
    assert codes(vd) == ["MRV207"]
