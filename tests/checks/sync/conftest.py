"""A sink that only writes down what it is told."""

import dataclasses

import pytest


@dataclasses.dataclass
class RecordingSink:
    """Writes down the name of every call."""

    calls: list = dataclasses.field(default_factory=list)

    def __getattr__(self, name):
        def note(*args, **kwargs):
            self.calls.append(name)
            return len(self.calls)

        return note

    def named(self, name):
        return [call for call in self.calls if call == name]


@pytest.fixture
def sink():
    return RecordingSink()
