"""What can be tested: the contracts a target fulfils.

A *target* builds *runners*; a runner executes steps. ``mrv2 verify --target package.module:object`` accepts any
object that fulfils :class:`RunnerTarget`; nothing here depends on how the runner works inside.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from mrv2.checks.findings import JSON, Finding, Site
from mrv2.checks.hot_path import Allowance
from mrv2.checks.sync.settings import Settings
from mrv2.refrunner.api import Handle, Step
from mrv2.stats.targets import SamplerTarget


class Feature(enum.Enum):
    """What a target can do; a stage that needs a missing feature answers INCONCLUSIVE and says which."""

    CHUNKED_PREFILL = "chunked prefill"
    PREEMPTION = "preemption"
    ABORT = "abort"
    SEEDED_SAMPLING = "seeded sampling"
    LOGPROBS = "logprobs"
    SNAPSHOT = "snapshot of the step's inputs"
    POISON = "poison of dead memory"
    SAMPLER = "sampler on its own"
    GRAMMARS = "grammars"
    STREAMING_UPDATES = "streaming updates"
    EMPTY_ADMISSION = "requests that enter a step before they are computed"


@dataclass(frozen=True)
class Knob:
    """A setting that may change speed but never output.

    Attributes:
        values: the values worth trying; the first is the default.
        doc: what it changes, one line.
        often: a fuzzer turns it in most cases and not in a few: what is behind the default is slow, or known already.
        needs: other settings, and the values of them with which it means anything; a fuzzer turns it only there.
    """

    values: tuple[JSON, ...]
    doc: str
    often: bool = False
    needs: Mapping[str, tuple[JSON, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def fits(self, settings: Mapping[str, JSON]) -> bool:
        """Whether it means anything beside these settings, defaults among them."""
        return all(settings.get(name) in values for name, values in self.needs.items())


@dataclass(frozen=True)
class InputSnapshot:
    """The inputs that a runner built for one step, copied to the host after the step.

    All sequences follow execution order and hold real lanes only (no padding).

    Attributes:
        request_ids: requests in execution order.
        rows: state-table row of each request.
        query_start_loc: len(request_ids) + 1 prefix sums of scheduled tokens.
        input_ids: token fed at each lane.
        positions: position of each lane in its sequence.
        slot_mapping: KV slot (block id * block size + offset) that each lane writes, KV group 0.
        seq_lens: tokens in the sequence after this step, per request.
        block_tables: KV blocks in use per request, KV group 0.
        padding_tokens: lanes of padding behind the real ones; 0 if there were none.
        padding_requests: requests of padding behind the real ones; 0 if there were none.
    """

    request_ids: tuple[str, ...]
    rows: tuple[int, ...]
    query_start_loc: tuple[int, ...]
    input_ids: tuple[int, ...]
    positions: tuple[int, ...]
    slot_mapping: tuple[int, ...]
    seq_lens: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]
    padding_tokens: int = 0
    padding_requests: int = 0


class Runner(Protocol):
    """One running instance of the system under test."""

    def execute(self, step: Step) -> Handle:
        """Enqueue a step; never waits for the device."""
        ...

    def invariants(self) -> list[Finding]:
        """Bookkeeping faults, checked off the hot path."""
        ...

    def close(self) -> None:
        """Release everything; idempotent."""
        ...


@runtime_checkable
class SnapshotRunner(Protocol):
    """Optional part of a runner with ``Feature.SNAPSHOT``."""

    def snapshot(self) -> InputSnapshot | None:
        """Inputs of the last step; synchronises. None if that step scheduled nothing, or failed before it had any."""
        ...

    def producer(self, field: str) -> Site | None:
        """The code that computes a field of the snapshot."""
        ...


# The kinds of dead memory: rows given back, KV blocks given back, KV blocks never handed out, lanes of padding.
POISON_KINDS = ("freed rows", "freed blocks", "unused blocks", "padding lanes")


@runtime_checkable
class PoisonRunner(Protocol):
    """Optional part of a runner with ``Feature.POISON``."""

    def poisoned(self) -> Mapping[str, int]:
        """How many places of each of ``POISON_KINDS`` hold poison now, read back from the device; synchronises."""
        ...


@runtime_checkable
class HotPathTarget(Protocol):
    """Optional part of a target that names its hot paths itself; those of any other are named by its project."""

    @property
    def hot_paths(self) -> tuple[str, ...]:
        """Functions in which the host must not wait, as ``package.module:Class.method``."""
        ...


@runtime_checkable
class AllowingTarget(Protocol):
    """Optional part of a target that names its hot paths: waits in them that it declares, each with its reason."""

    @property
    def allowances(self) -> tuple[Allowance, ...]:
        """Accepted waits, each with the site at which it is accepted."""
        ...


@runtime_checkable
class ModelsTarget(Protocol):
    """Optional part of a target that knows more of the small models than ``"tiny"``."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names that ``load_checkpoint`` and ``build`` know; a campaign draws among them unless it is told others."""
        ...


@runtime_checkable
class DraftingTarget(Protocol):
    """Optional part of a target that speculates with a model, whose drafts are drawn with the noise of the oracle."""

    def draft_model(self, settings: Mapping[str, JSON]) -> str | None:
        """The model that proposes, as ``load_draft`` knows it; None if it is none, or nobody has its weights.

        With ``speculation="eagle"`` it is a head, and which states its keys come from is the rule of
        ``refrunner/speculation/README.md``; None for a head that follows another one.

        Args:
            settings: what ``build`` gets.
        """
        ...


@runtime_checkable
class RunnerTarget(Protocol):
    """Something that can be verified.

    Attributes:
        name: shown in reports.
        features: what it can do.
        knobs: settings that must not change output.
    """

    name: str
    features: frozenset[Feature]
    knobs: Mapping[str, Knob]

    def build(self, config: Mapping[str, JSON]) -> Runner:
        """Make a runner. Keys of ``config``: see ``fuzz/README.md``.

        Raises:
            an exception with ``subject``, ``rule``, ``reason`` and ``remedy`` for a bad configuration.
        """
        ...


@runtime_checkable
class SamplerProvider(Protocol):
    """Optional part of a target with ``Feature.SAMPLER``."""

    def sampler(self) -> SamplerTarget:
        """The target's sampler, callable on any logits without a model."""
        ...


def models_of(target: RunnerTarget) -> tuple[str, ...]:
    """Small models that a target knows."""
    return target.models if isinstance(target, ModelsTarget) else ("tiny",)


def own_settings(target: RunnerTarget) -> Settings | None:
    """Hot paths and accepted waits that a target names itself; None if it leaves that to its project."""
    if not isinstance(target, HotPathTarget):
        return None
    return Settings(target.hot_paths, target.allowances if isinstance(target, AllowingTarget) else ())
