"""The conformance kit: the reference keeps every promise, and each way to break one is told by its own check."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from mrv2.checks import triton_cpu
from mrv2.ci.command.app import app
from mrv2.fuzz.campaign.fitness import COSTS, lacks
from mrv2.fuzz.conformance import RUNNER_CHECKS, SAMPLER_CHECKS, conform
from mrv2.fuzz.machine import NEEDED
from mrv2.fuzz.targets.plain_samplers import CallableSampler
from mrv2.fuzz.targets.protocols import Feature, Knob
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import StepOutput

REFERENCE = ReferenceTarget()


@pytest.fixture(autouse=True)
def _compiled():
    with triton_cpu.enabled():
        yield


class Adapter:
    """The reference runner, with few knobs, and something wrong in a subclass."""

    name, features, knobs = "adapter", frozenset(), {"pad_to": Knob((1, 4), "padding")}

    def build(self, config):
        return self.wrapped(REFERENCE.build(config))

    def wrapped(self, runner):
        return SimpleNamespace(execute=runner.execute, invariants=runner.invariants, close=runner.close)


class WithoutName(Adapter):
    name = None


class FeaturesAsTexts(Adapter):
    features = frozenset({"poison"})


class ClosesOnce(Adapter):
    def wrapped(self, runner):
        inner = super().wrapped(runner)
        left = [runner.close]

        def close():
            left.pop()()

        inner.close = close
        return inner


class RefusesWithoutWords(Adapter):
    def build(self, config):
        assert config["block_size"] > 0
        return super().build(config)


class KnobThatDoesNotTurn(Adapter):
    def build(self, config):
        if config.get("pad_to") == 4:
            raise KeyError("pad_to")
        return super().build(config)


class Handle:
    """A result that is changed on its way."""

    def __init__(self, inner, change):
        self.result = lambda: change(inner.result())


class BareTokens(Adapter):
    def wrapped(self, runner):
        inner = super().wrapped(runner)
        bare = lambda output: StepOutput({name: tokens[0] for name, tokens in output.token_ids.items()}, {})  # noqa: E731
        inner.execute = lambda step: Handle(runner.execute(step), bare)
        return inner


class Drifts(Adapter):
    """Log-probabilities depend on how many runners there have been."""

    count = itertools.count()

    def wrapped(self, runner):
        inner, drift = super().wrapped(runner), float(next(self.count))

        def change(output):
            logprobs = {name: tuple(value - drift for value in values) for name, values in output.logprobs.items()}
            return StepOutput(output.token_ids, logprobs)

        inner.execute = lambda step: Handle(runner.execute(step), change)
        return inner


class SaysSnapshot(Adapter):
    features = frozenset({Feature.SNAPSHOT})


class SaysPoison(Adapter):
    features = frozenset({Feature.POISON})


class IgnoresPoison(SaysPoison):
    def wrapped(self, runner):
        kinds = ("freed rows", "freed blocks", "unused blocks", "padding lanes")
        inner = super().wrapped(runner)
        inner.poisoned = lambda: dict.fromkeys(kinds, 0)
        inner.snapshot = inner.producer = lambda *_: None
        return inner


MEMBERS, BUILT, REFUSED, KNOBS, ANSWERS, SAME, SNAPSHOT, POISON = (check.name for check in RUNNER_CHECKS)
BROKEN = {
    WithoutName: MEMBERS,
    FeaturesAsTexts: MEMBERS,
    ClosesOnce: BUILT,
    RefusesWithoutWords: REFUSED,
    KnobThatDoesNotTurn: KNOBS,
    BareTokens: ANSWERS,
    Drifts: SAME,
    SaysSnapshot: SNAPSHOT,
    SaysPoison: POISON,
    IgnoresPoison: POISON,
}


def test_an_adapter_that_keeps_its_promises_passes():
    assert [result.faults for result in conform(Adapter(), RUNNER_CHECKS)] == [()] * len(RUNNER_CHECKS)


@pytest.mark.parametrize("adapter", BROKEN, ids=lambda adapter: adapter.__name__)
def test_a_broken_promise_is_told_by_its_check(adapter):
    results = conform(adapter(), RUNNER_CHECKS)
    (broken,) = (result for result in results if result.faults)
    assert broken.name == BROKEN[adapter]
    assert all(text for fault in broken.faults for text in (fault.subject, fault.rule, fault.reason, fault.remedy))
    behind = results[results.index(broken) + 1 :]
    assert all(result.faults is None for result in behind), "what relies on a broken promise does not run"


def argmax(logits, temperature, seeds, positions):
    return np.argmax(logits, axis=1)


def clears(logits, temperature, seeds, positions):
    tokens = np.argmax(logits, axis=1)
    logits[:] = 0
    return tokens


def highest(logits, temperature, seeds, positions):
    return logits.shape[1] - 1 - np.argmax(logits[:, ::-1], axis=1)


def by_place(logits, temperature, seeds, positions):
    tokens = np.argmax(logits, axis=1)
    return np.where(temperature > 0, np.arange(len(tokens)), tokens)


@pytest.mark.parametrize(
    ("function", "broken"),
    [
        (argmax, None),
        (lambda *arguments: argmax(*arguments).astype(np.float32), "tokens have the right form"),
        (clears, "tokens have the right form"),
        (highest, "temperature 0 is greedy"),
        (by_place, "a token depends on its own row and key alone"),
        (lambda logits: 3, "tokens have the right form"),
    ],
)
def test_samplers(function, broken):
    results = conform(CallableSampler(function), SAMPLER_CHECKS)
    assert [result.name for result in results if result.faults] == [broken] * bool(broken)
    unkeyed = conform(CallableSampler(by_place, keyed=False), SAMPLER_CHECKS)
    assert all(result.faults == () for result in unkeyed)


def test_something_else_is_no_sampler():
    assert conform(object(), SAMPLER_CHECKS)[0].faults


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("runner", "refrunner"), 0, "PASS: 0 faults of refrunner"),
        (("sampler", "refrunner"), 0, "kept    temperature 0 is greedy"),
        (("runner", "builtins:dict"), 1, "target.name"),
        (("runner", "nothing"), 2, "package.module:object"),
    ],
)
def test_the_command(tmp_path, arguments, code, words):
    ran = CliRunner().invoke(app, ["conform", *arguments, "--json", str(tmp_path / "report.json")])
    assert (ran.exit_code, words in ran.output) == (code, True), ran.output
    assert (tmp_path / "report.json").exists() == (code != 2)


def test_what_a_campaign_lacks_is_named_with_what_it_costs(tmp_path):
    assert [*lacks(REFERENCE)] == []
    assert {*COSTS} == {*Feature}
    lacking = [*lacks(Adapter())]
    assert [lack.name for lack in lacking if lack.needed] == [feature.value for feature in NEEDED]
    assert {"seeded sampling", "hot_paths", "models", "draft_model()"} <= {lack.name for lack in lacking}
    assert "knobs" not in {lack.name for lack in lacking}
    ran = CliRunner().invoke(app, ["conform", "runner", "refrunner", "--json", str(tmp_path / "report.json")])
    assert ran.exit_code == 0 and "fit to be fuzzed" in ran.output
    assert json.loads((tmp_path / "report.json").read_text())["metrics"]["lacks"] == {}


def test_a_target_that_cannot_be_fuzzed_is_told_so(tmp_path, monkeypatch):
    (tmp_path / "poor_target.py").write_text(
        "from mrv2.fuzz.targets.baseline import BaselineTarget\n"
        "class Poor(BaselineTarget):\n    features = frozenset()\n"
    )
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["conform", "runner", "poor_target:Poor"])
    assert ran.exit_code == 0 and "not to be fuzzed without chunked prefill, preemption" in ran.output
    assert "needed  abort: mrv2 fuzz refuses the target" in ran.output
