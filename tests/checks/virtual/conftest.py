"""A virtual device under each schedule, and a sink that only writes down what it is told."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from mrv2.checks.virtual import VirtualDevice, virtual_device

SCHEDULES = ("late", "early", "random:0", "random:1", "random:2", "starve:0", "starve:1")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=SCHEDULES)
def schedule(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def vd(schedule: str) -> Iterator[VirtualDevice]:
    with virtual_device(schedule) as device:
        yield device


@pytest.fixture
def late() -> Iterator[VirtualDevice]:
    with virtual_device("late") as device:
        yield device


@dataclasses.dataclass
class RecordingSink:
    """Writes down every call as (method, arguments)."""

    calls: list = dataclasses.field(default_factory=list)
    findings: list = dataclasses.field(default_factory=list)
    numbers: int = 0

    def __getattr__(self, name):
        def note(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            if name == "report":
                self.findings.append(args[0])
            self.numbers += 1
            return self.numbers

        return note

    def named(self, method, index=None, value=None):
        return [(a, k) for m, a, k in self.calls if m == method and (index is None or a[index] == value)]


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


def codes(device: VirtualDevice) -> list[str]:
    return [finding.code for finding in device.findings]
