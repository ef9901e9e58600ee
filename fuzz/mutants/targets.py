"""Mutants as targets: ``mrv2 verify --target mrv2.fuzz.mutants:position_off_by_one`` must fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from mrv2.checks.findings import JSON
from mrv2.fuzz.targets.protocols import Knob
from mrv2.fuzz.targets.reference import ReferenceRunner, ReferenceTarget
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler

from .source import Mutation, mutated_package


class MutantTarget:
    """A target that builds runners from a mutated copy of the reference runner.

    The copy is made at the first use and lives as long as the target; ``close`` or garbage collection removes it.
    """

    features = ReferenceTarget.features
    knobs: Mapping[str, Knob] = ReferenceTarget.knobs
    models = ReferenceTarget.models

    def __init__(self, mutation: Mutation) -> None:
        self.name = f"refrunner with fault {mutation.name!r}: {mutation.doc}"
        self._mutation = mutation
        self._stack = ExitStack()
        self._target: ReferenceTarget | None = None

    def build(self, config: Mapping[str, JSON]) -> ReferenceRunner:
        """See :class:`mrv2.fuzz.targets.protocols.RunnerTarget`."""
        return self._mutated().build(config)

    def draft_model(self, settings: Mapping[str, JSON]) -> str | None:
        """See :class:`mrv2.fuzz.targets.protocols.DraftingTarget`."""
        return self._mutated().draft_model(settings)

    @property
    def hot_paths(self) -> tuple[str, ...]:
        """See :class:`mrv2.fuzz.targets.protocols.HotPathTarget`."""
        return self._mutated().hot_paths

    def sampler(self) -> ReferenceSampler:
        """The mutated sampler."""
        return self._mutated().sampler()

    def close(self) -> None:
        """Forget the mutated package and delete its folder; idempotent."""
        self._stack.close()
        self._target = None

    def _mutated(self) -> ReferenceTarget:
        if self._target is None:
            self._target = ReferenceTarget(self._stack.enter_context(mutated_package(self._mutation)))
        return self._target


@contextmanager
def mutant(mutation: Mutation) -> Iterator[MutantTarget]:
    """A mutant target for the length of the scope."""
    target = MutantTarget(mutation)
    try:
        yield target
    finally:
        target.close()
