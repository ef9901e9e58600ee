"""A whole audit: the layers of a profile on one sampler, the verdict, and why."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mrv2.checks.findings import RunVerdict, combine

from .answers import AnswerError, Checked
from .causes.draws import contract_causes, distribution_causes, drawn_rows, noise_causes, raised_cause, replay_causes
from .causes.parts import filter_causes, logprob_causes, speculation_causes
from .decision import Audit, JudgedTest, run_audit
from .diagnosis import Cause
from .distribution_layer import RowPlan
from .errors import ArgumentError, require_rate
from .evidence_layer import Campaign, EvidenceLayer, evidence_key
from .layers import AuditPlan, Layer, LayerResult, LayerTest, Progress, Silent, exact_test
from .ledger import EvidenceKey, EvidenceLedger
from .profiles import AffordableDistribution, Profile, layers_of, profile_of
from .tail_profile import TailProfile, tail_profile
from .targets import (
    FilteringTarget,
    LogprobTarget,
    MaskTarget,
    NoiseTarget,
    PromptLogprobTarget,
    RankTarget,
    SamplerTarget,
    SpeculativeTarget,
)
from .timing import TimeBudget

VOCAB_SIZE = 262_208  # as large as vocabularies get: tails show best in wide rows; not a whole number of blocks
NO_TIME = "no time was left"
_BROKEN = "the contract is broken, so nothing else can be asked"
_OVERTIME = 3.0  # times the profile's seconds at which an audit whose time was not given ends
# Shares of the time that are kept for layers while those before them run; a layer without one has little to do.
_RESERVED: Mapping[str, float] = {"speculative": 0.15, "distribution": 0.4, "evidence": 0.2}
_LITTLE = 0.05
_LONGEST_NAME = 60  # of a target, as reports show it


@dataclass(frozen=True)
class Settings:
    """What to do.

    Attributes:
        profile: how much to ask.
        limit: seconds after which whatever still runs is cut.
        seed: root of every random choice.
        alpha: chance that a correct sampler fails.
        vocab_size: tokens in the widest rows.
        layers: names of the layers to run; all if empty.
        ledger: file of the evidence of earlier nights, to be continued until the profile's time is over; None for none.
    """

    profile: Profile
    limit: float
    seed: int = 0
    alpha: float = 1e-4
    vocab_size: int = VOCAB_SIZE
    layers: tuple[str, ...] = ()
    ledger: Path | None = None


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
        target: name of the sampler.
        settings: what was done.
        audit: all tests.
        verdict: of the whole.
        causes: why it failed, the likeliest first; empty unless it did.
        tails: what was drawn of flat tails, with the curves of known defects; None if none was drawn.
        draws: of all layers.
        seconds: it took.
    """

    target: str
    settings: Settings
    audit: Audit
    verdict: RunVerdict
    causes: tuple[Cause, ...]
    tails: TailProfile | None
    draws: int
    seconds: float


def settings(
    profile: str = "pr",
    seconds: float | None = None,
    seed: int = 0,
    alpha: float = 1e-4,
    vocab_size: int = VOCAB_SIZE,
    layers: Sequence[str] = (),
    ledger: Path | None = None,
) -> Settings:
    """Settings, checked. The profile overnight keeps a ledger in any case, :data:`LEDGER` by default.

    A time that is given is kept: the run is cut then. Without one, the profile's own is what its draws are chosen for,
    and a machine that others use, too, may take three times as long.

    Raises:
        ArgumentError: a name is unknown, or a number is out of its range.
    """
    require_rate("alpha", alpha)
    AuditPlan(vocab_size, seed, alpha)
    unknown = [name for name in layers if name not in LAYERS]
    if unknown:
        raise ArgumentError(
            f"layer {unknown[0]!r}", "a layer must exist", "one that does not would test nothing", ", ".join(LAYERS)
        )
    if "evidence" in layers and ledger is None and profile != "overnight":
        raise ArgumentError(
            "layer 'evidence' without a ledger",
            "evidence is kept in a file",
            "what is not kept adds up to nothing",
            "--ledger FILE, or the profile overnight",
        )
    kept = ledger or (LEDGER if profile == "overnight" else None)
    chosen = profile_of(profile, seconds)
    limit = chosen.seconds if seconds is not None else _OVERTIME * chosen.seconds
    return Settings(chosen, limit, seed, alpha, vocab_size, tuple(layers), kept)


LEDGER = Path(".mrv2-audit") / "evidence.jsonl"
LAYERS = ("contract", "noise", "replay", "filters", "logprobs", "speculative", "distribution", "evidence")


def audit(
    target: object,
    settings: Settings,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> AuditReport:
    """Audit a sampler.

    Args:
        target: implements the protocols of :mod:`mrv2.stats.targets` that it can.
        settings: see :func:`settings`.
        progress: hears of draws and tests.
        clock: seconds from any start.

    Raises:
        Exception: whatever the audit itself does wrong; errors of the target are findings.
    """
    start = clock()
    budget = TimeBudget(clock, start + settings.limit)
    plan = AuditPlan(settings.vocab_size, settings.seed, settings.alpha, time=budget)
    counter = _Counter(progress or Silent())
    found = run_audit(_layers(settings, target, plan, start), target, plan, counter)
    verdict = found.decision.verdict
    if any(result.not_run == NO_TIME for result in found.results):
        verdict = combine([verdict, RunVerdict.INCONCLUSIVE])
    causes = _causes(found, target) if verdict is RunVerdict.FAIL else ()
    tails = tail_profile(drawn_rows(found.results, tuple(found.repeats.values())))
    name = " ".join(str(getattr(target, "name", type(target).__name__)).split())[:_LONGEST_NAME]
    return AuditReport(name, settings, found, verdict, causes, tails, counter.draws, clock() - start)


def _layers(settings: Settings, target: object, plan: AuditPlan, start: float) -> list[_Guarded]:
    """The layers that are wanted, each with the end of its time."""
    made = {layer.name: layer for layer in layers_of(settings.profile, plan)}
    if settings.ledger:
        distribution = made["distribution"]
        assert isinstance(distribution, AffordableDistribution)
        profile_ends = plan.time.until(min(plan.time.end, start + settings.profile.seconds))
        # Where a target names no identity, its class does.
        key_of = partial(evidence_key, target)
        EvidenceLedger(settings.ledger).require_usable()
        made["evidence"] = _Nightly(settings.profile, settings.ledger, distribution, profile_ends, key_of)
    wanted = [made[name] for name in LAYERS if name in made and name in (settings.layers or LAYERS)]
    kept = [_RESERVED.get(layer.name, _LITTLE) * _can_answer(target, layer.name) for layer in wanted]
    state = _State()
    return [
        _Guarded(layer, state, plan.time.until(plan.time.end - sum(kept[place + 1 :]) * settings.limit))
        for place, layer in enumerate(wanted)
    ]


@dataclass(frozen=True, eq=False)
class _Nightly:
    """Evidence on the rows of the distribution layer, in portions, until the profile's time is over."""

    profile: Profile
    ledger: Path
    distribution: AffordableDistribution
    time: TimeBudget
    key_of: Callable[[int], EvidenceKey]
    name: str = "evidence"

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        """See :class:`mrv2.stats.layers.Layer`."""
        if not isinstance(target, SamplerTarget):
            return LayerResult(self.name, (), not_run="the target draws no tokens")
        chosen, size = self.distribution.chosen(target, plan).rows
        rows = [RowPlan(planned.row, math.ceil(planned.draws / self.profile.more)) for planned in chosen.rows]
        layer = EvidenceLayer(rows, EvidenceLedger(self.ledger), self.key_of(size))
        return Campaign(layer, self.time.over).run(target, plan, progress)


def _causes(found: Audit, target: object) -> tuple[Cause, ...]:
    """One list in the order of the layers; later layers often only echo the first that failed.

    A sampler may raise an error when it is asked again; then the evidence has to speak for itself.
    """
    failed, raised = _answered(found.decision.failed)
    questions: tuple[Callable[[], list[Cause]], ...] = (
        lambda: contract_causes(failed, target),
        lambda: noise_causes(failed, target),
        lambda: replay_causes(found, failed, target),
        lambda: filter_causes(failed, target),
        lambda: distribution_causes(found, failed),
        lambda: speculation_causes(failed, target),
        lambda: logprob_causes(failed, target),
    )
    causes: dict[str, Cause] = {}
    for ask in questions:
        try:
            named = ask()
        except Exception as error:
            if not _is_targets(error):
                raise
            named = []
        for cause in named:
            causes.setdefault(cause.kind, cause)
    for test in raised:
        cause = _cause_of_error(str(test.first.evidence["raised"]))
        causes.setdefault(cause.kind, cause)
    return tuple(causes.values())


def _cause_of_error(told: str) -> Cause:
    """Of an error that ended a layer, as it was told."""
    form = f"{AnswerError.__name__}: "
    if told.startswith(form):
        return Cause("answers of the wrong form", told.removeprefix(form), "answer as the method declares it")
    return raised_cause(told)


def _answered(failed: Sequence[JudgedTest]) -> tuple[list[JudgedTest], list[JudgedTest]]:
    """Tests that failed by what was drawn, and layers that an error ended, which say nothing about draws."""
    answered: list[JudgedTest] = []
    ended: list[JudgedTest] = []
    for test in failed:
        by_error = test.layer != "contract" and "raised" in test.first.evidence
        (ended if by_error else answered).append(test)
    return answered, ended


class _Counter:
    """Passes progress on, and counts."""

    def __init__(self, progress: Progress) -> None:
        self.draws = 0
        self._progress = progress

    def drawn(self, count: int) -> None:
        self.draws += count
        self._progress.drawn(count)

    def tested(self, test: LayerTest) -> None:
        self._progress.tested(test)


class _State:
    """What the layers of one run know of each other."""

    def __init__(self) -> None:
        self.broken = False
        self.started = False


class _Guarded:
    """A layer that is not run after a broken contract or without time, and whose target may raise errors."""

    def __init__(self, layer: Layer, state: _State, time: TimeBudget) -> None:
        self.name = layer.name
        self._layer = layer
        self._state = state
        self._time = time

    def run(self, target: object, plan: AuditPlan, progress: Progress) -> LayerResult:
        if self._state.broken:
            return LayerResult(self.name, (), not_run=_BROKEN)
        if self._state.started and self._time.over() and _can_answer(target, self.name):
            return LayerResult(self.name, (), not_run=NO_TIME)
        self._state.started = True
        try:
            # The contract layer judges the form of answers itself.
            asked = target if self.name == "contract" or not _can_answer(target, self.name) else Checked(target)
            result = self._layer.run(asked, replace(plan, time=self._time), progress)
        except Exception as error:
            if not _is_targets(error):
                raise
            told = f"{type(error).__name__}: {error}"[:300]
            test = exact_test("calls", f"{self.name}: the sampler answers", 1, 1, "call", {"raised": told})
            return LayerResult(self.name, (test,))
        failed = [test.name for test in result.tests if test.result.p_value == 0.0]
        if self.name == "contract" and _FATAL in failed:
            self._state.broken = True
        return result


# What a layer asks for; a target without it is not run because of that, and not for want of time.
_ASKED: Mapping[str, tuple[type, ...]] = {
    "contract": (SamplerTarget,),
    "distribution": (SamplerTarget,),
    "evidence": (SamplerTarget,),
    "noise": (NoiseTarget,),
    "replay": (NoiseTarget,),
    "filters": (FilteringTarget, MaskTarget),
    "speculative": (SpeculativeTarget,),
    "logprobs": (LogprobTarget, RankTarget, PromptLogprobTarget),
}
_FATAL = "one id of the vocabulary per row"


def _can_answer(target: object, layer: str) -> bool:
    return isinstance(target, _ASKED[layer])


def require_answers(target: object) -> None:
    """Refuse an object that no layer can ask anything.

    Raises:
        ArgumentError: it fulfils no protocol of :mod:`mrv2.stats.targets`, or is a class that would have to be made.
    """
    if isinstance(target, type) or not any(_can_answer(target, layer) for layer in LAYERS):
        lacks = " and ".join(what for what in ("name", "sample") if not hasattr(target, what))
        of_type = f"a target of type {type(target).__name__} without {lacks}"
        raise ArgumentError(
            f"the class {target.__name__} itself" if isinstance(target, type) else of_type,
            "a sampler has a name and sample(logits, temperature, seeds, positions)",
            "an audit asks it for draws, and without these it would ask nothing",
            "an instance of a class like the one in mrv2/stats/README.md, 'Your own sampler'",
        )


def _is_targets(error: BaseException) -> bool:
    """Whether code of the target was running: any frame below ours that is not of this package or of a library."""
    if isinstance(error, AnswerError):
        return True
    frame, modules = error.__traceback__, []
    while frame is not None:
        modules.append(str(frame.tb_frame.f_globals.get("__name__", "")))
        frame = frame.tb_next
    ours = [module for module in modules if module.startswith("mrv2.stats.") and ".planted" not in module]
    return (
        any(
            not module.startswith(("mrv2.stats.", "numpy", "scipy")) or ".planted" in module
            for module in modules[modules.index(ours[0]) + 1 :]
        )
        if ours
        else True
    )
