"""Whether an adapter is fit to be fuzzed: what its protocol promises, one check after another.

A check is a generator of faults, each an error in four parts; a later check may rely on those before it, so after the
first one that fails the rest does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mrv2.checks.errors import CheckError
from mrv2.fuzz.checked import checked_counts, checked_runner
from mrv2.fuzz.targets.protocols import POISON_KINDS, Feature, Knob, PoisonRunner, SnapshotRunner
from mrv2.fuzz.workload import Trace
from mrv2.refrunner.api import SamplingParams
from mrv2.stats.targets import is_keyed

from .case import model_facts
from .script import Abort, Advance, Arrive, Preempt, Script, Skip
from .script_driver import ScriptDriver

MODEL = "tiny"
CONFIG: Mapping[str, Any] = {
    "max_num_reqs": 2, "max_num_batched_tokens": 8, "max_model_len": 32, "block_size": 4, "num_kv_blocks": 20,
}  # fmt: skip
EVENTS = (
    Arrive((1, 2, 3), SamplingParams(max_tokens=4)),
    Advance(2),
    Arrive((5,) * 11, SamplingParams(max_tokens=3)),
    Skip(),
    Advance(2),
    Preempt(1),
    Arrive((7,), SamplingParams(max_tokens=5)),
    Advance(3),
    Abort(1),
)
Faults = Iterator[CheckError]
_FOUR_PARTS = ("subject", "rule", "reason", "remedy")


@dataclass(frozen=True)
class Check:
    """One promise.

    Attributes:
        name: what is promised.
        faults: what of it a target does not keep.
    """

    name: str
    faults: Callable[[Any], Faults]


@dataclass(frozen=True)
class Checked:
    """What became of a check: its faults, or None if it did not run since an earlier one failed."""

    name: str
    faults: tuple[CheckError, ...] | None


def conform(target: object, checks: tuple[Check, ...]) -> tuple[Checked, ...]:
    """Run checks until one fails; whatever a target raises is a fault of the check at hand."""
    results: list[Checked] = []
    for check in checks:
        if results and results[-1].faults != ():
            results.append(Checked(check.name, None))
            continue
        try:
            faults = tuple(check.faults(target))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a target raises anything
            faults = (_raised(check.name, error),)
        results.append(Checked(check.name, faults))
    return tuple(results)


def _raised(name: str, error: BaseException) -> CheckError:
    return CheckError(
        f"the target, when it is checked for {name!r}",
        f"what the protocol allows raises nothing; it raised {type(error).__name__}: {error}",
        "the fuzzer would take that for a crash of each case",
        "whatever the message names, mended",
    )


def _members(target: Any) -> Faults:
    wanted = {
        "name": (isinstance(getattr(target, "name", None), str), "a text"),
        "features": (_all_are(getattr(target, "features", None), Feature), "a frozenset of Feature"),
        "knobs": (_are_knobs(getattr(target, "knobs", None)), "a mapping from names to Knob, which may be empty"),
        "build": (callable(getattr(target, "build", None)), "a method that takes a mapping of settings"),
    }
    for name, (right, what) in wanted.items():
        if not right:
            yield CheckError(
                f"target.{name}", f"it must be {what}", "stages and the fuzzer ask for it before they build anything",
                f"see RunnerTarget in mrv2.fuzz.targets.protocols, and the adapter in fuzz/README.md for {name}",
            )  # fmt: skip


def _all_are(values: object, kind: type) -> bool:
    return isinstance(values, frozenset) and all(isinstance(value, kind) for value in values)


def _are_knobs(knobs: object) -> bool:
    return isinstance(knobs, Mapping) and all(
        isinstance(name, str) and isinstance(knob, Knob) and len(knob.values) > 0 for name, knob in knobs.items()
    )


def _built(target: Any, **settings: Any) -> Any:
    return checked_runner(target.build({**CONFIG, "model": MODEL, **settings}))


def _builds_and_closes(target: Any) -> Faults:
    for _ in range(2):
        runner = _built(target)
        runner.close()
        runner.close()
    yield from ()


def _refuses_bad_settings(target: Any) -> Faults:
    for name, value in (("block_size", 0), ("max_num_reqs", -1)):
        try:
            _built(target, **{name: value}).close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a target raises anything
            if all(isinstance(getattr(error, part, None), str) for part in _FOUR_PARTS):
                continue
            told = f"it raised {type(error).__name__} without those"
        else:
            told = "it built a runner"
        yield CheckError(
            f"build() with {name}={value}",
            f"it raises an error with the attributes subject, rule, reason and remedy; {told}",
            "a setting that is refused by name is skipped, anything else is a failure of the case",
            "raise an exception with these four texts before anything is allocated",
        )


def _knobs_turn(target: Any) -> Faults:
    """Each value of each knob builds a runner or is refused by name."""
    for name, knob in target.knobs.items():
        for value in knob.values:
            try:
                _built(target, **{name: value}).close()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a target raises anything
                if not all(isinstance(getattr(error, part, None), str) for part in _FOUR_PARTS):
                    yield CheckError(
                        f"knob {name}={value!r}",
                        f"build() makes a runner with it, or refuses it in four parts; it raised "
                        f"{type(error).__name__}: {error}",
                        "the fuzzer turns every knob that a target names",
                        "accept the setting, refuse it by name, or leave it out of knobs",
                    )


def _ran(target: Any, **settings: Any) -> tuple[Trace, Mapping[str, int]]:
    """A short life of a runner, and the poison that it showed before it was closed."""
    runner = _built(target, **settings)
    try:
        trace = ScriptDriver(runner, Script(EVENTS, {**CONFIG, **settings}), *model_facts(MODEL)).run()
        shown = isinstance(runner, PoisonRunner) and not trace.crash
        return trace, checked_counts(runner.poisoned()) if shown else {}
    finally:
        runner.close()


def _answers(target: Any) -> Faults:
    trace, _ = _ran(target)
    if trace.crash is not None:
        place = trace.crash.where[0] if trace.crash.where else None
        yield CheckError(
            f"step {trace.crash.step} of a short script" + (f", at {place.file}:{place.line}" if place else ""),
            f"each step is executed and answers with the tokens and logprobs of its requests; {trace.crash.error}",
            "everything else is judged by these answers",
            "see Runner and StepOutput in mrv2.fuzz.targets.protocols and mrv2.refrunner.api",
        )


def _same_again(target: Any) -> Faults:
    (first, _), (second, _) = _ran(target), _ran(target)
    for name, result in first.results.items():
        again = second.results[name]
        if (result.token_ids, result.logprobs) != (again.token_ids, again.logprobs):
            yield CheckError(
                f"request {name}: {again.token_ids}, and {result.token_ids} the first time",
                "the same steps give the same tokens and log-probabilities, to the last bit",
                "a failure that does not repeat cannot be made smaller, nor replayed",
                "no state outside of the runner, and no noise but that of (seed, position, token)",
            )
            return


def _snapshot(target: Any) -> Faults:
    if Feature.SNAPSHOT not in target.features:
        return
    runner = _built(target)
    runner.close()
    if not isinstance(runner, SnapshotRunner):
        yield _promise("snapshot() and producer()", Feature.SNAPSHOT)
        return
    trace, _ = _ran(target)
    if trace.mismatch:
        step, wrong = trace.mismatch
        yield CheckError(
            f"snapshot() after step {step}: {wrong.field}[{wrong.index}] of request {wrong.request_id}",
            f"it shows the inputs of the step as the contract has them, {wrong.expected}; it says {wrong.observed}",
            "a wrong input is the failure that is nearest to its cause, and hides all others of its case",
            "a copy of the batch in execution order without padding, or a runner whose input is right",
        )


def _poison(target: Any) -> Faults:
    if Feature.POISON not in target.features:
        return
    trace, kinds = _ran(target, poison=True, pad_to=3)
    if trace.crash is not None or set(kinds) != set(POISON_KINDS):
        yield _promise(
            "poisoned(), with all kinds of POISON_KINDS, and runs with poison=True and pad_to=3", Feature.POISON
        )
    elif not any(kinds.values()):
        yield CheckError(
            f"poisoned() is {kinds}",
            "with poison=True dead memory holds values that would show",
            "a runner that ignores the setting would pass whatever it reads",
            "fill freed rows, freed and unused blocks and padding lanes, or leave Feature.POISON out",
        )


def _promise(what: str, feature: Feature) -> CheckError:
    return CheckError(
        f"target.features with {feature}",
        f"its runners have {what}",
        "a feature that is named is relied on, and not asked for again",
        f"these methods, or features without {feature}",
    )


RUNNER_CHECKS = (
    Check("the members of RunnerTarget", _members),
    Check("runners are built and closed, each twice", _builds_and_closes),
    Check("bad settings are refused by name", _refuses_bad_settings),
    Check("every knob turns", _knobs_turn),
    Check("steps are answered", _answers),
    Check("the same steps give the same answers", _same_again),
    Check("snapshots show the step's inputs", _snapshot),
    Check("poison is there", _poison),
)

_ROWS, _VOCAB = 6, 40


def _logits() -> Any:
    return np.random.default_rng(7).normal(size=(_ROWS, _VOCAB)).astype(np.float32)


def _arguments(temperature: float) -> tuple[Any, ...]:
    seeds, positions = np.arange(_ROWS, dtype=np.uint64) + 3, np.arange(_ROWS, dtype=np.int64)
    return _logits(), np.full(_ROWS, temperature, np.float32), seeds, positions


def _sampler_members(target: Any) -> Faults:
    if not isinstance(getattr(target, "name", None), str) or not callable(getattr(target, "sample", None)):
        yield CheckError(
            f"sampler {type(target).__name__}", "it has a name, a text, and a method sample()",
            "reports name it, and the audit draws with it", "see SamplerTarget in mrv2.stats.targets",
        )  # fmt: skip


def _tokens(target: Any) -> Faults:
    arguments = _arguments(0.8)
    before = [np.array(value) for value in arguments]
    tokens = np.asarray(target.sample(*arguments))
    if tokens.shape != (_ROWS,) or tokens.dtype != np.int64 or not ((tokens >= 0) & (tokens < _VOCAB)).all():
        yield CheckError(
            f"sample() answered {tokens.dtype} {tokens.shape}: {tokens.tolist()}"[:200],
            f"it answers int64 [{_ROWS}], ids from 0 to {_VOCAB - 1}",
            "whatever else it is, would be counted as a token",
            "one id for each row of logits, as numpy's int64",
        )
    if not all(np.array_equal(old, new) for old, new in zip(before, arguments, strict=True)):
        yield CheckError(
            "sample() changed an argument", "arguments are read only",
            "the audit compares draws with the logits that it gave", "a copy of what is changed",
        )  # fmt: skip


def _greedy(target: Any) -> Faults:
    logits, *rest = _arguments(0.0)
    logits[:, [5, 9]] = logits.max() + 1
    logits[0, 5] = -np.inf
    tokens = np.asarray(target.sample(logits, *rest)).tolist()
    if tokens != [9] + [5] * (_ROWS - 1):
        yield CheckError(
            f"sample() at temperature 0 drew {tokens}",
            "it is the lowest id of the largest logit, and -inf is never drawn",
            "greedy tokens are compared one by one", "an argmax whose first index wins",
        )  # fmt: skip


def _keyed(target: Any) -> Faults:
    if not is_keyed(target):
        return
    arguments = _arguments(1.0)
    tokens = np.asarray(target.sample(*arguments))
    backwards = np.asarray(target.sample(*(np.ascontiguousarray(value[::-1]) for value in arguments)))[::-1]
    if not np.array_equal(tokens, backwards):
        yield CheckError(
            f"sample() drew {tokens.tolist()}, and {backwards.tolist()} with the rows the other way round",
            "a token is a function of its own row, temperature, seed and position",
            "a request must not get other tokens because of its place or its neighbours",
            "noise from (seed, position, token), or keyed = False",
        )


SAMPLER_CHECKS = (
    Check("the members of SamplerTarget", _sampler_members),
    Check("tokens have the right form", _tokens),
    Check("temperature 0 is greedy", _greedy),
    Check("a token depends on its own row and key alone", _keyed),
)
