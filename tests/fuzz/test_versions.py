"""Versions of what the host writes: what an operation reads is what stood there when it was enqueued, or is named."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from mrv2.checks.events import OperationKind, Space
from mrv2.checks.virtual.schedules import Schedule
from mrv2.fuzz.case import run_case
from mrv2.fuzz.mutants.ordering import ORDERING
from mrv2.fuzz.mutants.targets import mutant
from mrv2.fuzz.script import Advance, Arrive, Script
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.versions import HostVersions
from mrv2.refrunner.api import SamplingParams

MUTATION = next(each for each in ORDERING if each.name == "slot_event_too_early")
SETTINGS = {"max_num_reqs": 3, "max_num_batched_tokens": 16, "block_size": 8, "max_model_len": 48, "num_kv_blocks": 24}
SCRIPT = Script(
    (
        Arrive((1, 2, 3), SamplingParams(max_tokens=4)),
        Arrive((5, 2, 3, 7), SamplingParams(max_tokens=3)),
        Advance(3),
        Arrive((4,) * 12, SamplingParams(max_tokens=3)),
    ),
    SETTINGS,
    3,
    Schedule("late"),
)


class Device:
    """Two slots of pinned memory and a queue; what is enqueued runs when it is told to."""

    def __init__(self):
        self.blocks = [SimpleNamespace(id=n, base=100 * n, size=16, space=Space.PINNED, label="ring") for n in range(2)]
        self.blocks.append(SimpleNamespace(id=2, base=200, size=16, space=Space.DEVICE, label="device"))
        self.queue = SimpleNamespace(pending=[])
        self.streams = SimpleNamespace(queues={0: self.queue})
        self.sink = SimpleNamespace(operation=self._number, access=lambda *_, **__: None, close=lambda _: None)
        self.sink.free = lambda *_, **__: None
        self.count = 0

    def _number(self, *_, **__):
        self.count += 1
        return self.count

    def find_block(self, address):
        return self.blocks[address // 100]

    def write(self, low, high):
        number = self.sink.operation(0, OperationKind.HOST_ACCESS, "write", ())
        self.sink.access(number, [(low, high)], write=True)

    def enqueue(self, name, low, high, *, tells_late=False):
        number = self.sink.operation(1, OperationKind.HOST_ACCESS, name, (), issuer=0, open=tells_late)
        if not tells_late:
            self.sink.access(number, [(low, high)], write=False)
        self.queue.pending.append(SimpleNamespace(id=number))
        return number

    def run(self, number, *ranges):
        """What was enqueued first runs; an operation that tells late says now what it reads."""
        assert self.queue.pending.pop(0).id == number
        for low, high in ranges:
            self.sink.access(number, [(low, high)], write=False)
        self.sink.close(number)


@pytest.fixture
def watched():
    device, versions = Device(), HostVersions()
    undo = versions.install(device)
    yield device, versions
    undo()
    assert device.sink is not versions


def test_a_copy_that_runs_before_the_next_write_reads_its_version(watched):
    device, versions = watched
    for _ in range(3):
        device.write(100, 108)
        device.run(device.enqueue("copy", 100, 108))
        device.run(device.enqueue("gather", 100, 108, tells_late=True), (100, 108))
    assert versions.stale == [] and versions.compared == 6


def test_a_copy_that_runs_behind_the_next_write_is_named_with_both_versions(watched):
    device, versions = watched
    for _ in range(7):
        device.write(100, 108)
    device.write(0, 4)
    device.enqueue("copy", 100, 108)
    device.write(8, 12)  # another slot
    device.write(108, 116)  # other bytes of this slot
    assert versions.stale == []
    device.write(100, 108)
    assert [str(read) for read in versions.stale] == ["'copy' reads slot 0 at version 9, expected 7"]


def test_a_kernel_that_reads_in_place_is_judged_when_it_runs(watched):
    device, versions = watched
    device.write(100, 116)
    kernel = device.enqueue("gather", 100, 116, tells_late=True)
    device.write(104, 108)
    device.run(kernel, (100, 116))
    (read,) = versions.stale
    assert str(read) == "'gather' reads slot 0 at version 2, and bytes of version 1, expected 1"


def test_memory_that_is_freed_or_of_the_device_has_no_versions(watched):
    device, versions = watched
    device.write(200, 208)
    device.run(device.enqueue("copy", 200, 208))
    device.write(100, 108)
    device.enqueue("copy", 100, 108)
    device.sink.free(1, 0, ())
    device.blocks[1] = SimpleNamespace(id=3, base=100, size=16, space=Space.PINNED, label="ring")
    device.write(100, 108)
    assert versions.stale == [] and versions.compared == 1
    assert np.all(versions._slots[3].of(100, 108) == 1)


def test_a_slot_that_is_written_too_early_is_seen_in_a_case():
    with mutant(MUTATION) as target:
        failures = run_case(target, SCRIPT).failures
    assert failures[0].signature.startswith("MRV201"), "the race comes first"
    (stale,) = [failure.text for failure in failures if failure.signature == "stale read by aten.copy_"]
    # A step may write fewer bytes than the one before: then the rest is as that left it.
    said = re.fullmatch(
        r"'aten.copy_' reads slot \d at version (\d+)(?:, and bytes of version (\d+))?, expected (\d+)", stale
    )
    assert said and int(said[1]) > int(said[3]) and said[2] in (None, said[3])
    clean = run_case(ReferenceTarget(), SCRIPT)
    assert clean.failures == () and clean.counts["host versions read"] > 5
