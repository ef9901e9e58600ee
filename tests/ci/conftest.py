"""What the tests of the stages share: the tiny model's oracle, and targets that lack something."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mrv2.ci.command.kernels import compiled_kernels
from mrv2.fuzz.targets.protocols import Feature
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.models.tiny import tiny_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.refrunner.oracle.oracle import Oracle


class Silent:
    """Progress that counts units."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def start(self, total: int) -> None:
        self.total = total

    def advance(self, units: int = 1) -> None:
        self.done += units


@pytest.fixture
def progress() -> Silent:
    return Silent()


@pytest.fixture(scope="session")
def tiny_oracle() -> Oracle:
    checkpoint = tiny_checkpoint()
    return Oracle(LlamaOracle(checkpoint.config, checkpoint.tensors))


@pytest.fixture
def reference_with() -> Callable[..., Any]:
    """Makes the reference target with other features, or with runners that are changed after they are built."""

    def make(
        features: frozenset[Feature] = ReferenceTarget.features, change: Callable[[Any], Any] | None = None
    ) -> Any:
        target = ReferenceTarget()

        def build(config: Any) -> Any:
            runner = target.build(config)
            return runner if change is None else change(runner)

        return SimpleNamespace(name="changed", features=features, knobs={}, build=build, sampler=target.sampler)

    return make


@pytest.fixture(autouse=True)
def _compiled() -> Iterator[None]:
    """Kernels run compiled, as they do under the command."""
    with compiled_kernels():
        yield
