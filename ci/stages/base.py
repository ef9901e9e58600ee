"""The stage contract: ``mrv2 verify`` is a list of stages, and the command knows nothing else about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mrv2.checks.findings import JSON, Finding, RunVerdict
from mrv2.fuzz.targets.protocols import RunnerTarget


@dataclass(frozen=True)
class Budget:
    """How much work a stage may do. All of it is counted in work units, none in seconds, so that a run is repeatable.

    Attributes:
        profile: name shown in reports.
        seed: root of every random choice of the run.
        new_tokens: tokens generated per request.
        distribution_draws: draws of the sampler distribution check.
    """

    profile: str = "quick"
    seed: int = 0
    new_tokens: int = 12
    distribution_draws: int = 2000


class Progress(Protocol):
    """Where a stage reports how far it is; a silent one is used without a terminal."""

    def start(self, total: int) -> None:
        """Announce the number of work units of this stage."""
        ...

    def advance(self, units: int = 1) -> None:
        """Some units are done."""
        ...


class Silent:
    """Progress that nobody sees."""

    def start(self, total: int) -> None:
        """Nothing to show."""

    def advance(self, units: int = 1) -> None:
        """Nothing to show."""


@dataclass(frozen=True)
class StageResult:
    """What a stage found.

    Attributes:
        verdict: PASS only if something was really checked.
        summary: one line for the result table, e.g. ``"8 requests, 96 tokens equal"``.
        findings: broken rules.
        metrics: numbers measured (JSON).
        coverage: what was exercised: hot paths, kernels, features (JSON).
    """

    verdict: RunVerdict
    summary: str
    findings: tuple[Finding, ...] = ()
    metrics: Mapping[str, JSON] = field(default_factory=dict)
    coverage: Mapping[str, JSON] = field(default_factory=dict)


class Stage(Protocol):
    """One part of a verification. A stage gets what else it needs (a checkpoint, say) when it is made."""

    name: str

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        """Check the target; a stage that had nothing to check answers INCONCLUSIVE with the reason in ``summary``."""
        ...
